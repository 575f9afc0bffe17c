"""Stage I to stage II: sparse iterations become loops and nested blocks over positions.

Comes in: ``SparseFunc`` s. Goes out: ``PrimFunc`` s of stock TensorIR whose sparse buffers still have
one dimension per axis, indexed by the entry within its parent entry. Per iteration the pass decides
the loops and where a nested block begins, lowers the body's accesses (:mod:`._access`), and puts the
blocks together from the inside out.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, IRModule, TensorLoad, Var

from ..errors import SparseProgramError, describe_span
from ..ir import (
    AttachedAxis,
    Axis,
    FusedAxis,
    SparseBuffer,
    SparseFunc,
    SparseIteration,
    stored_axis,
)
from ..ir.buffer import ancestors
from ..ir.contents import buffers_stored, stores_in, stores_to, variables_of
from ._access import (
    Access,
    Iterator,
    Prologue,
    SearchPlacer,
    analyzer_with,
    conjunction,
    has_padding,
    multiply,
    padded_iterators,
    resolve_access,
    row_extent,
    widened,
)
from ._blocks import (
    REDUCE,
    SPATIAL,
    Loop,
    assemble_blocks,
    inside_axis,
    realize,
)
from ._inner_loops import InnerLoops, has_merged_axes, split_at_merged_axis
from ._layout import LAYOUT_ATTR, describe_layout
from ._merge_loops import without_step_marks
from ._regions import complete_regions
from .fill_outputs import COVER_MARK, FILL_MARK, START_MARK, fill_outputs
from .promote_accumulators import promote_accumulators

__all__ = ["LowerSparseIteration"]

#: Integer operations whose operands may come to differ in width.
_BINARY = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max),
    *(tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE),
)


#: The index type that holds every value of another integer type (uint64: as far as one can).
_INDEX_DTYPES = {
    **dict.fromkeys(("bool", "int8", "uint8", "int16", "uint16"), "int32"),
    **dict.fromkeys(("uint32", "uint64"), "int64"),
}


_IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")


@tvm.transform.module_pass(opt_level=0, name="LowerSparseIteration")
class LowerSparseIteration:
    """Lower every ``SparseFunc`` of a module to a ``PrimFunc`` over positions (stage II).

    Before::

        with S.sp_iter([I, J, F], "SRS", "spmm") as [i, j, k]:
            with T.init():
                C[i, k] = T.float32(0)
            C[i, k] = C[i, k] + A[i, j] * B[j, k]

    After::

        for i in range(m):
            with T.sblock("spmm_0"):
                vi = T.axis.spatial(m, i)
                for j, k in T.grid(J_indptr[vi + 1] - J_indptr[vi], f):
                    with T.sblock("spmm_1"):
                        vj, vk = T.axis.remap("RS", [j, k])
                        with T.init():
                            C[vi, vk] = T.float32(0)
                        C[vi, vk] = C[vi, vk] + A[vi, vj] * B[J_indices[J_indptr[vi] + vj], vk]

    Raises
    ------
    SparseProgramError
        If a program cannot be honoured.
    """

    def transform_module(self, module: IRModule, _context) -> IRModule:
        """Lower the functions of ``module``; stock functions are left alone."""
        lowered = IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            if isinstance(func, SparseFunc):
                func = lower_function(func)
                func = func.with_body(without_step_marks(func.body))
            lowered[var] = func
        return lowered


def lower_function(func: SparseFunc) -> tirx.PrimFunc:
    """Lower one stage-I function to stage II; merged loops are marked with how often they run."""
    func = promote_accumulators(func)
    return _FunctionLowering(fill_outputs(func)).run()


class _FunctionLowering:
    def __init__(self, func: SparseFunc) -> None:
        self.func = func
        self.stage1 = func.sparse_buffers
        self.stage2 = {var: _position_buffer(buf) for var, buf in self.stage1.items()}
        self.iterators: dict[Var, Iterator] = {}
        self.placer = SearchPlacer(self._is_changing)
        self.inner = InnerLoops(self)
        written = buffers_stored(func.body)
        self._constant = {self.stage2.get(p, p) for p in func.params if p not in written}
        #: Temporaries without room: nothing is ever stored there. TVM can't place them beside merged loops.
        self.empty = {t for t in func.temporaries if any(map(_has_no_room, t.axes))}
        if not _merges(func.body):
            self.empty = set()
        self.wide = any(_may_pass_int32(b.slots) for b in self.stage1.values())
        self._block_names: dict[str, int] = {}

    def run(self) -> tirx.PrimFunc:
        body = self.statement(self.func.body)
        root = self.placer.prologues[0]
        temporaries = [self.stage2[t.buffer] for t in self.func.temporaries]
        if root.statements or root.buffers:
            body = tirx.SeqStmt([*root.statements, body]) if root.statements else body
            body = realize("root", [], body, buffers=[*temporaries, *root.buffers])
            temporaries = []
        params = [self.stage2.get(p, p) for p in self.func.params]
        attrs = {str(k): v for k, v in dict(self.func.attrs or {}).items()}
        attrs |= {"tirx.noalias": True, "s_tir": True, LAYOUT_ATTR: describe_layout(self.func)}
        prim = tirx.PrimFunc(params, body).with_attr(attrs)
        return complete_regions(prim, temporaries)

    # --- statements ----------------------------------------------------------------------------

    def statement(self, stmt: tirx.Stmt) -> tirx.Stmt:
        """Lower a statement that may hold iterations."""
        return tvm_ffi.structural_mutate(
            stmt,
            [
                (SparseIteration, lambda node, _m: self.iteration(node)),
                (tirx.BufferStore, lambda node, _m: self._leaf(node, self.store)),
                (tirx.Bind, lambda node, _m: self._leaf(node, self._bind)),
                (tirx.IfThenElse, lambda node, _m: self._leaf(node, self._branch)),
                (tirx.For, lambda node, _m: self._leaf(node, self._local_loop)),
                (tvm.ir.Expr, lambda node, _m: self.value(node)),
            ],
        )

    def _leaf(self, node: tirx.Stmt, lower: Callable[[tirx.Stmt], tirx.Stmt]) -> tirx.Stmt:
        """Lower one statement, preceded by the searches that only it can use."""
        own = Prologue([])
        self.placer.push(own)
        try:
            stmt = lower(node)
        except SparseProgramError as err:
            where = f"function {self.func.name}: "
            if where in str(err):  # a statement inside has said so already
                raise
            raise SparseProgramError(f"{describe_span(node.span)}{where}{err}") from None
        self.placer.pop()
        self.placer.prologues[-1].buffers.extend(own.buffers)
        return tirx.SeqStmt([*own.statements, stmt]) if own.statements else stmt

    def _is_changing(self, var: Var) -> bool:
        """Whether a variable or buffer may have another value from statement to statement."""
        return var not in self._constant

    def _bind(self, stmt: tirx.Bind) -> tirx.Stmt:
        return tirx.Bind(stmt.var, self.value(stmt.value))

    def _branch(self, stmt: tirx.IfThenElse) -> tirx.Stmt:
        condition = self.value(stmt.condition)
        otherwise = self.statement(stmt.else_case) if stmt.else_case is not None else None
        return tirx.IfThenElse(condition, self.statement(stmt.then_case), otherwise)

    def _local_loop(self, loop: tirx.For) -> tirx.Stmt:
        begin, extent = self.value(loop.min), self.value(loop.extent)
        self.placer.push(Prologue([loop.loop_var]))
        body = self.statement(loop.body)
        prologue = self.placer.pop()
        if prologue.statements or prologue.buffers:
            body = tirx.SeqStmt([*prologue.statements, body]) if prologue.statements else body
            body = realize("searches", [], body, buffers=prologue.buffers)
        return tirx.For(loop.loop_var, begin, extent, loop.kind, body, annotations=loop.annotations)

    def store(self, stmt: tirx.BufferStore) -> tirx.Stmt:
        value = self.value(stmt.value)
        buffer = self.stage1.get(stmt.buffer)
        if buffer in self.empty:
            return tirx.Evaluate(0)
        if buffer is None:
            return tirx.BufferStore(stmt.buffer, value, [self.index(e) for e in stmt.indices])
        access = self._access(buffer, stmt.indices, storing=True)
        if access.stored is None:
            return tirx.BufferStore(self.stage2[stmt.buffer], value, access.locals)
        value = _known_valid(value, access.stored)
        lowered = tirx.BufferStore(self.stage2[stmt.buffer], value, access.locals)
        return tirx.IfThenElse(access.stored, lowered, None)

    # --- expressions ---------------------------------------------------------------------------

    def value(self, expr: Expr) -> Expr:
        """Lower an expression whose iterators stand for coordinates of their own dtype."""
        return self._expression(expr, _own_width)

    def index(self, expr: Expr) -> Expr:
        """Lower an expression in index context: loop variables stay as wide as they are."""
        lowered = self._expression(expr, _any_width)
        dtype = str(lowered.ty.dtype)
        return lowered if dtype in ("int32", "int64") else lowered.astype(_INDEX_DTYPES[dtype])

    def _expression(self, expr: Expr, coordinate) -> Expr:
        def load(node: TensorLoad, _mutator) -> Expr:
            buffer = self.stage1.get(node.source)
            if buffer is None:
                plain = tirx.BufferLoad(node.source, [self.index(e) for e in node.indices])
                if coordinate is not _any_width:
                    return plain
                return self._outside_padding(node.indices, plain)
            if buffer in self.empty:
                return buffer.default
            access = self._access(buffer, node.indices, storing=False)
            lowered = tirx.BufferLoad(self.stage2[node.source], access.locals)
            if access.chosen is not None:
                lowered = self._chosen(access, lowered, buffer.default)
            # An index may become the input of a search, which runs in padding slots too.
            valid = access.safe if coordinate is _any_width else access.valid
            return lowered if valid is None else tirx.if_then_else(valid, lowered, buffer.default)

        def variable(node: Var, _mutator) -> Expr:
            return coordinate(self.iterators[node]) if node in self.iterators else node

        def binary(node: Expr, mutator) -> Expr:
            return type(node)(*widened(mutator.mutate(node.a), mutator.mutate(node.b)))

        if isinstance(expr, Var):
            return variable(expr, None)
        rules = [(TensorLoad, load), (Var, variable), (_BINARY, binary)]
        if coordinate is _own_width:
            return tvm_ffi.structural_mutate(expr, rules)
        fixed_width = ((Call, tirx.Select), lambda node, _m: self.value(node))
        return tvm_ffi.structural_mutate(expr, [*rules, fixed_width])

    def _chosen(self, access: Access, load: Expr, default: Expr) -> Expr:
        """What a load gives where its entry may be absent, without a branch where it can be made anyway."""
        dtype = str(load.ty.dtype)
        is_bindable = (
            dtype != "bfloat16"
        )  # TVM computes it as float32, but leaves variables as they are
        if access.valid is not None or load.source not in self._constant or not is_bindable:
            return tirx.if_then_else(access.chosen, load, default)
        loaded = Var(f"{load.source.name}_value", dtype)
        self.placer.prologues[-1].statements.append(tirx.Bind(loaded, load))
        return tirx.Select(access.chosen, loaded, default)

    def _outside_padding(self, indices: list[Expr], load: Expr) -> Expr:
        """A load that an index needs: in padding slots it is not made."""
        inside = None
        for index in indices:
            for it in padded_iterators(index, self.iterators):
                inside = conjunction(inside, inside_axis(it.coordinate, it.stored_axis.length))
        if inside is None:
            return load
        return tirx.if_then_else(inside, load, tirx.const(0, str(load.ty.dtype)))

    def _access(self, buffer: SparseBuffer, indices: list[Expr], storing: bool):
        return resolve_access(
            buffer,
            list(indices),
            self.iterators,
            self.index,
            self.placer,
            self._known_bounds,
            storing,
        )

    def _known_bounds(self, index: Expr, length: Expr) -> tuple[bool, bool]:
        """Whether a stage-I index is known to be at least 0, and less than ``length``."""
        used = variables_of(index)
        if not used <= set(self.iterators):
            return False, False
        if isinstance(index, Var):
            own = self.iterators[index].stored_axis.length
            if tvm_ffi.structural_equal(own, length):
                return True, True
        analyzer = analyzer_with({v: self.iterators[v].stored_axis.length for v in used})
        return analyzer.can_prove(index >= 0), analyzer.can_prove(index < length)

    # --- iterations ----------------------------------------------------------------------------

    def iteration(self, node: SparseIteration) -> tirx.Stmt:
        """Lower one iteration to its loop nest."""
        if has_merged_axes(node) or self.inner.is_inside:
            return self._merged_iteration(node)
        if node.init is not None and not self._init_fits_block(node):
            return self._with_separate_init(node)
        outer = dict(self.iterators)
        filling = FILL_MARK in node.annotations
        clean = _init_axes(node) is None
        loops = self._open_loops(node, filling, clean)
        body = self.statement(node.body)
        init = self.statement(node.init) if node.init is not None else None
        for _ in loops:
            self.placer.pop()
        lowered = assemble_blocks(
            loops,
            body,
            init,
            node.annotations,
            lambda number: self._unique(f"{node.name}_{number}"),
            shares_result=self._shares_result(node),
            start=_start_of(node, loops),
        )
        self.iterators = outer
        return lowered

    def _merged_iteration(self, node: SparseIteration) -> tirx.Stmt:
        """Lower an iteration whose inner loops are plain ones."""
        if node.init is not None and not (_reduces_innermost(node) and _inits_apart(node)):
            return self._with_separate_init(node)
        if not self.inner.is_inside:
            nested = split_at_merged_axis(node)
            if nested is not None:
                return self.iteration(nested)
        return self._leaf(node, self.inner.lower)

    def _shares_result(self, node: SparseIteration) -> bool:
        """Whether other statements store, or may have stored, to what an iteration stores to."""
        if node.init is None or COVER_MARK in node.annotations:
            return True
        return any(
            len(stores_to(self.func.body, buffer)) > len(stores_to(node, buffer))
            for buffer in buffers_stored(node.body)
        )

    def _open_loops(self, node: SparseIteration, filling: bool, clean: bool) -> list[Loop]:
        loops: list[Loop] = []
        kinds, variables = list(node.kinds), list(node.iter_vars)
        for axis in node.axes:
            members = axis.members if isinstance(axis, FusedAxis) else [axis]
            own = [(m, kinds.pop(0), variables.pop(0)) for m in members]
            loop = self.open_loop(axis, own)
            reduced_under = _descends_from_reduction(node, axis)
            if not clean and reduced_under and not _opens_block(axis):
                loop.kind = REDUCE
            if filling:
                loop.guards = []
            loops.append(loop)
        return loops

    def open_loop(self, axis: Axis, own: list[tuple[Axis, str, Var]]) -> Loop:
        """Enter a loop: its iterators are known from here on."""
        return self._fused_loop(axis, own) if len(own) > 1 else self._plain_loop(*own[0])

    def _plain_loop(self, axis: Axis, kind: str, var: Var) -> Loop:
        stored = stored_axis(axis)
        parent = self.parent_position(axis)
        begin, extent = row_extent(stored, parent)
        extent = self.guarded_extent(axis, extent)
        dtype = self._loop_dtype(stored)
        block_var = Var(f"v{var.name}", dtype)
        if stored.kind == "dense_fixed":
            position = block_var
        elif stored.kind == "sparse_fixed" and self.wide:
            position = begin + block_var.astype("int64")
        else:
            position = begin + block_var
        coordinate = stored.indices[position] if stored.is_sparse else block_var
        iterator = Iterator(axis, kind, var, block_var, position, coordinate, parent)
        self.iterators[var] = iterator
        prologue = Prologue([block_var])
        self.placer.push(prologue)
        loop = Loop(
            axis=axis,
            members=[iterator],
            loop_var=Var(var.name, dtype),
            block_var=block_var,
            extent=extent.astype(dtype),
            kind=SPATIAL if kind == "S" else REDUCE,
            prologue=prologue,
        )
        if has_padding(stored):
            loop.guards.append((inside_axis(coordinate, stored.length), kind == "S"))
        return loop

    def _fused_loop(self, group: FusedAxis, own: list[tuple[Axis, str, Var]]) -> Loop:
        """One loop over the slots of the last member; outer members are searched on ``indptr``."""
        axes = [axis for axis, _, _ in own]
        last = axes[-1]
        first_parent = self.parent_position(axes[0])
        dtype = last.dtype if last.is_variable else self._loop_dtype(last)
        begin, end = _slot_range(axes, first_parent)
        block_var = Var("v" + "_".join(v.name for _, _, v in own), dtype)
        prologue = Prologue([block_var])
        self.placer.push(prologue)
        slot = block_var if _is_zero(begin) else begin.astype(dtype) + block_var
        positions = [slot]
        for child, parent in zip(reversed(axes), reversed(axes[:-1])):
            positions.insert(0, self._owner(child, parent, positions[0]))
        iterators = []
        guards = []
        for k, (axis, kind, var) in enumerate(own):
            parent_position = positions[k - 1] if k else first_parent
            row_begin, _ = row_extent(axis, parent_position)
            position = positions[k]
            local = position if axis.kind == "dense_fixed" else _subtract(position, row_begin)
            coordinate = axis.indices[position] if axis.is_sparse else local
            iterator = Iterator(axis, kind, var, local, position, coordinate, parent_position)
            self.iterators[var] = iterator
            iterators.append(iterator)
            if has_padding(axis):
                guards.append((inside_axis(coordinate, axis.length), kind == "S"))
        spatial = all(kind == "S" for _, kind, _ in own)
        return Loop(
            axis=group,
            members=iterators,
            loop_var=Var("_".join(v.name for _, _, v in own), dtype),
            block_var=block_var,
            extent=(end if _is_zero(begin) else end - begin).astype(dtype),
            kind=SPATIAL if spatial else REDUCE,
            prologue=prologue,
            guards=guards,
        )

    def guarded_extent(self, axis: Axis, extent: Expr) -> Expr:
        """Number of entries of an axis where its owner may be no entry, which has none."""
        owner, condition = self._owner_of(axis), None
        if owner is None:
            return extent
        if isinstance(axis, AttachedAxis) and owner.stored_axis.kind == "sparse_fixed":
            condition = inside_axis(owner.coordinate, owner.stored_axis.length)
        if owner.present is not None:
            condition = conjunction(condition, owner.present)
        if condition is None:
            return extent
        return tirx.if_then_else(condition, extent, tirx.const(0, str(extent.ty.dtype)))

    def _owner(self, child: Axis, parent: Axis, position: Expr) -> Expr:
        if child.kind == "sparse_fixed":
            if _is_zero(child.nnz_cols):
                return tirx.const(0, str(position.ty.dtype))  # never reached
            return position // child.nnz_cols.astype(str(position.ty.dtype))
        return self.placer.find_parent(
            child.indptr, parent.slots, position, f"{parent.name}_of", child.dtype
        )

    def _owner_of(self, axis: Axis) -> Iterator | None:
        """The iterator in scope whose entry owns ``axis``, ``None`` for a root."""
        if axis.parent_axis is None:
            return None
        walked = [own for it in reversed(self.iterators.values()) for own in it.walked]
        owners = [own for own in walked if own.axis == axis.parent_axis]
        owners += [own for own in walked if own.stored_axis == axis.parent_axis]
        owner = next(iter(owners), None)
        if owner is None:
            raise SparseProgramError(
                f"function {self.func.name}: axis {axis.name} is iterated before its parent "
                f"{axis.parent_axis.name}"
            )
        return owner

    def parent_position(self, axis: Axis) -> Expr | None:
        """Position of the entry that owns ``axis`` here, from the iterators in scope."""
        owner = self._owner_of(axis)
        if owner is None:
            return None
        return owner.coordinate if isinstance(axis, AttachedAxis) else owner.position

    def _loop_dtype(self, axis: Axis) -> str:
        """Dense loops run in 64 bits where a flat offset may need it, so that offsets stay affine."""
        return "int64" if self.wide and axis.kind == "dense_fixed" else axis.dtype

    def _init_fits_block(self, node: SparseIteration) -> bool:
        """Whether ``init`` can stand in the block of the first reduction iterator."""
        if START_MARK in node.annotations:
            # Its spatial loops visit each place once in the first step, if that is a step of a loop.
            return not _fuses_reductions(node)
        if _init_axes(node) is not None:
            return False
        if COVER_MARK in node.annotations:
            return True  # its spatial loops visit each place of the result once
        own = {var: axis for axis, _, var in node.iterators}
        known = {**{v: it.stored_axis for v, it in self.iterators.items()}, **own}

        def is_direct(store: tirx.BufferStore) -> bool:
            buffer = self.stage1.get(store.buffer)
            if buffer is None:
                return _inits_apart(node)
            return all(
                isinstance(index, Var) and known.get(index) == axis
                for index, axis in zip(store.indices, buffer.axes)
            )

        return all(map(is_direct, stores_in(node.init)))

    def _with_separate_init(self, node: SparseIteration) -> tirx.Stmt:
        """Write the init values in an iteration of their own, then accumulate."""
        own = _init_axes(node) or {}
        axes, variables = [], []
        for axis, kind, var in node.iterators:
            if kind == "S":
                axes.append(own.get(var, axis))
                variables.append(var)
        fresh = {v: Var(v.name, str(v.ty.dtype)) for v in variables}
        init_body = tvm_ffi.structural_map(node.init, [(Var, lambda v: fresh.get(v, v))])
        init = SparseIteration(
            axes=axes,
            kinds="S" * len(axes),
            iter_vars=[fresh[v] for v in variables],
            body=init_body,
            init=None,
            name=f"{node.name}_init",
            annotations={},
            span=node.span,
        )
        update = SparseIteration(
            axes=node.axes,
            kinds=node.kinds,
            iter_vars=node.iter_vars,
            body=node.body,
            init=None,
            name=node.name,
            annotations=node.annotations,
            span=node.span,
        )
        first = self.iteration(init) if axes else self.statement(init_body)
        return tirx.SeqStmt([first, self.iteration(update)])

    # --- assembly ------------------------------------------------------------------------------

    def _unique(self, name: str) -> str:
        count = self._block_names.get(name, 0)
        self._block_names[name] = count + 1
        return name if count == 0 else f"{name}_{count}"


def _init_axes(node: SparseIteration) -> dict[Var, Axis] | None:
    """Axes that init ranges over where they differ from the loops of the update.

    An iterator under a reduction axis visits an output point many times; its init ranges over all
    coordinates. One that is fused with a reduction is looped over by itself. None where the loops
    of the update serve.
    """
    from ..ir import DenseFixedAxis  # noqa: PLC0415

    own: dict[Var, Axis] = {}
    for group in node.axes:
        mixed = isinstance(group, FusedAxis) and "R" in _kinds_of(node, group)
        members = group.members if isinstance(group, FusedAxis) else [group]
        for axis, kind, var in node.iterators:
            if axis not in members or kind == "R":
                continue
            if _descends_from_reduction(node, axis):
                stored = stored_axis(axis)
                own[var] = DenseFixedAxis(
                    name=f"{axis.name}_all", length=stored.length, dtype=stored.dtype
                )
            elif mixed:
                own[var] = axis
    return own or None


def _reduces_innermost(node: SparseIteration) -> bool:
    """Whether every point of the spatial loops is visited once, and all reductions stand inside."""
    is_nested = "RS" not in node.kinds and _init_axes(node) is None
    return is_nested and not _fuses_both(node)


def _inits_apart(node: SparseIteration) -> bool:
    """Whether init stores to another place at every point of the spatial loops."""
    spatial = {var: stored_axis(axis) for axis, kind, var in node.iterators if kind == "S"}
    is_unique = all(getattr(axis, "unique", True) for axis in spatial.values())
    return is_unique and all(set(spatial) <= _iterators_of(store) for store in stores_in(node.init))


def _iterators_of(store: tirx.BufferStore) -> set[Var]:
    """Variables that are indices of a store by themselves."""
    return {index for index in store.indices if isinstance(index, Var)}


def _fuses_both(node: SparseIteration) -> bool:
    """Whether an axis of the result is fused with a reduction."""
    fused = (axis for axis in node.axes if isinstance(axis, FusedAxis))
    return any(len(set(_kinds_of(node, axis))) > 1 for axis in fused)


def _fuses_reductions(node: SparseIteration) -> bool:
    """Whether a reduction is fused with other axes."""
    return any(isinstance(axis, FusedAxis) and "R" in _kinds_of(node, axis) for axis in node.axes)


def _kinds_of(node: SparseIteration, group: FusedAxis) -> str:
    return "".join(kind for axis, kind, _ in node.iterators if axis in list(group.members))


def _start_of(node: SparseIteration, loops: list[Loop]) -> Loop | None:
    """The loop whose first step initialises the result of an iteration, if later ones do not."""
    name = node.annotations.get(START_MARK)
    if name is None:
        return None
    return next(loop for loop in loops if any(it.var.name == name for it in loop.members))


def _opens_block(axis: Axis) -> bool:
    """Whether the loop over an axis stands in a block inside that of its parent, each place once."""
    return axis.is_variable and getattr(axis, "unique", True) and not isinstance(axis, AttachedAxis)


def _descends_from_reduction(node: SparseIteration, axis: Axis) -> bool:
    first = axis.members[0] if isinstance(axis, FusedAxis) else axis
    return not node.reduced.isdisjoint(ancestors(first))


def _slot_range(axes: list[Axis], first_parent: Expr | None) -> tuple[Expr, Expr]:
    """First and last-plus-one slot of the last axis of a chain under one parent entry."""
    first = axes[0]
    if first.parent_axis is None:
        return tirx.const(0, "int32"), axes[-1].slots
    begin, extent = row_extent(first, first_parent)
    end = begin + extent
    for axis in axes[1:]:
        if axis.kind == "sparse_fixed":
            begin, end = multiply(begin, axis.nnz_cols), multiply(end, axis.nnz_cols)
        else:
            begin, end = axis.indptr[begin], axis.indptr[end]
    return begin, end


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr.value) == 0


def _merges(body: tirx.Stmt) -> bool:
    """Whether some iteration merges axes."""
    found: list[SparseIteration] = []
    tvm_ffi.structural_walk(body, [(SparseIteration, found.append)])
    return any(map(has_merged_axes, found))


def _has_no_room(axis: Axis) -> bool:
    return _is_zero(axis.length) or _is_zero(axis.slots)


def _known_valid(value: Expr, condition: Expr) -> Expr:
    """Drop a condition that holds: what accumulates reads only where it stores."""

    def choose(node: Call, mutator) -> Expr:
        chosen = node.op.same_as(_IF_THEN_ELSE) and tvm_ffi.structural_equal(
            node.args[0], condition
        )
        return mutator.mutate(node.args[1]) if chosen else mutator.default_mutate(node)

    return tvm_ffi.structural_mutate(value, [(Call, choose)])


def _subtract(position: Expr, begin: Expr) -> Expr:
    if str(position.ty.dtype) != str(begin.ty.dtype):
        return position.astype("int64") - begin.astype("int64")
    return position - begin


def _may_pass_int32(size: Expr) -> bool:
    return not (isinstance(size, tirx.IntImm) and int(size.value) < 2**31)


def _position_buffer(buffer: SparseBuffer) -> Var:
    """The stage-II buffer: dimensions are entries within the parent entry."""
    if all(axis.kind != "sparse_fixed" for axis in buffer.axes):
        return buffer.buffer
    ty = buffer.buffer.ty
    return tirx.decl_buffer(
        [axis.extent_bound for axis in buffer.axes],
        str(ty.dtype),
        buffer.buffer.name,
        scope=ty.storage_scope,
        data_alignment=ty.data_alignment,
    )


def _any_width(iterator: Iterator) -> Expr:
    """The coordinate in the type that it has in memory."""
    return iterator.coordinate


def _own_width(iterator: Iterator) -> Expr:
    """The coordinate in the type that stage I gives it."""
    return iterator.coordinate.astype(str(iterator.var.ty.dtype))
