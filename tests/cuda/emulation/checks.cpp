// The checks of each access to memory: bounds, alignment, uninitialised reads, races.
//
// Two accesses of different threads to the same bytes race if one of them writes, they are not both
// atomic, and nothing orders them. Accesses of different blocks of a launch are never ordered; within a
// block those of different intervals are, and within a warp those with a __syncwarp of all lanes between.
// A cell holds the last write and the last read of its bytes, and whether threads that nothing orders
// took part in it: in one warp, in one block, or in several blocks. This tells the truth whatever the
// order in which threads ran.

#include <algorithm>
#include <cstdlib>

#include "state.h"

namespace emulation {

namespace {

// How a thread is noted in a cell: its number in the block, who else took part, and its warp's phase.
enum Sharing : uint32_t { alone = 0, in_warp = 1, in_block = 2, over_blocks = 3 };
constexpr uint32_t thread_bits = 0x3ffu, atomic_bit = 1u << 12, pending_bit = 1u << 13, phase_shift = 14;

// Seconds of a thread that goes on by itself; more than any kernel of a test takes.
constexpr uint64_t most_accesses = 50'000'000;

uint32_t sharing_of(uint32_t noted) { return noted >> 10 & 3u; }
uint32_t with_sharing(uint32_t noted, uint32_t sharing) { return (noted & ~(3u << 10)) | sharing << 10; }
uint32_t thread_of(uint32_t noted) { return noted & thread_bits; }
uint32_t noted_thread() { return running->id | launch->warp_phase[running->warp] << phase_shift; }

// Who else an earlier access must be counted among, as seen from the running thread: those that nothing
// orders before it.
uint32_t unordered(Space space, uint32_t then, uint32_t noted) {
  // Each block has shared memory of its own.
  if (then < (space == Space::shared ? block_interval : launch_interval)) return alone;
  if (then < block_interval || sharing_of(noted) == over_blocks) return over_blocks;
  if (then < interval) return alone;
  if (sharing_of(noted) == in_block || thread_of(noted) / warp_size != running->warp) return in_block;
  bool same_phase = noted >> phase_shift == noted_thread() >> phase_shift;
  if (!same_phase) return alone;
  return thread_of(noted) == running->id && sharing_of(noted) == alone ? alone : in_warp;
}

void note(uint32_t& then, uint32_t& noted, uint16_t& noted_line, uint32_t flags, uint32_t sharing, int line) {
  if (sharing == over_blocks && then >= launch_interval) {
    noted = with_sharing(noted, over_blocks);  // keeps who it was, to be named
    return;
  }
  then = interval;
  noted = with_sharing(noted_thread() | flags, sharing);
  noted_line = uint16_t(line);
}

std::string element(const Buffer& buffer, size_t offset, size_t bytes) {
  return std::string(buffer.space == Space::shared ? "shared memory " : "") + buffer.name + ", bytes " +
         std::to_string(offset) + " to " + std::to_string(offset + bytes - 1) + " (index " +
         std::to_string(offset / bytes) + " of elements of " + std::to_string(bytes) + " bytes)";
}

const char* verb(Access access) {
  return access == Access::read ? "read" : access == Access::write ? "write" : "atomic update";
}

[[noreturn]] void race(const Buffer& buffer, size_t offset, size_t bytes, Access access, int line,
                       const char* other_access, uint32_t then, uint32_t noted, uint16_t other_line) {
  uint64_t block = running_block();
  for (size_t k = launch->first_interval_of.size(); k-- > 0;) {
    if (launch->first_interval_of[k] <= then) {
      block = launch->block_of[k];
      break;
    }
  }
  // Where several threads took part, the one that is noted may be this one.
  bool itself = thread_of(noted) == running->id && block == running_block();
  std::string other = itself ? "another thread" : place_of(launch->threads[thread_of(noted)], block);
  fail(line, "data race: %s of %s is not ordered after the %s by %s at line %u", verb(access),
       element(buffer, offset, bytes).c_str(), other_access, other.c_str(), other_line);
}

void check_cell(const Buffer& buffer, Cell& cell, size_t offset, size_t bytes, Access access, int line) {
  bool shared = buffer.space == Space::shared;
  if (shared && access != Access::write && cell.write_interval < block_interval)
    fail(line, "uninitialised %s of %s: no thread of the block has written it before", verb(access),
         element(buffer, offset, bytes).c_str());
  if (shared && (cell.write_by & pending_bit) && cell.write_interval >= block_interval)
    fail(line, "%s of %s before the asynchronous copy to it by %s at line %u was waited for", verb(access),
         element(buffer, offset, bytes).c_str(),
         place_of(launch->threads[thread_of(cell.write_by)], running_block()).c_str(), cell.write_line);
  bool atomic_before = cell.write_by & atomic_bit;
  if (access == Access::read) {
    if (cell.read_interval == interval && cell.read_by == noted_thread() &&
        cell.write_interval < interval && cell.write_interval < launch_interval)
      return;
    if (unordered(buffer.space, cell.write_interval, cell.write_by))
      race(buffer, offset, bytes, access, line, atomic_before ? "atomic update" : "write",
           cell.write_interval, cell.write_by, cell.write_line);
    uint32_t readers = unordered(buffer.space, cell.read_interval, cell.read_by);
    note(cell.read_interval, cell.read_by, cell.read_line, 0, readers, line);
    return;
  }
  if (unordered(buffer.space, cell.read_interval, cell.read_by))
    race(buffer, offset, bytes, access, line, "read", cell.read_interval, cell.read_by, cell.read_line);
  uint32_t others = unordered(buffer.space, cell.write_interval, cell.write_by);
  if (others && !(atomic_before && access == Access::atomic))
    race(buffer, offset, bytes, access, line, atomic_before ? "atomic update" : "write",
         cell.write_interval, cell.write_by, cell.write_line);
  note(cell.write_interval, cell.write_by, cell.write_line, access == Access::atomic ? atomic_bit : 0,
       others, line);
}

}  // namespace

void mark_pending(const Buffer& buffer, const char* at, size_t bytes, bool under_way) {
  size_t offset = size_t(at - buffer.base);
  size_t first = offset >> buffer.granule, last = (offset + bytes - 1) >> buffer.granule;
  for (size_t place = first; place <= last; ++place) {
    Cell& cell = buffer.cells[place];
    if (under_way) {
      cell.write_by |= pending_bit;
      continue;
    }
    cell.write_interval = interval;
    cell.write_by = noted_thread();
  }
}

char* checked(const Buffer* buffer, char* at, size_t bytes, size_t alignment, Access access, int line) {
  if (!buffer) return at;
  if (++launch->accesses > most_accesses)
    fail(line, "%llu accesses of one thread without an end", (unsigned long long)launch->accesses);
  ptrdiff_t offset = at - buffer->base;
  if (offset < 0 || size_t(offset) + bytes > buffer->bytes) {
    fail(line, "out-of-bounds %s of %s%s: index %lld of elements of %zu bytes, the array has %zu (%zu bytes)",
         verb(access), buffer->space == Space::shared ? "shared memory " : "", buffer->name,
         (long long)(offset / ptrdiff_t(bytes)) - (offset < 0 && offset % ptrdiff_t(bytes) != 0), bytes,
         buffer->bytes / bytes, buffer->bytes);
  }
  if (offset % alignment != 0 || buffer->alignment % alignment != 0) {
    fail(line, "misaligned %s of %s: expected an address that is a multiple of %zu, found offset %td in an "
         "array aligned to %zu", verb(access), element(*buffer, offset, bytes).c_str(), alignment, offset,
         buffer->alignment);
  }
  if (bytes < (size_t(1) << buffer->granule))
    fail(line, "emulation: %s of %zu bytes in %s, whose accesses are told apart by %d bytes", verb(access),
         bytes, buffer->name, 1 << buffer->granule);
  size_t first = size_t(offset) >> buffer->granule, last = (size_t(offset) + bytes - 1) >> buffer->granule;
  for (size_t cell = first; cell <= last; ++cell)
    check_cell(*buffer, buffer->cells[cell], offset, bytes, access, line);
  if (buffer->written) {
    for (size_t cell = first; cell <= last; ++cell) {
      if (access == Access::read && !buffer->written[cell])
        fail(line, "uninitialised read of workspace %s", element(*buffer, offset, bytes).c_str());
      buffer->written[cell] = 1;
    }
  }
  return at;
}

void declare_shared(Buffer* buffer, const char* name, void* storage, size_t bytes, size_t alignment,
                    int granule) {
  buffer->base = static_cast<char*>(storage);
  buffer->bytes = bytes;
  buffer->alignment = alignment;
  buffer->name = name;
  buffer->granule = granule;
  buffer->space = Space::shared;
  buffer->cells = static_cast<Cell*>(std::calloc((bytes >> granule) + 1, sizeof(Cell)));
  launch->kernel->static_shared += bytes;
}

void check_shared_size(int line) {
  size_t declared = launch->kernel->static_shared, limit = launch->kernel->shared_limit;
  if (declared > 48 * 1024)
    fail(line, "%s declares %zu bytes of static shared memory, the limit is 49152", launch->kernel->name,
         declared);
  if (declared + launch->dynamic_bytes > limit)
    fail(line, "%s needs %zu bytes of static and %zu of dynamic shared memory, the limit is %zu",
         launch->kernel->name, declared, launch->dynamic_bytes, limit);
}

}  // namespace emulation
