"""A trace prints as Python, is saved as JSON, and makes the same program elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import tvm
import tvm_ffi

import tvm_sparse
from tests.schedule.user_format import Band, BandAndRest, Hidden
from tvm_sparse import SparseSchedule, formats, schedules
from tvm_sparse.formats import (
    BSR,
    COO,
    CSF,
    CSR,
    DBSR,
    DIA,
    ELL,
    SRBCRS,
    Bucket,
    Composition,
    Hyb,
    LongBucket,
    Pieces,
)
from tvm_sparse.schedule import Trace
from tvm_sparse.script import from_source

NAMES = {**vars(formats), "Band": Band, "BandAndRest": BandAndRest}


def spmm() -> SparseSchedule:
    return SparseSchedule(schedules.spmm.program())


def everything() -> SparseSchedule:
    """A schedule with every primitive."""
    sch = spmm()
    handle = sch.get_sparse_iteration("spmm")
    size = sch.sample_categorical([2, 4], decision=0)
    times = sch.sample_categorical([1, 8], [0.25, 0.75], decision=1)
    blocks, rest = sch.decompose_format(
        handle, "A", Composition({"b": BSR(size, size, min_fill=0.5), "rest": CSR()})
    )
    i, j, k = sch.get_axes(rest)
    sch.sparse_reorder(rest, [i, k, j])
    sch.annotate(blocks, "times", times)
    sch.sparse_reorder(rest, [i, j, k])
    sch.sparse_fuse(rest, ["i", "j"])
    return sch


def splitting() -> SparseSchedule:
    sch = spmm()
    pieces = sch.sample_categorical([3, 5], decision=0)
    head, _, _ = sch.sparse_split("spmm", "j", pieces)
    sch.annotate(head, "note", {"x": [1.5, None, True], "y": "text"})
    return sch


def as_printed(sch: SparseSchedule) -> SparseSchedule:
    """Run the text of a trace on another schedule."""
    scope: dict = {}
    exec(str(sch.trace), dict(NAMES), scope)
    other = spmm()
    scope["apply"](other)
    return other


def as_saved(sch: SparseSchedule, decisions=None) -> SparseSchedule:
    other = spmm()
    Trace.from_json(sch.trace.as_json()).apply(other, decisions)
    return other


def refuses(error: type[Exception], *parts: str):
    """Expect an error whose message names all of these."""
    return pytest.raises(error, match="(?s)" + "".join(f"(?=.*{part})" for part in parts))


def test_a_trace_prints_as_a_python_function():
    assert str(everything().trace) == textwrap.dedent(
        """\
        def apply(sch):
            spmm = sch.get_sparse_iteration(name='spmm')
            v0 = sch.sample_categorical(candidates=[2, 4], probs=None, decision=0)
            v1 = sch.sample_categorical(candidates=[1, 8], probs=[0.25, 0.75], decision=1)
            spmm_b, spmm_rest = sch.decompose_format(iteration=spmm, operand='A', formats=Composition(parts={'b': BSR(rows=v0, columns=v0, min_fill=0.5), 'rest': CSR(keeps_duplicates=False)}, keeps_duplicates=False))
            i, j, k = sch.get_axes(iteration=spmm_rest)
            sch.sparse_reorder(iteration=spmm_rest, order=[i, k, j])
            sch.annotate(iteration=spmm_b, key='times', value=v1)
            sch.sparse_reorder(iteration=spmm_rest, order=[i, j, k])
            sch.sparse_fuse(iteration=spmm_rest, axes=['i', 'j'])"""  # noqa: E501
    )
    assert str(splitting().trace) == textwrap.dedent(
        """\
        def apply(sch):
            v0 = sch.sample_categorical(candidates=[3, 5], probs=None, decision=0)
            spmm_head, spmm_tail, spmm_tail_add = sch.sparse_split(iteration='spmm', axis='j', entries=v0)
            sch.annotate(iteration=spmm_head, key='note', value={'x': [1.5, None, True], 'y': 'text'})"""
    )


def test_an_empty_trace_does_nothing():
    assert str(Trace()) == "def apply(sch):\n    pass"
    sch = as_saved(spmm())
    assert sch.trace.entries == []
    assert tvm_ffi.structural_equal(sch.mod, spmm().mod)


def test_names_that_python_keeps_are_written_otherwise():
    func = from_source(
        """
