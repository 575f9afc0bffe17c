"""Default CUDA schedules of the operators, one module each, and what they share.

====================  =======================================================================
operators             ``spmv``, ``spmm``, ``segment_reduce``, ``sddmm``: on CSR and plain index
                      arrays. ``parts``, ``spmv_parts``, ``sddmm_parts``: over formats.
                      ``blocks``, ``sddmm_blocks``: parts with blocks of entries
rows and entries      ``rows``: features across threads, rows across warps, rows shared by
                      entries. ``results``: initialisations and conversions around parts
sizes                 ``tiles``: rows and features of threads, checks of sizes.
                      ``block_tiles``: of products with blocks. ``fragments``: of tensor cores
blocks, as read       ``block_nests``: what a lowered iteration computes.
                      ``block_products``, ``block_dots``: that as an SpMM, as an SDDMM
blocks, as written    ``block_program``, ``dot_program``: tile programs of SpMM and SDDMM.
                      ``block_rows``: SpMM on CUDA cores
pieces of programs    ``staging``: copies to shared memory. ``warp_sums``: sums of a warp or
                      thread. ``tensor_cores``: intrinsics for ``tensorize``. ``copies``:
                      moves of vectors. ``scatter``: rows that are added to atomically
====================  =======================================================================

What ``build`` passes on for CUDA:

``tile``
    Sizes of what a thread block computes. :class:`RowTile` for SpMM, SpMV, segment reductions and formats
    of rows, :class:`DotTile` for SDDMM on CSR; over blocks of entries :class:`BlockTile` (tensor cores)
    or :class:`BlockRowsTile` for SpMM and :class:`DotBlockTile` for SDDMM. Each has a method that gives
    the default, such as ``RowTile.of_width(features, bits)``.
``share``
    Entries that a group of lanes takes of rows that it shares with others, so that long rows do not keep
    one group busy: for SpMM, SpMV and segment reductions. By default rows are whole on CSR, and shared by
    256 entries in the widest bucket of hyb and other formats whose rows have row pointers.
"""

from . import blocks, parts, sddmm, sddmm_blocks, segment_reduce, spmm, spmv, spmv_parts
from .block_tiles import BlockRowsTile, BlockTile, DotBlockTile
from .sddmm import DotTile
from .tiles import RowTile, vector_width

__all__ = [
    "BlockRowsTile",
    "BlockTile",
    "DotBlockTile",
    "DotTile",
    "RowTile",
    "blocks",
    "parts",
    "sddmm",
    "sddmm_blocks",
    "segment_reduce",
    "spmm",
    "spmv",
    "spmv_parts",
    "vector_width",
]
