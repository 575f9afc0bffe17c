// What CUDA's header of this name gives: products of four bytes at once.
#pragma once

inline int __dp4a(int a, int b, int c) {
  int sum;
  emulation::ptx::dp4a<signed char, signed char>(sum, a, b, c);
  return sum;
}
inline unsigned int __dp4a(unsigned int a, unsigned int b, unsigned int c) {
  int sum;
  emulation::ptx::dp4a<unsigned char, unsigned char>(sum, a, b, int(c));
  return unsigned(sum);
}
