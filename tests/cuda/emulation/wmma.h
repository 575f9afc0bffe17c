// nvcuda::wmma: matrices held by a warp, 32nd by 32nd.
//
// CUDA leaves open which lane holds which element. Here the element at row r and column c of a matrix
// of C columns is the (r * C + c) / 32-nd of lane (r * C + c) % 32. Loads and stores are checked element
// by element, in the name of the lane that holds it.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "execution.h"
#include "low_precision.h"
#include "memory.h"

namespace emulation {

// The upper 19 bits of a float: what tensor cores read of one.
inline float truncated_tf32(float value) {
  return bits_as<float>(bits_as<uint32_t>(value) & 0xffffe000u);
}
// Rounds to nearest, ties away from zero, as cvt.rna.tf32.f32 does.
inline float rounded_tf32(float value) {
  if (!std::isfinite(value)) return value;
  return bits_as<float>((bits_as<uint32_t>(value) + 0x1000u) & 0xffffe000u);
}

}  // namespace emulation

namespace nvcuda {
namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
}

// What is stored for an element, and what a multiplication reads of it.
template <class T>
struct Element {
  using Stored = T;
  static auto operand(T value) {
    if constexpr (std::is_integral_v<T>) return int(value);
    else if constexpr (std::is_same_v<T, double>) return value;
    else return float(value);
  }
};
template <>
struct Element<precision::tf32> {
  using Stored = float;
  static float operand(float value) { return emulation::truncated_tf32(value); }
};

template <class Use, int m, int n, int k>
struct Extent;
template <int m, int n, int k>
struct Extent<matrix_a, m, n, k> { static constexpr int rows = m, columns = k; };
template <int m, int n, int k>
struct Extent<matrix_b, m, n, k> { static constexpr int rows = k, columns = n; };
template <int m, int n, int k>
struct Extent<accumulator, m, n, k> { static constexpr int rows = m, columns = n; };

template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment {
  using element_type = typename Element<T>::Stored;
  using storage_element_type = element_type;
  static constexpr int rows = Extent<Use, m, n, k>::rows, columns = Extent<Use, m, n, k>::columns;
  static constexpr int num_elements = rows * columns / 32;
  static constexpr int num_storage_elements = num_elements;

  element_type x[num_elements];
};

struct Tile {
  char* at;
  int64_t stride;
};

inline void require_same_tile(emulation::Slots slots) {
  auto* first = static_cast<Tile*>(slots[0]);
  for (int lane = 1; lane < 32; ++lane) {
    auto* other = static_cast<Tile*>(slots[lane]);
    if (!other) emulation::fail(0, "wmma needs a warp of 32 threads, lane %d does not exist", lane);
    if (other->at != first->at || other->stride != first->stride)
      emulation::fail(0, "wmma: lanes 0 and %d pass different addresses or strides", lane);
  }
}

template <class T>
void enter(const char* name, const emulation::Ptr<T>& tile, int64_t stride, int line) {
  Tile slot{tile.at, stride};
  emulation::collective(name, 0xffffffffu, &slot, require_same_tile, line);
  ptrdiff_t offset = tile.buffer ? tile.at - tile.buffer->base : 0;
  if (tile.buffer && (offset % 32 != 0 || tile.buffer->alignment % 32 != 0))
    emulation::fail(line, "%s: misaligned access of %s: expected a multiple of 32 bytes, found offset %td in an "
                    "array aligned to %zu", name, tile.buffer->name, offset, tile.buffer->alignment);
  if (stride * int64_t(sizeof(T)) % 16 != 0)
    emulation::fail(line, "%s: expected a stride that is a multiple of 16 bytes, found %lld elements of %zu bytes",
                    name, (long long)stride, sizeof(T));
}

// Calls visit(element of this lane, its place in memory) for all.
template <class Fragment, class Visit>
void for_each_place(Fragment&, int64_t stride, bool by_rows, Visit visit) {
  for (int element = 0; element < Fragment::num_elements; ++element) {
    int index = element * 32 + int(emulation::lane_index);
    int row = index / Fragment::columns, column = index % Fragment::columns;
    visit(element, by_rows ? row * stride + column : column * stride + row);
  }
}

