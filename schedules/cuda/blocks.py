"""SpMM with blocks of entries on tensor cores: a thread block for rows of a block and a tile of features.

The parts of a lowered program are replaced by tile programs, whose loops TVM's ``tensorize`` then maps to
tensor cores. Stock primitives do not get there by themselves: operands lie in flat buffers, of which a
tile has no two-dimensional region, and every product has a test for padding, which no tensor core makes.

Padding needs no test here, as zeros add nothing, unless multiplied by what is infinite or no number. The
sum is then no number, so that sums that are none are added up again, entry by entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import s_tir
from tvm.target import Target

from ..cpu.part_blocks import blocks_of
from .block_nests import read_nest
from .block_products import BlockProduct
from .block_program import BlockProgram
from .block_rows import rows_program
from .block_tiles import BlockRowsTile, BlockTile
from .results import bind_others, round_at_once
from .tiles import check_staging, stages_copies

__all__ = ["schedule", "schedule_part", "takes"]


def schedule(
    sch: s_tir.Schedule,
    parts: Sequence[str],
    *,
    tile: BlockTile | BlockRowsTile | None = None,
    target: Target | str | dict | None = None,
    name: str = "spmm",
    groups: Mapping[str, str] | None = None,
) -> None:
    """Schedule the parts of a decomposed SpMM, and what surrounds them.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        Holds the iterations ``name_part``, and ``name_init`` where there is one.
    parts : sequence of str
        Names of the parts.
    tile : BlockTile or BlockRowsTile, optional
        The tile, of tensor cores or of CUDA cores. Tensor cores round float32 to tf32 (10 bits of
        mantissa), so that they are taken for it only if asked for. By default blocks of eight rows or more
        are multiplied by tensor cores in half precision, others by CUDA cores.
    target : tvm.target.Target, str, dict or None
        Tensor cores are used from sm_80 on.
    name : str
        Name of the iteration that was decomposed.
    groups : dict of str to str, optional
        Not looked at: each part is a kernel.

    Raises
    ------
    ValueError
        If a part has no blocks of entries.
    """
    del groups
    for part in parts:
        schedule_part(sch, f"{name}_{part}", tile=tile, alone=len(parts) == 1, target=target)
    bind_others(sch, [f"{name}_{part}" for part in parts])


def takes(sch: s_tir.Schedule, iteration: str) -> bool:
    """Whether an iteration goes over blocks of entries and dense features, and can be scheduled here.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    iteration : str
        Name of the iteration.
    """
    return BlockProduct.of(read_nest(sch, blocks_of(sch, iteration))) is not None


def schedule_part(
    sch: s_tir.Schedule,
    iteration: str,
    *,
    tile: BlockTile | BlockRowsTile | None = None,
    alone: bool = False,
    target: Target | str | dict | None = None,
) -> None:
    """Schedule one part.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule.
    iteration : str
        Name of its iteration.
    tile : BlockTile or BlockRowsTile, optional
        As in :func:`schedule`.
    alone : bool
        Whether no other part adds to the result, so that sums may be rounded at once.
    target : tvm.target.Target, str, dict or None
        As in :func:`schedule`.

    Raises
    ------
    ValueError
        If it has no blocks of entries, or not those that the tile is for, or the target is too old.
    """
    nest = read_nest(sch, blocks_of(sch, iteration))
    product = BlockProduct.of(round_at_once(sch, nest) if nest is not None and alone else nest)
    if product is None:
        raise ValueError(f"iteration {iteration}: expected blocks of entries and dense features")
    if product.dtype == "bfloat16":
        check_staging(target, "blocks in bfloat16")
    chosen = tile or _default_tile(product, stages_copies(target))
    if isinstance(chosen, BlockRowsTile):
        sch.state.replace(sch.get_sref(product.nest.loop), rows_program(product, chosen), {})
        return
    check_staging(target, "a BlockTile, which tensor cores multiply")
    sch.state.replace(sch.get_sref(product.nest.loop), BlockProgram(product, chosen).build(), {})


def _default_tile(product: BlockProduct, has_cores: bool) -> BlockTile | BlockRowsTile:
    block, features = (product.rows, product.columns), product.known_features
    halves = product.dtype in ("float16", "bfloat16") and product.sum_dtype == "float32"
    if has_cores and halves and product.has_one_dtype and product.rows >= 8:
        return BlockTile.default(block, features, product.dtype)
    return BlockRowsTile.default(block, features, product.dtype)
