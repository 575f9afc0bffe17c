"""The workloads of ``tvm-sparse tune``: inputs, peers, reference and costs of each operator."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from .. import schedules
from ..ir import SparseFunc
from ..runtime import Executable
from ..tune.timing import interleaved_medians

__all__ = ["OPERATORS", "Contender", "Row", "Workload", "measure"]


@dataclass
class Call:
    """A kernel with the arguments of one call, ready."""

    kernel: Any
    arguments: list

    def __call__(self) -> Any:
        return self.kernel(*self.arguments)


@dataclass
class Contender:
    """Something to time: ``run()`` computes the result and returns it, or writes it into an output."""

    name: str
    run: Callable[[], Any]


@dataclass
class Row:
    """One line of the table."""

    name: str
    seconds: float
    gflops: float
    gbytes: float
    error: float


@dataclass
class Workload:
    """One operator on one matrix.

    Attributes
    ----------
    program : SparseFunc
        The operator's program.
    inputs : dict
        Arguments by parameter name.
    reference : numpy.ndarray
        The result in float64.
    flops, bytes : int
        Operations; bytes when every array is read or written once.
    peers : callable
        ``peers(threads)`` returns the contenders installed here.
    """

    program: SparseFunc
    inputs: dict[str, Any]
    reference: np.ndarray
    flops: int
    bytes: int
    peers: Callable[[int], list[Contender]]
    tolerance: float = 1e-4
    scale: float = field(init=False)

    def __post_init__(self) -> None:
        self.scale = float(np.abs(self.reference).max(initial=0.0)) or 1.0

    def default(self, target: Any) -> Executable:
        """Compile the operator with its default schedule."""
        return schedules.compile_default(self.program, target)

    def bind(self, executable: Executable, operands: Mapping[str, Any] | None = None) -> Call:
        """Prepare a call of a kernel on these inputs, sparse ones as `operands` has them."""
        function = executable[self.program.name]
        return Call(function, function.arguments(**{**self.inputs, **(operands or {})}))

    def relative_error(self, result: Any) -> float:
        """Largest difference from the reference, relative to the largest value of it."""
        found = np.asarray(result.numpy() if hasattr(result, "numpy") else result, np.float64)
        difference = np.abs(found.reshape(self.reference.shape) - self.reference)
        return float(difference.max(initial=0.0)) / self.scale


def measure(workload: Workload, contenders: list[Contender], rounds: int = 9) -> list[Row]:
    """Check every contender's result and time them, interleaved; medians.

    Raises
    ------
    RuntimeError
        If a result is wrong.
    """
    errors = []
    for contender in contenders:
        error = workload.relative_error(contender.run())
        if not error < workload.tolerance:
            raise RuntimeError(f"{contender.name}: wrong result, relative error {error:.1e}")
        errors.append(error)
    medians = interleaved_medians([contender.run for contender in contenders], rounds)
    rows = []
    for contender, seconds, error in zip(contenders, medians, errors):
        rows.append(
            Row(
                name=contender.name,
                seconds=seconds,
                gflops=workload.flops / seconds * 1e-9,
                gbytes=workload.bytes / seconds * 1e-9,
                error=error,
            )
        )
    return rows


def _torch(threads: int):
    """PyTorch, if it is installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch  # noqa: PLC0415 (optional)

    torch.set_num_threads(threads)
    return torch


