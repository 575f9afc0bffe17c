"""A program that says what a format's layout means: every stored slot added to a dense tensor."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var

from tests.execution import Kernel
from tvm_sparse.formats import Format, Packed
from tvm_sparse.ir import DenseFixedAxis, SparseBuffer, SparseFunc, SparseIteration, verify
from tvm_sparse.ir.buffer import declare_buffer

__all__ = ["densify_program", "densify_with"]


def densify_program(
    fmt: Format, index_dtype: str = "int32", dtype: str = "float32", size_dtype: str | None = None
) -> SparseFunc:
    """Return the program that adds a packed tensor to ``dense``.

    ::

        with S.sp_iter([axes of the layout], kinds, "densify") as coords:
            dense[to_tensor(coords)] = dense[to_tensor(coords)] + a[coords]

    Slots outside of the tensor (diagonals and blocks stick out of it) add nothing.
    An axis is spatial where the layout calls it distinct and the place in ``dense`` depends on it.

    Parameters
    ----------
    fmt : Format
        The format.
    index_dtype, dtype, size_dtype : str
        Of index arrays, values and sizes of the tensor; the last is ``index_dtype`` unless given.
    """
    sizes = [Var(f"n{dim}", size_dtype or index_dtype) for dim in range(fmt.rank)]
    layout = fmt.layout("a", sizes, index_dtype)
    axes = [stored.axis for stored in layout.axes]
    dense_axes = [
        DenseFixedAxis(f"dense_{dim}", size, str(size.ty.dtype)) for dim, size in enumerate(sizes)
    ]
    values = _sparse_buffer("a", axes, dtype)
    dense = _sparse_buffer("dense", dense_axes, dtype)
    variables = [Var(axis.name.lower(), axis.dtype) for axis in axes]
    coordinates = layout.to_tensor(variables)
    used = _variables_in(coordinates)
    total = tirx.BufferLoad(dense.buffer, coordinates) + tirx.BufferLoad(values.buffer, variables)
    iteration = SparseIteration(
        axes=axes,
        kinds="".join(
            "S" if stored.distinct and var in used else "R"
            for stored, var in zip(layout.axes, variables)
        ),
        iter_vars=variables,
        body=tirx.BufferStore(dense.buffer, total, coordinates),
        init=None,
        name="densify",
        annotations={},
        span=None,
    )
    params = {"a": values.buffer, "dense": dense.buffer}
    params |= {f"a_{name}": param for name, param in layout.params.items()}
    params |= {str(size.name): size for size in sizes}
    func = SparseFunc(
        params=list(params.values()),
        axes=[*axes, *dense_axes],
        buffers=[values, dense],
        temporaries=[],
        body=iteration,
        arg_names=list(params),
        attrs=tvm.ir.make_node("ir.DictAttrs", global_symbol="densify"),
    )
    verify(func)
    return func


def densify_with(kernel: Kernel, packed: Packed, dtype: str = "float32") -> np.ndarray:
    """Run the compiled program on a packed tensor and return ``dense``."""
    parts = packed.arguments("a")
    arrays = {name: part for name, part in parts.items() if isinstance(part, np.ndarray)}
    scalars = {name: part for name, part in parts.items() if name not in arrays}
    scalars |= {f"n{dim}": extent for dim, extent in enumerate(packed.shape)}
    return kernel({**arrays, "dense": np.zeros(packed.shape, dtype)}, scalars)["dense"]


def _sparse_buffer(name: str, axes: list, dtype: str) -> SparseBuffer:
    buffer = declare_buffer([axis.length for axis in axes], dtype, name)
    return SparseBuffer(buffer=buffer, axes=axes, default=tirx.const(0, dtype))


def _variables_in(expressions: list[Expr]) -> set[Var]:
    found: set[Var] = set()
    for expression in expressions:
        tvm_ffi.structural_walk(expression, [(Var, found.add)])
    return found
