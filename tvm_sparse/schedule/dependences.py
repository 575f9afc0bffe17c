"""Whether the entries of an iteration may be visited in another order.

In: an iteration. Out: nothing, or an error that names the statement in the way. What an iteration
stores, it may read back at the place where it stores it; a read anywhere else depends on which entries
came before. Reductions may change their order where every statement accumulates.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, Var

from ..errors import SparseProgramError
from ..ir import SparseIteration
from ..ir.accumulation import accumulation_of
from ..ir.contents import loads_from, loads_in, stores_in, variables_of

__all__ = ["check_accumulates", "check_reads"]


def check_accumulates(iteration: SparseIteration, label: str) -> None:
    """Check that entries may be added to the results in any order, and some of them later.

    Raises
    ------
    SparseProgramError
        If a statement does not accumulate, two accumulate into one buffer in different ways, or a
        result is read on the way.
    """
    stores = _shared_stores(iteration.body)
    operators: dict[Var, type] = {}
    for store in stores:
        operator = accumulation_of(store, label).operator
        if operators.setdefault(store.buffer, operator) is not operator:
            raise SparseProgramError(
                f"{label}: expected one operation on {store.buffer.name}, found several, whose order "
                "counts"
            )
    for buffer in operators:
        reads = loads_from(iteration.body, buffer)
        if len(reads) > sum(store.buffer.same_as(buffer) for store in stores):
            raise SparseProgramError(
                f"{label}: {buffer.name} is read while it is accumulated, so what is read depends on "
                "the order of the entries; read it in an iteration of its own"
            )


def check_reads(iteration: SparseIteration, label: str) -> None:
    """Check that no entry reads what another entry of the iteration stores.

    Raises
    ------
    SparseProgramError
        If a stored buffer is read at another place than where it is stored.
    """
    stores = _shared_stores(iteration.body)
    own = set(iteration.iter_vars)
    for load in loads_in(iteration.body):
        places = [store.indices for store in stores if store.buffer.same_as(load.source)]
        if places and not any(_is_same_entry(place, load.indices, own) for place in places):
            name = load.source.name
            raise SparseProgramError(
                f"{label}: {load} is read while {name}[{', '.join(map(str, places[0]))}] is stored, so "
                "what is read depends on the order of the entries; store into another buffer"
            )


def _shared_stores(body: tirx.Stmt) -> list[tirx.BufferStore]:
    """Stores into buffers that outlive one run of a body."""
    own: set[Var] = set()
    tvm_ffi.structural_walk(body, (tirx.AllocBuffer, lambda node: own.add(node.buffer)))
    return [store for store in stores_in(body) if store.buffer not in own]


def _is_same_entry(stored: Sequence[Expr], loaded: Sequence[Expr], own: set[Var]) -> bool:
    """Whether indices agree in the iterators of the iteration; those of inner ones may differ."""
    return all(
        tvm_ffi.structural_equal(left, right)
        or not (variables_of(left) | variables_of(right)) & own
        for left, right in zip(stored, loaded)
    )