def _torch_csr(torch, matrix: sp.csr_matrix):
    arrays = (matrix.indptr, matrix.indices, matrix.data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that CSR is in beta, and unchecked
        return torch.sparse_csr_tensor(*map(torch.from_numpy, arrays), size=matrix.shape)


def _array_bytes(*arrays: np.ndarray) -> int:
    return sum(int(array.nbytes) for array in arrays)


def _spmm(matrix: sp.csr_matrix, features: int, seed: int) -> Workload:
    dense = _dense(matrix.shape[1], features, seed)

    def peers(threads: int) -> list[Contender]:
        found = [Contender("SciPy", lambda: matrix @ dense)]
        torch = _torch(threads)
        if torch is not None:
            left, right = _torch_csr(torch, matrix), torch.from_numpy(dense)
            found.append(Contender("PyTorch", lambda: left @ right))
        return found

    reference = schedules.spmm.reference(matrix, dense)
    return Workload(
        program=schedules.spmm.program(),
        inputs={"a": matrix, "b": dense},
        reference=reference,
        flops=2 * matrix.nnz * features,
        bytes=_array_bytes(matrix.data, matrix.indices, matrix.indptr, dense) + 4 * reference.size,
        peers=peers,
    )


def _spmv(matrix: sp.csr_matrix, _features: int, seed: int) -> Workload:
    vector = _dense(matrix.shape[1], 1, seed)[:, 0].copy()

    def peers(threads: int) -> list[Contender]:
        found = [Contender("SciPy", lambda: matrix @ vector)]
        torch = _torch(threads)
        if torch is not None:
            left, right = _torch_csr(torch, matrix), torch.from_numpy(vector)
            found.append(Contender("PyTorch", lambda: left @ right))
        return found

    reference = schedules.spmv.reference(matrix, vector)
    return Workload(
        program=schedules.spmv.program(),
        inputs={"a": matrix, "x": vector},
        reference=reference,
        flops=2 * matrix.nnz,
        bytes=_array_bytes(matrix.data, matrix.indices, matrix.indptr, vector) + 4 * reference.size,
        peers=peers,
    )


def _sddmm(matrix: sp.csr_matrix, features: int, seed: int) -> Workload:
    x, y = _dense(matrix.shape[0], features, seed), _dense(matrix.shape[1], features, seed + 1)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))

    def peers(threads: int) -> list[Contender]:
        gather = lambda: np.einsum("pk,pk->p", x[rows], y[matrix.indices])  # noqa: E731
        found = [Contender("NumPy", gather)]
        torch = _torch(threads)
        if torch is not None:
            pattern = _torch_csr(torch, matrix)
            left, right = torch.from_numpy(x), torch.from_numpy(y).T
            sampled = lambda: torch.sparse.sampled_addmm(  # noqa: E731
                pattern, left, right, beta=0.0
            ).values()
            found.append(Contender("PyTorch", sampled))
        return found

    reference = schedules.sddmm.reference(matrix, x, y)
    return Workload(
        program=schedules.sddmm.program(),
        inputs={"x": x, "y": y, "indptr": matrix.indptr, "indices": matrix.indices},
        reference=reference,
        flops=2 * matrix.nnz * features,
        bytes=_array_bytes(matrix.indices, matrix.indptr, x, y) + 4 * matrix.nnz,
        peers=peers,
    )


def _segment_sum(matrix: sp.csr_matrix, features: int, seed: int) -> Workload:
    values = _dense(matrix.nnz, features, seed)
    ones = sp.csr_matrix(
        (np.ones(matrix.nnz, np.float32), np.arange(matrix.nnz, dtype=np.int32), matrix.indptr),
        shape=(matrix.shape[0], matrix.nnz),
    )

    def peers(threads: int) -> list[Contender]:
        found = [Contender("SciPy", lambda: ones @ values)]
        torch = _torch(threads)
        if torch is not None:
            data, offsets = torch.from_numpy(values), torch.from_numpy(matrix.indptr)
            reduce = lambda: torch.segment_reduce(  # noqa: E731
                data, "sum", offsets=offsets, initial=0.0
            )
            found.append(Contender("PyTorch", reduce))
        return found

    reference = ones.astype(np.float64) @ values.astype(np.float64)
    return Workload(
        program=schedules.segment_reduce.program("sum"),
        inputs={"x": values, "indptr": matrix.indptr},
        reference=reference,
        flops=matrix.nnz * features,
        bytes=_array_bytes(values, matrix.indptr) + 4 * reference.size,
        peers=peers,
    )


def _dense(rows: int, columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)


#: Makes the workload of an operator from a matrix, a feature width and a seed.
OPERATORS: dict[str, Callable[[sp.csr_matrix, int, int], Workload]] = {
    "sddmm": _sddmm,
    "segment_sum": _segment_sum,
    "spmm": _spmm,
    "spmv": _spmv,
}
