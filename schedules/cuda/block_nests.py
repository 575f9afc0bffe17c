"""What a lowered iteration over blocks of entries computes: loops, factors, conditions and result.

Comes in: the nested blocks of a part at stage III, not scheduled yet. Goes out: the pieces that the tile
programs of :mod:`.blocks` and :mod:`.sddmm_blocks` are put together from. They know no format: an index
or a condition of theirs is one of the lowered program with positions put in for its variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Expr, TensorLoad, Var
from tvm.sym import Analyzer

__all__ = [
    "Factor",
    "Nest",
    "at",
    "buffers_loaded",
    "guarded_store",
    "read_nest",
    "same_place",
    "stride",
    "uses",
]


@dataclass(frozen=True)
class Factor:
    """A value that is multiplied: ``load`` where ``conditions`` hold, and zero elsewhere."""

    load: TensorLoad
    conditions: tuple[Expr, ...]

    @property
    def buffer(self) -> Var:
        """Where it is stored."""
        return self.load.source

    @property
    def index(self) -> Expr:
        """At which place."""
        return self.load.indices[0]


@dataclass(frozen=True)
class Nest:
    """``result[index] = init`` and, for all reduced variables, ``+=`` the product of the factors.

    Attributes
    ----------
    loop : tirx.For
        The outermost loop.
    name : str
        Name of the outer block.
    variables : tuple of (Var, Expr)
        Variables of all blocks, the outermost first, and their extents, which may depend on those before.
    kinds : str
        A letter for each variable: S spatial, R reduced.
    factors : tuple of Factor
        What is multiplied.
    conditions : tuple of Expr
        All must hold for a product to be added.
    result : Var
        The buffer of the result.
    index : Expr
        Where in it.
    init : Expr
        What the sum begins with.
    """

    loop: tirx.For
    name: str
    variables: tuple[tuple[Var, Expr], ...]
    kinds: str
    factors: tuple[Factor, ...]
    conditions: tuple[Expr, ...]
    result: Var
    index: Expr
    init: Expr

    @property
    def expressions(self) -> list[Expr]:
        """All expressions of the nest that load something."""
        extents = [extent for _, extent in self.variables]
        loads = [expr for factor in self.factors for expr in (factor.load, *factor.conditions)]
        return [*extents, *loads, *self.conditions, self.index, self.init]


def read_nest(sch: s_tir.Schedule, blocks: Sequence[s_tir.schedule.SBlockRV]) -> Nest | None:
    """Return what nested blocks compute, or None where it is no sum of products.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    blocks : sequence of SBlockRV
        The blocks of an iteration, the outer one first.
    """
    if len(blocks) < 2:
        return None
    *around, within = (sch.get(block) for block in blocks)
    nest = sch.get(sch.get_loops(blocks[0])[0])
    if within.init is None or not all(_binds_loops(sch, nest, block) for block in blocks):
        return None
    conditions, store = guarded_store(within.body)
    _, init = guarded_store(within.init)
    factors = _factors(store) if store is not None else None
    if factors is None or init is None or len(store.indices) != 1:
        return None
    iter_vars = [iter_var for block in (*around, within) for iter_var in block.iter_vars]
    return Nest(
        nest,
        around[0].name_hint,
        tuple((iv.var, iv.dom.extent) for iv in iter_vars),
        "".join("S" if iv.iter_type == tirx.IterVar.DataPar else "R" for iv in iter_vars),
        factors,
        conditions,
        store.buffer,
        store.indices[0],
        _without_names(init.value, around),
    )


def at(expr: Expr, values: Mapping[Var, Expr | int]) -> Expr:
    """Return an expression with values put in for variables, each in the type of its variable."""
    typed = {var: _in_type(value, str(var.ty.dtype)) for var, value in values.items()}
    return tvm_ffi.structural_map(expr, (Var, lambda var: typed.get(var, var)))


def uses(expr: Expr, *variables: Var) -> bool:
    """Whether an expression contains one of some variables or buffers."""
    found: list[Var] = []
    tvm_ffi.structural_walk(expr, (Var, found.append))
    return any(var.same_as(wanted) for var in found for wanted in variables)


def buffers_loaded(expressions: Sequence[Expr]) -> list[Var]:
    """Return the buffers that expressions load from, each once."""
    found: dict[Var, None] = {}

    def note(load: TensorLoad) -> None:
        found[load.source] = None

    for expr in expressions:
        tvm_ffi.structural_walk(expr, (TensorLoad, note))
    return list(found)


def same_place(first: TensorLoad, second: TensorLoad) -> bool:
    """Whether two loads are of the same place, given that no index overflows."""
    if not first.source.same_as(second.source) or len(first.indices) != len(second.indices):
        return False
    apart = (_widened(a) - _widened(b) for a, b in zip(first.indices, second.indices))
    rest = [Analyzer().simplify(difference) for difference in apart]
    return all(isinstance(left, tirx.IntImm) and int(left) == 0 for left in rest)


def _widened(index: Expr) -> Expr:
    """Return an index in 64 bits, with terms widened one by one."""
    if isinstance(index, tirx.Cast) and str(index.ty.dtype) == "int64":
        index = index.value
    if isinstance(index, tirx.Add | tirx.Sub | tirx.Mul):
        return type(index)(_widened(index.a), _widened(index.b))
    return _in_type(index, "int64")


def stride(index: Expr, var: Var) -> int | None:
    """Return the constant by which an index grows with a variable, or None."""
    step = Analyzer().simplify(at(index, {var: 1}) - at(index, {var: 0}))
    return int(step) if isinstance(step, tirx.IntImm) else None


def _in_type(value: Expr | int, dtype: str) -> Expr:
    if isinstance(value, int):
        return tirx.const(value, dtype)
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def _without_names(expr: Expr, blocks: Sequence[s_tir.SBlock]) -> Expr:
    """Return an expression that loads from buffers themselves, not by other names that blocks have."""
    names = {match.buffer: match.source.source for block in blocks for match in block.match_buffers}

    def load(node: TensorLoad, _mutator) -> Expr:
        return tirx.BufferLoad(names.get(node.source, node.source), node.indices)

    return tvm_ffi.structural_mutate(expr, [(TensorLoad, load)]) if names else expr


def _binds_loops(sch: s_tir.Schedule, nest: tirx.For, block: s_tir.schedule.SBlockRV) -> bool:
    """Whether each variable of a block is a loop, in order: nothing is scheduled yet."""
    wanted = sch.get(block)
    found: list[s_tir.SBlockRealize] = []

    def note(realize: s_tir.SBlockRealize) -> None:
        if realize.block.same_as(wanted):
            found.append(realize)

    tvm_ffi.structural_walk(nest, (s_tir.SBlockRealize, note))
    loops = [sch.get(loop).loop_var for loop in sch.get_loops(block)]
    values = found[0].iter_values
    return len(values) == len(loops) and all(map(Var.same_as, loops, values))


def guarded_store(stmt: tirx.Stmt) -> tuple[tuple[Expr, ...], tirx.BufferStore | None]:
    """Return the store that a statement consists of, and the conditions around it."""
    conditions: list[Expr] = []
    while isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
        conditions += _conjuncts(stmt.condition)
        stmt = stmt.then_case
    return tuple(conditions), stmt if isinstance(stmt, tirx.BufferStore) else None


def _conjuncts(condition: Expr) -> list[Expr]:
    if isinstance(condition, tirx.And):
        return [*_conjuncts(condition.a), *_conjuncts(condition.b)]
    return [condition]


def _factors(store: tirx.BufferStore) -> tuple[Factor, ...] | None:
    """The factors of what a store adds to its place; None where it does something else."""
    total = store.value
    if not isinstance(total, tirx.Add) or not _is_place(total.a, store):
        return None
    factors = [_factor(leaf) for leaf in _multiplied(total.b)]
    return tuple(factors) if all(factors) and len(factors) > 1 else None


def _is_place(expr: Expr, store: tirx.BufferStore) -> bool:
    return (
        isinstance(expr, TensorLoad)
        and expr.source.same_as(store.buffer)
        and len(expr.indices) == len(store.indices)
        and all(map(tvm_ffi.structural_equal, expr.indices, store.indices))
    )


def _multiplied(expr: Expr) -> list[Expr]:
    if isinstance(expr, tirx.Mul):
        return [*_multiplied(expr.a), *_multiplied(expr.b)]
    return [expr]


def _factor(expr: Expr) -> Factor | None:
    """Return what a leaf of a product loads; None where it is anything but a guarded load."""
    conditions: list[Expr] = []
    while not isinstance(expr, TensorLoad):
        if isinstance(expr, tirx.Cast):
            expr = expr.value
        elif _is_choice(expr) and _is_zero(expr.args[2]):
            conditions += _conjuncts(expr.args[0])
            expr = expr.args[1]
        else:
            return None
    return Factor(expr, tuple(conditions)) if len(expr.indices) == 1 else None


def _is_choice(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.op.name == "prim.if_then_else"


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, tirx.FloatImm | tirx.IntImm) and expr.value == 0
