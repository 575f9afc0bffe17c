"""Libraries with CUDA code hold it for several architectures, and say what they hold where it can't run."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tvm
from cuda_kernels import spmm

import tvm_sparse
from tests.cuda.recorder import Recorder
from tvm_sparse.runtime import cuda_compiler, minimal

BOTH = ["sm_80", "sm_90"]


@pytest.fixture(scope="module", autouse=True)
def nvrtc():
    """Skip where there is no compiler of CUDA."""
    if not cuda_compiler.supported_architectures():
        pytest.skip("needs NVRTC or nvcc")


@pytest.fixture(scope="module")
def recorder(tmp_path_factory):
    """CUDA's driver, recorded."""
    with Recorder(tmp_path_factory.mktemp("recorder")) as recorder:
        yield recorder


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Kernels and the libraries that hold them, by architectures."""
    folder = tmp_path_factory.mktemp("libraries")
    made = {}
    for name, arch in {"one": "sm_80", "both": BOTH, "ptx": "compute_80"}.items():
        kernel = spmm({"kind": "cuda", "arch": arch})
        made[name] = kernel, kernel.export_library(folder / f"{name}.so")
    return made


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without a GPU, whatever this one has."""
    monkeypatch.setattr(minimal, "load_cuda_runtime", lambda: "has no NVIDIA driver (libcuda.so.1)")


@pytest.mark.parametrize("name", ["one", "both", "ptx"])
def test_without_a_gpu_a_library_can_be_seen_and_says_what_it_holds(
    libraries, no_gpu, tmp_path, name
):
    kernel, path = libraries[name]
    loaded = tvm_sparse.load(path)
    assert loaded.metadata == kernel.metadata
    assert repr(loaded) == repr(kernel)
    assert loaded.inspect_source("cuda") == kernel.inspect_source("cuda")
    held = ", ".join(kernel.metadata["architectures"])
    message = f"holds CUDA code for {held}, and this machine has no NVIDIA driver"
    for call in (lambda: loaded(np.ones(3)), lambda: loaded["spmm"](a=1)):
        with pytest.raises(ValueError, match=f"spmm: the kernel {message}"):
            call()
    with pytest.raises(ValueError, match=rf"path: .*{name}\.so {message}"):
        minimal.load(path)
    with pytest.raises(ValueError, match="expected 'cuda' of a loaded library, found 'll'"):
        loaded.inspect_source("ll")
    copy = loaded.export_library(tmp_path / "copy.so")
    assert copy.read_bytes() == path.read_bytes()


def test_a_compiled_kernel_without_a_gpu_refuses_to_run(libraries, no_gpu):
    kernel = spmm({"kind": "cuda", "arch": "sm_80"})
    with pytest.raises(
        ValueError, match="spmm: the kernel holds CUDA code for sm_80, and this mac"
    ):
        kernel(np.ones(3))


def test_a_library_holds_the_device_code_of_each_architecture(libraries):
    content = {name: path.read_bytes() for name, (_, path) in libraries.items()}
    assert content["both"].count(bytes.fromhex("50ed55ba")) == 1  # a fat binary
    assert content["one"].count(b"\x7fELF") == 2  # the library, and a cubin
    assert content["ptx"].count(b"\n.target sm_80") == 1


RUN = """
    import sys
    import numpy as np, scipy.sparse as sp, tvm
    from tvm_sparse import load
    from tvm_sparse.runtime import minimal

    on_gpu = lambda array: tvm.runtime.tensor(array, tvm.cuda(0))
    a = sp.random(20, 10, 0.3, "csr", dtype="f4")
    arrays = [on_gpu(x) for x in (a.data, np.ones((10, 40), "f4"), a.indptr, a.indices)]
    out = on_gpu(np.full((20, 40), np.nan, "f4"))
    complete = [*arrays[:2], out, *arrays[2:], 20, 10, 40, a.nnz]
    for loader, path in zip(sys.argv[1::2], sys.argv[2::2]):
        try:
            if loader == "full":
                load(path)(*arrays)
            elif loader == "minimal":
                minimal.load(path)["spmm"](*complete)
            else:
                tvm.runtime.load_module(path)["spmm"](*complete)
        except ValueError as error:
            print(error)
"""


