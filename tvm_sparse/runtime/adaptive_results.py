"""Kernels with a sparse result that choose at each call how entries are collected.

In: one function with a sparse result. Out: :class:`AdaptiveResultKernel`, which finds out how many entries
the rows of a call produce, chooses a policy (:mod:`tvm_sparse.workspace.choice`), compiles it when it is
first chosen, and runs it.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..workspace.choice import Choice, choose, more_windows, scratch_bytes
from ..workspace.costs import Work
from ..workspace.policy import Policy, Scratch
from .executable import Executable
from .sparse_results import ResultPlan, SparseResultKernel, WorkspaceFullError

__all__ = ["AdaptiveResultKernel", "loaded_kernel"]

#: From a policy and whether it takes windows to its phases and what they need.
Build = Callable[[Policy, bool], tuple[Executable, dict]]

#: A policy that is not compiled yet is chosen if it is so much faster, and saves so many nanoseconds.
_WORTH_FACTOR, _WORTH_TIME = 1.25, 1e6
#: How many calls a kernel remembers its choice for.
_MOST_WEIGHED = 256


class AdaptiveResultKernel(SparseResultKernel):
    """A compiled function that allocates its sparse result, and chooses a workspace for each call.

    Made by :func:`tvm_sparse.compile` from a function with a result over ``S.sparse_output``.

    Parameters
    ----------
    policies : sequence of Policy
        Of which one is chosen; the first is compiled at once.
    build : callable
        Compiles one: ``build(policy, windowed)`` returns an :class:`Executable` and what
        :func:`tvm_sparse.workspace.assemble` says of it.
    export : callable
        Compiles several into one executable, ``export(policies)``.
    workspace_bytes : int or None
        Most bytes of scratch of a call.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        build: Build,
        export: Callable[[Sequence[Policy]], Executable],
        workspace_bytes: int | None = None,
    ) -> None:
        self._policies = {policy.name: policy for policy in policies}
        self._build, self._export = build, export
        self.workspace_bytes = workspace_bytes
        super().__init__(*build(policies[0], False))
        self._variants = {
            (policies[0].name, False): SparseResultKernel(self.executable, self.description)
        }
        self._last: list[Choice] = []
        self._unexplained: Callable[[], tuple[Work, int]] | None = None
        self._reason: Callable[[], str] = str
        self._weighed: dict[tuple, list[Choice]] = {}

    def __call__(
        self,
        *args: Any,
        workspace_bytes: int | None = None,
        prune: bool = False,
        sorted: bool = True,
        **kwargs: Any,
    ) -> sp.csr_matrix | sp.coo_array:
        """Compute the result.

        Parameters
        ----------
        *args, **kwargs
            The operands and sizes, as :class:`KernelFunction` takes them.
        workspace_bytes : int, optional
            Most bytes of scratch of this call; the limit of the kernel otherwise. With little memory the
            loops of a row run several times, for a window of its places each.
        prune : bool
            Whether to drop entries that are zero; otherwise every place where terms met is an entry.
        sorted : bool
            False lets entries of a row stand in any order, which some policies reach sooner.

        Returns
        -------
        scipy.sparse.csr_matrix or scipy.sparse.coo_array
            A matrix, or a tensor of another number of dimensions. Sorted unless said otherwise, without
            duplicates.

        Raises
        ------
        TypeError, ValueError
            If an argument is unfit (see :class:`KernelFunction`), a row has 2**63 places or more, or the
            limit of memory is too low for any policy.
        """
        known = self._bind(args, kwargs)
        is_ordered = bool(sorted) or not self.description["hoisted"]
        order = {"ordered": int(is_ordered)}
        result = self._chosen(
            known, workspace_bytes, lambda own, given: own._result(known, given | order)
        )
        if not is_ordered and isinstance(result, sp.csr_matrix):
            result.has_sorted_indices = result.has_canonical_format = False
        return _pruned(result) if prune else result

    def plan(self, *args: Any, workspace_bytes: int | None = None, **kwargs: Any) -> ResultPlan:
        """Find the structure of the result, to compute it for several values.

        Parameters
        ----------
        *args, **kwargs
            Operands and sizes of a call.
        workspace_bytes : int, optional
            Most bytes of scratch; the limit of the kernel otherwise.

        Returns
        -------
        ResultPlan
            Call it with operands of the same structure.
        """
        known = self._bind(args, kwargs)
        limit = self.workspace_bytes if workspace_bytes is None else workspace_bytes

        def planned(own: SparseResultKernel, given: dict[str, Any]) -> ResultPlan:
            return ResultPlan(own, known, own._structure(known, given), limit)

        return self._chosen(known, limit, planned)

    @property
    def choices(self) -> list[Choice]:
        """What the last call chose, and what else there was, best estimate first; empty before one."""
        if self._unexplained is not None:
            found, first = self._choices(*self._unexplained(), None), next(iter(self._policies))
            ran = [own for own in found if own.policy == first and not own.is_windowed]
            self._last = ran + [own for own in found if own not in ran]
            self._unexplained = None
        return self._last

    def explain(self) -> str:
        """Say what the last call chose, and what else there was, best estimate first."""
        choices = self.choices
        if not choices:
            names = ", ".join(self._policies)
            return f"workspace: one of {names}, chosen at each call; there was none yet"
        chosen, *others = choices
        lines = [f"workspace of the last call: {chosen}", self._reason()]
        return "\n".join([*lines, *(f"  instead of {other}" for other in others)])

    def export_library(self, path: Any, **options: Any) -> Any:
        """Write the phases of the policy that the last call chose, or else the first, into a library."""
        choices = self.choices
        name = choices[0].policy if choices else next(iter(self._policies))
        return self._export([self._policies[name]]).export_library(path, **options)

    def __repr__(self) -> str:
        own = self.description
        shape = ", ".join(own["shape"])
        workspace = " or ".join(self._policies)
        return f"<SparseResultKernel {self._heading} -> {own['result']} ({shape}), {workspace}>"

    # --- choice ---

    def _chosen(
        self,
        known: dict[str, Any],
        limit: int | None,
        compute: Callable[[SparseResultKernel, dict[str, Any]], Any],
    ) -> Any:
        """Choose a way to run a call, and compute with it; choose again where there is no room."""
        limit = self.workspace_bytes if limit is None else limit
        if limit is not None and not isinstance(limit, numbers.Real):
            raise TypeError(f"workspace_bytes: expected a number of bytes, found {limit!r}")
        if limit is not None and limit < 0:
            raise ValueError(f"workspace_bytes: expected a number of bytes, found {limit}")
        shared = self._share(self._work(known), self._length(known))
        first = next(iter(self._policies.values()))
        operands = known["operands"].items()
        sizes = {"operands": {name: value for name, value in operands if isinstance(value, int)}}
        produced, tasks = shared["work"], shared["tasks"]

        def weigh() -> tuple[Work, int]:  # outlives the call, and must not keep its operands
            size = np.dtype(self.description["dtype"]).itemsize
            return Work.of(produced, self._length(sizes), size), tasks

        if first.streams or (limit is None and self._is_cheap(first, *weigh())):
            self._last, self._unexplained = [], weigh
            return compute(self._variants[first.name, False], shared)  # nothing saves enough
        work, _ = weigh()
        choices = self._choices(work, shared["tasks"], limit)
        choice = choices[0]
        self._unexplained = None
        while True:
            self._last = [choice, *choices[1:]]
            variant = self._variant(choice.policy, choice.is_windowed)
            try:
                return compute(variant, self._given(shared, choice))
            except WorkspaceFullError:
                choice = self._next(choice, choices, work)

    def _is_cheap(self, policy: Policy, work: Work, tasks: int) -> bool:
        """Whether a policy takes so little time that no other saves much."""
        return policy.has_cost and _time(policy, work, tasks) < _WORTH_TIME

    def _choices(self, work: Work, tasks: int, limit: int | None) -> list[Choice]:
        """Return the ways to run a call, best first; a call like one before is not weighed again."""
        self._reason = lambda: _describe(work, limit)
        key = work.rows, work.most, work.terms, work.length, tasks, limit, len(self._variants)
        if key not in self._weighed:
            if len(self._weighed) >= _MOST_WEIGHED:
                self._weighed.clear()
            self._weighed[key] = self._weigh(work, tasks, limit)
        return self._weighed[key]

    def _weigh(self, work: Work, tasks: int, limit: int | None) -> list[Choice]:
        candidates = [(policy, _scratch(policy)) for policy in self._policies.values()]
        found = choose(work, candidates, tasks, limit)
        if not found:
            names = " or ".join(self._policies)
            raise ValueError(
                f"{self.description['name']}: workspace_bytes: expected enough for {names} and rows of "
                f"{work.length} places and up to {work.most} terms, found {limit}"
            )
        ready = [own for own in found if (own.policy, own.is_windowed) in self._variants]
        if ready:
            saved = ready[0].nanoseconds - found[0].nanoseconds
            if ready[0].nanoseconds < _WORTH_FACTOR * found[0].nanoseconds or saved < _WORTH_TIME:
                found = [ready[0], *(own for own in found if own is not ready[0])]
        return found

    def _next(self, choice: Choice, choices: list[Choice], work: Work) -> Choice:
        """Return what follows a choice that had no room: more windows, as long as they promise more."""
        more = more_windows(choice, work)
        if more is None:
            raise ValueError(
                f"{self.description['name']}: workspace_bytes: expected more than {choice.bytes} "
                f"bytes, which hold no {choice.width} places"
            )
        others = [own for own in choices if not self._policies[own.policy].is_bounded]
        return others[0] if others and others[0].windows <= more.windows else more

    def _variant(self, name: str, windowed: bool) -> SparseResultKernel:
        if (name, windowed) not in self._variants:
            built = self._build(self._policies[name], windowed)
            self._variants[name, windowed] = SparseResultKernel(*built)
        return self._variants[name, windowed]

    def _given(self, shared: dict[str, Any], choice: Choice) -> dict[str, Any]:
        """Return what the phases need to know of a choice."""
        sizes = {name: getattr(choice, name) for name in ("room", "parts", "windows", "width")}
        rows = shared["work"].size * choice.parts
        if choice.parts > 1:  # as many as tasks, of each of few rows
            bounds = np.linspace(0, rows, choice.tasks + 1).astype(np.int64)
            return shared | sizes | {"tasks": choice.tasks, "task_rows": bounds}
        if choice.tasks != shared["tasks"]:
            sizes |= {"tasks": 1, "task_rows": np.array([0, rows], np.int64)}
        return shared | sizes


