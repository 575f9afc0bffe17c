"""Stage-I functions."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import BaseFunc, Expr, Var
from tvm_ffi.dataclasses import field, py_class

from .axis import Axis
from .buffer import SparseBuffer

__all__ = ["FORMATS_ATTR", "TENSORS_ATTR", "SparseFunc"]

#: Attribute with the shapes of tensors that are held in formats, over parameter names, as JSON.
TENSORS_ATTR = "tvm_sparse.tensors"
#: Attribute with the descriptions of the formats of buffers that are stored in one, by parameter, as JSON.
FORMATS_ATTR = "tvm_sparse.formats"


@py_class("tvm_sparse.SparseFunc")
class SparseFunc(BaseFunc):
    """A function over coordinates (stage I); lives in an ``IRModule`` beside ``PrimFunc`` s.

    Attributes
    ----------
    params : list of tvm.ir.Var
        Buffer variables (values, ``indptr``, ``indices``, plain buffers) and scalars, in the order
        of the signature.
    axes : list of Axis
        All axes, parents before children.
    buffers : list of SparseBuffer
        Sparse buffers that are parameters.
    temporaries : list of SparseBuffer
        Sparse buffers that the function allocates.
    body : tvm.tirx.Stmt
        Sparse iterations and stock statements.
    arg_names : list of str
        Names of the parameters in the source; ignored by structural equality.
    """

    params: list[Var] = field(structural_eq="def")
    axes: list[Axis]
    buffers: list[SparseBuffer]
    temporaries: list[SparseBuffer]
    body: tirx.Stmt
    arg_names: list[str] = field(structural_eq="ignore")

    @property
    def name(self) -> str:
        """The function's global symbol, or ``"main"``."""
        symbol = self.attrs.get("global_symbol") if self.attrs else None
        return str(symbol) if symbol is not None else "main"

    @property
    def sparse_buffers(self) -> dict[Var, SparseBuffer]:
        """Every sparse buffer by its buffer variable."""
        return {buf.buffer: buf for buf in [*self.buffers, *self.temporaries]}

    def specialize(self, bindings: Mapping[Var | str, int | Expr]) -> SparseFunc:
        """Bind scalar parameters to values and drop them from the signature.

        Parameters
        ----------
        bindings : dict
            From a scalar parameter, or its name in the source, to an integer or expression.

        Returns
        -------
        SparseFunc
            The function over the remaining parameters.

        Raises
        ------
        ValueError
            If a key is not a scalar parameter of the function.

        Examples
        --------
        >>> from tvm_sparse import schedules
        >>> narrow = schedules.spmm.program().specialize({"f": 64})
        >>> "f" in narrow.arg_names
        False
        """
        by_name = dict(zip(self.arg_names, self.params))
        values: dict[Var, Expr] = {}
        for key, value in bindings.items():
            var = by_name.get(key) if isinstance(key, str) else key
            if var is None or var not in set(self.params) or tirx.is_buffer_var(var):
                scalars = [n for n, p in by_name.items() if not tirx.is_buffer_var(p)]
                raise ValueError(
                    f"{self.name}.specialize: expected one of the scalar parameters {scalars}, "
                    f"found {key!s}"
                )
            values[var] = _bound_value(value, str(var.ty.dtype), f"{self.name}.specialize: {key!s}")
        bound = self._substitute(values)
        for axis in bound.axes:
            sizes = {"length": axis.length, "size": axis.slots}
            for what, size in sizes.items():
                if isinstance(size, tirx.IntImm) and int(size) < 0:
                    raise ValueError(f"{self.name}.specialize: axis {axis.name} gets {what} {size}")
        return bound

    def with_body(
        self, body: tirx.Stmt, temporaries: list[SparseBuffer] | None = None
    ) -> SparseFunc:
        """Return the function with another body and, if given, other temporaries."""
        return SparseFunc(
            params=self.params,
            axes=self.axes,
            buffers=self.buffers,
            temporaries=self.temporaries if temporaries is None else temporaries,
            body=body,
            arg_names=self.arg_names,
            attrs=self.attrs,
            span=self.span,
        )

    def _substitute(self, values: dict[Var, Expr]) -> SparseFunc:
        kept = [k for k, p in enumerate(self.params) if p not in values]
        reduced = SparseFunc(
            params=[self.params[k] for k in kept],
            axes=self.axes,
            buffers=self.buffers,
            temporaries=self.temporaries,
            body=self.body,
            arg_names=[self.arg_names[k] for k in kept],
            attrs=self.attrs,
            span=self.span,
        )
        return substitute(reduced, values)

    def script(self, **_kwargs) -> str:
        """Print the function as TVMScript that parses back to a structurally equal function.

        Returns
        -------
        str
            The source; see :func:`tvm_sparse.script.from_source`.
        """
        from ..script.printer import print_function  # noqa: PLC0415 (the printer knows the nodes)

        return print_function(self)

    def show(self, **_kwargs) -> None:
        """Print :meth:`script` to the standard output."""
        print(self.script())

    def __str__(self) -> str:
        return self.script()


def _bound_value(value: Any, dtype: str, label: str) -> Expr:
    """Turn a Python number into a constant of a parameter's dtype."""
    if isinstance(value, Expr):
        return value
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise ValueError(f"{label}: expected a number or an expression, found {value!r}")
    if "int" in dtype and value != int(value):
        raise ValueError(
            f"{label}: expected an integer for a parameter of {dtype}, found {value!r}"
        )
    limit = 2 ** (31 if dtype == "int32" else 63)
    if "int" in dtype and not -limit <= value < limit:
        raise ValueError(f"{label}: {value} does not fit in a parameter of {dtype}")
    return tirx.const(int(value) if "int" in dtype else float(value), dtype)


def substitute(node: tvm_ffi.Object, values: dict[Var, Expr]) -> tvm_ffi.Object:
    """Replace variables by expressions throughout ``node``, in buffer shapes and axes alike.

    Buffer variables whose type mentions a replaced variable become new variables; sharing of axes
    and buffers is preserved.
    """
    memo: dict = dict(values)

    def visit(value, mutator):
        if value in memo:
            return memo[value]
        result = mutator.default_mutate(value)
        if isinstance(value, Var) and tirx.is_buffer_var(value):
            result = _substitute_buffer(value, values)
        memo[value] = result
        return result

    return tvm_ffi.structural_mutate(node, [((Var, Axis, SparseBuffer), visit)])


def _substitute_buffer(var: Var, values: dict[Var, Expr]) -> Var:
    mutate = lambda e: tvm_ffi.structural_map(e, [(Var, lambda v: values.get(v, v))])  # noqa: E731
    ty = var.ty
    analyzer = tvm.sym.Analyzer()
    shape = [analyzer.simplify(mutate(size)) for size in ty.shape]
    if all(new.same_as(old) for new, old in zip(shape, ty.shape)):
        return var
    return tirx.decl_buffer(
        shape,
        str(ty.dtype),
        var.name,
        scope=ty.storage_scope,
        data_alignment=ty.data_alignment,
    )