@S.prim_func
def f(x: T.handle, y: T.handle, m: T.int32):
    I = S.dense_fixed(m)
    X = S.match_sparse_buffer(x, (I,), "float32")
    Y = S.match_sparse_buffer(y, (I,), "float32")
    with S.sp_iter([I], "S", "class") as [sch]:
        Y[sch] = X[sch]
    with S.sp_iter([I], "S", "CSR") as [x_1]:
        Y[x_1] = X[x_1] + Y[x_1]
    with S.sp_iter([I], "S", "a b") as [x_1]:
        Y[x_1] = X[x_1] + Y[x_1]
"""
    )
    sch = SparseSchedule(func)
    for name in ("class", "CSR", "a b"):
        handle = sch.get_sparse_iteration(name)
        (axis,) = sch.get_axes(handle)
        sch.sparse_reorder(handle, [axis])
        sch.annotate(handle, "x", float("inf"))
    scope: dict = {}
    exec(str(sch.trace), dict(NAMES), scope)
    again = SparseSchedule(func)
    scope["apply"](again)
    assert again.trace.as_json() == sch.trace.as_json()
    assert tvm_ffi.structural_equal(again.mod, sch.mod)


FORMATS = {
    "csr": CSR(),
    "duplicates": COO(keeps_duplicates=True),
    "ell": ELL(),
    "ell3": ELL(3),
    "dia": DIA(),
    "dbsr": DBSR(2, 3, min_fill=0.25),
    "sr_bcrs": SRBCRS(2, 2),
    "bucket": Bucket(3, 2),
    "long_bucket": LongBucket(2),
    "csf": CSF(2, order=(1, 0), compressed_root=True),
    "hyb": Hyb(2, buckets=[1, 4]),
    "pieces": Pieces(3),
    "list": [CSR(), COO()],
    "dict": {"x": CSR(), "y": BSR(2, 2)},
    "nested": Composition({"x": Band(2), "y": BSR(2, 2, min_fill=0.5), "z": CSR()}),
    "user": Band(3),
    "user_composition": BandAndRest(2),
    "user_dict": {"near": Band(1), "far": CSR()},
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_come_back_from_text_and_json(name):
    sch = spmm()
    sch.decompose_format("spmm", "A", FORMATS[name])
    for again in (as_printed(sch), as_saved(sch)):
        assert tvm_ffi.structural_equal(again.mod, sch.mod)
        assert again.trace.as_json() == sch.trace.as_json()
        assert str(again.trace) == str(sch.trace)


@pytest.mark.parametrize("make", [everything, splitting])
def test_text_and_json_make_the_same_program(make):
    sch = make()
    for again in (as_printed(sch), as_saved(sch)):
        assert tvm_ffi.structural_equal(again.mod, sch.mod)
        assert again.trace.as_json() == sch.trace.as_json()


def test_other_decisions_reach_everything_that_was_made_of_samples():
    sch = everything()
    other = as_saved(sch, {"v0": 1, "v1": 0})
    text = other.mod["spmm"].script()
    assert "A_b[i_0, j_0, i_1, j_1] * B[j_0 * 4 + j_1, k]" in text
    assert "'times': 1" in text
    assert "rows=v0" in str(other.trace) and "decision=1" in str(other.trace)
    fresh = SparseSchedule(schedules.spmm.program())
    fresh.decompose_format("spmm", "A", Composition({"b": BSR(4, 4, min_fill=0.5), "rest": CSR()}))
    fresh.annotate("spmm_b", "times", 1)
    fresh.sparse_fuse("spmm_rest", ["i", "j"])
    assert tvm_ffi.structural_equal(other.mod, fresh.mod)
    split = as_saved(splitting(), {"v0": 1})
    assert split.trace.entries[1].arguments["entries"] == 5


@pytest.mark.parametrize(
    "make",
    [
        lambda v: {"x": BSR(v, 2), "y": CSR()},
        lambda v: BSR(v, v),
        Hyb,
        lambda v: Hyb(buckets=[1, v]),
        BandAndRest,
        lambda v: Composition({"x": Band(v), "y": ELL(v)}),
        Pieces,
    ],
)
def test_every_kind_of_format_follows_samples(make):
    def schedule(decision: int) -> SparseSchedule:
        sch = spmm()
        made = make(sch.sample_categorical([2, 3], decision=decision))
        if isinstance(made, Hyb) and made.buckets is None:
            made = Hyb(made.column_parts, [1, 2])
        sch.decompose_format("spmm", "A", made)
        return sch

    two, three = schedule(0), schedule(1)
    again = as_saved(two, {"v0": 1})
    assert tvm_ffi.structural_equal(again.mod, three.mod)
    assert again.trace.as_json() == three.trace.as_json()
    assert tvm_ffi.structural_equal(as_saved(two).mod, two.mod)


def test_handles_are_followed_to_the_names_that_other_decisions_give():
    sch = spmm()
    size = sch.sample_categorical([2, 3], decision=0)
    (part,) = sch.decompose_format("spmm", "A", [BSR(size, size)])
    sch.sparse_reorder(part, sch.get_axes(part))
    assert part.name == "spmm_bsr2x2"
    other = as_saved(sch, {"v0": 1})
    assert other.trace.entries[-1].arguments["iteration"].name == "spmm_bsr3x3"


def test_a_replayed_schedule_computes_the_same():
    matrix = sp.random(9, 8, 0.4, "csr", dtype="float32", random_state=0)
    other = np.random.default_rng(0).standard_normal((8, 5)).astype("float32")
    for decision, size in ((0, 2), (1, 4)):
        kernel = tvm_sparse.compile(as_saved(everything(), {"v0": decision}))
        packed = Composition({"b": BSR(size, size, min_fill=0.5), "rest": CSR()}).pack(matrix)
        result = kernel(a=packed, b=other, c=np.full((9, 5), np.nan, "float32"))
        np.testing.assert_allclose(result, matrix.toarray() @ other, rtol=1e-5, atol=1e-6)


def test_a_trace_goes_to_another_process(tmp_path: Path):
    sch = everything()
    user = spmm()
    user.decompose_format("spmm", "A", BandAndRest(2))
    for name, made in (("everything", sch), ("user", user)):
        (tmp_path / f"{name}.json").write_text(made.trace.as_json())
    script = f"""
