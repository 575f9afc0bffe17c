"""Tuning: real inputs, checked results, resumed folders, candidates that fail."""

import numpy as np
import pytest
import scipy.sparse as sp
from tvm import s_tir

from tvm_sparse import schedules
from tvm_sparse.runtime import lower
from tvm_sparse.script import from_source
from tvm_sparse.tune import MeasureOptions, RewriteReductionInit, TuningError, fingerprint, tune

MATRIX = sp.random(200, 150, 0.03, "csr", dtype=np.float32, random_state=0)
DENSE = np.random.default_rng(0).random((150, 8), dtype=np.float32)
INPUTS = {"a": MATRIX, "b": DENSE}
QUICK = MeasureOptions(repeat=1, min_repeat_ms=1)


def _features_first(sch: s_tir.Schedule) -> None:
    """A space of a few tilings of the feature loop."""
    body = sch.get_sblock("spmm_1")
    entry, feature = sch.get_loops(body)
    outer, inner = sch.split(feature, sch.sample_perfect_tile(feature, 2))
    sch.reorder(outer, entry, inner)


def _on_gpu_threads(sch: s_tir.Schedule) -> None:
    """A space whose candidates do not compile for a CPU."""
    sch.bind(sch.get_loops(sch.get_sblock("spmm_0"))[0], "threadIdx.x")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuning")
    seen = []
    result = tune(
        schedules.spmm.program(),
        INPUTS,
        max_trials=4,
        work_dir=folder,
        space=_features_first,
        options=QUICK,
        on_progress=lambda *report: seen.append(report),
    )
    return result, folder, seen


def test_candidates_are_measured_on_the_real_arrays_and_the_best_is_right(tuned):
    result, _, seen = tuned
    assert result.trials >= 1 and result.failures == 0, result.errors
    assert 0 < result.seconds < 10 and result.seconds <= result.default_seconds
    assert np.allclose(result.executable(a=MATRIX, b=DENSE), MATRIX @ DENSE, atol=1e-4)
    assert seen[-1][0] == result.trials and seen[-1][2] > 0


def test_the_tuned_kernel_takes_other_matrices(tuned):
    result, _, _ = tuned
    other = sp.random(33, 57, 0.1, "csr", dtype=np.float32, random_state=1)
    dense = np.random.default_rng(1).random((57, 8), dtype=np.float32)
    assert np.allclose(result.executable(a=other, b=dense), other @ dense, atol=1e-4)


def test_a_later_run_in_the_same_folder_goes_on_there(tuned):
    result, folder, _ = tuned
    again = tune(
        schedules.spmm.program(),
        INPUTS,
        max_trials=result.trials,
        work_dir=folder,
        space=_features_first,
        options=QUICK,
        on_progress=lambda *_: pytest.fail("measured again"),
    )
    assert again.trials == result.trials


def test_the_log_goes_to_a_file_and_not_to_the_terminal(tuned, capfd):
    _, folder, _ = tuned
    tune(
        schedules.spmm.program(),
        INPUTS,
        max_trials=1,
        work_dir=folder / "quiet",
        space=_features_first,
        options=QUICK,
    )
    out, err = capfd.readouterr()
    assert not out and not err
    assert (folder / "quiet" / "logs" / "tuning.log").stat().st_size > 0


def test_when_all_candidates_fail_the_first_error_and_the_log_are_named(tmp_path):
    with pytest.raises(TuningError) as caught:
        tune(
            schedules.spmm.program(),
            INPUTS,
            max_trials=1,
            work_dir=tmp_path,
            space=_on_gpu_threads,
            options=QUICK,
        )
    assert "LocalBuilder: An exception occurred" in str(caught.value)
    assert str(tmp_path / "logs") in str(caught.value)


def test_a_program_without_a_space_is_refused():
    program = schedules.spmm.program().with_attr("global_symbol", "unknown")
    with pytest.raises(ValueError, match="'unknown' is none of the operators"):
        tune(program, INPUTS, max_trials=1)


def _fails(_schedule):
    raise KeyError("no such block")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (_fails, "space: _fails failed on the lowered program: 'no such block'"),
        (lambda _schedule: 5, "space: expected .* to return a schedule, several, or None"),
        (lambda _schedule: [], r"for the one that it was given, found \[\]"),
    ],
)
def test_a_space_that_gives_no_schedule_is_named(space, message, tmp_path):
    with pytest.raises(RuntimeError, match=message):
        tune(schedules.spmm.program(), INPUTS, max_trials=1, space=space, work_dir=tmp_path)


def test_a_work_dir_that_is_a_file_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ValueError, match="work_dir: expected a folder, found a file at"):
        tune(schedules.spmm.program(), INPUTS, max_trials=1, work_dir=file)


OWN = """
@S.prim_func
def {name}(a: S.handle, y: S.handle, indptr: S.handle, indices: S.handle,
         m: S.int32, n: S.int32, nnz: S.int32, factor: S.float32):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    A = S.match_sparse_buffer(a, (I, J), "float32")
    Y = S.match_sparse_buffer(y, (I,), "float32")
    with S.sp_iter([I, J], "SR", "sums") as [i, j]:
        with S.init():
            Y[i] = 0.0
        Y[i] = Y[i] + A[i, j] * factor
"""


def test_a_program_of_ones_own_with_a_float_parameter_is_tuned(tmp_path):
    def rows(sch: s_tir.Schedule) -> None:
        sch.parallel(sch.get_loops(sch.get_sblock("sums_0"))[0])

    result = tune(
        from_source(OWN.format(name="weights")),
        {"a": MATRIX, "factor": 0.25},
        max_trials=1,
        work_dir=tmp_path,
        space=rows,
        options=QUICK,
    )
    assert result.failures == 0, result.errors
    found = result.executable(a=MATRIX, factor=0.25)
    assert np.allclose(found, 0.25 * np.asarray(MATRIX.sum(axis=1)).ravel(), atol=1e-5)


def test_an_operators_name_alone_does_not_make_a_program_that_operator():
    assert schedules.find(from_source(OWN.format(name="spmv"))) is None
    assert schedules.find(schedules.spmv.program()) is schedules.spmv


@pytest.mark.parametrize("operation", ["sum", "max"])
def test_segment_reductions_are_tuned(operation, tmp_path):
    x = np.random.default_rng(0).random((MATRIX.nnz, 8), dtype=np.float32)
    result = tune(
        schedules.segment_reduce.program(operation),
        {"x": x, "indptr": MATRIX.indptr},
        max_trials=2,
        work_dir=tmp_path,
        options=QUICK,
    )
    assert result.failures == 0, result.errors
    expected = schedules.segment_reduce.reference(operation, x, MATRIX.indptr)
    assert np.allclose(result.executable(x=x, indptr=MATRIX.indptr), expected, atol=1e-4)


def test_patterns_of_the_same_shape_have_different_fingerprints():
    moved = MATRIX.indices.copy()
    moved[0] = (moved[0] + 1) % 150
    assert fingerprint([MATRIX.indptr, MATRIX.indices]) != fingerprint([MATRIX.indptr, moved])


def test_the_postprocessor_initialises_empty_ranges():
    sch = s_tir.Schedule(lower(schedules.spmm.program()))
    assert RewriteReductionInit().apply(sch)
    text = sch.mod["spmm"].script()
    assert "T.init()" not in text and "spmm_1_init" in text
    assert text.index("spmm_1_init") < text.index("for j")