def test_every_loader_launches_the_kernel(libraries, recorder, tmp_path):
    one, both, ptx = (libraries[name][1] for name in ("one", "both", "ptx"))
    # The dynamic linker loads a file once, whatever the paths: each loader gets a copy.
    copies = [shutil.copy(both, tmp_path / f"{loader}.so") for loader in ("full", "minimal", "tvm")]
    calls = [*zip(("full", "minimal", "tvm"), copies), ("minimal", one), ("full", ptx)]
    run = recorder.run(RUN, *[part for call in calls for part in call], devices="8.6")
    assert run.output == ""
    loaded = [line.split()[1] for line in run.calls("load")]
    assert loaded == ["fatbin", "fatbin", "fatbin", "cubin", "ptx"]
    launch = "launch spmm_kernel on 0, stream 0, grid 20 2 1, block 32 1 1, shared 0"
    assert run.calls("launch") == [launch] * 5


def test_a_gpu_of_another_architecture_is_named(libraries, recorder):
    path = libraries["one"][1]
    run = recorder.run(RUN, "full", path, "minimal", path, devices="9.0")
    found = "holds CUDA code for sm_80, and this machine's GPU is sm_90; compile it for that"
    assert run.output.splitlines() == [f"spmm: the kernel {found}", f"path: {path} {found}"]
    assert not run.calls("load", "launch")


def test_a_driver_without_a_gpu_is_told_apart(libraries, recorder):
    script = """
        import sys, tvm_sparse
        kernel = tvm_sparse.load(sys.argv[1])
        print(kernel.refusal)
        try:
            tvm_sparse.runtime.resolve_target("cuda")
        except ValueError as error:
            print(error)
    """
    run = recorder.run(script, libraries["both"][1], devices="")
    lines = run.output.splitlines()
    assert lines[0].endswith("code for sm_80, sm_90, and this machine has no GPU that CUDA can use")
    assert lines[1].endswith("found none, and this machine has no GPU that CUDA can use")


def test_the_minimal_loader_needs_neither_tvm_nor_this_package(libraries, recorder):
    script = """
        import sys
        import numpy as np

        library = sys.argv[1]
        sys.path[:0] = sys.argv[2:]
        import minimal
        from arrays_on_device import ArrayOnDevice, aligned

        kernel = minimal.load(library)["spmm"]
        pointers, columns = np.arange(4, dtype="i4"), np.arange(3, dtype="i4")
        host = np.ones(3, "f4"), np.ones((3, 5), "f4"), np.ones((3, 5), "f4"), pointers, columns
        arrays = [ArrayOnDevice(aligned(x)) for x in host]
        kernel(*arrays, 3, 3, 5, 3)
        print(sorted({"tvm", "tvm_sparse", "scipy"} & set(sys.modules)), arrays[0].streams)
        for place, other in ((1, host[1]), (1, ArrayOnDevice(aligned(host[1], 4)))):
            try:
                kernel(*arrays[:place], other, *arrays[place + 1 :], 3, 3, 5, 3)
            except ValueError as error:
                print(error)
    """
    only = recorder.folder / "loader"
    only.mkdir()
    shutil.copy(minimal.__file__, only)
    run = recorder.run(script, libraries["both"][1], only, Path(__file__).parent, alone=True)
    lines = run.output.splitlines()
    assert lines[0] == "[] [1]"  # 1 is DLPack's name of the default stream
    assert lines[1] == "argument 'b' (position 1): expected an array on a GPU, found one elsewhere"
    assert lines[2].startswith(
        "argument 'b' (position 1): expected an array whose address is a mult"
    )
    assert len(run.calls("launch")) == 1


def test_the_version_of_tvm_needs_the_runtime_that_is_loaded():
    """`libtvm_runtime_cuda.so` of the wheel asks for the CUDA runtime that the loader names."""
    content = (Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so").read_bytes()
    assert minimal._CUDART.encode() in content
