// Errors of arithmetic in kernels: what the compiler calls where an operation of whole numbers is undefined.
#include "state.h"

namespace {

// The layout that the compiler gives its descriptions.
struct Location {
  const char* file;
  uint32_t line, column;
};
struct Type {
  uint16_t kind, info;
  char name[1];
};
struct Operation {
  Location location;
  Type* type;
};
struct Shift {
  Location location;
  Type *value, *distance;
};
struct Indexing {
  Location location;
  Type *array, *index;
};

long long value_of(const Type* type, uintptr_t value) {
  unsigned int bits = 1u << (type->info >> 1);
  if (bits > 64) return *reinterpret_cast<long long*>(value);
  if (bits == 64) return (long long)value;
  return (long long)(value << (64 - bits)) >> (64 - bits);
}

[[noreturn]] void overflow(const Operation* operation, const char* sign, uintptr_t left, uintptr_t right) {
  emulation::fail(operation->location.line, "overflow of %s: %lld %s %lld", operation->type->name,
                  value_of(operation->type, left), sign, value_of(operation->type, right));
}

}  // namespace

extern "C" {

void __ubsan_handle_add_overflow_abort(Operation* at, uintptr_t a, uintptr_t b) { overflow(at, "+", a, b); }
void __ubsan_handle_sub_overflow_abort(Operation* at, uintptr_t a, uintptr_t b) { overflow(at, "-", a, b); }
void __ubsan_handle_mul_overflow_abort(Operation* at, uintptr_t a, uintptr_t b) { overflow(at, "*", a, b); }
void __ubsan_handle_negate_overflow_abort(Operation* at, uintptr_t a) { overflow(at, "-", 0, a); }
void __ubsan_handle_divrem_overflow_abort(Operation* at, uintptr_t a, uintptr_t b) {
  if (value_of(at->type, b) == 0)
    emulation::fail(at->location.line, "division of %lld by zero", value_of(at->type, a));
  overflow(at, "/", a, b);
}
void __ubsan_handle_shift_out_of_bounds_abort(Shift* at, uintptr_t a, uintptr_t b) {
  emulation::fail(at->location.line, "shift of %s by %lld", at->value->name, value_of(at->distance, b));
}
void __ubsan_handle_out_of_bounds_abort(Indexing* at, uintptr_t index) {
  emulation::fail(at->location.line, "out-of-bounds access of a local array %s: index %lld", at->array->name,
                  value_of(at->index, index));
}

}  // extern "C"
