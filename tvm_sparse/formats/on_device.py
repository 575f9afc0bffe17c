"""Packed tensors whose arrays lie on a GPU.

In: a packed tensor, and a device. Out: one that kernels for CUDA take in its place. Its structure stays
on the host too, where it was checked; its values are copied back when they are asked for.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import tvm

if TYPE_CHECKING:
    from .composition import PackedComposition
    from .format import Packed

__all__ = ["PackedCompositionOnDevice", "PackedOnDevice", "gpu"]


def gpu(device: Any) -> tvm.runtime.Device:
    """Return a GPU of this machine by what names it.

    Parameters
    ----------
    device : str, torch.device or tvm.runtime.Device
        ``"cuda"`` or ``"cuda:1"``.

    Raises
    ------
    ValueError
        If it is no GPU of CUDA, or this machine lacks it.
    """
    # TVM's CUDA runtime may wait to be loaded. (Only what runs kernels imports formats.)
    from ..runtime.minimal import load_cuda_runtime  # noqa: PLC0415

    kind, _, number = str(device).partition(":")
    if kind != "cuda" or not (number or "0").isdigit():
        raise ValueError(f'device: expected a GPU such as "cuda:0", found {device!r}')
    reason = load_cuda_runtime()
    found = tvm.cuda(int(number or 0))
    if reason is not None or not found.exist:
        raise ValueError(
            f"device: expected a GPU of this machine, found {device!r}, and this machine "
            f"{reason or 'has no such GPU'}"
        )
    return found


class PackedOnDevice:
    """A tensor in a format, on a GPU; made by :meth:`Packed.to`.

    Parameters
    ----------
    packed : Packed
        The tensor on the host.
    device : tvm.runtime.Device
        The GPU.

    Attributes
    ----------
    values : tvm.runtime.Tensor
        The values, one for each slot; PyTorch and CuPy see them by ``from_dlpack``.
    device : tvm.runtime.Device
        The GPU.
    """

    def __init__(self, packed: Packed, device: tvm.runtime.Device) -> None:
        self._packed = packed
        self.device = device
        self.values = tvm.runtime.tensor(packed.values, device)
        self._arrays = {
            name: tvm.runtime.tensor(array, device) for name, array in packed.storage.arrays.items()
        }

    @property
    def format(self) -> Any:
        """The format."""
        return self._packed.format

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self._packed.shape

    @property
    def nbytes(self) -> int:
        """Bytes of values and index arrays, those that a kernel reads."""
        return self._packed.nbytes

    @property
    def description(self) -> dict[str, Any]:
        """What its arrays mean."""
        return self._packed.description

    def arguments(self, name: str) -> dict[str, Any]:
        """Return what a kernel takes for this tensor, as :meth:`Packed.arguments` does."""
        parts = {**self._arrays, **self._packed.storage.sizes}
        return {name: self.values, **{f"{name}_{key}": part for key, part in parts.items()}}

    def formats(self, name: str) -> dict[str, str]:
        """Return the name of the format by that of its values among the arguments."""
        return self._packed.formats(name)

    def check(self) -> None:
        """Validate what index arrays do not tell, as :meth:`Packed.check` does."""
        self.to_host().check()

    def to_host(self) -> Packed:
        """Return it in host memory, with a copy of the values; waits for the GPU."""
        packed = self._packed
        values = self.values.numpy().reshape(packed.values.shape)
        storage = dataclasses.replace(packed.storage, values=values)
        return dataclasses.replace(packed, storage=storage)

    def unpack(self) -> sp.csr_matrix | sp.coo_array:
        """Return the tensor as SciPy holds it, as :meth:`Packed.unpack` does."""
        return self.to_host().unpack()

    def update_values(self, values: np.ndarray) -> None:
        """Replace the values by those of an array in host memory, as :meth:`Packed.update_values` does."""
        host = self.to_host()
        host.update_values(values)
        self.values.copyfrom(host.values)

    def restore_padding(self) -> None:
        """Put zeros back into padding, as :meth:`Packed.restore_padding` does; by way of the host."""
        if self._packed.format.marks_padding:
            host = self.to_host()
            host.restore_padding()
            self.values.copyfrom(host.values)

    def __repr__(self) -> str:
        return f"{repr(self._packed)[:-1]}, on {self.device}>"


class PackedCompositionOnDevice:
    """A tensor packed as a sum of parts, on a GPU; made by :meth:`PackedComposition.to`.

    Parameters
    ----------
    packed : PackedComposition
        The tensor on the host.
    device : tvm.runtime.Device
        The GPU.

    Attributes
    ----------
    parts : dict of str to PackedOnDevice
        The parts, by name.
    device : tvm.runtime.Device
        The GPU.
    """

    def __init__(self, packed: PackedComposition, device: tvm.runtime.Device) -> None:
        self._packed = packed
        self.device = device
        self.parts = {name: PackedOnDevice(part, device) for name, part in packed.parts.items()}

    @property
    def composition(self) -> Any:
        """What it was packed by."""
        return self._packed.composition

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self._packed.shape

    @property
    def nbytes(self) -> int:
        """Bytes of values and index arrays, those that a kernel reads."""
        return self._packed.nbytes

    def arguments(self, name: str) -> dict[str, Any]:
        """Return what a kernel takes for this tensor, as :meth:`PackedComposition.arguments` does."""
        return {
            key: argument
            for part_name, part in self.parts.items()
            for key, argument in part.arguments(f"{name}_{part_name}").items()
        }

    def formats(self, name: str) -> dict[str, str]:
        """Return the names of the parts' formats by those of their values among the arguments."""
        return self._packed.formats(name)

    def check(self) -> None:
        """Validate the parts, as :meth:`PackedComposition.check` does."""
        self.to_host().check()

    def to_host(self) -> PackedComposition:
        """Return it in host memory, with a copy of the values; waits for the GPU."""
        parts = {name: part.to_host() for name, part in self.parts.items()}
        return dataclasses.replace(self._packed, parts=parts)

    def unpack(self) -> sp.csr_matrix | sp.coo_array:
        """Return the tensor as SciPy holds it, as :meth:`Packed.unpack` does."""
        return self.to_host().unpack()

    def update_values(self, values: np.ndarray) -> None:
        """Replace the values by those of an array in host memory; structure and division stay."""
        host = self.to_host()
        host.update_values(values)
        for name, part in self.parts.items():
            part.values.copyfrom(host.parts[name].values)

    def restore_padding(self) -> None:
        """Put zeros back into the padding of all parts, by way of the host."""
        for part in self.parts.values():
            part.restore_padding()

    def __repr__(self) -> str:
        return f"{repr(self._packed)[:-1]}, on {self.device}>"
