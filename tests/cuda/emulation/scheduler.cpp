// Runs the blocks of a grid one after another, and the threads of a block as fibers.
//
// A thread runs until it ends or waits. One that never waits leaves its stack to the next. Lanes of a
// warp that wait in a collective go on when the last one of their mask arrives; threads at a barrier go
// on when all threads of the block are there. Where nobody can go on, the launch is refused, with who
// waits where.

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <memory>

#include "ptx.h"
#include "state.h"

namespace emulation {

uint3 thread_index, block_index;
dim3 block_extent, grid_extent;
unsigned int lane_index;
Launch* launch = nullptr;
Thread* running = nullptr;
uint32_t interval = 1, block_interval = 1, launch_interval = 1;
Order order = Order::forward;
uint64_t order_seed = 0;
uint64_t last_blocks = UINT64_MAX;

namespace {

void* scheduler_stack;
std::string failure;
bool failed = false;
std::vector<std::unique_ptr<Fiber>> fibers;  // all
std::vector<Fiber*> idle;                    // those whose thread has ended

void fiber_main() {
  for (;;) {
    launch->body(launch->parameters);
    running->state = State::exited;
    emulation_switch(&running->fiber->stack_pointer, scheduler_stack);
  }
}

Fiber* take_fiber() {
  if (idle.empty()) {
    fibers.push_back(std::make_unique<Fiber>());
    fibers.back()->prepare(fiber_main);
    idle.push_back(fibers.back().get());
  }
  Fiber* fiber = idle.back();
  idle.pop_back();
  return fiber;
}

void forget_fibers() {
  idle.clear();
  for (auto& fiber : fibers) {
    fiber->prepare(fiber_main);
    idle.push_back(fiber.get());
  }
}

void wait(State state, const char* name, int line) {
  running->state = state;
  running->waits_in = name;
  running->line = line;
  emulation_switch(&running->fiber->stack_pointer, scheduler_stack);
}

void resume(Thread& thread) {
  if (thread.state == State::fresh) thread.fiber = take_fiber();
  thread.state = State::ready;
  running = &thread;
  launch->accesses = 0;
  thread_index = thread.index;
  lane_index = thread.lane;
  emulation_switch(&scheduler_stack, thread.fiber->stack_pointer);
  running = nullptr;
  if (failed) {
    failed = false;
    throw Refusal{failure};
  }
  if (thread.state == State::exited) idle.push_back(thread.fiber);
}

bool can_run(const Thread& thread) {
  return thread.state == State::fresh || thread.state == State::ready || thread.state == State::paused;
}

std::string doing(const Thread& thread) {
  if (thread.state == State::exited) return "has ended";
  return "waits in " + std::string(thread.waits_in) + " at line " + std::to_string(thread.line);
}

// The threads of one warp.
struct Warp {
  Thread* first;
  unsigned int count;

