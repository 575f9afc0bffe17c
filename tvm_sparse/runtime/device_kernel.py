"""A compiled CUDA function as a Python callable, with arrays on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .device_arrays import allocator_like, device_number
from .device_binding import DeviceBinding, Launcher
from .device_calls import device_ready_check
from .kernel_function import KernelFunction
from .minimal import CurrentDevice
from .prepared_on_device import PreparedOnDevice

__all__ = ["DeviceKernelFunction"]


class DeviceKernelFunction(KernelFunction):
    """One compiled CUDA function, called as :class:`KernelFunction` says, with these differences.

    **Arrays** are PyTorch tensors, CuPy arrays, TVM tensors or other DLPack arrays, all on one GPU, and
    are used without a copy; strided ones, and views whose address is no multiple of 16 bytes, are copied
    there. Arrays in host memory are refused. Sparse matrices are PyTorch's CSR, CSC, BSR and COO tensors
    and matrices of ``cupyx.scipy.sparse``, and packed tensors what ``to("cuda")`` of one returns. Results
    that are left out are allocated on that GPU: as PyTorch tensors if an input is one, as CuPy arrays if
    one is, else as TVM tensors.

    **Streams.** The kernel runs on the current stream of the framework that results belong to
    (``torch.cuda.current_stream()``, ``cupy.cuda.get_current_stream()``), for other arrays on TVM's
    (``tvm_ffi.use_raw_stream``), and the call does not wait for it. The current device stays what it was.
    Kernels with temporary arrays on the GPU share them from call to call: one that runs on another stream
    than the last of its thread waits for the GPU first.

    **Checks.** When index arrays are first seen, they are copied to the host and checked in full, which
    waits for the stream; later calls with the same array objects (or the same sparse matrix) copy nothing,
    not even the ends of pointers. ``validate="full"`` copies and checks them at each call. Indices that a
    kernel needs in order are not sorted for it. COO tensors are converted, and checked, at each call.
    """

    _binding_type = DeviceBinding

    def __init__(
        self,
        name: str,
        function: Launcher,
        metadata: dict,
        validate: str = "cheap",
        refusal: str | None = None,
    ) -> None:
        super().__init__(name, function, metadata, validate)
        self._prepared = PreparedOnDevice(self._signature)
        self._refusal = refusal

    def __call__(self, *args: Any, validate: str | None = None, **kwargs: Any) -> Any:
        """Run the kernel."""
        if self._refusal is not None:
            raise ValueError(f"{self.name}: the kernel {self._refusal}")
        values = (*args, *kwargs.values())
        device = next((n for value in values if (n := device_number(value)) is not None), 0)
        with CurrentDevice(device):
            return super().__call__(*args, validate=validate, **kwargs)

    def _ready_check(self) -> Callable[[Sequence[Any]], bool]:
        return device_ready_check(self._signature)

    def _completion(self, given: Sequence[str]) -> Callable[[Sequence[Any]], list | None] | None:
        return self._signature.completion(given, allocator_like)
