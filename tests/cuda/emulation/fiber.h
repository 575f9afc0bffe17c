// Fibers: stacks of their own between which one thread of the host switches without a system call.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace emulation {

// Saves the registers and the stack pointer at `from`, and goes on where `to` was saved (fiber.cpp).
extern "C" void emulation_switch(void** from, void* to);

#if defined(__x86_64__)
constexpr size_t saved_words = 8;  // six registers, the address to return to, alignment
constexpr size_t return_word = 6;
#elif defined(__aarch64__)
constexpr size_t saved_words = 20;
constexpr size_t return_word = 11;  // x30
#else
#error "fibers are written for x86-64 and aarch64"
#endif

// A stack with a page below it that must not be touched.
class Fiber {
 public:
  static constexpr size_t size = 256 * 1024, guard = 16 * 1024;

  Fiber() {
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<char*>(memory);
    mprotect(memory_, guard, PROT_NONE);
  }
  ~Fiber() { munmap(memory_, size); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next switch to this fiber calls `entry`, which must not return.
  void prepare(void (*entry)()) {
    auto* top = reinterpret_cast<uintptr_t*>(memory_ + size) - saved_words - 2;
    for (size_t word = 0; word < saved_words; ++word) top[word] = 0;
    top[return_word] = reinterpret_cast<uintptr_t>(entry);
    stack_pointer = top;
  }

  void* stack_pointer = nullptr;

 private:
  char* memory_;
};

}  // namespace emulation