  Thread& operator[](unsigned int lane) const { return first[lane]; }
  unsigned int existing() const { return count == 32 ? ~0u : (1u << count) - 1u; }
};

Warp warp_of(const Thread& thread) {
  unsigned int first = thread.warp * warp_size;
  unsigned int count = std::min<unsigned int>(warp_size, launch->threads.size() - first);
  return {&launch->threads[first], count};
}

// Lets all lanes that wait for their mask at one place go on with it.
bool release_active_masks(const Warp& warp) {
  for (unsigned int lane = 0; lane < warp.count; ++lane) {
    if (warp[lane].state != State::mask) continue;
    unsigned int mask = 0;
    int line = warp[lane].line;
    for (unsigned int other = lane; other < warp.count; ++other)
      if (warp[other].state == State::mask && warp[other].line == line) mask |= 1u << other;
    for (unsigned int other = lane; other < warp.count; ++other) {
      if (!(mask >> other & 1u)) continue;
      warp[other].value = mask;
      warp[other].state = State::ready;
    }
    return true;
  }
  return false;
}

[[noreturn]] void refuse_incomplete(const Warp& warp, const Thread& waiting) {
  unsigned int mask = waiting.mask & warp.existing();
  for (unsigned int lane = 0; lane < warp.count; ++lane) {
    const Thread& other = warp[lane];
    bool arrived = other.state == State::collective && other.waits_in == waiting.waits_in &&
                   other.line == waiting.line && other.mask == waiting.mask;
    if (!(mask >> lane & 1u) || arrived) continue;
    char text[64];
    std::snprintf(text, sizeof text, " with mask 0x%08x", waiting.mask);
    throw Refusal{std::string(waiting.waits_in) + " in a part of its mask: " +
                  place_of(waiting, running_block()) + " " + doing(waiting) + text + ", " +
                  place_of(other, running_block()) + " " + doing(other)};
  }
  throw Refusal{"internal error: complete but not released"};
}

std::vector<unsigned int> lane_order(unsigned int count) {
  std::vector<unsigned int> lanes(count);
  for (unsigned int lane = 0; lane < count; ++lane) lanes[lane] = lane;
  if (order == Order::reverse) std::reverse(lanes.begin(), lanes.end());
  return lanes;
}

// Runs the threads of a warp until each has ended or waits at a barrier.
bool run_warp(const Warp& warp, const std::vector<unsigned int>& lanes) {
  bool paused = false;
  for (bool ran = true; ran;) {
    ran = false;
    paused = false;
    for (unsigned int lane : lanes) {
      if (lane >= warp.count || !can_run(warp[lane])) continue;
      resume(warp[lane]);
      if (warp[lane].state == State::paused) paused = true;
      else ran = true;
    }
    if (!ran && !paused) ran = release_active_masks(warp);
  }
  if (paused) return true;
  for (unsigned int lane = 0; lane < warp.count; ++lane)
    if (warp[lane].state == State::collective) refuse_incomplete(warp, warp[lane]);
  return false;
}

// Lets the block pass a barrier; false if all threads have ended.
bool pass_barrier() {
  std::vector<Thread>& threads = launch->threads;
  const Thread* at = nullptr;
  for (const Thread& thread : threads)
    if (thread.state == State::barrier) at = &thread;
  if (!at) return false;
  unsigned int sum = 0;
  for (const Thread& thread : threads) {
    if (thread.state != State::barrier || thread.line != at->line || thread.waits_in != at->waits_in) {
      throw Refusal{"divergent barrier: " + place_of(*at, running_block()) + " " + doing(*at) + ", " +
                    place_of(thread, running_block()) + " " + doing(thread)};
    }
    sum += thread.value;
  }
  ++interval;
  for (Thread& thread : threads) {
    thread.value = sum;
    thread.state = State::ready;
  }
  return true;
}

void run_block() {
  std::vector<Thread>& threads = launch->threads;
  for (Thread& thread : threads) {
    thread.state = State::fresh;
    thread.value = 0;
  }
  std::fill(launch->warp_phase.begin(), launch->warp_phase.end(), 0);
  launch->pending.clear();
  std::vector<unsigned int> lanes = lane_order(warp_size);
  unsigned int warps = launch->warp_phase.size();
  unsigned int idle_rounds = 0;
  for (;;) {
    bool paused = false;
    for (unsigned int place = 0; place < warps; ++place) {
      unsigned int warp = order == Order::reverse ? warps - 1 - place : place;
      paused |= run_warp(warp_of(threads[warp * warp_size]), lanes);
    }
    if (paused) {
      if (++idle_rounds > 100000) throw Refusal{"threads wait for something that does not happen"};
      continue;
    }
    idle_rounds = 0;
    if (!pass_barrier()) return;
  }
}

std::vector<uint64_t> block_order(uint64_t count) {
  std::vector<uint64_t> blocks(order == Order::forward ? 0 : count);
  for (uint64_t block = 0; block < blocks.size(); ++block) blocks[block] = count - 1 - block;
  if (order == Order::shuffled) {
    uint64_t random = order_seed * 2 + 1;
    for (uint64_t place = count; place > 1; --place) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      std::swap(blocks[place - 1], blocks[(random >> 33) % place]);
    }
  }
  return blocks;
}

}  // namespace

void refuse(std::string message) {
  if (!running) throw Refusal{message};
  failure = std::move(message);
  failed = true;
  emulation_switch(&running->fiber->stack_pointer, scheduler_stack);
  __builtin_unreachable();
}

