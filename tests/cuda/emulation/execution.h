// Threads, blocks, barriers and what the lanes of a warp exchange.
//
// The threads of a block are fibers that run one after another; each runs until it ends or waits for
// others (scheduler.cpp). What a warp does together is a `collective`: a lane passes a slot with its
// operands and waits until all lanes of its mask have come to the same place; the last one calls a
// function that computes the results of all.
#pragma once

#include <cstdint>
#include <cstring>

#include "vectors.h"

struct dim3 {
  unsigned int x, y, z;
  dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
};

namespace emulation {

extern uint3 thread_index, block_index;
extern dim3 block_extent, grid_extent;
extern unsigned int lane_index;

constexpr int warp_size = 32;

// Ends the launch with an error that names the running thread; does not return.
[[noreturn]] void fail(int line, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Slots of the lanes that take part, null for the others.
using Slots = void* const*;
void collective(const char* name, unsigned int mask, void* slot, void (*combine)(Slots), int line);
void barrier(const char* name, int line);
// As a barrier for all threads of a block that also sums `value`.
unsigned int barrier_sum(const char* name, unsigned int value, int line);
void synchronize_warp(unsigned int mask, int line);
unsigned int active_mask(int line);
// Lets other threads run: for loops that wait for what another thread does.
void pause(int line);

// ---- Shuffles -------------------------------------------------------------------------------------

template <class T>
struct ShuffleSlot {
  T value;
  int source;  // the lane that is read
  T result;
};

template <class T>
void combine_shuffle(Slots slots) {
  for (int lane = 0; lane < warp_size; ++lane) {
    if (!slots[lane]) continue;
    auto* slot = static_cast<ShuffleSlot<T>*>(slots[lane]);
    auto* source = static_cast<ShuffleSlot<T>*>(slots[slot->source]);
    // A lane that takes no part has no value: what is read then is undefined, here NaN.
    if (source) slot->result = source->value;
    else std::memset(&slot->result, 0xff, sizeof(T));
  }
}

template <class T>
T shuffle(const char* name, unsigned int mask, T value, int source, int line) {
  ShuffleSlot<T> slot{value, source, value};
  collective(name, mask, &slot, combine_shuffle<T>, line);
  return slot.result;
}

inline int segment(int lane, int width) { return lane & ~(width - 1); }

template <class T>
T shuffle_from(unsigned int mask, T value, int source, int width, int line) {
  int lane = lane_index;
  return shuffle("__shfl_sync", mask, value, segment(lane, width) + (source & (width - 1)), line);
}
template <class T>
T shuffle_up(unsigned int mask, T value, unsigned int delta, int width, int line) {
  int lane = lane_index, source = lane - int(delta);
  return shuffle("__shfl_up_sync", mask, value, source < segment(lane, width) ? lane : source, line);
}
template <class T>
T shuffle_down(unsigned int mask, T value, unsigned int delta, int width, int line) {
  int lane = lane_index, source = lane + int(delta);
  bool inside = source < segment(lane, width) + width;
  return shuffle("__shfl_down_sync", mask, value, inside ? source : lane, line);
}
template <class T>
T shuffle_xor(unsigned int mask, T value, int lanes, int width, int line) {
  int lane = lane_index, source = lane ^ lanes;
  bool inside = source < segment(lane, width) + width;
  return shuffle("__shfl_xor_sync", mask, value, inside ? source : lane, line);
}

// ---- Votes and reductions --------------------------------------------------------------------------

struct VoteSlot {
  unsigned int value, result;
};
template <class Fold>
void fold_lanes(Slots slots, Fold fold) {
  unsigned int result = 0;
  bool first = true;
  for (int lane = 0; lane < warp_size; ++lane) {
    if (!slots[lane]) continue;
    unsigned int value = static_cast<VoteSlot*>(slots[lane])->value;
    result = first ? value : fold(result, value);
    first = false;
  }
  for (int lane = 0; lane < warp_size; ++lane)
    if (slots[lane]) static_cast<VoteSlot*>(slots[lane])->result = result;
}
inline unsigned int vote(const char* name, unsigned int mask, unsigned int value, void (*combine)(Slots),
                         int line) {
  VoteSlot slot{value, 0};
  collective(name, mask, &slot, combine, line);
  return slot.result;
}

}  // namespace emulation

#define threadIdx (::emulation::thread_index)
#define blockIdx (::emulation::block_index)
#define blockDim (::emulation::block_extent)
#define gridDim (::emulation::grid_extent)
constexpr int warpSize = 32;

inline void __syncthreads(int line = __builtin_LINE()) { emulation::barrier("__syncthreads", line); }
inline int __syncthreads_count(int value, int line = __builtin_LINE()) {
  return emulation::barrier_sum("__syncthreads_count", value != 0, line);
}
inline int __syncthreads_or(int value, int line = __builtin_LINE()) {
  return emulation::barrier_sum("__syncthreads_or", value != 0, line) != 0;
}
inline int __syncthreads_and(int value, int line = __builtin_LINE()) {
  return emulation::barrier_sum("__syncthreads_and", value == 0, line) == 0;
}
inline void __syncwarp(unsigned int mask = 0xffffffffu, int line = __builtin_LINE()) {
  emulation::synchronize_warp(mask, line);
}
inline unsigned int __activemask(int line = __builtin_LINE()) { return emulation::active_mask(line); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned int, int line = __builtin_LINE()) { emulation::pause(line); }

#define EMULATION_SHUFFLES(T)                                                                          \
  inline T __shfl_sync(unsigned int mask, T value, int lane, int width = 32,                          \
                       int line = __builtin_LINE()) {                                                 \
    return emulation::shuffle_from<T>(mask, value, lane, width, line);                                \
  }                                                                                                   \
  inline T __shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = 32,             \
                          int line = __builtin_LINE()) {                                              \
    return emulation::shuffle_up<T>(mask, value, delta, width, line);                                 \
  }                                                                                                   \
  inline T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = 32,           \
                            int line = __builtin_LINE()) {                                            \
    return emulation::shuffle_down<T>(mask, value, delta, width, line);                               \
  }                                                                                                   \
  inline T __shfl_xor_sync(unsigned int mask, T value, int lanes, int width = 32,                     \
                           int line = __builtin_LINE()) {                                             \
    return emulation::shuffle_xor<T>(mask, value, lanes, width, line);                                \
  }
