// Calls from TVM's FFI: arguments, the limits of a launch, and errors on the way back.

#include "launch.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "state.h"

namespace emulation {

namespace {

// Arrays that a kernel may be given the address of: arguments of the running call, and workspaces.
struct Known {
  std::string name;
  char* base;
  size_t bytes;
  uint8_t* written;
};
std::vector<Known> known;
std::recursive_mutex one_launch;

size_t bytes_of(const DLTensor& tensor) {
  size_t bytes = (size_t(tensor.dtype.bits) * tensor.dtype.lanes + 7) / 8;
  for (int axis = 0; axis < tensor.ndim; ++axis) bytes *= size_t(tensor.shape[axis]);
  return bytes;
}

const DLTensor* tensor_of(const TVMFFIAny& argument) {
  if (argument.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(argument.v_ptr);
  if (argument.type_index != kTVMFFITensor) return nullptr;
  auto* object = reinterpret_cast<const char*>(argument.v_obj);
  return reinterpret_cast<const DLTensor*>(object + sizeof(TVMFFIObject));
}

// The array that a parameter points into: by name if it fits, else by its start, else by its content.
const Known* find_array(const char* address, std::string name) {
  if (name.size() > 4 && name.compare(name.size() - 4, 4, "_ptr") == 0) name.resize(name.size() - 4);
  const Known* found = nullptr;
  for (const Known& array : known)
    if (array.name == name && array.base == address) return &array;
  for (const Known& array : known)
    if (array.base == address && (!found || array.bytes > found->bytes)) found = &array;
  if (found) return found;
  for (const Known& array : known)
    if (array.base <= address && address < array.base + array.bytes) return &array;
  return nullptr;
}

int granule_of(int grain) {
  int granule = 0;
  while ((1 << granule) < grain) ++granule;
  return granule;
}

size_t alignment_of(const char* address) {
  // Device memory is aligned to 256 bytes; host arrays stand for it if they hold the widest vector.
  size_t alignment = 1;
  while (alignment < 16 && reinterpret_cast<uintptr_t>(address) % (alignment * 2) == 0) alignment *= 2;
  return alignment == 16 ? 256 : alignment;
}

void check_limits(const Kernel& kernel, const int64_t* grid, const int64_t* block, int64_t dynamic_bytes) {
  const int64_t grid_limits[3] = {2147483647, 65535, 65535}, block_limits[3] = {1024, 1024, 64};
  const char axes[] = "xyz";
  auto limit = [&](const char* what, char axis, int64_t found, int64_t most) {
    if (found >= 1 && found <= most) return;
    throw Refusal{std::string(what) + "." + axis + ": expected 1 to " + std::to_string(most) + ", found " +
                  std::to_string(found)};
  };
  for (int axis = 0; axis < 3; ++axis) {
    limit("gridDim", axes[axis], grid[axis], grid_limits[axis]);
    limit("blockDim", axes[axis], block[axis], block_limits[axis]);
  }
  int64_t threads = block[0] * block[1] * block[2];
  int64_t most = kernel.largest_block ? kernel.largest_block : 1024;
  if (threads > most || threads > 1024)
    throw Refusal{"threads of a block: expected at most " + std::to_string(most < 1024 ? most : 1024) +
                  (kernel.largest_block ? " (__launch_bounds__)" : "") + ", found " + std::to_string(threads)};
  if (dynamic_bytes < 0 || dynamic_bytes > kernel.shared_limit)
    throw Refusal{"dynamic shared memory: expected at most " + std::to_string(kernel.shared_limit) +
                  " bytes, found " + std::to_string(dynamic_bytes)};
}

std::vector<Thread> threads_of(const int64_t* block) {
  std::vector<Thread> threads(size_t(block[0] * block[1] * block[2]));
  unsigned int id = 0;
  for (unsigned int z = 0; z < block[2]; ++z)
    for (unsigned int y = 0; y < block[1]; ++y)
      for (unsigned int x = 0; x < block[0]; ++x, ++id) {
        threads[id] = Thread{};
        threads[id].index = {x, y, z};
        threads[id].id = id;
        threads[id].lane = id % warp_size;
        threads[id].warp = id / warp_size;
      }
  return threads;
}

alignas(1024) char dynamic_memory[256 * 1024];
Buffer dynamic_buffer;
int dynamic_granule;

}  // namespace

const Buffer* dynamic_shared(const char* name) {
  dynamic_buffer.name = name;
  return &dynamic_buffer;
}

static void prepare_dynamic(size_t bytes, int granule) {
  if (!dynamic_buffer.cells) {
    dynamic_buffer.cells = static_cast<Cell*>(std::calloc(sizeof(dynamic_memory), sizeof(Cell)));
    dynamic_buffer.base = dynamic_memory;
    dynamic_buffer.alignment = 1024;
    dynamic_buffer.space = Space::shared;
  }
  dynamic_buffer.bytes = bytes;
  dynamic_buffer.granule = granule;
}

// Cells of an array, all zero. Those of arrays of gigabytes are memory that exists where it is touched.
static size_t cell_bytes(const Buffer& buffer) { return ((buffer.bytes >> buffer.granule) + 1) * sizeof(Cell); }
static constexpr size_t few_cells = size_t(1) << 26;
static Cell* make_cells(const Buffer& buffer) {
  size_t bytes = cell_bytes(buffer);
  if (bytes < few_cells) return static_cast<Cell*>(std::calloc(bytes, 1));
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Cell*>(memory);
}
static void free_cells(const Buffer& buffer) {
  if (cell_bytes(buffer) < few_cells) std::free(buffer.cells);
  else if (buffer.cells) munmap(buffer.cells, cell_bytes(buffer));
}

Call::Call(Kernel& kernel, const TVMFFIAny* arguments, int32_t count)
    : kernel_(kernel), arguments_(arguments), count_(count), buffers_(new Buffer[kernel.parameters + 1]) {
  one_launch.lock();
}

Call::~Call() {
  for (size_t place = 0; place < used_; ++place) free_cells(buffers_[place]);
  delete[] buffers_;
  delete refusal_;
  one_launch.unlock();
}

Ptr<void> Call::array(int place, const char* name, int grain) {
  if (place >= count_) return {};
  Buffer& buffer = buffers_[used_++];
  buffer.name = name;
  buffer.granule = granule_of(grain);
  const TVMFFIAny& argument = arguments_[place];
  if (const DLTensor* tensor = tensor_of(argument)) {
    buffer.base = static_cast<char*>(tensor->data) + tensor->byte_offset;
    buffer.bytes = bytes_of(*tensor);
  } else if (argument.type_index == kTVMFFIOpaquePtr) {
    buffer.base = static_cast<char*>(argument.v_ptr);
    const Known* found = find_array(buffer.base, name);
    if (!found && !refusal_)
      refusal_ = new Refusal{std::string(name) + ": the address belongs to no array of the call"};
    if (found) {
      buffer.bytes = found->bytes - size_t(buffer.base - found->base);
      if (found->written && buffer.base == found->base) buffer.written = found->written;
    }
  } else if (argument.type_index != kTVMFFINone && !refusal_) {
    refusal_ = new Refusal{std::string(name) + ": expected an array, found FFI type " +
                           std::to_string(argument.type_index)};
  }
  buffer.alignment = alignment_of(buffer.base);
  buffer.cells = make_cells(buffer);
  if (!buffer.cells && !refusal_)
    refusal_ = new Refusal{std::string(name) + ": no memory to check an array of " +
                           std::to_string(buffer.bytes) + " bytes"};
  return Ptr<void>(&buffer, buffer.base, 0);
}

int64_t Call::integer(int place, const char* name) {
  if (place >= count_) return 0;
  int32_t type = arguments_[place].type_index;
  if (type == kTVMFFIInt || type == kTVMFFIBool) return arguments_[place].v_int64;
  if (!refusal_) refusal_ = new Refusal{std::string(name) + ": expected a whole number"};
  return 0;
}

double Call::real(int place, const char* name) {
  if (place < count_ && arguments_[place].type_index == kTVMFFIFloat) return arguments_[place].v_float64;
  return double(integer(place, name));
}

void Call::extents(const char* const* tags, int count) {
  int place = int(kernel_.parameters);
  if (count_ != place + count && !refusal_)
    refusal_ = new Refusal{"expected " + std::to_string(place + count) + " arguments, found " +
                           std::to_string(count_)};
  for (int k = 0; k < count; ++k) {
    std::string tag = tags[k];
    int64_t extent = integer(place + k, tags[k]);
    if (tag.rfind("blockIdx.", 0) == 0) grid_[tag.back() - 'x'] = extent;
    else if (tag.rfind("threadIdx.", 0) == 0) block_[tag.back() - 'x'] = extent;
    else dynamic_bytes_ = extent;
  }
}

int Call::run(void (*body)(const void*), const void* parameters) {
  try {
    if (refusal_) throw *refusal_;
    check_limits(kernel_, grid_, block_, dynamic_bytes_);
    grid_extent = dim3(grid_[0], grid_[1], grid_[2]);
    block_extent = dim3(block_[0], block_[1], block_[2]);
    Launch launch;
    launch.kernel = &kernel_;
    launch.body = body;
    launch.parameters = parameters;
    launch.dynamic_bytes = size_t(dynamic_bytes_);
    launch.threads = threads_of(block_);
    launch.warp_phase.resize((launch.threads.size() + warp_size - 1) / warp_size);
    prepare_dynamic(launch.dynamic_bytes, kernel_.dynamic_granule);
    run_grid(launch);
    return 0;
  } catch (const Refusal& refusal) {
    std::string message = std::string("kernel ") + kernel_.name + ": " + refusal.message;
    TVMFFIErrorSetRaisedFromCStr("EmulationError", message.c_str());
  } catch (const std::exception& error) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", error.what());
  }
  return -1;
}

}  // namespace emulation

