"""An exported library runs in a fresh process, with and without the compiler, or says why not."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import tvm
import tvm_ffi
from runtime_kernels import SPMM, build, spmm_kernel

import tvm_sparse
from tests.workspace.programs import by_rows
from tvm_sparse.runtime import executable as executable_module
from tvm_sparse.runtime import load, minimal
from tvm_sparse.runtime.threads import load_launcher, module_header
from tvm_sparse.script import from_source


@pytest.fixture(scope="module")
def matrix():
    return sp.random(100, 80, 0.1, "csr", dtype="f4", random_state=14)


@pytest.fixture(scope="module")
def dense():
    return np.random.default_rng(1).standard_normal((80, 16)).astype("f4")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """An exported SpMM library."""
    path = tmp_path_factory.mktemp("library") / "k.so"
    return build({"spmm": (spmm_kernel, SPMM)}).export_library(path)


@pytest.mark.parametrize("name", ["k.so", "dir with space/k.so", "k.v1.so", "-k.so", "ü.so"])
def test_o37_odd_names_are_exported_and_loaded(kernels, matrix, dense, tmp_path, name):
    (tmp_path / "dir with space").mkdir()
    path = kernels.export_library(tmp_path / name)
    assert [p.name for p in path.parent.iterdir() if p.is_file()] == [path.name]
    reloaded = load(str(path))
    assert reloaded.metadata == kernels.metadata
    assert np.array_equal(reloaded["spmm"](matrix, dense), kernels["spmm"](matrix, dense))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kernel", "ending in .so, found 'kernel'; write 'kernel.so'"),
        ("k.dat", "ending in .so, found 'k.dat'"),
        ("missing_dir/k.so", "expected an existing folder, found no folder .*missing_dir"),
    ],
)
def test_o37_unusable_export_paths_are_refused(kernels, tmp_path, name, message):
    with pytest.raises(ValueError, match=f"path: .*{message}"):
        kernels.export_library(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_o37_relative_paths_work(kernels, matrix, dense, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kernels.export_library("k.so")
    assert load("k.so")["spmm"](matrix, dense).shape == (100, 16)


def test_o37_a_fresh_process_gives_the_same_bits(kernels, library, matrix, dense, tmp_path):
    np.savez(tmp_path / "in.npz", dense=dense, **csr_arrays(matrix))
    script = """
        import sys, numpy as np
        from tvm_sparse.runtime import load
        given = np.load("in.npz")
        kernel = load(sys.argv[1])
        out = np.full((100, 16), np.nan, "f4")
        kernel(given["data"], given["dense"], out, given["indptr"], given["indices"])
        np.save("out.npy", out)
    """
    run_python([sys.executable], script, [library], tmp_path)
    assert np.array_equal(np.load(tmp_path / "out.npy"), kernels["spmm"](matrix, dense))


def test_o37_loading_twice_and_two_libraries_side_by_side(
    kernels, library, matrix, dense, tmp_path
):
    other = kernels.export_library(tmp_path / "other.so")
    loaded = [load(library), load(library), load(other)]
    expected = kernels["spmm"](matrix, dense)
    for executable in loaded:
        assert np.array_equal(executable["spmm"](matrix, dense), expected)


def test_replacing_a_loaded_library_leaves_the_loaded_one_alone(kernels, matrix, dense, tmp_path):
    path = kernels.export_library(tmp_path / "k.so")
    loaded = load(path)
    kernels.export_library(path)
    expected = kernels["spmm"](matrix, dense)
    assert np.array_equal(loaded["spmm"](matrix, dense), expected)
    assert np.array_equal(load(path)["spmm"](matrix, dense), expected)


def test_a_loaded_library_is_exported_by_copying(library, matrix, dense, tmp_path):
    path = load(library).export_library(tmp_path / "copy.so")
    assert load(path)(matrix, dense).shape == (100, 16)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_o37_truncated_libraries_are_refused(library, tmp_path, part):
    content = library.read_bytes()
    broken = tmp_path / "broken.so"
    broken.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ValueError, match=r"path: .*broken\.so"):
        load(broken)


def test_o37_other_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="found no file at"):
        load(tmp_path / "none.so")
    with pytest.raises(ValueError, match="found a directory"):
        load(tmp_path)
    text = tmp_path / "text.so"
    text.write_text("no library")
    with pytest.raises(ValueError, match="which is no shared library"):
        load(text)
    runtime = Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so"
    with pytest.raises(ValueError, match="holds no tvm_sparse metadata"):
        load(runtime)
    numbered = tmp_path / "libother.so.6"
    shutil.copy(runtime, numbered)
    for loader in (load, minimal.load):
        with pytest.raises(ValueError, match=r"whose name ends in \.so, found \S*6$"):
            loader(numbered)


def test_o37_a_library_for_another_architecture_is_refused(library, tmp_path):
    content = bytearray(library.read_bytes())
    foreign = 183 if content[18] == 62 else 62
    content[18] = foreign
    path = tmp_path / "foreign.so"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"compiled for (aarch64|x86_64), and this machine is"):
        load(path)


def test_cpu_features_are_checked_at_load(tmp_path, monkeypatch):
    features = ["avx512f", "fma", "slow-pmullq", "made-up"]
    executable = build({"spmm": (spmm_kernel, SPMM)}, cpu_features=features)
    path = executable.export_library(tmp_path / "k.so")
    monkeypatch.setattr(minimal, "host_architecture", lambda: "x86_64")
    monkeypatch.setattr(minimal, "_check_elf", lambda path: None)
    monkeypatch.setattr(minimal, "_host_cpu_flags", lambda: {"fma", "avx2"})
    with pytest.raises(ValueError, match="features that this processor lacks: avx512f;"):
        load(path)
    monkeypatch.setattr(minimal, "_host_cpu_flags", lambda: {"fma", "avx512f"})
    load(path)
    monkeypatch.setattr(minimal, "_host_cpu_flags", set)
    load(path)  # nothing is known about this processor


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="needs Linux")
def test_the_hosts_own_cpu_features_are_found(tmp_path):
    host = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    features = [str(name) for name in tvm.target.codegen.llvm_get_cpu_features(host)]
    assert len(minimal.missing_cpu_features(["avx512f", "sve"])) <= 1
    known = minimal._host_cpu_flags()
    assert known
    assert minimal.missing_cpu_features([name for name in features if name in known]) == []


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"},
            "compiled for aarch64, and this machine is x86_64",
        ),
        ({"kind": "llvm", "mcpu": "sapphirerapids"}, "processor lacks: avx512fp16"),
    ],
    ids=["another family", "another processor"],
)
def test_code_for_another_processor_is_built_but_not_run(
    matrix, dense, tmp_path, monkeypatch, target, message
):
    monkeypatch.setattr(executable_module, "host_architecture", lambda: "x86_64")
    monkeypatch.setattr(executable_module, "missing_cpu_features", lambda names: names)
    monkeypatch.setattr(tvm, "get_global_func", no_features)
    features = ["avx512fp16"] if "mtriple" not in target else []
    executable = build({"spmm": (spmm_kernel, SPMM)}, target, features)
    with pytest.raises(ValueError, match=message):
        executable(matrix, dense)
    layout, triple = module_header(executable.module)
    load_launcher(layout, triple, executable.metadata).write_to_file(str(tmp_path / "l.o"), "o")
    machine = (tmp_path / "l.o").read_bytes()[18]
    assert minimal._ELF_MACHINES[machine] == triple.split("-")[0]


def no_features(name, *rest, find=tvm.get_global_func):
    if name == "tvm.codegen.llvm.GetHostCPUFeatures":
        return dict
    return find(name, *rest)


def test_metadata_of_any_text_survives(tmp_path):
    executable = build({"spmm": (spmm_kernel, SPMM)})
    executable.metadata["note"] = 'quote " backslash \\ newline \n percent % ü 漢'
    path = executable.export_library(tmp_path / "k.so")
    assert load(path).metadata == executable.metadata


def test_minimal_loader_runs_in_this_process(library, matrix, dense):
    loaded = minimal.load(library)
    out = np.full((100, 16), np.nan, "f4")
    values, indptr, indices = matrix.data.copy(), matrix.indptr, matrix.indices
    values.flags.writeable = False
    loaded["spmm"](values, dense, out, indptr, indices, 100, 80, 16, matrix.nnz)
    np.testing.assert_allclose(out, matrix.astype("f8") @ dense, rtol=1e-4, atol=1e-5)
    with pytest.raises(KeyError, match="no function 'spmv' in this library, which holds: spmm"):
        loaded["spmv"]
    with pytest.raises(ValueError, match=r"argument 'c' \(position 2\): expected a writable array"):
        loaded["spmm"](values, dense, values, indptr, indices, 100, 80, 16, matrix.nnz)


def test_minimal_loader_names_a_strided_array_and_the_parameters(library, matrix, dense):
    spmm = minimal.load(library)["spmm"]
    out = np.full((16, 100), np.nan, "f4").T
    arrays = (matrix.data, dense, out, matrix.indptr, matrix.indices)
    with pytest.raises(ValueError, match=r"argument 'c' \(position 2\): expected a contiguous arr"):
        spmm(*arrays, 100, 80, 16, matrix.nnz)
    with pytest.raises(TypeError, match=r"expected 9 arguments \(a, b, c, .*nnz\), found 5"):
        spmm(*arrays)


def test_minimal_loader_runs_without_the_compiler(library, matrix, dense, tmp_path):
    """A virtual environment with apache-tvm-ffi and NumPy, the runtime library, and two files."""
    python = bare_environment(tmp_path / "env")
    place = tmp_path / "place"
    place.mkdir()
    shutil.copy(Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so", place)
    shutil.copy(minimal.__file__, place)
    shutil.copy(library, place / "k.so")
    np.savez(place / "in.npz", dense=dense, **csr_arrays(matrix))
    script = """
        import sys
        sys.path.insert(0, ".")
        import minimal, numpy as np
        given = np.load("in.npz")
        kernel = minimal.load("k.so")["spmm"]
        out = np.full((100, 16), np.nan, "f4")
        structure = given["indptr"], given["indices"]
        kernel(given["data"], given["dense"], out, *structure, 100, 80, 16, len(given["data"]))
        nothing = np.zeros(0, "f4"), np.ones((80, 16), "f4"), np.full((100, 16), np.nan, "f4")
        kernel(*nothing, np.zeros(101, "i4"), np.zeros(0, "i4"), 100, 80, 16, 0)
        assert not nothing[2].any()
        assert not {"tvm", "tvm_sparse", "torch", "scipy"} & set(sys.modules)
        np.save("out.npy", out)
    """
    run_python([python, "-I"], script, [], place)
    expected = load(library)(matrix, dense)
    assert np.array_equal(np.load(place / "out.npy"), expected)


@pytest.mark.parametrize("workspace", ["dense", "hash", "merge"])
def test_minimal_loader_computes_sparse_results_without_the_compiler(workspace, tmp_path):
    a, b = (sp.random(60, 60, 0.1, "csr", random_state=seed) for seed in (1, 2))
    kernel = by_rows(workspace)
    expected = kernel(a=a, b=b)
    python = bare_environment(tmp_path / "env")
    place = tmp_path / "place"
    place.mkdir()
    shutil.copy(Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so", place)
    shutil.copy(minimal.__file__, place)
    kernel.export_library(place / "k.so")
    for name, matrix in (("a", a), ("b", b)):
        np.savez(place / f"{name}.npz", **csr_arrays(matrix))
    script = """
        import sys
        sys.path.insert(0, ".")
        import minimal, numpy as np
        product = minimal.load("k.so").result
        known = dict(m=60, k=60, n=60)
        for name in "ab":
            given = np.load(f"{name}.npz")
            known |= {name: given["data"], f"{name}_nnz": len(given["data"])}
            known |= {f"{name}_indptr": given["indptr"], f"{name}_indices": given["indices"]}
        indptr, indices, values = product(**known)
        assert not {"tvm", "tvm_sparse", "torch", "scipy"} & set(sys.modules)
        np.savez("out.npz", indptr=indptr, indices=indices, values=values)
    """
    run_python([python, "-I"], script, [], place)
    found = np.load(place / "out.npz")
    assert np.array_equal(found["indptr"], expected.indptr)
    assert np.array_equal(found["indices"], expected.indices)
    assert np.allclose(found["values"], expected.data, rtol=1e-13)


def test_minimal_loader_names_the_places_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.setattr(minimal.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv(minimal.RUNTIME_VARIABLE, str(tmp_path / "libtvm_runtime.so"))
    with pytest.raises(ValueError, match=r"found no libtvm_runtime\.so; .*TVM_SPARSE_RUNTIME"):
        minimal._find_runtime()


def csr_arrays(matrix):
    return {"data": matrix.data, "indptr": matrix.indptr, "indices": matrix.indices}


def run_python(command, script, args, folder):
    done = subprocess.run(
        [*map(str, command), "-c", textwrap.dedent(script), *map(str, args)],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def bare_environment(path):
    """A virtual environment that sees copies of tvm_ffi and NumPy, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    site = next(path.glob("lib/python3*/site-packages"))
    import typing_extensions

    sources = [Path(tvm_ffi.__file__).parent, Path(np.__file__).parent]
    for source in (*sources, Path(np.__file__).parents[1] / "numpy.libs"):
        if source.exists():
            (site / source.name).symlink_to(source, target_is_directory=True)
    (site / "typing_extensions.py").symlink_to(typing_extensions.__file__)
    return path / "bin" / "python"


SCALE = """
@S.prim_func
def scale(a: S.handle, c: S.handle, m: S.int32):
    I = S.dense_fixed(m)
    A = S.match_sparse_buffer(a, (I,), "float32")
    C = S.match_sparse_buffer(c, (I,), "float32")
    with S.sp_iter([I], "S", "scale") as [i]:
        C[i] = A[i] * S.float32({factor})
"""


def test_a_library_exported_anew_to_the_same_path_is_loaded_anew(tmp_path):
    one, two = (tvm_sparse.compile(from_source(SCALE.format(factor=f))) for f in (1, 2))
    x = np.ones(3, np.float32)
    path = one.export_library(tmp_path / "k.so")
    first = tvm_sparse.load(path)
    two.export_library(path)
    second = tvm_sparse.load(path)
    assert first(a=x).tolist() == [1, 1, 1] and second(a=x).tolist() == [2, 2, 2]
    first.export_library(tmp_path / "copy.so")  # of what it was loaded from
    assert tvm_sparse.load(tmp_path / "copy.so")(a=x).tolist() == [1, 1, 1]