EMULATION_SHUFFLES(int)
EMULATION_SHUFFLES(unsigned int)
EMULATION_SHUFFLES(long)
EMULATION_SHUFFLES(unsigned long)
EMULATION_SHUFFLES(long long)
EMULATION_SHUFFLES(unsigned long long)
EMULATION_SHUFFLES(float)
EMULATION_SHUFFLES(double)

#define EMULATION_VOTE(NAME, TYPE, VALUE, FOLD)                                                        \
  inline TYPE NAME(unsigned int mask, TYPE value, int line = __builtin_LINE()) {                      \
    return emulation::vote(#NAME, mask, VALUE, [](emulation::Slots slots) {                           \
      emulation::fold_lanes(slots, [](unsigned int a, unsigned int b) -> unsigned int { return FOLD; }); \
    }, line);                                                                                         \
  }
EMULATION_VOTE(__any_sync, int, value != 0, a | b)
EMULATION_VOTE(__all_sync, int, value != 0, a & b)
EMULATION_VOTE(__reduce_add_sync, unsigned int, value, a + b)
EMULATION_VOTE(__reduce_min_sync, unsigned int, value, a < b ? a : b)
EMULATION_VOTE(__reduce_max_sync, unsigned int, value, a > b ? a : b)
EMULATION_VOTE(__reduce_and_sync, unsigned int, value, a & b)
EMULATION_VOTE(__reduce_or_sync, unsigned int, value, a | b)
EMULATION_VOTE(__reduce_xor_sync, unsigned int, value, a ^ b)
EMULATION_VOTE(__reduce_add_sync, int, value, a + b)
EMULATION_VOTE(__reduce_min_sync, int, value, int(a) < int(b) ? a : b)
EMULATION_VOTE(__reduce_max_sync, int, value, int(a) > int(b) ? a : b)

inline unsigned int __ballot_sync(unsigned int mask, int predicate, int line = __builtin_LINE()) {
  unsigned int bit = predicate ? 1u << emulation::lane_index : 0u;
  return emulation::vote("__ballot_sync", mask, bit, [](emulation::Slots slots) {
    emulation::fold_lanes(slots, [](unsigned int a, unsigned int b) { return a | b; });
  }, line);
}
