"""Schedules of stage-I programs: primitives over coordinates, each checked and recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import s_tir

from ..errors import SparseProgramError
from ..formats import Format, Pieces
from ..ir import SparseFunc, verify
from ..transform import LowerSparseBuffer, LowerSparseIteration
from .arguments import (
    Iteration,
    Iterator,
    check_choice,
    iterator_names,
    named_parts,
    operand_names,
    plain_annotation,
)
from .decompose import decompose_operands, operand_over
from .iterations import find_iteration, replace_iteration, with_fields
from .reorder import fuse_axes, reorder_axes, take_apart
from .trace import IterationHandle, IteratorHandle, Sample, Trace, primitive

__all__ = ["SparseSchedule"]


class SparseSchedule:
    """A stage-I program under transformation.

    Every primitive checks that the meaning stays what it was, changes :attr:`mod`, and adds itself to
    :attr:`trace`. Iterations and iterators are named by handles or, as well, by their names.

    Parameters
    ----------
    program : SparseFunc or tvm.IRModule
        The program; modules may hold other functions too.
    seed : int, optional
        For the primitives that sample.

    Attributes
    ----------
    mod : tvm.IRModule
        The program as it is now.
    trace : Trace
        What was done so far.

    Raises
    ------
    TypeError, ValueError
        If the program is none, or holds no stage-I function.

    Examples
    --------
    >>> from tvm_sparse import SparseSchedule, schedules
    >>> sch = SparseSchedule(schedules.spmm.program())
    >>> i, j, k = sch.get_axes("spmm")
    >>> sch.sparse_reorder("spmm", [i, k, j])
    >>> type(sch.lower()).__name__
    'Schedule'
    """

    def __init__(self, program: SparseFunc | tvm.IRModule, *, seed: int | None = None) -> None:
        if isinstance(program, SparseFunc):
            program = tvm.IRModule({program.name: program})
        if not isinstance(program, tvm.IRModule):
            raise TypeError(
                f"program: expected a SparseFunc or an IRModule, found {type(program).__name__}"
            )
        self.mod = program
        self.trace = Trace()
        self._random = random.Random(seed)
        if not self._functions():
            raise ValueError("program: expected a stage-I function (@S.prim_func), found none")

    # --- handles ---

    @primitive
    def get_sparse_iteration(self, name: str, function: str | None = None) -> IterationHandle:
        """Return the iteration of this name.

        Parameters
        ----------
        name : str
            Of the iteration.
        function : str, optional
            The function that holds it; needed where the module has several stage-I functions.
        """
        chosen = self._function_name(name, function)
        find_iteration(self._functions()[chosen], name)
        arguments = {"name": name} if function is None else {"name": name, "function": function}
        return self._record("get_sparse_iteration", arguments, IterationHandle(name, chosen))

    @primitive
    def get_axes(self, iteration: Iteration) -> list[IteratorHandle]:
        """Return the iterators of an iteration, outermost first."""
        handle = self._handle(iteration)
        node = find_iteration(self._functions()[handle.function], handle.name)
        found = [IteratorHandle(var.name, handle.name) for var in node.iter_vars]
        return self._record("get_axes", {"iteration": iteration}, found)

    # --- loops ---

    @primitive
    def sparse_reorder(self, iteration: Iteration, order: Sequence[Iterator]) -> None:
        """Change the order of the loops of an iteration.

        Parameters
        ----------
        iteration : IterationHandle or str
            The iteration.
        order : sequence of IteratorHandle or str
            All of its iterators, outermost first. An axis never comes before the one it is stored
            under.

        Raises
        ------
        SparseProgramError
            If an iterator is missing or comes too early, or a result depends on the order.

        Notes
        -----
        Before::

            with S.sp_iter([I, J, K], "SRS", "spmm") as [i, j, k]:

        and after ``sch.sparse_reorder("spmm", ["i", "k", "j"])``::

            with S.sp_iter([I, K, J], "SSR", "spmm") as [i, k, j]:
        """
        handle = self._handle(iteration)
        label = f"sparse_reorder: iteration {handle.name}"
        names = iterator_names(order, handle.name, label)
        self._change(handle, reorder_axes, handle.name, names)
        self._record("sparse_reorder", {"iteration": iteration, "order": list(order)})

    @primitive
    def sparse_fuse(self, iteration: Iteration, axes: Sequence[Iterator]) -> None:
        """Make one loop over stored entries of several nested ones.

        The outer coordinates are found by a search in the pointers of the inner axis.

        Parameters
        ----------
        iteration : IterationHandle or str
            The iteration.
        axes : sequence of IteratorHandle or str
            Neighbouring iterators, each stored under the one before.

        Notes
        -----
        Before::

            with S.sp_iter([I, J, K], "SSR", "sddmm") as [i, j, k]:

        and after ``sch.sparse_fuse("sddmm", ["i", "j"])``::

            with S.sp_iter([S.fuse(I, J), K], "SSR", "sddmm") as [i, j, k]:
        """
        handle = self._handle(iteration)
        names = iterator_names(axes, handle.name, f"sparse_fuse: iteration {handle.name}")
        self._change(handle, fuse_axes, handle.name, names)
        self._record("sparse_fuse", {"iteration": iteration, "axes": list(axes)})

    # --- formats ---

    @primitive
    def decompose_format(
        self,
        iteration: Iteration,
        operand: str | Sequence[str],
        formats: Format | Mapping[str, Format] | Sequence[Format] | Any,
    ) -> list[IterationHandle]:
        """Hold a sparse operand as a sum of parts, each in a format of its own.

        Parameters
        ----------
        iteration : IterationHandle or str
            The iteration that uses the operand, at its own iterators.
        operand : str or sequence of str
            The buffer, or several that are stored over the same axes (the matrix and the result of
            SDDMM): they share the index arrays of the parts.
        formats : Format, Composition, dict or sequence
            One format, whose arrays go by the operand's name, or the parts by name; unnamed ones go
            by the formats' names.

        Returns
        -------
        list of IterationHandle
            The iterations of the parts; that of the initialisation comes first, if there is one.

        Raises
        ------
        SparseProgramError
            If the operand is indexed by anything but its iterators, is a result that is read
            elsewhere, or the statement does not accumulate.

        Notes
        -----
        Where the operand is reduced over, the result is initialised once: by a part whose format
        visits all of it (:attr:`Format.covers`), which then comes first, or by an iteration of its
        own. The other parts add their share. Where padding lies at coordinates of the tensor
        (:attr:`Format.marks_padding`), the body runs for entries alone. Before::

            with S.sp_iter([I, J, K], "SRS", "spmm") as [i, j, k]:
                with S.init():
                    C[i, k] = 0.0
                C[i, k] = C[i, k] + A[i, j] * B[j, k]

        and after ``sch.decompose_format("spmm", "A", {"rest": CSR(), "blocks": BSR(2, 2)})``::

            with S.sp_iter([RI, RJ, K], "SRS", "spmm_rest") as [i, j, k]:
                with S.init():
                    C[i, k] = 0.0
                C[i, k] = C[i, k] + A_rest[i, j] * B[j, k]
            with S.sp_iter([BI, II, BJ, JJ, K], "SSRRS", "spmm_blocks") as [i_0, i_1, j_0, j_1, k]:
                if S.reinterpret("uint32", A_blocks[i_0, j_0, i_1, j_1]) != 0:
                    C[i_0 * 2 + i_1, k] = (
                        C[i_0 * 2 + i_1, k] + A_blocks[i_0, j_0, i_1, j_1] * B[j_0 * 2 + j_1, k]
                    )
        """
        handle = self._handle(iteration)
        operands = operand_names(operand)
        handles = self._decompose(handle, lambda func: (func, operands), formats)
        arguments = {
            "iteration": iteration,
            "operand": operand if isinstance(operand, str) else operands,
            "formats": _recorded(formats),
        }
        return self._record("decompose_format", arguments, handles)

    @primitive
    def sparse_split(
        self, iteration: Iteration, axis: Iterator, entries: int
    ) -> list[IterationHandle]:
        """Cut long rows into pieces of at most so many stored entries, and combine their results.

        The load of a parallel loop is then balanced over entries, not rows: no unit of work has more
        than `entries`.

        Parameters
        ----------
        iteration : IterationHandle or str
            The iteration.
        axis : IteratorHandle or str
            The iterator over the stored entries of a row, or one that is fused with it; the operand is
            the buffer stored over it.
        entries : int
            Most entries of a piece.

        Returns
        -------
        list of IterationHandle
            The first pieces of all rows; the further pieces; and what adds these to the result.

        Raises
        ------
        SparseProgramError
            If the axis holds no stored entries of one matrix, or as :meth:`decompose_format`.

        Notes
        -----
        It decomposes the operand by :class:`tvm_sparse.formats.Pieces`, which packs the argument of
        the kernel. A loop over rows and entries becomes one over pieces and the entries of each.
        Before::

            with S.sp_iter([I, J, K], "SRS", "spmm") as [i, j, k]:
                with S.init():
                    C[i, k] = 0.0
                C[i, k] = C[i, k] + A[i, j] * B[j, k]

        and after ``sch.sparse_split("spmm", "j", 1024)``::

            with S.sp_iter([HI, HJ, K], "SRS", "spmm_head") as [i, j, k]:
                with S.init():
                    C[i, k] = 0.0
                C[i, k] = C[i, k] + A_head[i, j] * B[j, k]
            with S.sp_iter([T, TI, TJ, K], "SSRS", "spmm_tail") as [t, i, j, k]:
                with S.init():
                    own[t, i, k] = 0.0
                own[t, i, k] = own[t, i, k] + A_tail[t, i, j] * B[j, k]
            with S.sp_iter([T, TI, K], "RSS", "spmm_tail_add") as [t, i, k]:
                C[i, k] = C[i, k] + own[t, i, k]
        """
        handle = self._handle(iteration)
        (name,) = iterator_names([axis], handle.name, f"sparse_split: iteration {handle.name}")

        def find_operand(func: SparseFunc) -> tuple[SparseFunc, list[str]]:
            func, last = take_apart(func, handle.name, name)
            return func, [operand_over(func, handle.name, last)]

        made = self._decompose(handle, find_operand, Pieces(entries))
        arguments = {"iteration": iteration, "axis": axis, "entries": entries}
        return self._record("sparse_split", arguments, made)

    # --- the rest ---

    @primitive
    def annotate(self, iteration: Iteration, key: str, value: Any) -> None:
        """Annotate an iteration; its blocks carry the annotation in the later stages.

        Notes
        -----
        Before::

            with S.sp_iter([I, J], "SR", "spmv") as [i, j]:

        and after ``sch.annotate("spmv", "note", 1)``::

            with S.sp_iter([I, J], "SR", "spmv") as [i, j]:
                S.sp_iter_attr({"note": 1})
        """
        handle = self._handle(iteration)
        value = plain_annotation(key, value)

        def rewrite(func: SparseFunc) -> SparseFunc:
            node = find_iteration(func, handle.name)
            changed = with_fields(node, annotations={**node.annotations, key: value})
            return replace_iteration(func, node, changed)

        self._change(handle, rewrite)
        self._record("annotate", {"iteration": iteration, "key": key, "value": value})

    @primitive
    def sample_categorical(
        self,
        candidates: Sequence[int],
        probs: Sequence[float] | None = None,
        decision: int | None = None,
    ) -> Sample:
        """Choose one of several integers.

        Parameters
        ----------
        candidates : sequence of int
            What to choose from.
        probs : sequence of float, optional
            How likely each is; all the same by default.
        decision : int, optional
            Which one to take, by its index.

        Returns
        -------
        Sample
            The integer. The trace knows it where it is passed on, so a replay with another decision
            follows it.
        """
        candidates, probs, decision = check_choice(candidates, probs, decision)
        if decision is None:
            decision = self._random.choices(range(len(candidates)), weights=probs)[0]
        number = sum(isinstance(entry.result, Sample) for entry in self.trace.entries)
        sample = Sample(candidates[decision], f"v{number}")
        arguments = {"candidates": candidates, "probs": probs, "decision": decision}
        return self._record("sample_categorical", arguments, sample)

    def lower(self) -> s_tir.Schedule:
        """Return a stock schedule of stage III, to go on with TVM's own primitives.

        It works on the function of the program where there is one alone; where there are several, call
        its ``work_on`` first.
        """
        schedule = s_tir.Schedule(LowerSparseBuffer()(LowerSparseIteration()(self.mod)))
        functions = list(schedule.mod.functions)
        if len(functions) == 1:
            schedule.work_on(functions[0].name_hint)
        return schedule

    def copy(self) -> SparseSchedule:
        """Return a schedule of the same program, with the same trace so far."""
        other = SparseSchedule(self.mod)
        other.trace = Trace(list(self.trace.entries))
        other._random.setstate(self._random.getstate())
        return other

    def show(self) -> None:
        """Print the program."""
        for func in self._functions().values():
            func.show()

    # --- how ---

    def _decompose(
        self,
        handle: IterationHandle,
        prepare: Callable[[SparseFunc], tuple[SparseFunc, list[str]]],
        formats: Any,
    ) -> list[IterationHandle]:
        """Decompose the operands that ``prepare`` names, with the function that it returns."""
        parts = named_parts(formats)
        together = {getattr(formats, "covering_parts", ()): getattr(formats, "covers", ())}
        covering = {} if isinstance(formats, Format) else together
        made: list[str] = []

        def rewrite(func: SparseFunc) -> SparseFunc:
            func, operands = prepare(func)
            changed, names = decompose_operands(func, handle.name, operands, parts, covering)
            made.extend(names)
            return changed

        self._change(handle, rewrite)
        return [IterationHandle(name, handle.function) for name in made]

    def _functions(self) -> dict[str, SparseFunc]:
        return {
            var.name_hint: func
            for var, func in self.mod.functions.items()
            if isinstance(func, SparseFunc)
        }

    def _function_name(self, iteration: str, function: str | None) -> str:
        if not isinstance(iteration, str):
            raise TypeError(f"name: expected that of an iteration, found {iteration!r}")
        functions = self._functions()
        if function is not None:
            if function not in functions:
                raise SparseProgramError(
                    f"function: expected one of {', '.join(functions)}, found {function!r}"
                )
            return function
        if len(functions) == 1:
            return next(iter(functions))
        holders = []
        for name, func in functions.items():
            try:
                find_iteration(func, iteration)
            except SparseProgramError:
                continue
            holders.append(name)
        if len(holders) != 1:
            raise SparseProgramError(
                f"iteration {iteration!r} is in {len(holders)} of the functions "
                f"{', '.join(functions)}; pass function="
            )
        return holders[0]

    def _handle(self, iteration: Iteration) -> IterationHandle:
        if isinstance(iteration, IterationHandle):
            self._function_name(iteration.name, iteration.function)
            return iteration
        if not isinstance(iteration, str):
            raise TypeError(f"iteration: expected a handle or a name, found {iteration!r}")
        return IterationHandle(iteration, self._function_name(iteration, None))

    def _change(self, handle: IterationHandle, rewrite, *arguments) -> None:
        var = self.mod.get_global_var(handle.function)
        changed = rewrite(self.mod[var], *arguments)
        verify(changed)
        functions = dict(self.mod.functions.items())
        functions[var] = changed
        self.mod = tvm.IRModule(functions, attrs=self.mod.attrs)

    def _record(self, primitive: str, arguments: dict[str, Any], result: Any = None) -> Any:
        self.trace.append(primitive, arguments, result)
        return result


def _recorded(formats: Any) -> Any:
    """Formats as the trace keeps them: containers of its own."""
    if isinstance(formats, Mapping):
        return dict(formats)
    return formats if isinstance(formats, Format) or hasattr(formats, "parts") else list(formats)