from pathlib import Path
import tvm
from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.schedule import Trace
folder = Path({str(tmp_path)!r})
for name in ("everything", "user"):
    sch = SparseSchedule(schedules.spmm.program())
    Trace.from_json((folder / f"{{name}}.json").read_text()).apply(sch)
    (folder / f"{{name}}.mod").write_text(tvm.ir.save_json(sch.mod))
    (folder / f"{{name}}.py").write_text(sch.mod["spmm"].script())
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], check=True, cwd=root)
    for name, made in (("everything", sch), ("user", user)):
        loaded = tvm.ir.load_json((tmp_path / f"{name}.mod").read_text())
        assert tvm_ffi.structural_equal(loaded, made.mod)
        parsed = from_source((tmp_path / f"{name}.py").read_text())
        assert tvm_ffi.structural_equal(parsed, made.mod["spmm"])
        assert (tmp_path / f"{name}.py").read_text() == made.mod["spmm"].script()


# --- what is refused ---------------------------------------------------------------------------


def _trace(primitive="get_axes", arguments=None, result=None) -> str:
    call = {"primitive": primitive, "arguments": arguments or {}, "result": result}
    return json.dumps({"version": 1, "calls": [call]})


def _format(path: str, **arguments) -> str:
    fmt = {"format": path, "arguments": arguments}
    return _trace("decompose_format", {"iteration": "spmm", "operand": "A", "formats": fmt})


