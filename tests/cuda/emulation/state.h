// What the parts of the emulator share about the launch that runs: threads, blocks, intervals.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "execution.h"
#include "fiber.h"
#include "launch.h"
#include "memory.h"

namespace emulation {

// Why a launch was ended.
struct Refusal {
  std::string message;
};

enum class State : uint8_t { fresh, ready, barrier, collective, mask, paused, exited };

struct Thread {
  uint3 index;
  unsigned int id, lane, warp;
  State state;
  Fiber* fiber;
  const char* waits_in;  // name of what it waits in
  int line;              // where
  unsigned int mask;
  void* slot;
  void (*combine)(Slots);
  unsigned int value;    // of barrier_sum and active_mask
};

// An asynchronous copy under way, and those of one thread.
struct Copy {
  const Buffer* buffer;
  char* target;
  size_t bytes;
  char data[16];
  int line;
  int group = -1;  // none until it is committed
};
struct Pending {
  unsigned int thread;
  std::vector<Copy> copies;
  int groups;  // committed so far
};

struct Launch {
  Kernel* kernel;
  void (*body)(const void*);
  const void* parameters;
  size_t dynamic_bytes;
  std::vector<Thread> threads;
  std::vector<uint32_t> warp_phase;         // barriers of its own that each warp has passed
  std::vector<uint32_t> first_interval_of;  // the first interval of each block that has run
  std::vector<uint64_t> block_of;           // and which block that is
  uint64_t accesses = 0;                    // of the running thread since it was last resumed
  std::vector<Pending> pending;             // of the threads of the block that runs
  std::vector<const Buffer*> addressed;     // arrays in shared memory whose address was taken
};

extern Launch* launch;
extern Thread* running;  // null between threads

// Time is counted in intervals: each block starts one, each of its barriers the next. They go on over
// launches, so that what an earlier one left behind is told apart.
extern uint32_t interval, block_interval, launch_interval;

// How blocks and threads follow each other.
enum class Order { forward, reverse, shuffled };
extern Order order;
extern uint64_t order_seed;
// How many blocks of a grid run, its last ones.
extern uint64_t last_blocks;

// Notes that a copy to these bytes is under way, or has arrived by the running thread.
void mark_pending(const Buffer& buffer, const char* at, size_t bytes, bool under_way);
void run_grid(Launch& launch);
std::string place_of(const Thread& thread, uint64_t block);
uint64_t running_block();
// Ends the launch, from a thread or from outside.
[[noreturn]] void refuse(std::string message);

}  // namespace emulation
