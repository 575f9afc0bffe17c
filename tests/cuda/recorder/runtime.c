// What libtvm_runtime_cuda.so asks of CUDA's runtime, beside driver.c.
#include <stdlib.h>
#include <string.h>

void record(const char* format, ...);
int device_count(void);
int capability(int device, int minor);
int* device_now(void);

enum { MAX_THREADS = 1, SHARED_MEMORY = 8, WARP_SIZE = 10, MAJOR = 75, MINOR = 76, NO_DEVICE = 100 };

int cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count ? 0 : NO_DEVICE;
}
int cudaGetDevice(int* device) {
  *device = *device_now();
  return 0;
}
int cudaSetDevice(int device) {
  if (device >= device_count()) return NO_DEVICE;
  if (device != *device_now()) record("device %d", device);
  *device_now() = device;
  return 0;
}
int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case MAX_THREADS: *value = 1024; break;
    case SHARED_MEMORY: *value = 48 << 10; break;
    case WARP_SIZE: *value = 32; break;
    case MAJOR: *value = capability(device, 0); break;
    case MINOR: *value = capability(device, 1); break;
    default: *value = 1 << 20;
  }
  return 0;
}
int cudaGetDeviceProperties(void* properties, int device) { return 1; }
const char* cudaGetErrorName(int error) { return error ? "cudaErrorInvalidValue" : "cudaSuccess"; }
const char* cudaGetErrorString(int error) { return cudaGetErrorName(error); }
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }

int cudaMalloc(void** memory, size_t size) {
  record("allocate %zu on %d", size, *device_now());
  return posix_memalign(memory, 256, size ? size : 1) ? 2 : 0;
}
int cudaFree(void* memory) {
  free(memory);
  return 0;
}
int cudaMallocHost(void** memory, size_t size) { return posix_memalign(memory, 256, size) ? 2 : 0; }
int cudaFreeHost(void* memory) { return cudaFree(memory); }
int cudaMemGetInfo(size_t* available, size_t* total) {
  *available = *total = (size_t)1 << 30;
  return 0;
}
int cudaMemcpyAsync(void* to, const void* from, size_t size, int kind, void* stream) {
  static const char* const names[] = {"within the host", "to the device", "to the host", "on the device"};
  record("copy %zu %s", size, names[kind & 3]);
  memcpy(to, from, size);
  return 0;
}
int cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t size, void* s) {
  memcpy(to, from, size);
  return 0;
}

// Streams and events are numbers; everything has happened when a call returns.
int cudaStreamCreate(void** stream) {
  static long last = 0;
  *stream = (void*)++last;
  return 0;
}
int cudaStreamCreateWithFlags(void** stream, unsigned flags) { return cudaStreamCreate(stream); }
int cudaStreamDestroy(void* stream) { return 0; }
int cudaStreamSynchronize(void* stream) { return 0; }
int cudaStreamWaitEvent(void* stream, void* event, unsigned flags) { return 0; }
int cudaEventCreate(void** event) { return cudaStreamCreate(event); }
int cudaEventDestroy(void* event) { return 0; }
int cudaEventRecord(void* event, void* stream) { return 0; }
int cudaEventSynchronize(void* event) { return 0; }
int cudaEventElapsedTime(float* time, void* first, void* second) {
  *time = 1;
  return 0;
}

// CUDA graphs: not used.
int cudaStreamBeginCapture(void* stream, int mode) { return 1; }
int cudaStreamEndCapture(void* stream, void** graph) { return 1; }
int cudaGraphInstantiate(void** made, void* graph, unsigned long long flags) { return 1; }
int cudaGraphLaunch(void* graph, void* stream) { return 1; }
int cudaGraphDestroy(void* graph) { return 0; }
int cudaGraphExecDestroy(void* graph) { return 0; }
