"""SpMM over formats on CUDA: a thread block for each stored row, the parts in one kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import s_tir
from tvm.target import Target

from ..cpu.parts import block_names, is_reduced, part_blocks

__all__ = ["schedule"]

THREADS = 32


def schedule(
    sch: s_tir.Schedule,
    parts: Sequence[str],
    *,
    target: Target | str | dict | None = None,
    name: str = "spmm",
    groups: Mapping[str, str] | None = None,
) -> None:
    """Bind rows to blocks and features to threads; parts of a group become one kernel.

    Parameters
    ----------
    sch, parts, name, groups
        As those of the CPU's :func:`tvm_sparse.schedules.cpu.parts.schedule`.
    target : tvm.target.Target, str, dict or None
        Not looked at: a warp for each row is right for every card.

    Raises
    ------
    ValueError
        If a part has no loop over rows, or one for each of several ranges of columns.
    """
    del target
    names = block_names(sch)
    for part in parts:
        found = part_blocks(sch, names, f"{name}_{part}")
        if len(found) != 2 or is_reduced(sch, found[0]):
            raise ValueError(
                f"part {part}: expected a format with one loop over rows for CUDA, found one whose "
                "entries of a row are scattered, or lie in several ranges of columns"
            )
        rows, block = found
        *entries, feature = sch.get_loops(block)
        tiles, thread = sch.split(feature, [None, THREADS])
        sch.reorder(tiles, *entries, thread)
        write = sch.cache_write(block, 0, "local")
        sch.reverse_compute_at(write, tiles)
        sch.bind(thread, "threadIdx.x")
        sch.bind(sch.get_loops(write)[-1], "threadIdx.x")
        sch.decompose_reduction(block, entries[0])
        row = sch.get_loops(rows)[0]
        sch.bind(row, "blockIdx.x")
        sch.annotate(row, "tvm_sparse.together", (groups or {}).get(part, part))
    if f"{name}_init_0" in names:
        row, feature = sch.get_loops(sch.get_sblock(f"{name}_init_0"))
        _, thread = sch.split(feature, [None, THREADS])
        sch.bind(row, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
