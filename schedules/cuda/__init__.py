"""Default CUDA schedules of the operators, one module each, and what they share.

====================  =======================================================================
operators             ``spmv``, ``spmm``, ``segment_reduce``, ``sddmm``: on CSR and plain index
                      arrays. ``parts``, ``sddmm_parts``: over formats, part by part.
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
                      thread. ``tensor_cores``, ``tf32``: intrinsics for ``tensorize``
====================  =======================================================================
"""

from . import blocks, parts, sddmm, sddmm_blocks, segment_reduce, spmm, spmv, spmv_parts
from .block_tiles import BlockRowsTile, BlockTile
from .sddmm import DotTile
from .tiles import RowTile, vector_width

__all__ = [
    "BlockRowsTile",
    "BlockTile",
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
