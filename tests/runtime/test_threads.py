"""Parallel loops run on the threads that the process has, as many as asked for."""

import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import scipy.sparse as sp
import tvm
from runtime_kernels import SPMM, build, spmm_kernel
from tvm.script import tirx as T

from tvm_sparse.runtime import (
    Executable,
    add_launcher_entry,
    get_num_threads,
    load,
    minimal,
    openmp_runtime,
    set_num_threads,
)
from tvm_sparse.runtime.threads import attach_process_launcher

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the launcher is for Linux")


@T.prim_func(s_tir=True)
def task_count_kernel(y: T.handle, n: T.int32):
    Y = T.match_buffer(y, (n,), "float32", align=4)
    for i in T.parallel(n):
        with T.sblock("entry"):
            vi = T.axis.spatial(n, i)
            Y[vi] = T.float32(1)


COUNT = {
    "args": [
        {"name": "y", "kind": "buffer", "dtype": "float32", "shape": ["n"], "role": "output"},
        {"name": "n", "kind": "scalar", "dtype": "int32"},
    ],
    "axes": [],
}


@pytest.fixture
def problem():
    matrix = sp.random(500, 300, 0.05, "csr", dtype="f4", random_state=5)
    matrix.data[:] = 1
    dense = np.random.default_rng(0).integers(-8, 8, (300, 16)).astype("f4")
    return matrix, dense, matrix.astype("f8") @ dense


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 32, 256])
def test_every_number_of_threads_gives_the_same_result(spmm, problem, threads):
    matrix, dense, expected = problem
    set_num_threads(threads)
    assert get_num_threads() == threads
    for _ in range(5):
        out = np.full((500, 16), np.nan, "f4")
        assert np.array_equal(spmm(matrix, dense, out), expected)


@pytest.mark.parametrize("extent", [0, 1, 2, 7, 17, 1000])
def test_loops_shorter_than_the_number_of_tasks_are_covered_once(extent):
    kernel = build({"count": (task_count_kernel, COUNT)})
    for threads in (1, 2, 7):
        set_num_threads(threads)
        out = np.full(extent, np.nan, "f4")
        kernel(out, extent)
        assert (out == 1).all()


def test_the_number_of_threads_is_checked():
    for bad in (0, -1, 257):
        with pytest.raises(ValueError, match=f"count: expected 1 to 256 threads, found {bad}"):
            set_num_threads(bad)
    for bad in (1.0, "2", True):
        with pytest.raises(TypeError, match="count: expected an int or None"):
            set_num_threads(bad)


def test_calls_from_several_python_threads_are_right(spmm, problem):
    matrix, dense, expected = problem
    failures = []

    def work():
        for _ in range(50):
            if not np.array_equal(spmm(matrix, dense), expected):
                failures.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


@LINUX
def test_loops_run_on_the_openmp_threads_of_pytorch():
    torch = pytest.importorskip("torch")
    assert "torch" in openmp_runtime()
    torch.set_num_threads(3)
    try:
        assert get_num_threads() == 3
    finally:
        torch.set_num_threads(2)


OWN_POOL = """
    import sys
    sys.modules["torch"] = None  # nothing in the process shall load OpenMP
    import os, threading, time, numpy as np, scipy.sparse as sp
    from runtime_kernels import SPMM, build, spmm_kernel
    from tvm_sparse.runtime import get_num_threads, minimal, openmp_runtime, set_num_threads

    minimal.loaded_openmp = lambda: []
    kernel = build({"spmm": (spmm_kernel, SPMM)})
    assert openmp_runtime() is None
    assert get_num_threads() == len(os.sched_getaffinity(0))
    matrix = sp.random(500, 300, 0.05, "csr", dtype="f4", random_state=5)
    matrix.data[:] = 1
    dense = np.random.default_rng(0).integers(-8, 8, (300, 16)).astype("f4")
    expected = matrix.astype("f8") @ dense

    def check(times):
        for _ in range(times):
            out = np.full((500, 16), np.nan, "f4")
            assert np.array_equal(kernel(matrix, dense, out), expected)

    def threads():
        return len(os.listdir("/proc/self/task"))

    before = threads()
    set_num_threads(4)
    check(200)
    assert threads() == before + 3
    set_num_threads(6)
    check(200)
    assert threads() == before + 5
    set_num_threads(2)
    check(200)
    workers = [threading.Thread(target=check, args=(50,)) for _ in range(4)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    deadline = time.monotonic() + 10  # joined threads take a moment to leave the system's list
    while threads() > before + 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == before + 5
    assert len(os.sched_getaffinity(0)) == minimal.thread_control().default_threads
    print("done")
"""