// ---- What Python and the host part of a kernel call --------------------------------------------------

extern "C" {

void emulation_array(const char* name, void* base, size_t bytes) {
  emulation::known.push_back({name, static_cast<char*>(base), bytes, nullptr});
}

void emulation_forget_arrays() {
  // Workspaces that are left belong to a call that ended with an error.
  for (emulation::Known& array : emulation::known) {
    if (!array.written) continue;
    std::free(array.base);
    std::free(array.written);
  }
  emulation::known.clear();
}

void emulation_set_order(int order, uint64_t seed) {
  emulation::order = static_cast<emulation::Order>(order);
  emulation::order_seed = seed;
}

void emulation_set_blocks(uint64_t last) { emulation::last_blocks = last; }

void* emulation_allocate(uint64_t bytes) {
  void* memory = std::aligned_alloc(256, (bytes + 511) / 256 * 256);
  std::memset(memory, 0xff, bytes);
  auto* written = static_cast<uint8_t*>(std::calloc(bytes + 1, 1));
  emulation::known.push_back({"a workspace", static_cast<char*>(memory), size_t(bytes), written});
  return memory;
}

int emulation_free(void* memory) {
  auto& known = emulation::known;
  for (size_t place = 0; place < known.size(); ++place) {
    if (known[place].base != memory || !known[place].written) continue;
    std::free(known[place].written);
    known.erase(known.begin() + place);
    break;
  }
  std::free(memory);
  return 0;
}

}  // extern "C"
