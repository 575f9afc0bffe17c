// Checked memory of an emulated CUDA device.
//
// Kernels hold a `Ptr<T>` where CUDA C has a `T*`: an address with the buffer that it must stay in.
// Indexing gives a `Ref<T>`, which reads when it is converted to T, writes when it is assigned, and
// gives the pointer back under `&`. Each access goes through `checked`, which refuses what lies outside
// of the buffer, is misaligned, reads shared memory that nothing was written to, or races with another
// thread (checks.cpp). Pointers to local variables have no buffer and are not checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "execution.h"

namespace emulation {

// What is known of the last accesses to a few adjacent bytes; checks.cpp says how it is read.
struct Cell {
  uint32_t write_interval, write_by;
  uint32_t read_interval, read_by;
  uint16_t write_line, read_line;
};

enum class Space : uint8_t { global, shared };
enum class Access : uint8_t { read, write, atomic };

// A buffer: an argument of a launch, a workspace, or an array in shared memory.
struct Buffer {
  char* base = nullptr;
  size_t bytes = 0;
  size_t alignment = 1;            // what `base` is known to be a multiple of
  const char* name = "";
  Cell* cells = nullptr;           // one for each 2**granule bytes
  uint8_t* written = nullptr;      // for each granule of a workspace, whether it was ever written
  uint8_t granule = 0;
  Space space = Space::global;
};

// Returns `at` if the running thread may access it so, else ends the launch with an error.
char* checked(const Buffer* buffer, char* at, size_t bytes, size_t alignment, Access access, int line);

// Sums the shared memory that a kernel declares, and prepares an array.
void declare_shared(Buffer* buffer, const char* name, void* storage, size_t bytes, size_t alignment,
                    int granule);
// Ends the launch if the kernel has declared more shared memory than there is.
void check_shared_size(int line);
const Buffer* dynamic_shared(const char* name);

// An index, with the line of the source where it stands.
struct Index {
  int64_t value;
  int line;
  template <class I, class = std::enable_if_t<std::is_convertible_v<I, int64_t>>>
  Index(I index, int line = __builtin_LINE()) : value(static_cast<int64_t>(index)), line(line) {}
};

template <class T>
struct Ptr;
template <class T>
struct LocalPtr;
template <class T, size_t count, size_t alignment>
struct Local;

template <class T>
struct Ref {
  using Number = T;
  const Buffer* buffer;
  char* at;
  int line;

  T read() const {
    T value;
    std::memcpy(&value, checked(buffer, at, sizeof(T), alignof(T), Access::read, line), sizeof(T));
    return value;
  }
  void write(const T& value) const {
    std::memcpy(checked(buffer, at, sizeof(T), alignof(T), Access::write, line), &value, sizeof(T));
  }

  Ref(const Buffer* buffer, char* at, int line) : buffer(buffer), at(at), line(line) {}
  Ref(const Ref&) = default;

  operator T() const { return read(); }
  // Casts that go through T, such as (float) of a half.
  template <class U, class = std::enable_if_t<!std::is_same_v<U, T> && std::is_constructible_v<U, T>>>
  explicit operator U() const {
    return static_cast<U>(read());
  }
  template <class V>
  const Ref& operator=(const V& value) const {
    write(static_cast<T>(value));
    return *this;
  }
  const Ref& operator=(const Ref& other) const {
    write(other.read());
    return *this;
  }
  template <class V>
  const Ref& operator+=(const V& value) const { return *this = read() + value; }
  template <class V>
  const Ref& operator-=(const V& value) const { return *this = read() - value; }
  template <class V>
  const Ref& operator*=(const V& value) const { return *this = read() * value; }
  template <class V>
  const Ref& operator/=(const V& value) const { return *this = read() / value; }
  Ptr<T> operator&() const { return Ptr<T>(buffer, at, line); }
};

template <class T>
struct Ptr {
  const Buffer* buffer = nullptr;
  char* at = nullptr;
  int line = 0;

  Ptr() = default;
  Ptr(const Buffer* buffer, char* at, int line) : buffer(buffer), at(at), line(line) {}
  Ptr(const volatile T* local) : at(reinterpret_cast<char*>(const_cast<T*>(local))) {}
  template <class U, class = std::enable_if_t<std::is_void_v<T> || std::is_same_v<U, T>>>
  Ptr(const LocalPtr<U>& local) : at(local.at), line(local.line) {}
  template <class U, size_t count, size_t alignment,
            class = std::enable_if_t<std::is_void_v<T> || std::is_same_v<U, T>>>
  Ptr(Local<U, count, alignment>& local) : at(reinterpret_cast<char*>(local.elements)) {}
  template <class U, class = std::enable_if_t<std::is_void_v<T> && !std::is_same_v<U, T>>>
  Ptr(const Ptr<U>& other) : buffer(other.buffer), at(other.at), line(other.line) {}