def loaded_kernel(executable: Executable, description: dict) -> AdaptiveResultKernel:
    """Return the kernel that was exported: it has one policy, and no other can be compiled."""

    def build(policy: Policy, windowed: bool) -> tuple[Executable, dict]:
        if windowed:
            raise ValueError(
                f"{description['name']}: workspace_bytes: expected enough for whole rows with "
                f"workspace {policy.name!r}, the only one that this library holds; compile the program "
                "to use less"
            )
        return executable, description

    return AdaptiveResultKernel([_LoadedPolicy(description)], build, lambda chosen: executable)


class _LoadedPolicy(Policy):
    """What is known of the policy of a library: its memory, not how it works."""

    def __init__(self, description: dict) -> None:
        self.name, self.is_bounded = description["policy"], description["is_bounded"]
        self.scratch = tuple(
            Scratch(name, own["dtype"], own["size"], own["fill"])
            for name, own in description["scratch"].items()
        )

    def insert(self, memory, place, value, combine):
        raise NotImplementedError

    count = drain = insert


def _time(policy: Policy, work: Work, tasks: int) -> float:
    """Estimate the nanoseconds of a call in whole rows, by one core; those to find scratch included."""
    size = scratch_bytes(_scratch(policy), work.value_bytes, work.length, work.most, 64)
    return policy.cost(work) + tasks * size * work.costs.byte


@functools.cache
def _scratch(policy: Policy) -> dict[str, dict]:
    return {own.name: {"dtype": own.dtype, "size": own.size} for own in policy.scratch}


def _describe(work: Work, limit: int | None) -> str:
    mean = work.terms / max(1, work.rows)
    bound = "" if limit is None else f"; at most {limit} bytes of scratch"
    return (
        f"  for {work.rows} rows of {work.length} places, which produce {mean:.3g} terms each, "
        f"{work.most} at most{bound}"
    )


def _pruned(result: sp.csr_matrix | sp.coo_array) -> sp.csr_matrix | sp.coo_array:
    """Drop the entries that are zero; what is left keeps its order."""
    if isinstance(result, sp.csr_matrix):
        result.eliminate_zeros()
        return result
    kept = result.data != 0
    coordinates = tuple(own[kept] for own in result.coords)
    pruned = sp.coo_array((result.data[kept], coordinates), shape=result.shape)
    pruned.has_canonical_format = True
    return pruned
