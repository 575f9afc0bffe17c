// Instructions of PTX that generated kernels write inline: matrix instructions with their registers,
// asynchronous copies, predicated loads and stores. inline_ptx.py makes the calls.
#pragma once

#include <cstdint>
#include <cstring>

#include "execution.h"
#include "low_precision.h"
#include "memory.h"
#include "wmma.h"

namespace emulation {

// Addresses in shared memory are 32 bits wide in PTX: the number of the array in the launch, and an offset.
uint32_t shared_address(const Buffer* buffer, const char* at, int line);
Ptr<void> shared_pointer(uint32_t address, int line);

// A copy of `size` bytes, of which `given` come from `source` and the others are zero.
void copy_async(const Ptr<void>& target, const Ptr<void>& source, int size, int given, int line);
void commit_copies(int line);
// Waits for all committed groups of the thread but the last `pending`.
void wait_for_copies(int pending, int line);
// Waits until `count` threads of the block have come to barrier `number`.
void named_barrier(int number, int count, int line);

namespace ptx {

template <class T, class... Rest>
struct Outputs {
  void* registers[1 + sizeof...(Rest)];
  template <class V>
  void set(int place, V value) const {
    static_assert(sizeof(V) == sizeof(T));
    std::memcpy(registers[place], &value, sizeof(V));
  }
};
template <class... T>
Outputs<T...> outputs(T&... registers) {
  return {{&registers...}};
}

template <size_t count>
struct Inputs {
  uint32_t registers[count];
};
template <class T>
uint32_t input_bits(const T& value) {
  static_assert(sizeof(T) <= 4);
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class... T>
Inputs<sizeof...(T)> inputs(const T&... registers) {
  return {{input_bits(registers)...}};
}

// ---- Matrices --------------------------------------------------------------------------------------

struct f32 {
  static constexpr int bits = 32;
  static float from(uint32_t bits) { return bits_as<float>(bits); }
  static uint32_t to(float value) { return bits_as<uint32_t>(value); }
};
struct tf32 : f32 {
  static float from(uint32_t bits) { return truncated_tf32(bits_as<float>(bits)); }
};
struct f16 {
  static constexpr int bits = 16;
  static float from(uint32_t bits) { return HalfFormat::to_float(uint16_t(bits)); }
  static uint32_t to(float value) { return HalfFormat::from_float(value); }
};
struct bf16 {
  static constexpr int bits = 16;
  static float from(uint32_t bits) { return BFloat16Format::to_float(uint16_t(bits)); }
  static uint32_t to(float value) { return BFloat16Format::from_float(value); }
};
struct s32 {
  static constexpr int bits = 32;
  static int from(uint32_t bits) { return int(bits); }
  static uint32_t to(int value) { return uint32_t(value); }
};
struct s8 {
  static constexpr int bits = 8;
  static int from(uint32_t bits) { return int8_t(bits); }
};
struct u8 {
  static constexpr int bits = 8;
  static int from(uint32_t bits) { return uint8_t(bits); }
};

// One matrix over the registers of a warp, as the manual draws it: tiles of eight rows, each row held
// by four lanes, each of which holds `each` neighbours. `row` and `column` are of element e of a lane.
struct Spread {
  int row, column;
};
// A (m x k) and C (m x n) step down through rows of eight first, then to the right.
template <int rows, int each>
Spread by_rows(int lane, int element) {
  int tile = element / each;
  int down = tile % (rows / 8), right = tile / (rows / 8);
  return {lane / 4 + 8 * down, lane % 4 * each + element % each + 4 * each * right};
}
// B (k x n) has the lanes over columns and steps down through rows.
template <int each>
Spread by_columns(int lane, int element) {
  return {lane % 4 * each + element % each + 4 * each * (element / each), lane / 4};
}

struct MmaSlot {
  const uint32_t *a, *b, *c;
  uint32_t* d;
};

template <class T>
auto element_of(const uint32_t* registers, int element) {
  constexpr int each = 32 / T::bits;
  return T::from(registers[element / each] >> (element % each * T::bits));
}

template <int m, int n, int k, class D, class A, class B, class C>
void combine_mma(Slots slots) {
  constexpr int each = 32 / A::bits;
  using Sum = decltype(A::from(0) * B::from(0));
  Sum a[m][k], b[k][n], sums[m][n];
  for (int lane = 0; lane < warp_size; ++lane) {
    if (!slots[lane]) fail(0, "mma.sync needs a warp of 32 threads, lane %d does not exist", lane);
    auto* slot = static_cast<MmaSlot*>(slots[lane]);
    for (int element = 0; element < m * k / 32; ++element) {
      Spread at = by_rows<m, each>(lane, element);
      a[at.row][at.column] = element_of<A>(slot->a, element);
    }
    for (int element = 0; element < k * n / 32; ++element) {
      Spread at = by_columns<each>(lane, element);
      b[at.row][at.column] = element_of<B>(slot->b, element);
    }
    // Of C and D each lane holds pairs of neighbours in a row, whatever their type.
    for (int element = 0; element < m * n / 32; ++element) {
      Spread at{lane / 4 + 8 * (element / 2), lane % 4 * 2 + element % 2};
      sums[at.row][at.column] = element_of<C>(slot->c, element);
    }
  }
  for (int row = 0; row < m; ++row)
    for (int inner = 0; inner < k; ++inner)
      for (int column = 0; column < n; ++column) sums[row][column] += a[row][inner] * b[inner][column];
  for (int lane = 0; lane < warp_size; ++lane) {
    auto* slot = static_cast<MmaSlot*>(slots[lane]);
    for (int element = 0; element < m * n * D::bits / 1024; ++element) slot->d[element] = 0;
    for (int element = 0; element < m * n / 32; ++element) {
      constexpr int per_register = 32 / D::bits;
      Sum value = sums[lane / 4 + 8 * (element / 2)][lane % 4 * 2 + element % 2];
      slot->d[element / per_register] |= D::to(value) << (element % per_register * D::bits);
    }
  }
}

template <int m, int n, int k, class D, class A, class B, class C, class Out, size_t na, size_t nb, size_t nc>
void mma(const Out& d, const Inputs<na>& a, const Inputs<nb>& b, const Inputs<nc>& c, int line) {
  static_assert(n == 8 && m * k * A::bits == int(na) * 1024 && k * n * B::bits == int(nb) * 1024 &&
                m * n * C::bits == int(nc) * 1024);
  uint32_t result[m * n * D::bits / 1024];
  MmaSlot slot{a.registers, b.registers, c.registers, result};
  collective("mma.sync", 0xffffffffu, &slot, combine_mma<m, n, k, D, A, B, C>, line);
  for (size_t place = 0; place < sizeof(result) / 4; ++place) d.set(int(place), result[place]);
}

struct LdmatrixSlot {
  uint16_t row[8];       // the row that this lane's address names
  uint32_t registers[4];
};

template <int count, bool transposed>
void combine_ldmatrix(Slots slots) {
  for (int lane = 0; lane < warp_size; ++lane) {
    if (!slots[lane]) fail(0, "ldmatrix needs a warp of 32 threads, lane %d does not exist", lane);
    for (int matrix = 0; matrix < count; ++matrix) {
      auto value = [&](int row, int column) -> uint32_t {
        return static_cast<LdmatrixSlot*>(slots[matrix * 8 + row])->row[column];
      };
      int row = lane / 4, column = lane % 4 * 2;
      uint32_t low = transposed ? value(column, row) : value(row, column);
      uint32_t high = transposed ? value(column + 1, row) : value(row, column + 1);
      static_cast<LdmatrixSlot*>(slots[lane])->registers[matrix] = low | high << 16;
    }
  }
}

template <int count, bool transposed, class Out>
void ldmatrix(const Out& out, uint32_t address, int line) {
  LdmatrixSlot slot{};
  if (int(lane_index) < count * 8) {
    Ptr<void> row = shared_pointer(address, line);
    std::memcpy(slot.row, checked(row.buffer, row.at, 16, 16, Access::read, line), 16);
  }
  collective("ldmatrix", 0xffffffffu, &slot, combine_ldmatrix<count, transposed>, line);
  for (int matrix = 0; matrix < count; ++matrix) out.set(matrix, slot.registers[matrix]);
}

// ---- Loads and stores ------------------------------------------------------------------------------

inline void cp_async(uint32_t target, const Ptr<void>& source, int size, int line) {
  copy_async(shared_pointer(target, line), source, size, size, line);
}
inline void cp_async(uint32_t target, const Ptr<void>& source, int size, int given, int line) {
  copy_async(shared_pointer(target, line), source, size, given, line);
}

template <size_t count>
void st_shared(uint32_t address, const Inputs<count>& values, int line) {
  Ptr<void> target = shared_pointer(address, line);
  constexpr size_t bytes = count * 4;
  std::memcpy(checked(target.buffer, target.at, bytes, bytes, Access::write, line), values.registers, bytes);
}
template <class... T>
void ld_shared(const Outputs<T...>& values, uint32_t address, int line) {
  Ptr<void> source = shared_pointer(address, line);
  constexpr size_t bytes = sizeof...(T) * 4;
  uint32_t read[sizeof...(T)];
  std::memcpy(read, checked(source.buffer, source.at, bytes, bytes, Access::read, line), bytes);
  for (size_t place = 0; place < sizeof...(T); ++place) values.set(int(place), read[place]);
}
template <class... T>
void ld_global(const Outputs<T...>& values, const Ptr<void>& source, int line) {
  constexpr size_t bytes = sizeof...(T) * 4;
  uint32_t read[sizeof...(T)];
  std::memcpy(read, checked(source.buffer, source.at, bytes, bytes, Access::read, line), bytes);
  for (size_t place = 0; place < sizeof...(T); ++place) values.set(int(place), read[place]);
}
template <size_t count>
void st_global(const Ptr<void>& target, const Inputs<count>& values, int line) {
  constexpr size_t bytes = count * 4;
  std::memcpy(checked(target.buffer, target.at, bytes, bytes, Access::write, line), values.registers, bytes);
}
template <class T, class V>
void mov(T& to, const V& from) {
  to = static_cast<T>(from);
}
inline void cvt_rna_tf32(uint32_t& to, float from) { to = bits_as<uint32_t>(rounded_tf32(from)); }
// Products of the four bytes of two words, added to a third.
template <class A, class B, class T>
void dp4a(T&& to, uint32_t a, uint32_t b, int c) {
  for (int place = 0; place < 4; ++place) c += int(A(a >> 8 * place)) * int(B(b >> 8 * place));
  to = c;
}
inline void cvt_rna_tf32(float& to, float from) { to = rounded_tf32(from); }

}  // namespace ptx
}  // namespace emulation

template <class T>
unsigned int __cvta_generic_to_shared(const emulation::Ptr<T>& pointer, int line = __builtin_LINE()) {
  return emulation::shared_address(pointer.buffer, pointer.at, line);
}
template <class T>
unsigned int __cvta_generic_to_shared(const emulation::Shared<T>& array, int line = __builtin_LINE()) {
  return emulation::shared_address(array.buffer, array.buffer->base, line);
}