  Ref<T> operator[](Index index) const {
    return Ref<T>(buffer, at + index.value * int64_t(sizeof(T)), index.line);
  }
  Ref<T> operator*() const { return Ref<T>(buffer, at, line); }
  friend Ptr operator+(const Ptr& pointer, Index offset) {
    return Ptr(pointer.buffer, pointer.at + offset.value * int64_t(sizeof(T)), offset.line);
  }
  friend Ptr operator+(Index offset, const Ptr& pointer) { return pointer + offset; }
  friend Ptr operator-(const Ptr& pointer, Index offset) {
    return Ptr(pointer.buffer, pointer.at - offset.value * int64_t(sizeof(T)), offset.line);
  }
};

// Casts of pointers: of a checked one, and of the address of a local variable.
template <class U, class T>
Ptr<U> ptr_cast(const Ptr<T>& pointer, int line = __builtin_LINE()) {
  return Ptr<U>(pointer.buffer, pointer.at, line);
}
template <class U, class T>
U* ptr_cast(T* local, int = 0) {
  return reinterpret_cast<U*>(const_cast<std::remove_cv_t<T>*>(local));
}

// Arrays of one thread: indices and vector accesses are checked, not the order of accesses.
template <class T>
struct LocalPtr {
  char* base;
  size_t bytes, alignment;
  char* at;
  int line;

  T& element(ptrdiff_t index, int where) const {
    ptrdiff_t offset = at - base + index * ptrdiff_t(sizeof(T));
    if (offset < 0 || size_t(offset) + sizeof(T) > bytes)
      fail(where, "out-of-bounds access of a local array: index %td of elements of %zu bytes, the array has %zu",
           offset / ptrdiff_t(sizeof(T)), sizeof(T), bytes / sizeof(T));
    if (offset % alignof(T) != 0 || alignment < alignof(T))
      fail(where, "misaligned access of a local array: expected a multiple of %zu bytes, found offset %td in an "
           "array aligned to %zu", alignof(T), offset, alignment);
    return *reinterpret_cast<T*>(base + offset);
  }
  T& operator[](Index index) const { return element(index.value, index.line); }
  T& operator*() const { return element(0, line); }
  T* operator->() const { return &element(0, line); }
  friend LocalPtr operator+(const LocalPtr& pointer, Index offset) {
    LocalPtr moved = pointer;
    moved.at += offset.value * int64_t(sizeof(T));
    moved.line = offset.line;
    return moved;
  }
};
template <class T, size_t count, size_t declared_alignment>
struct Local {
  static constexpr size_t alignment = declared_alignment > alignof(T) ? declared_alignment : alignof(T);
  alignas(alignment) T elements[count];

  LocalPtr<T> pointer(int line) {
    char* base = reinterpret_cast<char*>(elements);
    return {base, sizeof(elements), alignment, base, line};
  }
  T& operator[](Index index) {
    if (uint64_t(index.value) >= count) return pointer(index.line)[index];
    return elements[index.value];
  }
  T& operator*() { return elements[0]; }
  friend LocalPtr<T> operator+(Local& array, Index offset) { return array.pointer(offset.line) + offset; }
};
template <class U, class T>
LocalPtr<U> ptr_cast(const LocalPtr<T>& pointer, int line = __builtin_LINE()) {
  return {pointer.base, pointer.bytes, pointer.alignment, pointer.at, line};
}
template <class U, class T, size_t count, size_t alignment>
LocalPtr<U> ptr_cast(Local<T, count, alignment>& array, int line = __builtin_LINE()) {
  return ptr_cast<U>(array.pointer(line), line);
}

// A cast to int, which must not change the value.
template <class N>
int narrowed(const N& number, int line = __builtin_LINE()) {
  if constexpr (std::is_class_v<N>) {
    return narrowed(static_cast<typename N::Number>(number), line);
  } else if constexpr (std::is_integral_v<N> && sizeof(N) >= sizeof(int)) {
    if (static_cast<N>(static_cast<int>(number)) != number || (std::is_unsigned_v<N> && number > N(INT32_MAX)))
      fail(line, "overflow of a cast to int: %lld", static_cast<long long>(number));
  }
  return static_cast<int>(number);
}

// Arrays of shared memory.
template <class T>
struct Shared {
  const Buffer* buffer;

  operator Ptr<T>() const { return Ptr<T>(buffer, buffer->base, 0); }
  operator Ptr<void>() const { return Ptr<void>(buffer, buffer->base, 0); }
  Ref<T> operator[](Index index) const { return Ptr<T>(*this)[index]; }
  friend Ptr<T> operator+(const Shared& array, Index offset) { return Ptr<T>(array) + offset; }
  Ref<T> operator*() const { return *Ptr<T>(*this); }
};
// An array of rows.
template <class T, size_t columns>
struct SharedRows {
  const Buffer* buffer;

  Ptr<T> operator[](Index row) const {
    return Ptr<T>(buffer, buffer->base + row.value * int64_t(columns * sizeof(T)), row.line);
  }
};
template <class U, class T>
Ptr<U> ptr_cast(const Shared<T>& array, int line = __builtin_LINE()) {
  return Ptr<U>(array.buffer, array.buffer->base, line);
}

template <class T, size_t count>
struct SharedStorage {
  alignas(1024) char storage[count * sizeof(T)];
  Buffer buffer;

  SharedStorage(const char* name, int granule, size_t alignment = alignof(T)) {
    size_t declared = alignment > alignof(T) ? alignment : alignof(T);
    declare_shared(&buffer, name, storage, sizeof(storage), declared, granule);
  }
};

}  // namespace emulation
