// Asynchronous copies to shared memory, and addresses in it.
//
// A copy arrives when its thread waits for its group, and not before: until then its target holds NaN
// and must not be touched. Other threads may read it after a barrier that follows the wait.

#include <algorithm>

#include "ptx.h"
#include "state.h"

namespace emulation {

namespace {

constexpr int offset_bits = 20;

Pending* find_pending(unsigned int thread) {
  for (Pending& pending : launch->pending)
    if (pending.thread == thread) return &pending;
  return nullptr;
}

Pending& own_pending() {
  if (Pending* found = find_pending(running->id)) return *found;
  launch->pending.push_back({running->id, {}, 0});
  return launch->pending.back();
}

}  // namespace

uint32_t shared_address(const Buffer* buffer, const char* at, int line) {
  if (!buffer || buffer->space != Space::shared)
    fail(line, "address of shared memory: found one of other memory");
  auto& arrays = launch->addressed;
  size_t number = std::find(arrays.begin(), arrays.end(), buffer) - arrays.begin();
  if (number == arrays.size()) arrays.push_back(buffer);
  // Half of the offsets stand for places before the array, so that leaving it on either side shows.
  return uint32_t(number + 1) << offset_bits | uint32_t(at - buffer->base + (1 << (offset_bits - 1)));
}

Ptr<void> shared_pointer(uint32_t address, int line) {
  size_t number = address >> offset_bits;
  if (number == 0 || number > launch->addressed.size())
    fail(line, "0x%08x is no address of an array in shared memory", address);
  const Buffer* buffer = launch->addressed[number - 1];
  ptrdiff_t offset = ptrdiff_t(address & ((1u << offset_bits) - 1)) - (1 << (offset_bits - 1));
  return Ptr<void>(buffer, buffer->base + offset, line);
}

void copy_async(const Ptr<void>& target, const Ptr<void>& source, int size, int given, int line) {
  if (size != 4 && size != 8 && size != 16) fail(line, "cp.async: expected 4, 8 or 16 bytes, found %d", size);
  Copy copy{target.buffer, target.at, size_t(size), {}, line};
  if (given > 0) {
    // The address must be aligned for the whole copy even where only a part is read.
    const char* from = checked(source.buffer, source.at, size_t(given), size_t(size), Access::read, line);
    std::memcpy(copy.data, from, size_t(std::min(given, size)));
  }
  char* to = checked(target.buffer, target.at, size_t(size), size_t(size), Access::write, line);
  std::memset(to, 0xff, size_t(size));
  mark_pending(*target.buffer, to, size_t(size), true);
  own_pending().copies.push_back(copy);
}

void commit_copies(int) {
  Pending& pending = own_pending();
  for (Copy& copy : pending.copies)
    if (copy.group < 0) copy.group = pending.groups;
  ++pending.groups;
}

void wait_for_copies(int still_pending, int) {
  Pending* pending = find_pending(running->id);
  if (!pending) return;
  int arrived = pending->groups - still_pending;
  auto arrives = [&](const Copy& copy) { return copy.group >= 0 && copy.group < arrived; };
  for (const Copy& copy : pending->copies) {
    if (!arrives(copy)) continue;
    std::memcpy(copy.target, copy.data, copy.bytes);
    mark_pending(*copy.buffer, copy.target, copy.bytes, false);
  }
  auto& copies = pending->copies;
  copies.erase(std::remove_if(copies.begin(), copies.end(), arrives), copies.end());
}

}  // namespace emulation
