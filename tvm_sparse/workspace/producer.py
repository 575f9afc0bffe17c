"""The loops that produce the entries of a sparse result, row by row.

Comes in: a stage-I function whose result is stored over axes ``sparse_output``. Goes out: for every
iteration that adds to the result, plain loops over positions inside one row, with marked stores where an
entry is produced. Rows are the levels of the result that loops and result share (:mod:`.detection`); the
other levels are one place in a row, counted row-major in the order of storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr, IRModule, Var

from ..errors import SparseProgramError
from ..ir import SparseBuffer, SparseFunc, SparseIteration
from ..ir.accumulation import accumulation_of, is_accumulation
from ..ir.buffer import declare_buffer
from ..ir.contents import loads_from, stores_to
from ..ir.statements import in_sequence
from ..transform._access import widened
from ..transform._layout import read_layout
from ..transform.lower_sparse_buffer import flatten_function
from ..transform.lower_sparse_iteration import lower_function
from .detection import Detection, detect
from .policy import Combine

__all__ = ["Producer", "RowLoops", "produce", "sparse_result"]

#: Key of the statement around an iteration while it is lowered.
_ITERATION = "tvm_sparse.iteration"


@dataclass(frozen=True)
class RowLoops:
    """What one iteration produces in a row.

    Attributes
    ----------
    levels : list of Var
        The row's coordinates, outermost first; free in `body`.
    body : tvm.tirx.Stmt
        Loops inside the row.
    combine : callable or None
        How entries of one place combine; None where the last one stays.
    """

    levels: list[Var]
    body: tirx.Stmt
    combine: Combine | None


@dataclass(frozen=True)
class Producer:
    """The producing loops of a function.

    Attributes
    ----------
    params : list of Var
        Parameters of the lowered function, the marker among them.
    layout : dict
        What they are.
    marker : Var
        The buffer that stands for the result: a store to it is an entry.
    rows : list of RowLoops
        One for each iteration, in program order.
    neutral : Expr
        What an empty place holds.
    detections : list of Detection
        What each iteration needs.
    lengths : list of Expr
        Lengths of the levels that make a row.
    spans : list of Expr
        Lengths of the levels inside a row.
    """

    params: list[Var]
    layout: dict
    marker: Var
    rows: list[RowLoops]
    neutral: Expr
    detections: list[Detection]
    lengths: list[Expr]
    spans: list[Expr]

    @property
    def streams(self) -> str | None:
        """How loops that produce the entries of a row in order may write them; None if they do not."""
        strategies = [own.strategy for own in self.detections]
        return strategies[0] if strategies in (["append"], ["scalar"]) else None

    @property
    def has_tests(self) -> bool:
        """Whether loops may produce less than their bounds say, by what they find or what values are."""
        tests: list[tirx.Stmt] = []
        kinds = [(kind, tests.append) for kind in (tirx.IfThenElse, tirx.While)]
        for own in self.rows:
            tvm_ffi.structural_walk(own.body, kinds)
        return bool(tests)

    @property
    def is_exact(self) -> bool:
        """Whether loops produce no entry twice, and as many as their bounds say."""
        is_single = len(self.rows) == 1 and not self.detections[0].accumulates
        return is_single and not self.has_tests

    def place(self, indices: Sequence[Expr]) -> Expr:
        """Return the place in a row of an entry with these coordinates, int64."""
        inner = list(indices)[len(self.lengths) :]
        place = inner[0].astype("int64")
        for index, span in zip(inner[1:], self.spans[1:]):
            place = place * span.astype("int64") + index.astype("int64")
        return place


def sparse_result(func: SparseFunc) -> SparseBuffer | None:
    """Return the buffer of a function whose structure the kernel finds, None if there is none.

    Raises
    ------
    SparseProgramError
        If there are several, or one has axes that no workspace can assemble.
    """
    found = [b for b in func.buffers if any(a.kind == "sparse_output" for a in b.axes)]
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join(buffer.name for buffer in found)
        raise SparseProgramError(
            f"function {func.name}: expected one result over S.sparse_output, found {names}"
        )
    (result,) = found
    others = [a for a in result.axes if a.kind not in ("dense_fixed", "sparse_output")]
    if others or result.axes[-1].kind != "sparse_output":
        raise SparseProgramError(
            f"function {func.name}: result {result.name}: expected dense axes and S.sparse_output axes, "
            f"one of these last, found {', '.join(f'{a.name} ({a.kind})' for a in result.axes)}"
        )
    return result


def produce(func: SparseFunc, result: SparseBuffer) -> Producer:
    """Lower the iterations that produce a result to loops over one row."""
    label = f"function {func.name}"
    stmts = list(func.body.seq) if isinstance(func.body, tirx.SeqStmt) else [func.body]
    if not all(isinstance(stmt, SparseIteration) for stmt in stmts):
        raise SparseProgramError(
            f"{label}: expected sparse iterations alone beside a result over S.sparse_output"
        )
    marker = declare_buffer([a.length for a in result.axes], result.dtype, f"{result.name}_entry")
    found = [_Iteration(stmt, result, marker, f"{label}: iteration {stmt.name}") for stmt in stmts]
    depth = min(len(result.axes) - 1, *(own.shared_levels() for own in found))
    lowered = flatten_function(lower_function(_with_marker(func, result, marker, found)))
    body = _as_loops(lowered).body
    shared = [axis.length for axis in result.axes[:depth]]
    rows = [
        RowLoops(*_inside(nest, shared), own.combine)
        for nest, own in zip(_nests(body), found, strict=True)
    ]
    neutral = {str(own.neutral): own.neutral for own in found if own.neutral is not None}
    if len(neutral) > 1:
        raise SparseProgramError(
            f"{label}: expected iterations that combine entries by one operation, found several"
        )
    lengths = [axis.length for axis in result.axes]
    return Producer(
        params=list(lowered.params),
        layout=read_layout(lowered),
        marker=lowered.params[func.params.index(result.buffer)],
        rows=rows,
        neutral=next(iter(neutral.values()), tirx.const(0, result.dtype)),
        detections=[own.detection for own in found],
        lengths=lengths[:depth],
        spans=lengths[depth:],
    )


class _Iteration:
    """One iteration that produces entries: what it stores, and in which order."""

    def __init__(
        self, node: SparseIteration, result: SparseBuffer, marker: Var, label: str
    ) -> None:
        self.node, self.result, self.label = node, result, label
        stores: list[tirx.BufferStore] = []

        def store(stmt: tirx.BufferStore, _mutator) -> tirx.Stmt:
            if not stmt.buffer.same_as(result.buffer):
                raise SparseProgramError(
                    f"{label}: expected stores to {result.name}, whose axis the kernel finds, and to "
                    f"nothing else, found one to {stmt.buffer.name}; write its value where it is used, "
                    "or compute it in an iteration of its own"
                )
            stores.append(stmt)
            combines = is_accumulation(stmt) or loads_from(stmt.value, result.buffer)
            value = accumulation_of(stmt, label).term if combines else stmt.value
            marked = tirx.BufferStore(marker, value, stmt.indices)
            return marked if inside is None else tirx.IfThenElse(inside, marked, None)

        inside = self._is_inside(_stored_indices(node, result.buffer))
        self.body = tvm_ffi.structural_mutate(node.body, [(tirx.BufferStore, store)])
        if len(stores) != 1:
            raise SparseProgramError(
                f"{label}: expected one statement that stores to {result.name}, found {len(stores)}"
            )
        (self.store,) = stores
        update = accumulation_of(self.store, label) if is_accumulation(self.store) else None
        self.combine = update and update.combine
        self.neutral = update and update.neutral(result.dtype)
        self._check_init()

    def _is_inside(self, indices: Sequence[Expr]) -> Expr | None:
        """Whether there is such a place in the result; None where that is known."""
        lengths = {var: axis.length for axis, _, var in self.node.iterators}
        inside = None
        for axis, index in zip(self.result.axes, indices):
            known = lengths.get(index) if isinstance(index, Var) else None
            if known is None or not tvm_ffi.structural_equal(known, axis.length):
                left, right = widened(index, axis.length)
                own = tirx.And(index >= 0, left < right)
                inside = own if inside is None else tirx.And(inside, own)
        return inside

    @property
    def detection(self) -> Detection:
        """What the iteration needs.

        Indices that are no iterators count as loops of their own, in no order; so do loops of the body.
        """
        names = {var: var.name for _, _, var in self.node.iterators}
        unordered = [
            var.name
            for axis, _, var in self.node.iterators
            if not (getattr(axis, "sorted", True) and getattr(axis, "unique", True))
        ]
        loops, levels = list(names.values()), []
        for number, index in enumerate(self.store.indices):
            name = names.get(index) if isinstance(index, Var) else None
            if name is None:
                name = f"index{number}"
                loops.append(name)
                unordered.append(name)
            levels.append(name)
        body_loops: list[str] = []
        tvm_ffi.structural_walk(
            self.node.body, [(tirx.For, lambda node: body_loops.append(f"for_{len(body_loops)}"))]
        )
        return detect([*loops, *body_loops], levels, unordered=unordered)

    def shared_levels(self) -> int:
        """How many levels of the result are loops over all coordinates, in the same order."""
        count = 0
        pairs = zip(self.node.iterators, self.store.indices, self.result.axes)
        for (axis, kind, var), index, level in pairs:
            if not (index.same_as(var) and kind == "S" and axis.kind == "dense_fixed"):
                break
            if not tvm_ffi.structural_equal(axis.length, level.length):
                break
            count += 1
        return count

    def lowerable(self) -> SparseIteration:
        """The iteration with marked stores."""
        node = self.node
        return SparseIteration(
            axes=node.axes,
            kinds=node.kinds,
            iter_vars=node.iter_vars,
            body=self.body,
            init=None,
            name=node.name,
            annotations=node.annotations,
            span=node.span,
        )

    def _check_init(self) -> None:
        """An init gives what leaves other values as they are: absent entries have none."""
        init = self.node.init
        if init is None or self.neutral is None:
            return
        value = init.value if isinstance(init, tirx.BufferStore) else None
        value = value if value is None else tvm.sym.Analyzer().simplify(value)
        if value is None or not tvm_ffi.structural_equal(value, self.neutral):
            raise SparseProgramError(
                f"{self.label}: expected the init of the sparse result {self.result.name} to be "
                f"{self.neutral}, which leaves other values as they are, found {value}"
            )


def _stored_indices(node: SparseIteration, buffer: Var) -> Sequence[Expr]:
    """Where an iteration stores to a buffer first."""
    return next((store.indices for store in stores_to(node.body, buffer)), ())


def _with_marker(
    func: SparseFunc, result: SparseBuffer, marker: Var, found: Sequence[_Iteration]
) -> SparseFunc:
    """The function with stores to the marker, a plain buffer, in place of the result."""
    body = [
        tirx.AttrStmt(tvm.runtime.convert("iteration"), _ITERATION, tirx.const(0), own.lowerable())
        for own in found
    ]
    return SparseFunc(
        params=[marker if p.same_as(result.buffer) else p for p in func.params],
        axes=[axis for axis in func.axes if axis.kind != "sparse_output"],
        buffers=[buffer for buffer in func.buffers if not buffer.same_as(result)],
        temporaries=func.temporaries,
        body=in_sequence(body),
        arg_names=func.arg_names,
        attrs=func.attrs,
        span=func.span,
    )


def _as_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Turn blocks into loops."""
    passes = [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
    return tvm.transform.Sequential(passes)(IRModule({"main": func}))["main"]


def _nests(body: tirx.Stmt) -> list[tirx.Stmt]:
    """Return the lowered iterations, each with the scratch that it uses if that stands outside of all."""
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    scratch = [part for part in parts if isinstance(part, tirx.AllocBuffer)]
    nests = []
    for part in parts:
        if isinstance(part, tirx.AttrStmt) and part.attr_key == _ITERATION:
            used: set[Var] = set()
            tvm_ffi.structural_walk(part.body, [(Var, used.add)])
            own = [one for one in scratch if one.buffer in used]
            nests.append(tirx.SeqStmt([*own, part.body]) if own else part.body)
    return nests


def _inside(nest: tirx.Stmt, lengths: Sequence[Expr]) -> tuple[list[Var], tirx.Stmt]:
    """Take the loops over the levels of a row off a nest; TVM leaves out those of one step."""
    levels = []
    for length in lengths:
        if isinstance(length, tirx.IntImm) and int(length.value) == 1:
            levels.append(Var("only", str(length.ty.dtype)))
            continue
        levels.append(nest.loop_var)
        nest = nest.body
    return levels, nest
