"""Passes: one a file, each an ordinary TVM pass over ``IRModule`` s."""

from .balance import BalanceRows, Grain
from .hoist_index_loads import HoistIndexLoads
from .horizontal_fusion import FuseRowLoops
from .keep_rolled import KeepRolled
from .kernel_fusion import FuseKernels
from .lower_sparse_buffer import LowerSparseBuffer
from .lower_sparse_iteration import LowerSparseIteration
from .natural_arguments import AcceptNaturalArguments
from .pipeline import PIPELINE_NAME, tvm_sparse_pipeline
from .reduction_init import HoistReductionInit
from .vector_tail import PeelVectorTail

__all__ = [
    "PIPELINE_NAME",
    "AcceptNaturalArguments",
    "BalanceRows",
    "FuseKernels",
    "FuseRowLoops",
    "Grain",
    "HoistIndexLoads",
    "HoistReductionInit",
    "KeepRolled",
    "LowerSparseBuffer",
    "LowerSparseIteration",
    "PeelVectorTail",
    "tvm_sparse_pipeline",
]