void fail(int line, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::string message = text;
  if (running) message += ", by " + place_of(*running, running_block());
  if (line > 0) message += ", at line " + std::to_string(line);
  refuse(message);
}

uint64_t running_block() {
  return block_index.x + uint64_t(grid_extent.x) * (block_index.y + uint64_t(grid_extent.y) * block_index.z);
}

std::string place_of(const Thread& thread, uint64_t block) {
  uint64_t x = block % grid_extent.x, y = block / grid_extent.x % grid_extent.y,
           z = block / grid_extent.x / grid_extent.y;
  char text[160];
  std::snprintf(text, sizeof text, "thread (%u, %u, %u) of block (%llu, %llu, %llu)", thread.index.x,
                thread.index.y, thread.index.z, (unsigned long long)x, (unsigned long long)y,
                (unsigned long long)z);
  return text;
}

void run_grid(Launch& grid) {
  launch = &grid;
  // Intervals of old launches lie in the cells of shared memory: they must not be met again.
  if (interval > 0xf0000000u) throw Refusal{"emulation: too many blocks for one process"};
  launch_interval = ++interval;
  uint64_t count = uint64_t(grid_extent.x) * grid_extent.y * grid_extent.z;
  uint64_t first = count - std::min(count, last_blocks);
  std::vector<uint64_t> blocks = block_order(count - first);
  try {
    for (uint64_t place = 0; place < count - first; ++place) {
      uint64_t block = first + (blocks.empty() ? place : blocks[place]);
      block_index.x = block % grid_extent.x;
      block_index.y = block / grid_extent.x % grid_extent.y;
      block_index.z = block / grid_extent.x / grid_extent.y;
      block_interval = ++interval;
      grid.first_interval_of.push_back(interval);
      grid.block_of.push_back(block);
      run_block();
    }
  } catch (...) {
    forget_fibers();
    running = nullptr;
    launch = nullptr;
    throw;
  }
  launch = nullptr;
}

void barrier(const char* name, int line) {
  running->value = 0;
  wait(State::barrier, name, line);
}

unsigned int barrier_sum(const char* name, unsigned int value, int line) {
  running->value = value;
  wait(State::barrier, name, line);
  return running->value;
}

void named_barrier(int number, int count, int line) {
  if (size_t(count) != launch->threads.size())
    fail(line, "barrier %d of %d threads: only barriers of the whole block are emulated", number, count);
  barrier("bar.sync", line);
}

unsigned int active_mask(int line) {
  wait(State::mask, "__activemask", line);
  return running->value;
}

void pause(int line) { wait(State::paused, "a loop that waits", line); }

void collective(const char* name, unsigned int mask, void* slot, void (*combine)(Slots), int line) {
  Thread& self = *running;
  Warp warp = warp_of(self);
  if (!(mask >> self.lane & 1u)) fail(line, "%s: mask 0x%08x lacks the calling lane %u", name, mask, self.lane);
  self.state = State::collective;
  self.waits_in = name;
  self.line = line;
  self.mask = mask;
  self.slot = slot;
  self.combine = combine;
  void* slots[warp_size] = {};
  for (unsigned int lane = 0; lane < warp.count; ++lane) {
    if (!(mask >> lane & 1u)) continue;
    const Thread& other = warp[lane];
    bool arrived = other.state == State::collective && other.waits_in == name && other.line == line &&
                   other.mask == mask && other.combine == combine;
    if (!arrived) {
      wait(State::collective, name, line);
      return;
    }
    slots[lane] = other.slot;
  }
  for (unsigned int lane = 0; lane < warp.count; ++lane)
    if (mask >> lane & 1u) warp[lane].state = State::ready;
  if (combine) combine(slots);
}

void synchronize_warp(unsigned int mask, int line) {
  Thread& self = *running;
  Warp warp = warp_of(self);
  uint32_t* phase = &launch->warp_phase[self.warp];
  uint32_t before = *phase;
  collective("__syncwarp", mask, nullptr, nullptr, line);
  // The last lane to arrive is the first to come here.
  bool whole = (mask & warp.existing()) == warp.existing();
  if (whole && *phase == before) ++*phase;
}

}  // namespace emulation