@pytest.mark.parametrize(
    "text, parts",
    [
        ("", ["expected a JSON text"]),
        ("{", ["expected a JSON text"]),
        ("def apply(sch):\n    pass", ["expected a JSON text"]),
        ("[]", ["document of version 1", r"\[\]"]),
        ("null", ["document of version 1", "None"]),
        ('{"calls": []}', ["document of version 1", "None"]),
        ('{"version": 2, "calls": []}', ["document of version 1", "found 2"]),
        ('{"version": 1}', ["a list of calls", "None"]),
        ('{"version": 1, "calls": {}}', ["a list of calls", r"\{\}"]),
        ('{"version": 1, "calls": [3]}', ["expected a call", "found 3"]),
        ('{"version": 1, "calls": [{"primitive": "get_axes"}]}', ["expected a call", "get_axes"]),
        (_trace("nope"), ["expected one of the primitives annotate, decompose_format", "'nope'"]),
        (_trace("lower"), ["expected one of the primitives", "'lower'"]),
        (_trace("__init__"), ["expected one of the primitives", "'__init__'"]),
        (_trace("_change"), ["expected one of the primitives", "'_change'"]),
        (_trace(result={"unknown": 1}), ["a handle, a sample, items or a format", "unknown"]),
        (_trace(result={"sample": "v0"}), ["a handle, a sample, items or a format", "v0"]),
        (_trace(arguments={"iteration": {"items": 3}}), ["a handle, a sample, items or a format"]),
        (_format("tvm_sparse.formats:Nope"), ["found none at", "tvm_sparse.formats:Nope"]),
        (_format("no_such_module:CSR"), ["found none at", "no_such_module:CSR"]),
        (_format("CSR"), ["found none at", "'CSR'"]),
        (_format(""), ["found none at", "''"]),
        (_format("os:getcwd"), ["expected a Format or a Composition", "os:getcwd"]),
        (
            _format("subprocess:Popen", args="true"),
            ["expected a Format or a Composition", "subprocess:Popen"],
        ),
        (_format("tvm_sparse.formats:BSR", rows=2), ["format tvm_sparse.formats:BSR", "columns"]),
        (_format("tvm_sparse.formats:CSR", size=2), ["format tvm_sparse.formats:CSR", "size"]),
        (_format("tvm_sparse.formats:BSR", rows=0, columns=1), ["rows", "at least 1"]),
    ],
)
def test_what_is_no_trace_is_refused(text, parts):
    with refuses(ValueError, *parts):
        Trace.from_json(text)


@pytest.mark.parametrize("text", [None, 3, Path("trace.json"), {"version": 1, "calls": []}])
def test_what_is_no_text_is_refused(text):
    with refuses(TypeError, "trace: expected a JSON text"):
        Trace.from_json(text)


def test_calls_with_other_arguments_are_refused_when_they_are_applied():
    with refuses(TypeError, "get_axes", "unexpected keyword argument 'loops'"):
        Trace.from_json(_trace("get_axes", {"loops": 1})).apply(spmm())


def test_a_trace_of_another_program_is_refused():
    with refuses(tvm_sparse.SparseProgramError, "function spmv: no sparse iteration named 'spmm'"):
        everything().trace.apply(SparseSchedule(schedules.spmv.program()))


def test_decisions_for_no_sample_are_refused():
    trace = everything().trace
    with refuses(ValueError, r"labels of samples \(v0, v1\)", "found 'v2'"):
        trace.apply(spmm(), {"v2": 0})
    with refuses(ValueError, "there are none", "found 'v0'"):
        Trace().apply(spmm(), {"v0": 0})
    with refuses(ValueError, "decision: expected 0..1, found 2"):
        trace.apply(spmm(), {"v0": 2})
    with refuses(TypeError, "decision: expected the index", "'a'"):
        trace.apply(spmm(), {"v0": "a"})


def test_formats_that_do_not_tell_their_arguments_are_applied_but_not_saved():
    sch = spmm()
    sch.decompose_format("spmm", "A", Hidden(3))
    again = spmm()
    sch.trace.apply(again)
    assert tvm_ffi.structural_equal(again.mod, sch.mod)
    assert "formats=<Hidden hidden3>" in str(sch.trace)
    with refuses(TypeError, "format Hidden needs an attribute", "none for secret"):
        sch.trace.as_json()


def test_classes_inside_functions_are_not_saved():
    class Local(CSR):
        pass

    sch = spmm()
    sch.decompose_format("spmm", "A", Local())
    with refuses(TypeError, "class Local is local to a function", "module"):
        sch.trace.as_json()
