"""Passes: one a file, each an ordinary TVM pass over ``IRModule`` s."""

from .align_vectors import AlignVectors
from .balance import BalanceRows, Grain
from .check_alignment import CheckAlignment
from .check_barriers import CheckBarriers
from .check_locals import CheckLocals, CheckLocalSizes
from .check_threads import CheckThreads
from .compact_allocations import CompactAllocations
from .empty_loops import DropEmptyLoops
from .fit_stack import FitStack
from .full_blocks import SkipPaddingTests
from .fuse_followers import FuseFollowers
from .guard_loads import GuardLoads
from .hoist_bases import HoistBases
from .hoist_index_loads import HoistIndexLoads
from .hold_tile import HoldTile
from .horizontal_fusion import FuseRowLoops, MergeOuterLoops
from .keep_rolled import KeepRolled
from .kernel_fusion import FuseKernels
from .launch_checks import CheckLaunches
from .lower_sparse_buffer import LowerSparseBuffer
from .lower_sparse_iteration import LowerSparseIteration
from .mask_lanes import MaskLanes
from .merge_ranges import MergeRanges
from .narrow_counters import NarrowCounters
from .narrow_threads import NarrowThreads
from .natural_arguments import AcceptNaturalArguments
from .pipeline import PIPELINE_NAME, tvm_sparse_pipeline
from .reduction_init import HoistReductionInit
from .register_bounds import BoundRegisters
from .round_rows import RoundRows
from .separate_searches import SeparateSearches
from .share_inner import ShareInner
from .shuffle_masks import NameShuffleMasks
from .spell_infinities import SpellInfinities
from .split_rows import SplitRows
from .stack_locals import StackLocals
from .sum_lanes import SumLanes
from .thread_reductions import LowerThreadReductions
from .unswitch_bounds import UnswitchBounds
from .vector_tail import PeelVectorTail
from .widen_bfloat16 import WidenBfloat16

__all__ = [
    "PIPELINE_NAME",
    "AcceptNaturalArguments",
    "AlignVectors",
    "BalanceRows",
    "BoundRegisters",
    "CheckAlignment",
    "CheckBarriers",
    "CheckLaunches",
    "CheckLocalSizes",
    "CheckLocals",
    "CheckThreads",
    "CompactAllocations",
    "DropEmptyLoops",
    "FitStack",
    "FuseFollowers",
    "FuseKernels",
    "FuseRowLoops",
    "Grain",
    "GuardLoads",
    "HoistBases",
    "HoistIndexLoads",
    "HoistReductionInit",
    "HoldTile",
    "KeepRolled",
    "LowerSparseBuffer",
    "LowerSparseIteration",
    "LowerThreadReductions",
    "MaskLanes",
    "MergeOuterLoops",
    "MergeRanges",
    "NameShuffleMasks",
    "NarrowCounters",
    "NarrowThreads",
    "PeelVectorTail",
    "RoundRows",
    "SeparateSearches",
    "ShareInner",
    "SkipPaddingTests",
    "SpellInfinities",
    "SplitRows",
    "StackLocals",
    "SumLanes",
    "UnswitchBounds",
    "WidenBfloat16",
    "tvm_sparse_pipeline",
]
