// CUDA's vector types with CUDA's alignment, and the functions that make them.
#pragma once

#include <cstdint>

#define EMULATION_VECTORS(NAME, T, ALIGN2, ALIGN4)                                                     \
  struct NAME##1 { T x; };                                                                            \
  struct alignas(ALIGN2) NAME##2 { T x, y; };                                                         \
  struct NAME##3 { T x, y, z; };                                                                      \
  struct alignas(ALIGN4) NAME##4 { T x, y, z, w; };                                                   \
  inline NAME##1 make_##NAME##1(T x) { return {x}; }                                                  \
  inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                                          \
  inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                                  \
  inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMULATION_VECTORS(uint, unsigned int, 8, 16)
EMULATION_VECTORS(char, signed char, 2, 4)
EMULATION_VECTORS(uchar, unsigned char, 2, 4)
EMULATION_VECTORS(short, short, 4, 8)
EMULATION_VECTORS(ushort, unsigned short, 4, 8)
EMULATION_VECTORS(int, int, 8, 16)
EMULATION_VECTORS(long, long, 16, 16)
EMULATION_VECTORS(ulong, unsigned long, 16, 16)
EMULATION_VECTORS(longlong, long long, 16, 16)
EMULATION_VECTORS(ulonglong, unsigned long long, 16, 16)
EMULATION_VECTORS(float, float, 8, 16)
EMULATION_VECTORS(double, double, 16, 16)
