// Mathematical functions, conversions of bits, cached loads and atomics of CUDA C.
//
// Fast approximations are computed with full precision.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

// Hints to NVIDIA's compiler.
#define __isGlobal(pointer) true
#define __builtin_assume(condition) ((void)(condition))

#include "low_precision.h"
#include "memory.h"

#define EMULATION_MIN_MAX(T)                                                                           \
  inline T max(T a, T b) { return a > b ? a : b; }                                                    \
  inline T min(T a, T b) { return a < b ? a : b; }
EMULATION_MIN_MAX(int)
EMULATION_MIN_MAX(unsigned int)
EMULATION_MIN_MAX(long)
EMULATION_MIN_MAX(unsigned long)
EMULATION_MIN_MAX(long long)
EMULATION_MIN_MAX(unsigned long long)
inline float max(float a, float b) { return std::fmax(a, b); }
inline float min(float a, float b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }

inline float __expf(float a) { return std::exp(a); }
inline float __exp10f(float a) { return std::pow(10.0f, a); }
inline float exp10f(float a) { return std::pow(10.0f, a); }
inline float __logf(float a) { return std::log(a); }
inline float __log2f(float a) { return std::log2(a); }
inline float __log10f(float a) { return std::log10(a); }
inline float __powf(float a, float b) { return std::pow(a, b); }
inline float __sinf(float a) { return std::sin(a); }
inline float __cosf(float a) { return std::cos(a); }
inline float __tanf(float a) { return std::tan(a); }
inline float __tanhf(float a) { return std::tanh(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __saturatef(float a) { return std::fmin(1.0f, std::fmax(0.0f, a)); }
inline float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
inline double rsqrt(double a) { return 1.0 / std::sqrt(a); }

inline int __popc(unsigned int a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __clz(int a) { return a ? __builtin_clz(unsigned(a)) : 32; }
inline int __clzll(long long a) { return a ? __builtin_clzll((unsigned long long)(a)) : 64; }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __ffsll(long long a) { return __builtin_ffsll(a); }
inline int __mulhi(int a, int b) { return int((int64_t(a) * b) >> 32); }
inline unsigned int __umulhi(unsigned int a, unsigned int b) { return unsigned((uint64_t(a) * b) >> 32); }
inline int __mul24(int a, int b) { return a * b; }

inline float __int_as_float(int a) { return emulation::bits_as<float>(a); }
inline int __float_as_int(float a) { return emulation::bits_as<int>(a); }
inline float __uint_as_float(unsigned int a) { return emulation::bits_as<float>(a); }
inline unsigned int __float_as_uint(float a) { return emulation::bits_as<unsigned int>(a); }
inline double __longlong_as_double(long long a) { return emulation::bits_as<double>(a); }
inline long long __double_as_longlong(double a) { return emulation::bits_as<long long>(a); }

template <class T>
T __ldg(const emulation::Ptr<T>& pointer) { return *pointer; }
template <class T>
T __ldcg(const emulation::Ptr<T>& pointer) { return *pointer; }
template <class T>
T __ldcs(const emulation::Ptr<T>& pointer) { return *pointer; }

// ---- Atomics ----------------------------------------------------------------------------------------

namespace emulation {

template <class T>
struct SameType {
  using Type = T;
};

template <class T, class Update>
T atomic(const Ptr<T>& pointer, int line, Update update) {
  char* at = checked(pointer.buffer, pointer.at, sizeof(T), alignof(T), Access::atomic, line);
  T old;
  std::memcpy(&old, at, sizeof(T));
  T updated = update(old);
  std::memcpy(at, &updated, sizeof(T));
  return old;
}

}  // namespace emulation

#define EMULATION_ATOMIC(NAME, UPDATE)                                                                 \
  template <class T>                                                                                  \
  T NAME(const emulation::Ptr<T>& pointer, typename emulation::SameType<T>::Type value,               \
         int line = __builtin_LINE()) {                                                               \
    return emulation::atomic(pointer, line, [&](T old) -> T { return UPDATE; });                      \
  }
EMULATION_ATOMIC(atomicAdd, old + value)
EMULATION_ATOMIC(atomicSub, old - value)
EMULATION_ATOMIC(atomicExch, value)
EMULATION_ATOMIC(atomicMax, max(old, value))
EMULATION_ATOMIC(atomicMin, min(old, value))
EMULATION_ATOMIC(atomicAnd, old & value)
EMULATION_ATOMIC(atomicOr, old | value)
EMULATION_ATOMIC(atomicXor, old ^ value)
template <class T>
T atomicCAS(const emulation::Ptr<T>& pointer, typename emulation::SameType<T>::Type expected,
            typename emulation::SameType<T>::Type value, int line = __builtin_LINE()) {
  return emulation::atomic(pointer, line, [&](T old) -> T { return old == expected ? value : old; });
}
