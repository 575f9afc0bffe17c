"""The ``tvm_sparse`` lowering pipeline: TVM's own for TensorIR, with the passes sparse kernels need.

``tvm.compile(module, target, tir_pipeline="tvm_sparse")`` takes modules of stage II and III, scheduled
or not.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.pipeline import finalize_device_passes, finalize_host_passes

from .align_vectors import AlignVectors
from .balance import BalanceRows
from .check_alignment import CheckAlignment
from .check_barriers import CheckBarriers
from .check_locals import CheckLocals, CheckLocalSizes
from .check_threads import CheckThreads
from .compact_allocations import CompactAllocations
from .empty_loops import DropEmptyLoops
from .fit_stack import FitStack
from .full_blocks import SkipPaddingTests
from .guard_loads import GuardLoads
from .hoist_bases import HoistBases
from .hoist_index_loads import HoistIndexLoads
from .hold_tile import HoldTile
from .horizontal_fusion import FuseRowLoops, MergeOuterLoops
from .keep_rolled import KeepRolled
from .kernel_fusion import FuseKernels
from .launch_checks import CheckLaunches
from .lower_sparse_buffer import LowerSparseBuffer
from .mask_lanes import MaskLanes
from .narrow_counters import NarrowCounters
from .narrow_threads import NarrowThreads
from .natural_arguments import AcceptNaturalArguments
from .partial_copies import RefusePartialCopies
from .reduction_init import HoistReductionInit
from .register_bounds import BoundRegisters
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

__all__ = ["PIPELINE_NAME", "tvm_sparse_pipeline"]

PIPELINE_NAME = "tvm_sparse"


def tvm_sparse_pipeline():
    """Return the pipeline and its host and device finalizations, as TVM's factories do."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_sparse_pipeline")
    def pipeline(module: tvm.IRModule, _context) -> tvm.IRModule:
        config = tvm.transform.PassContext.current().config
        return tvm.ir.transform.Sequential(_passes(config))(module)

    return pipeline, finalize_host_passes, finalize_device_passes


@tvm.transform.module_pass(opt_level=0, name="tvm_sparse.RewriteStorage")
class _RewriteStorage:
    """TVM's reuse of memory, for functions that stage nothing in dynamic shared memory.

    It gives operands and results the same shared memory, and then their types differ in accesses through
    pointers. That memory is merged later on, by bytes.
    """

    def transform_module(self, module: tvm.IRModule, _context) -> tvm.IRModule:
        rewritten = tvm.IRModule(attrs=module.attrs)
        for var, func in module.functions.items():
            if isinstance(func, tirx.PrimFunc) and not _stages(func):
                alone = tirx.transform.StorageRewrite()(tvm.IRModule({var: func}))
                func = alone[var]
            rewritten[var] = func
        return rewritten


def _stages(func: tirx.PrimFunc) -> bool:
    scopes: list[str] = []
    note = lambda stmt: scopes.append(str(stmt.buffer.scope()))  # noqa: E731
    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, note))
    return "shared.dyn" in scopes


def _passes(config) -> list[tvm.transform.Pass]:
    enabled = lambda name: bool(config.get(name, False))  # noqa: E731
    blocks = [
        LowerSparseBuffer(),
        CheckThreads(),
        RefusePartialCopies(),
        MergeOuterLoops(),
        FuseKernels(),
        HoistReductionInit(),
        DropEmptyLoops(),
        s_tir.transform.CanonicalizeLoop(),
        LowerThreadReductions(),
        NarrowThreads(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        CheckLocals(),
        s_tir.transform.LiftThreadBinding(),
        s_tir.transform.ManifestSharedMemoryLocalStage(),
        CompactAllocations(),
        CheckLocalSizes(),
        s_tir.transform.LowerAutoCopy(),
        s_tir.transform.UnifyThreadBinding(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.InjectPermutedLayout(),
        s_tir.transform.AnnotateIrregularLoop(),
        s_tir.transform.InjectSoftwarePipeline(),
        s_tir.transform.TransformMmaBufferLayout(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
    loops = [
        GuardLoads(),
        SplitRows(),
        UnswitchBounds(),
        HoldTile(),
        SumLanes(),
        ShareInner(),
        SkipPaddingTests(),
        BalanceRows(),
        PeelVectorTail(),
        MaskLanes(),
        AcceptNaturalArguments(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        tirx.transform.VectorizeLoop(not enabled("tirx.disable_vectorize")),
        s_tir.transform.InjectVirtualThread(),
        s_tir.transform.InjectDoubleBuffer(),
    ]
    if not enabled("tirx.disable_storage_rewrite"):
        loops.append(_RewriteStorage())
    if enabled("tirx.use_async_copy"):
        loops.append(s_tir.transform.LowerAsyncDMA())
    loops += [
        s_tir.transform.HoistIfThenElse(),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
        FuseRowLoops(),
        HoistIndexLoads(),
        HoistBases(),
        StackLocals(),
        FitStack(),
        AlignVectors(),
        WidenBfloat16(),
        SpellInfinities(),
        KeepRolled(),
        NarrowCounters(),
    ]
    if not enabled("tirx.disable_cse_tir"):
        loops.append(tirx.transform.CommonSubexprElim())
    functions = [
        tirx.transform.FP8ComputeLegalize(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        s_tir.transform.ThreadSync("shared"),
        s_tir.transform.ThreadSync("shared.dyn"),
        s_tir.transform.ThreadSync("warp"),
        s_tir.transform.InferFragment(),
        s_tir.transform.LowerThreadAllreduce(),
        NameShuffleMasks(),
        CheckBarriers(),
    ]
    if enabled("tirx.use_async_copy"):
        functions.append(s_tir.transform.InjectPTXAsyncCopy())
    functions += [
        s_tir.transform.MergeSharedMemoryAllocations(),
        CheckAlignment(),
        BoundRegisters(),
        tirx.transform.SplitHostDevice(),
        CheckLaunches(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
    ]
    return [*blocks, *loops, *functions]


tirx.register_tir_pipeline(PIPELINE_NAME, tvm_sparse_pipeline)
