// half and bfloat16: storage of 16 bits, arithmetic in float rounded to nearest even after each operation.
//
// A float holds more than twice the digits of either type, so that rounding the float result of one
// operation gives what rounding the exact result would. Fused multiply-add goes through double.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "execution.h"
#include "vectors.h"

namespace emulation {

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// Both formats are the upper part of a wider one: `mantissa` digits, the rest exponent.
struct HalfFormat {
  static constexpr const char* name = "half";
  static uint16_t from_float(float value) {
    uint32_t bits = bits_as<uint32_t>(value);
    uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fffu;                   // NaN, as CUDA writes it
    if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // rounds to infinity
    if (magnitude < 0x38800000u) {                                 // subnormal: a multiple of 2**-24
      float scaled = bits_as<float>(magnitude) * 16777216.0f;
      return uint16_t(sign | uint16_t(std::nearbyintf(scaled)));
    }
    uint32_t odd = (magnitude >> 13) & 1u;
    return uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
  }
  static float to_float(uint16_t bits) {
    uint32_t sign = uint32_t(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return bits_as<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    if (magnitude < 0x400u) {
      float value = float(magnitude) / 16777216.0f;
      return bits_as<float>(sign | bits_as<uint32_t>(value));
    }
    return bits_as<float>(sign | ((magnitude << 13) + 0x38000000u));
  }
};
struct BFloat16Format {
  static constexpr const char* name = "bfloat16";
  static uint16_t from_float(float value) {
    uint32_t bits = bits_as<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
  static float to_float(uint16_t bits) { return bits_as<float>(uint32_t(bits) << 16); }
};

// Rounds a double to float so that a second rounding gives what a single one would: to odd.
inline float odd_float(double value) {
  float nearest = float(value);
  if (double(nearest) == value || !std::isfinite(value) || !std::isfinite(nearest)) return nearest;
  uint32_t bits = bits_as<uint32_t>(nearest);
  if (bits & 1u) return nearest;
  bool away = std::fabs(double(nearest)) > std::fabs(value);
  return bits_as<float>(away ? bits - 1u : bits + 1u);
}

template <class Format>
struct Float16 {
  using Number = float;
  uint16_t bits;

  Float16() = default;
  template <class N, class = std::enable_if_t<std::is_arithmetic_v<N>>>
  Float16(N number) : bits(Format::from_float(narrowed(number))) {}
  operator float() const { return Format::to_float(bits); }

  Float16& operator+=(Float16 other) { return *this = *this + other; }
  Float16& operator-=(Float16 other) { return *this = *this - other; }
  Float16& operator*=(Float16 other) { return *this = *this * other; }
  Float16& operator/=(Float16 other) { return *this = *this / other; }
  friend Float16 operator+(Float16 a, Float16 b) { return float(a) + float(b); }
  friend Float16 operator-(Float16 a, Float16 b) { return float(a) - float(b); }
  friend Float16 operator*(Float16 a, Float16 b) { return float(a) * float(b); }
  friend Float16 operator/(Float16 a, Float16 b) { return float(a) / float(b); }
  friend Float16 operator-(Float16 a) { return from_bits(uint16_t(a.bits ^ 0x8000u)); }
  friend Float16 operator+(Float16 a) { return a; }
  friend bool operator==(Float16 a, Float16 b) { return float(a) == float(b); }
  friend bool operator!=(Float16 a, Float16 b) { return float(a) != float(b); }
  friend bool operator<(Float16 a, Float16 b) { return float(a) < float(b); }
  friend bool operator>(Float16 a, Float16 b) { return float(a) > float(b); }
  friend bool operator<=(Float16 a, Float16 b) { return float(a) <= float(b); }
  friend bool operator>=(Float16 a, Float16 b) { return float(a) >= float(b); }

  static Float16 from_bits(uint16_t bits) {
    Float16 value;
    value.bits = bits;
    return value;
  }

 private:
  template <class N>
  static float narrowed(N number) {
    if constexpr (std::is_same_v<N, float>) return number;
    else return odd_float(double(number));
  }
};

template <class Format>
Float16<Format> fused(Float16<Format> a, Float16<Format> b, Float16<Format> c) {
  // The product is exact in double, the sum is rounded to odd there and again in float.
  double product = double(float(a)) * double(float(b)), addend = float(c), sum = product + addend;
  double part = sum - product, error = (product - (sum - part)) + (addend - part);
  if (error != 0 && std::isfinite(sum) && !(bits_as<uint64_t>(sum) & 1u))
    sum = bits_as<double>(bits_as<uint64_t>(sum) + ((error > 0) == (sum > 0) ? 1 : -1));
  return Float16<Format>(sum);
}

}  // namespace emulation

using __half = emulation::Float16<emulation::HalfFormat>;
using half = __half;
using __nv_bfloat16 = emulation::Float16<emulation::BFloat16Format>;
using nv_bfloat16 = __nv_bfloat16;
struct alignas(4) __half2 {
  __half x, y;
  __half2() = default;
  __half2(__half x, __half y) : x(x), y(y) {}
};
using half2 = __half2;
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
  __nv_bfloat162() = default;
  __nv_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) : x(x), y(y) {}
};
using nv_bfloat162 = __nv_bfloat162;

EMULATION_SHUFFLES(__half)
EMULATION_SHUFFLES(__half2)
EMULATION_SHUFFLES(__nv_bfloat16)
EMULATION_SHUFFLES(__nv_bfloat162)