template <class Fragment, class T>
void load_tile(Fragment& to, const emulation::Ptr<T>& tile, int64_t stride, bool by_rows, int line) {
  enter("wmma::load_matrix_sync", tile, stride, line);
  for_each_place(to, stride, by_rows, [&](int element, int64_t place) {
    to.x[element] = tile[emulation::Index(place, line)].read();
  });
}

template <class Use, int m, int n, int k, class T, class Layout, class S>
void load_matrix_sync(fragment<Use, m, n, k, T, Layout>& to, const emulation::Ptr<S>& tile, unsigned stride,
                      int line = __builtin_LINE()) {
  load_tile(to, tile, stride, std::is_same_v<Layout, row_major>, line);
}
template <int m, int n, int k, class T, class S>
void load_matrix_sync(fragment<accumulator, m, n, k, T>& to, const emulation::Ptr<S>& tile, unsigned stride,
                      layout_t layout, int line = __builtin_LINE()) {
  load_tile(to, tile, stride, layout == mem_row_major, line);
}

template <int m, int n, int k, class T, class S>
void store_matrix_sync(const emulation::Ptr<S>& tile, const fragment<accumulator, m, n, k, T>& from,
                       unsigned stride, layout_t layout, int line = __builtin_LINE()) {
  enter("wmma::store_matrix_sync", tile, stride, line);
  for_each_place(from, stride, layout == mem_row_major, [&](int element, int64_t place) {
    tile[emulation::Index(place, line)].write(from.x[element]);
  });
}

template <class Use, int m, int n, int k, class T, class Layout, class V>
void fill_fragment(fragment<Use, m, n, k, T, Layout>& to, const V& value) {
  for (auto& element : to.x) element = value;
}

inline float __float_to_tf32(float value) { return emulation::rounded_tf32(value); }

template <class D, class A, class B, class C>
struct Product {
  D* d;
  const A* a;
  const B* b;
  const C* c;
};

template <int m, int n, int k, class D, class A, class B, class C, class TA, class TB>
void multiply(emulation::Slots slots) {
  using Slot = Product<D, A, B, C>;
  using Sum = std::conditional_t<std::is_integral_v<typename D::element_type>, int, float>;
  auto of = [&](int index) { return static_cast<Slot*>(slots[index % 32]); };
  for (int lane = 0; lane < 32; ++lane)
    if (!slots[lane]) emulation::fail(0, "wmma needs a warp of 32 threads, lane %d does not exist", lane);
  Sum a[m * k], b[k * n], sums[m * n];
  for (int index = 0; index < m * k; ++index) a[index] = Element<TA>::operand(of(index)->a->x[index / 32]);
  for (int index = 0; index < k * n; ++index) b[index] = Element<TB>::operand(of(index)->b->x[index / 32]);
  for (int index = 0; index < m * n; ++index) sums[index] = Sum(of(index)->c->x[index / 32]);
  for (int row = 0; row < m; ++row)
    for (int inner = 0; inner < k; ++inner)
      for (int column = 0; column < n; ++column)
        sums[row * n + column] += a[row * k + inner] * b[inner * n + column];
  for (int index = 0; index < m * n; ++index) of(index)->d->x[index / 32] = sums[index];
}

template <int m, int n, int k, class TD, class TA, class TB, class TC, class LA, class LB>
void mma_sync(fragment<accumulator, m, n, k, TD>& d, const fragment<matrix_a, m, n, k, TA, LA>& a,
              const fragment<matrix_b, m, n, k, TB, LB>& b, const fragment<accumulator, m, n, k, TC>& c,
              bool = false, int line = __builtin_LINE()) {
  using D = fragment<accumulator, m, n, k, TD>;
  using A = fragment<matrix_a, m, n, k, TA, LA>;
  using B = fragment<matrix_b, m, n, k, TB, LB>;
  using C = fragment<accumulator, m, n, k, TC>;
  Product<D, A, B, C> slot{&d, &a, &b, &c};
  emulation::collective("wmma::mma_sync", 0xffffffffu, &slot, multiply<m, n, k, D, A, B, C, TA, TB>, line);
}

}  // namespace wmma
}  // namespace nvcuda