FORKED = """
    import os, numpy as np, scipy.sparse as sp
    from runtime_kernels import SPMM, build, spmm_kernel
    from tvm_sparse.runtime import get_num_threads, set_num_threads

    kernel = build({"spmm": (spmm_kernel, SPMM)})
    matrix = sp.random(500, 300, 0.05, "csr", dtype="f4", random_state=5)
    dense = np.ones((300, 16), "f4")
    set_num_threads(4)
    expected = kernel(matrix, dense)
    child = os.fork()
    if child == 0:
        right = np.array_equal(kernel(matrix, dense), expected) and get_num_threads() == 1
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(kernel(matrix, dense), expected)
    print("done")
"""

LATER_OPENMP = """
    import sys
    import numpy as np
    import tvm_ffi
    loaded = "torch" in sys.modules
    import scipy.sparse as sp
    from runtime_kernels import SPMM, build, spmm_kernel
    from tvm_sparse.runtime import minimal

    kernel = build({"spmm": (spmm_kernel, SPMM)})
    matrix = sp.random(500, 300, 0.05, "csr", dtype="f4", random_state=5)
    dense = np.ones((300, 16), "f4")
    found = minimal.loaded_openmp
    minimal.loaded_openmp = lambda: []
    minimal.refresh_openmp()
    first = kernel(matrix, dense)
    assert minimal.thread_control().omp_parallel is None
    minimal.loaded_openmp = found
    import torch, ctypes, _ctypes_test
    ctypes.CDLL(_ctypes_test.__file__)
    assert np.array_equal(kernel(matrix, dense), first)
    assert minimal.thread_control().omp_parallel is not None
    print("done")
"""


@LINUX
@pytest.mark.parametrize("script", [OWN_POOL, FORKED], ids=["own pool", "forked child"])
def test_in_a_process_of_its_own(script, request):
    run(script, request)


@LINUX
def test_openmp_that_is_loaded_later_is_found(request):
    pytest.importorskip("torch")
    pytest.importorskip("_ctypes_test")
    run(LATER_OPENMP, request)


def run(script, request):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=False,
        cwd=request.path.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "done", done.stderr


@LINUX
def test_modules_without_the_entry_keep_tvms_pool(problem):
    matrix, dense, expected = problem
    module = tvm.IRModule({"spmm": spmm_kernel.with_attr("global_symbol", "spmm")})
    metadata = {"version": 1, "functions": {"spmm": SPMM}, "target": {}, "cpu_features": []}
    plain = Executable(tvm.compile(module, target="llvm"), metadata)
    assert not minimal.attach_launcher(plain.module)
    set_num_threads(1)
    assert np.array_equal(plain(matrix, dense), expected)


@LINUX
def test_libraries_of_tvms_own_export_get_the_processes_launcher(problem, tmp_path):
    matrix, dense, expected = problem
    module = tvm.IRModule({"spmm": spmm_kernel.with_attr("global_symbol", "spmm")})
    path = str(tmp_path / "k.so")
    tvm.compile(add_launcher_entry(module), target="llvm").export_library(path)
    loaded = tvm.runtime.load_module(path)
    assert attach_process_launcher(loaded)
    metadata = {"version": 1, "functions": {"spmm": SPMM}, "target": {}, "cpu_features": []}
    set_num_threads(3)
    assert np.array_equal(Executable(loaded, metadata)(matrix, dense), expected)


def test_an_entry_is_added_once():
    module = add_launcher_entry(tvm.IRModule({"spmm": spmm_kernel}))
    assert add_launcher_entry(module) is module


def test_exported_libraries_carry_their_own_launcher(kernels, problem, tmp_path):
    matrix, dense, expected = problem
    loaded = load(kernels.export_library(tmp_path / "k.so"))
    set_num_threads(3)
    assert np.array_equal(loaded["spmm"](matrix, dense), expected)
    assert minimal.attach_launcher(loaded.module)
