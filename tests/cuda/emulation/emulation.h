// The CUDA execution model on a CPU: everything that emulated kernels are compiled against.
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "execution.h"
#include "intrinsics.h"
#include "launch.h"
#include "low_precision.h"
#include "memory.h"
#include "ptx.h"
#include "vectors.h"
#include "wmma.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __constant__ static
#define __maxnreg__(...)
#define __block_size__(...)
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

#define __CUDACC__
#define __CUDA_ARCH__ 800
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
#define CUDART_INF_FP16 __ushort_as_half(0x7c00u)
#define CUDART_NAN_FP16 __ushort_as_half(0x7fffu)
#define CUDART_INF_BF16 __ushort_as_bfloat16(0x7f80u)
#define CUDART_NAN_BF16 __ushort_as_bfloat16(0x7fffu)
