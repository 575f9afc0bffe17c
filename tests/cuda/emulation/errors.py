"""The error of emulated kernels."""

from __future__ import annotations

import tvm_ffi

__all__ = ["EmulationError"]


@tvm_ffi.register_error
class EmulationError(RuntimeError):
    """A kernel did what CUDA does not allow, or what has no defined result."""
