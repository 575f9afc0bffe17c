"""Tuning: real inputs, checked results, resumed folders, candidates that fail."""

import numpy as np
import pytest
import scipy.sparse as sp
from tvm import s_tir

from tvm_sparse import schedules
from tvm_sparse.runtime import lower
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
    with pytest.raises(ValueError, match="no default space for a program named 'unknown'"):
        tune(program, INPUTS, max_trials=1)


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
