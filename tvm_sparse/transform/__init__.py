"""Passes: one a file, each an ordinary TVM pass over ``IRModule`` s."""

from .balance import BalanceRows, Grain
from .empty_loops import DropEmptyLoops
from .fit_stack import FitStack
from .full_blocks import SkipPaddingTests
from .fuse_followers import FuseFollowers
from .hoist_index_loads import HoistIndexLoads
from .hold_tile import HoldTile
from .horizontal_fusion import FuseRowLoops, MergeOuterLoops
from .keep_rolled import KeepRolled
from .kernel_fusion import FuseKernels
from .lower_sparse_buffer import LowerSparseBuffer
from .lower_sparse_iteration import LowerSparseIteration
from .mask_lanes import MaskLanes
from .natural_arguments import AcceptNaturalArguments
from .pipeline import PIPELINE_NAME, tvm_sparse_pipeline
from .reduction_init import HoistReductionInit
from .share_inner import ShareInner
from .stack_locals import StackLocals
from .sum_lanes import SumLanes
from .vector_tail import PeelVectorTail

__all__ = [
    "PIPELINE_NAME",
    "AcceptNaturalArguments",
    "BalanceRows",
    "DropEmptyLoops",
    "FitStack",
    "FuseFollowers",
    "FuseKernels",
    "FuseRowLoops",
    "Grain",
    "HoistIndexLoads",
    "HoistReductionInit",
    "HoldTile",
    "KeepRolled",
    "LowerSparseBuffer",
    "LowerSparseIteration",
    "MaskLanes",
    "MergeOuterLoops",
    "PeelVectorTail",
    "ShareInner",
    "SkipPaddingTests",
    "StackLocals",
    "SumLanes",
    "tvm_sparse_pipeline",
]
