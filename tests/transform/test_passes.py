"""The passes: what each changes, seen in the TVMScript that comes out, and that numbers stay right."""

import numpy as np
import pytest
import scipy.sparse as sp
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad

import tvm_sparse
from tvm_sparse import schedules
from tvm_sparse.runtime import lower
from tvm_sparse.transform import (
    AcceptNaturalArguments,
    HoistIndexLoads,
    HoistReductionInit,
    KeepRolled,
    LowerSparseBuffer,
    LowerSparseIteration,
)
from tvm_sparse.transform._layout import LAYOUT_ATTR
from tvm_sparse.transform.keep_rolled import ROLLED

PROGRAMS = {
    "spmm": schedules.spmm.program,
    "spmv": schedules.spmv.program,
    "sddmm": schedules.sddmm.program,
    "segment_sum": schedules.segment_reduce.program,
}


def text_of(module: tvm.IRModule, name: str) -> str:
    return module[name].without_attr(LAYOUT_ATTR).script()


def to_loops(module: tvm.IRModule) -> tvm.IRModule:
    passes = [
        HoistReductionInit(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
    return tvm.ir.transform.Sequential(passes)(module)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_stages_two_and_three_are_well_formed_tensor_ir(name, index_dtype):
    stage2 = LowerSparseIteration()(tvm.IRModule({name: PROGRAMS[name](index_dtype=index_dtype)}))
    stage3 = LowerSparseBuffer()(stage2)
    for module in (stage2, stage3):
        assert s_tir.analysis.verify_well_formed(module)
        assert isinstance(module[name], tirx.PrimFunc)
    dimensions = []
    tvm_ffi.structural_walk(
        stage3[name].body, [(TensorLoad, lambda load: dimensions.append(len(load.indices)))]
    )
    assert set(dimensions) == {1}


def test_stage_two_indexes_entries_within_their_parent_entry():
    stage2 = LowerSparseIteration()(tvm.IRModule({"spmm": schedules.spmm.program()}))
    assert "C[vi, vk] = C[vi, vk] + A[vi, vj] * B[J_indices[J_indptr[vi] + vj], vk]" in text_of(
        stage2, "spmm"
    )


def test_stock_functions_pass_through_the_lowering():
    @tvm.script.tirx.prim_func(s_tir=True)
    def stock(A: tvm.script.tirx.Buffer((4,), "float32")):
        for i in range(4):
            A[i] = 1.0

    module = tvm.IRModule({"stock": stock, "spmm": schedules.spmm.program()})
    lowered = lower(module)
    assert tvm_ffi.structural_equal(lowered["stock"], stock)


def test_flat_offsets_are_64_bits_wide_unless_constant_sizes_fit():
    wide = text_of(lower(schedules.spmm.program()), "spmm")
    assert 'T.Cast("int64", J_indices[' in wide
    sizes = {"m": 10, "n": 10, "f": 4, "nnz": 20}
    narrow = text_of(lower(schedules.spmm.program().specialize(sizes)), "spmm")
    assert "int64" not in narrow
    sizes = {"m": 10, "n": 2**29, "f": 8, "nnz": 20}
    too_large = text_of(lower(schedules.spmm.program().specialize(sizes)), "spmm")
    assert 'T.Cast("int64", J_indices[' in too_large


def test_rows_times_features_above_two_to_the_31_address_the_last_row():
    """The case that needs gigabytes elsewhere: pages that are never touched cost nothing."""
    rows, features = 2**31 // 256 + 2, 256
    dense = np.zeros((rows, features), np.float16)
    dense[-1] = np.arange(features)
    one = sp.csr_matrix(
        (np.ones(1, np.float32), np.array([rows - 1], np.int32), np.array([0, 1], np.int32)),
        shape=(1, rows),
    )
    kernel = schedules.spmm.build(dtype="float16")
    result = kernel(a=one.data.astype(np.float16), b=dense, indptr=one.indptr, indices=one.indices)
    assert np.array_equal(result[0], np.arange(features))


def test_init_moves_before_the_loop_of_a_possibly_empty_range():
    text = text_of(HoistReductionInit()(lower(schedules.spmm.program())), "spmm")
    init, update = text.index('T.sblock("spmm_1_init")'), text.index('T.sblock("spmm_1")')
    assert init < text.index("for j") < update
    assert "T.init()" not in text


def test_init_stays_in_the_block_where_the_range_is_never_empty():
    from tvm_sparse.script import from_source

    program = from_source("""
@S.prim_func
def rows(a: S.handle, b: S.handle, n: S.int32):
    I = S.dense_fixed(n)
    K = S.dense_fixed(8)
    A = S.match_sparse_buffer(a, (I, K), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I, K], "SR", "rows") as [i, k]:
        with S.init():
            B[i] = 0.0
        B[i] = B[i] + A[i, k]
""")
    assert "T.init()" in text_of(HoistReductionInit()(lower(program)), "rows")


EMPTY_ROWS = sp.csr_matrix(np.diag([0, 2, 0, 3, 0]).astype(np.float32))


def _split_entries(sch, row, entry, feature, body):
    outer, inner = sch.split(entry, [None, 4])
    sch.reorder(outer, feature, inner)


def _tile_features(sch, row, entry, feature, body):
    outer, inner = sch.split(feature, [None, 4])
    sch.reorder(outer, entry, inner)
    sch.vectorize(inner)


def _features_outside(sch, row, entry, feature, body):
    sch.reorder(feature, entry)
    sch.parallel(row)


def _rfactor(sch, row, entry, feature, body):
    sch.reorder(feature, entry)
    _, inner = sch.split(entry, [None, 4])
    sch.rfactor(inner, 0)


def _cached(sch, row, entry, feature, body):
    outer, inner = sch.split(feature, [None, 4])
    sch.reorder(outer, entry, inner)
    written = sch.cache_write(body, 0, "global")
    sch.reverse_compute_at(written, outer)


def _computed_at(sch, row, entry, feature, body):
    """TVM makes new loops over the entries of a row, out of the domain of the block."""
    (tile,) = sch.get_loops(sch.cache_write(body, 0, "global"))
    sch.compute_at(body, tile)


@pytest.mark.parametrize(
    "apply",
    [_split_entries, _tile_features, _features_outside, _rfactor, _cached, _computed_at],
    ids=lambda f: f.__name__.strip("_"),
)
@pytest.mark.parametrize("features", [1, 4, 7])
def test_empty_rows_are_initialised_under_stock_schedules(apply, features):
    sch = s_tir.Schedule(lower(schedules.spmm.program()))
    sch.work_on("spmm")
    body = sch.get_sblock("spmm_1")
    (row,) = sch.get_loops(sch.get_sblock("spmm_0"))
    entry, feature = sch.get_loops(body)
    apply(sch, row, entry, feature, body)
    dense = np.random.default_rng(0).random((5, features), dtype=np.float32)
    out = np.full((5, features), np.nan, np.float32)
    tvm_sparse.compile(sch)(a=EMPTY_ROWS, b=dense, c=out)
    assert np.allclose(out, EMPTY_ROWS @ dense, atol=1e-6)


def test_arguments_have_natural_shapes_checked_by_the_entry_code():
    accepting = AcceptNaturalArguments()(to_loops(lower(schedules.spmm.program())))
    assert len(accepting["spmm"].params[1].ty.shape) == 2
    built = tvm.compile(lower(schedules.spmm.program()), "llvm", tir_pipeline="tvm_sparse")
    arrays = [np.zeros(s, np.float32) for s in ((2,), (3, 4), (5, 4))]
    arrays += [np.zeros(6, np.int32), np.zeros(2, np.int32)]
    tensors = [tvm.runtime.tensor(a) for a in arrays]
    with pytest.raises(ValueError, match=r"B.shape\[0\]"):
        built["spmm"](*tensors, 5, 7, 4, 2)


def test_loads_of_index_arrays_stand_outside_the_loops_they_do_not_depend_on():
    module = HoistIndexLoads()(to_loops(lower(schedules.spmm.program())))
    text = text_of(module, "spmm")
    inner = text[text.index("for k in") :]
    assert "J_indptr[" not in inner and "J_indices[" not in inner
    body = text[text.index("for j in") :]
    assert "J_indptr[" not in body
    assert text.count("= J_indptr[i]") == 1


def test_a_load_under_a_condition_stays_there():
    """ELL: the padding check guards what its index addresses."""
    from tvm_sparse.script import from_source

    program = from_source("""
@S.prim_func
def gather(a: S.handle, b: S.handle, c: S.handle, q: S.handle, p: S.handle,
           m: S.int32, n: S.int32, w: S.int32, nnz: S.int32):
    I = S.dense_fixed(m)
    J = S.sparse_fixed(I, (n, w), q, "int32")
    N = S.dense_fixed(n)
    E = S.dense_variable(N, (n, nnz), p, "int32")
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (N, E), "float32")
    C = S.match_sparse_buffer(c, (I, J), "float32")
    with S.sp_iter([I, J], "SS", "gather") as [i, j]:
        C[i, j] = A[i, j] * B[j, 0]
""")
    columns = np.array([[0, 2], [1, 3]], np.int32)  # 3 is padding: there are three columns
    ragged = np.array([0, 1, 1, 2], np.int32)
    values = np.ones((2, 2), np.float32)
    out = np.full((2, 2), np.nan, np.float32)
    tvm_sparse.compile(program)(
        a=values, b=np.array([5, 7], np.float32), c=out, q=columns, p=ragged, m=2, n=3, w=2, nnz=2
    )
    assert np.array_equal(out, [[5, 7], [0, 0]])


@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_rolled_loops_step_by_a_number_that_llvm_cannot_see(kind, stride):
    x, y = tirx.decl_buffer((64,), "int32", "x"), tirx.decl_buffer((1,), "int32", "y")
    n, t = tirx.Var("n", "int32"), tirx.Var("t", "int32")
    position = t * stride if stride > 1 else t
    body = tirx.BufferStore(y, tirx.BufferLoad(y, [0]) + tirx.BufferLoad(x, [position]), [0])
    loop = tirx.For(t, 0, n, tirx.ForKind.SERIAL, body, annotations={ROLLED: True})
    total = tirx.PrimFunc([x, y, n], loop).with_attr({"global_symbol": "total", "s_tir": True})
    module = tvm.IRModule({"total": total.with_attr("target", tvm.target.Target(kind))})

    loops = []
    tvm_ffi.structural_walk(KeepRolled()(module)["total"], [(tirx.For, loops.append)])
    assert ROLLED not in loops[0].annotations
    assert (loops[0].step is None) == (kind == "cuda")

    kernel = tvm.compile(tvm.IRModule({"total": total}), "llvm", tir_pipeline="tvm_sparse")
    given, result = np.arange(64, dtype="int32"), np.zeros(1, "int32")
    for count in range(17):
        result[0] = 0
        kernel["total"](tvm_ffi.from_dlpack(given), tvm_ffi.from_dlpack(result), count)
        assert result[0] == stride * sum(range(count))
