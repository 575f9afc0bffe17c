"""The command line: matrices read, stages shown, tuning end to end, one line for bad input."""

import json

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from tvm_sparse.cli import main
from tvm_sparse.cli.matrices import power_law, read_matrix

MATRIX = sp.csr_matrix(np.array([[0, 2, 0], [1, 0, 3], [0, 0, 0]], np.float32))

PROGRAM = """
import tvm_sparse
from tvm.script import sparse as S

@S.prim_func
def scale(a: S.handle, b: S.handle, n: S.int32):
    I = S.dense_fixed(n)
    A = S.match_sparse_buffer(a, (I,), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I], "S", "scale") as [i]:
        B[i] = A[i] * 2.5
"""


def test_matrix_market_is_read(tmp_path):
    scipy.io.mmwrite(tmp_path / "m.mtx", MATRIX)
    assert (read_matrix(tmp_path / "m.mtx") != MATRIX).nnz == 0


def test_scipy_npz_is_read(tmp_path):
    sp.save_npz(tmp_path / "m.npz", MATRIX)
    assert (read_matrix(tmp_path / "m.npz") != MATRIX).nnz == 0


def test_plain_npz_is_read_and_a_pattern_gets_seeded_values(tmp_path):
    arrays = {"indptr": MATRIX.indptr, "indices": MATRIX.indices.astype(np.uint16)}
    np.savez(tmp_path / "m.npz", shape=np.array(MATRIX.shape), **arrays)
    first, second = read_matrix(tmp_path / "m.npz"), read_matrix(tmp_path / "m.npz")
    assert np.array_equal(first.indices, MATRIX.indices) and np.all(first.data == second.data)


def test_edge_lists_are_read(tmp_path):
    (tmp_path / "m.txt").write_text("# row column value\n0 1 2\n1 0 1\n1 2 3\n")
    found = read_matrix(tmp_path / "m.txt")
    assert found.shape == (3, 3) and (found != MATRIX).nnz == 0


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.txt", "0 x\n", "cannot read"),
        ("m.txt", "0.5 1\n", "integers and not negative"),
        ("m.txt", "-1 1\n", "integers and not negative"),
        ("m.mtx", "nonsense", "cannot read"),
        ("m.npz", "nonsense", "cannot read"),
    ],
)
def test_unreadable_files_are_refused_by_name(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_matrix(tmp_path / name)
    assert name in str(caught.value)


def test_the_embedded_graph_is_reproducible_and_of_the_stated_size():
    first, second = power_law(2000, 9000, 500), power_law(2000, 9000, 500)
    assert first.nnz == 9000 and first.shape == (2000, 2000)
    assert (first != second).nnz == 0
    assert np.diff(first.indptr).max() > 20 * np.diff(first.indptr).mean()


@pytest.mark.parametrize(
    ("stage", "expected"),
    [("1", "S.sp_iter"), ("2", "T.sblock"), ("3", "T.sblock"), ("source", "define")],
)
def test_show_prints_a_stage(tmp_path, capsys, stage, expected):
    (tmp_path / "program.py").write_text(PROGRAM)
    assert main(["show", f"{tmp_path / 'program.py'}:scale", "--stage", stage]) == 0
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize("reference", ["missing.py:x", "nothing"])
def test_show_says_what_is_wrong_in_one_line(capsys, reference):
    assert main(["show", reference]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tvm-sparse show: program:") and error.count("\n") == 1


def test_info_prints_versions_and_features(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "apache-tvm-ffi" in out and "CPU features" in out


def test_tune_exports_verifies_and_writes_table_and_chart(tmp_path, capsys):
    sp.save_npz(tmp_path / "m.npz", sp.random(300, 300, 0.02, "csr", np.float32, random_state=0))
    files = {name: tmp_path / name for name in ("k.so", "table.json", "chart.png")}
    status = main(
        [
            *("tune", "spmm", "--matrix", str(tmp_path / "m.npz"), "--features", "8"),
            *("--trials", "2", "--work-dir", str(tmp_path / "work")),
            *("--export", str(files["k.so"]), "--json", str(files["table.json"])),
            *("--plot", str(files["chart.png"])),
        ]
    )
    assert status == 0, capsys.readouterr().err
    assert all(path.stat().st_size > 0 for path in files.values())
    names = [row["name"] for row in json.loads(files["table.json"].read_text())["rows"]]
    assert names[0] == "SciPy" and names[-2:] == ["tvm_sparse default", "tvm_sparse tuned"]
    assert "fresh process without the compiler" in capsys.readouterr().out


def test_tune_chooses_among_formats(tmp_path, capsys):
    sp.save_npz(tmp_path / "m.npz", sp.random(300, 300, 0.02, "csr", np.float32, random_state=0))
    command = ["tune", "spmm", "--matrix", str(tmp_path / "m.npz"), "--features", "8"]
    files = {name: tmp_path / name for name in ("k.so", "table.json")}
    status = main(
        [
            *command,
            *("--trials", "2", "--formats", "csr,rows_rcm", "--work-dir", str(tmp_path / "work")),
            *("--export", str(files["k.so"]), "--json", str(files["table.json"])),
        ]
    )
    captured = capsys.readouterr()
    assert status == 0, captured.err
    assert "packing, ms" in captured.out and "fresh process" in captured.out
    assert set(json.loads(files["table.json"].read_text())["formats"]) == {"csr", "rows_rcm"}
    assert main([*command, "--formats", "diagonals"]) == 2
    assert "expected auto or some of csr, rows_rcm" in capsys.readouterr().err
    assert main(["tune", "spmv", *command[2:], "--formats", "auto"]) == 2
