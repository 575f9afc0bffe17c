"""The kernels of this package, bound to ready tensors.

The compiled functions are called themselves, without the argument checks of ``Executable``, as the
peers that take bare pointers are; the checks cost about 3 microseconds a call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import scipy.sparse as sp
import tvm
import tvm_ffi

from tvm_sparse import schedules
from tvm_sparse.formats import Packed, PackedComposition
from tvm_sparse.runtime import Executable

__all__ = ["bind", "bind_packed"]


def bind(
    operator: str, matrix: sp.csr_matrix, operands: list[np.ndarray], special: bool = False
) -> tuple[Callable[[], object], Callable[[], np.ndarray]]:
    """Return a call that runs an operator, and one that reads its result.

    Parameters
    ----------
    operator : str
        ``"spmv"``, ``"spmm"``, ``"sddmm"`` or ``"segment_sum"``.
    matrix : scipy.sparse.csr_matrix
        The sparse operand; of its structure alone for the last two.
    operands : list of numpy.ndarray
        The dense operands.
    special : bool
        Compile for this feature width alone.
    """
    rows, columns = matrix.shape
    features = operands[0].shape[1] if operands[0].ndim == 2 else None
    kernel = _kernel(operator, features if special else None)
    values, indptr, indices = (
        tvm.runtime.tensor(array) for array in (matrix.data, matrix.indptr, matrix.indices)
    )
    dense = [tvm.runtime.tensor(array) for array in operands]
    shape = {
        "spmv": (rows,),
        "spmm": (rows, features),
        "sddmm": (matrix.nnz,),
        "segment_sum": (rows, features),
    }[operator]
    result = tvm.runtime.tensor(np.full(shape, np.nan, np.float32))
    width = [] if special else [features]
    arguments = {
        "spmv": [values, *dense, result, indptr, indices, rows, columns, matrix.nnz],
        "spmm": [values, *dense, result, indptr, indices, rows, columns, *width, matrix.nnz],
        "sddmm": [*dense, result, indptr, indices, rows, columns, *width, matrix.nnz],
        "segment_sum": [*dense, result, indptr, rows, *width, matrix.nnz],
    }[operator]
    return lambda: kernel(*arguments), result.numpy


def bind_packed(
    kernel: Executable, packed: Packed | PackedComposition, dense: np.ndarray
) -> tuple[Callable[[], object], Callable[[], np.ndarray]]:
    """Return a call that runs SpMM with a matrix in a format, and one that reads its result.

    Parameters
    ----------
    kernel : Executable
        What ``schedules.spmm.build`` returned for the format.
    packed : Packed or PackedComposition
        The matrix.
    dense : numpy.ndarray
        The dense operand.
    """
    result = np.full((packed.shape[0], dense.shape[1]), np.nan, np.float32)
    arguments = kernel["spmm"].arguments(a=packed, b=dense, c=result)
    function = kernel.module.get_function("spmm")
    return lambda: function(*arguments), lambda: result


@cache
def _kernel(operator: str, features: int | None) -> tvm_ffi.Function:
    if operator == "spmv":
        built = schedules.spmv.build()
    elif operator == "segment_sum":
        built = schedules.segment_reduce.build(features=features)
    else:
        built = getattr(schedules, operator).build(features=features)
    return built.module.get_function(operator)