// ---- Conversions -----------------------------------------------------------------------------------

inline __half __float2half(float a) { return a; }
inline __half __float2half_rn(float a) { return a; }
inline __half __double2half(double a) { return a; }
inline float __half2float(__half a) { return a; }
inline __half __ushort_as_half(unsigned short a) { return __half::from_bits(a); }
inline unsigned short __half_as_ushort(__half a) { return a.bits; }
inline __half __short_as_half(short a) { return __half::from_bits(uint16_t(a)); }
inline short __half_as_short(__half a) { return short(a.bits); }
inline __nv_bfloat16 __float2bfloat16(float a) { return a; }
inline __nv_bfloat16 __float2bfloat16_rn(float a) { return a; }
inline __nv_bfloat16 __double2bfloat16(double a) { return a; }
inline float __bfloat162float(__nv_bfloat16 a) { return a; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short a) { return __nv_bfloat16::from_bits(a); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 a) { return a.bits; }

// ---- What both types have ---------------------------------------------------------------------------

#define EMULATION_FLOAT16(T, T2)                                                                       \
  inline T __hadd(T a, T b) { return a + b; }                                                         \
  inline T __hsub(T a, T b) { return a - b; }                                                         \
  inline T __hmul(T a, T b) { return a * b; }                                                         \
  inline T __hdiv(T a, T b) { return a / b; }                                                         \
  inline T __hneg(T a) { return -a; }                                                                 \
  inline T __habs(T a) { return T::from_bits(a.bits & 0x7fffu); }                                     \
  inline T __hfma(T a, T b, T c) { return emulation::fused(a, b, c); }                                \
  inline bool __heq(T a, T b) { return a == b; }                                                      \
  inline bool __hne(T a, T b) { return a < b || a > b; }                                              \
  inline bool __hlt(T a, T b) { return a < b; }                                                       \
  inline bool __hle(T a, T b) { return a <= b; }                                                      \
  inline bool __hgt(T a, T b) { return a > b; }                                                       \
  inline bool __hge(T a, T b) { return a >= b; }                                                      \
  inline bool __hisnan(T a) { return std::isnan(float(a)); }                                          \
  inline int __hisinf(T a) { return std::isinf(float(a)) ? (a < T(0) ? -1 : 1) : 0; }                 \
  inline T __hmax(T a, T b) { return std::fmax(float(a), float(b)); }                                 \
  inline T __hmin(T a, T b) { return std::fmin(float(a), float(b)); }                                 \
  inline T hexp(T a) { return std::exp(float(a)); }                                                   \
  inline T hexp2(T a) { return std::exp2(float(a)); }                                                 \
  inline T hexp10(T a) { return std::pow(10.0f, float(a)); }                                          \
  inline T hlog(T a) { return std::log(float(a)); }                                                   \
  inline T hlog2(T a) { return std::log2(float(a)); }                                                 \
  inline T hlog10(T a) { return std::log10(float(a)); }                                               \
  inline T hsqrt(T a) { return std::sqrt(float(a)); }                                                 \
  inline T hrsqrt(T a) { return 1.0f / std::sqrt(float(a)); }                                         \
  inline T hrcp(T a) { return 1.0f / float(a); }                                                      \
  inline T hsin(T a) { return std::sin(float(a)); }                                                   \
  inline T hcos(T a) { return std::cos(float(a)); }                                                   \
  inline T htanh(T a) { return std::tanh(float(a)); }                                                 \
  inline T hfloor(T a) { return std::floor(float(a)); }                                               \
  inline T hceil(T a) { return std::ceil(float(a)); }                                                 \
  inline T htrunc(T a) { return std::trunc(float(a)); }                                               \
  inline T hrint(T a) { return std::nearbyintf(float(a)); }                                           \
  inline T2 __hadd2(T2 a, T2 b) { return {a.x + b.x, a.y + b.y}; }                                    \
  inline T2 __hsub2(T2 a, T2 b) { return {a.x - b.x, a.y - b.y}; }                                    \
  inline T2 __hmul2(T2 a, T2 b) { return {a.x * b.x, a.y * b.y}; }                                    \
  inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }      \
  inline T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                      \
  inline T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                      \
  inline T2 operator+(T2 a, T2 b) { return __hadd2(a, b); }                                           \
  inline T2 operator-(T2 a, T2 b) { return __hsub2(a, b); }                                           \
  inline T2 operator*(T2 a, T2 b) { return __hmul2(a, b); }
EMULATION_FLOAT16(__half, __half2)
EMULATION_FLOAT16(__nv_bfloat16, __nv_bfloat162)

inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline __half2 __float22half2_rn(float2 a) { return {__half(a.x), __half(a.y)}; }
inline float2 __half22float2(__half2 a) { return {float(a.x), float(a.y)}; }
inline __half __low2half(__half2 a) { return a.x; }
inline __half __high2half(__half2 a) { return a.y; }
inline float __low2float(__half2 a) { return a.x; }
inline float __high2float(__half2 a) { return a.y; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__nv_bfloat16(x), __nv_bfloat16(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 a) { return {__nv_bfloat16(a.x), __nv_bfloat16(a.y)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 a) { return {float(a.x), float(a.y)}; }
inline float __low2float(__nv_bfloat162 a) { return a.x; }
inline float __high2float(__nv_bfloat162 a) { return a.y; }
