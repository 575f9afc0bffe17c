// How a call from outside reaches an emulated kernel: arguments of TVM's FFI become checked pointers
// and numbers, and the grid runs block by block.
#pragma once

#include <cstdint>
#include <type_traits>

#include <tvm/ffi/c_api.h>

#include "execution.h"
#include "low_precision.h"
#include "memory.h"

namespace emulation {

// What is fixed for a kernel when it is compiled.
struct Kernel {
  const char* name;
  int largest_block;       // __launch_bounds__, 0 if there is none
  int shared_limit;        // bytes of shared memory that a block may have on this architecture
  int parameters;
  int dynamic_granule;     // log2 of the bytes of the smallest number in shared memory
  size_t static_shared = 0;
};

// Bytes of the smallest number in a T: the grain at which accesses are told apart.
template <class T>
constexpr int grain() {
  return alignof(T) < sizeof(T) ? int(alignof(T)) : sizeof(T) > 8 ? 4 : int(sizeof(T));
}

class Call {
 public:
  Call(Kernel& kernel, const TVMFFIAny* arguments, int32_t count);
  ~Call();

  template <class T>
  Ptr<T> pointer(int place, const char* name) {
    Ptr<void> found = array(place, name, grain<T>());
    return Ptr<T>(found.buffer, found.at, 0);
  }
  template <class T>
  T scalar(int place, const char* name) {
    if constexpr (std::is_floating_point_v<T> || std::is_class_v<T>) return T(real(place, name));
    else return T(integer(place, name));
  }
  // Extents of the grid and the block follow the parameters, in this order.
  void extents(const char* const* tags, int count);
  // Returns 0, or -1 after setting the error of the FFI.
  int run(void (*body)(const void*), const void* parameters);

 private:
  Ptr<void> array(int place, const char* name, int grain);
  int64_t integer(int place, const char* name);
  double real(int place, const char* name);

  Kernel& kernel_;
  const TVMFFIAny* arguments_;
  int32_t count_;
  Buffer* buffers_;
  size_t used_ = 0;
  int64_t grid_[3] = {1, 1, 1}, block_[3] = {1, 1, 1}, dynamic_bytes_ = 0;
  struct Refusal* refusal_ = nullptr;
};

}  // namespace emulation
