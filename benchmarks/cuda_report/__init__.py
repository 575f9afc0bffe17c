"""What the compilers make of the CUDA kernels: ``python -m benchmarks.cuda_report``."""
