"""Arguments of CUDA kernels lie on one GPU, or the error names the argument, the expected and the found."""

import numpy as np
import pytest
import scipy.sparse as sp
import tvm
from arrays_on_device import ArrayOnDevice, aligned
from cuda_kernels import spmm

from tvm_sparse import schedules
from tvm_sparse.formats import CSR
from tvm_sparse.runtime import device_arrays, device_binding, device_matrices

MATRIX = sp.random(20, 10, 0.3, "csr", dtype="f4", random_state=0)
DENSE = np.random.default_rng(0).random((10, 40), "f4")
ARRAYS = {
    "a": MATRIX.data,
    "b": DENSE,
    "c": np.full((20, 40), np.nan, "f4"),
    "indptr": MATRIX.indptr,
    "indices": MATRIX.indices,
}


@pytest.fixture(scope="module")
def kernel():
    """SpMM for CUDA; `arguments` binds a call without making it."""
    return spmm({"kind": "cuda", "arch": "sm_80"})["spmm"]


def on_gpu(**others):
    """All arrays of a call on the first GPU, except as said."""
    return {name: ArrayOnDevice(aligned(array)) for name, array in ARRAYS.items()} | others


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_in_host_memory_are_refused(kernel, name):
    message = (
        rf"spmm: argument '{name}': expected an array on a GPU, found one on the host; move it"
    )
    with pytest.raises(ValueError, match=message):
        kernel.arguments(**on_gpu(**{name: ARRAYS[name]}))
    with pytest.raises(ValueError, match=message):
        kernel.arguments(**on_gpu(**{name: tvm.runtime.tensor(ARRAYS[name])}))


def test_pytorch_tensors_in_host_memory_are_refused(kernel):
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="'b': expected an array on a GPU, found one on the host"):
        kernel.arguments(**on_gpu(b=torch.ones(10, 40)))
    given = on_gpu(a=torch.eye(3).to_sparse_csr())
    del given["indptr"], given["indices"]
    with pytest.raises(
        ValueError, match="'a': expected a sparse matrix on a GPU, found torch's Tensor in host mem"
    ):
        kernel.arguments(**given)


def test_matrices_of_scipy_are_refused(kernel):
    message = (
        r"'a': expected a sparse matrix on a GPU, found scipy's csr_matrix in host memory; pas"
    )
    with pytest.raises(ValueError, match=message):
        kernel.arguments(a=MATRIX, b=ArrayOnDevice(DENSE))


@pytest.mark.parametrize(
    ("device", "found"),
    [((3, 0), r"the host \(pinned memory\)"), ((7, 1), "DLPack device type 7")],
)
def test_arrays_on_other_devices_are_refused(kernel, device, found):
    with pytest.raises(ValueError, match=f"'b': expected an array on a GPU, found one on {found}"):
        kernel.arguments(**on_gpu(b=ArrayOnDevice(DENSE, device)))


@pytest.mark.parametrize("name", ["b", "c", "indices"])
def test_arrays_on_two_gpus_are_refused_naming_both(kernel, name):
    with pytest.raises(
        ValueError,
        match=rf"'{name}': expected an array on cuda:0, as argument 'a', found one on cuda:1",
    ):
        kernel.arguments(**on_gpu(**{name: ArrayOnDevice(ARRAYS[name], (2, 1))}))


def test_what_is_no_array_is_refused(kernel):
    class Interface:
        __cuda_array_interface__ = {}

    with pytest.raises(TypeError, match=r"'b': expected an array \(PyTorch, CuPy, .*found .*list"):
        kernel.arguments(**on_gpu(b=[1.0]))
    with pytest.raises(TypeError, match=r"'b': expected an array with __dlpack__.*cupy\.asarray"):
        kernel.arguments(**on_gpu(b=Interface()))


def test_shapes_and_dtypes_are_checked_as_on_the_host(kernel):
    with pytest.raises(TypeError, match="'b': expected dtype float32, found float64"):
        kernel.arguments(**on_gpu(b=ArrayOnDevice(DENSE.astype("f8"))))
    with pytest.raises(
        ValueError, match=r"'c': expected shape \(m, f\) = \(20, 40\), found \(20, 41\)"
    ):
        kernel.arguments(**on_gpu(c=ArrayOnDevice(np.ones((20, 41), "f4"))))
    with pytest.raises(TypeError, match="argument 'b': missing"):
        kernel.arguments(a=ArrayOnDevice(MATRIX.data))


def test_a_kernel_for_a_cpu_refuses_arrays_on_a_gpu():
    kernel = schedules.spmm.build()
    message = r"'{}': expected an array in host memory, as the kernel was compiled for a CPU, found one on "
    with pytest.raises(ValueError, match=message.format("b") + "cuda:1; copy it to the host"):
        kernel(a=MATRIX, b=ArrayOnDevice(DENSE, (2, 1)))
    with pytest.raises(ValueError, match=message.format("c") + "cuda:0"):
        kernel(a=MATRIX, b=DENSE, c=ArrayOnDevice(ARRAYS["c"]))


def test_packing_for_a_gpu_that_is_not_there_is_refused(monkeypatch):
    from tvm_sparse.runtime import minimal

    monkeypatch.setattr(minimal, "load_cuda_runtime", lambda: "has no NVIDIA driver (libcuda.so.1)")
    packed = CSR().pack(MATRIX)
    with pytest.raises(ValueError, match="found 'cuda:1', and this machine has no NVIDIA driver"):
        packed.to("cuda:1")
    for device in ("cpu", "cuda:x", "gpu"):
        with pytest.raises(ValueError, match=f'expected a GPU such as "cuda:0", found {device!r}'):
            packed.to(device)


# --- PyTorch's tensors, with host memory for a GPU's ---------------------------------------------


@pytest.fixture
def torch(monkeypatch):
    """PyTorch, whose tensors in host memory count as those of a GPU; the stream is not its."""
    torch = pytest.importorskip("torch")
    real = device_binding.device_number

    def number(value):
        return 0 if isinstance(value, torch.Tensor) else real(value)

    monkeypatch.setattr(device_arrays, "CUDA_DEVICE_TYPES", (1,))
    monkeypatch.setattr(device_arrays, "device_number", number)
    monkeypatch.setattr(device_binding, "device_number", number)
    monkeypatch.setattr(device_binding, "current_stream", lambda arrays, device: 0)
    monkeypatch.setattr(device_arrays, "current_stream", lambda arrays, device: 0)
    return torch


@pytest.fixture
def reference_run(monkeypatch):
    """Bind a call, and compute the product in place of the kernel."""

    def run(kernel, level="cheap", **given):
        def launch(a, b, c, indptr, indices, m, n, f, nnz):
            a, b, indptr, indices = (x.numpy() for x in (a, b, indptr, indices))
            product = sp.csr_matrix((a, indices, indptr), (m, n)) @ b
            c.copy_(type(c)(product))

        return device_binding.DeviceBinding(kernel.signature, (), given).run(launch, level)

    return run


def tensors(torch, **others):
    """The arrays of a call as PyTorch's tensors."""
    given = {name: torch.from_numpy(aligned(array)) for name, array in ARRAYS.items()}
    return given | others


def test_ready_tensors_are_passed_as_they_are(kernel, torch):
    given = tensors(torch)
    ready = kernel.arguments(**given)
    for name, found in zip(("a", "b", "c", "indptr", "indices"), ready):
        assert found.data_ptr() == given[name].data_ptr()
    assert ready[5:] == [20, 10, 40, MATRIX.nnz]


def test_strided_and_unaligned_tensors_are_copied_and_written_back(kernel, torch, reference_run):
    wide = torch.full((20, 80), -1.0)
    moved = torch.from_numpy(aligned(DENSE, 4))
    given = tensors(torch, b=moved, c=wide[:, ::2])
    result = reference_run(kernel, **given)
    assert result is given["c"]
    np.testing.assert_allclose(wide[:, ::2].numpy(), MATRIX @ DENSE, rtol=1e-5)
    assert (wide[:, 1::2] == -1).all()
    transposed = torch.from_numpy(aligned(DENSE.T.copy())).T
    result = reference_run(kernel, **tensors(torch, b=transposed))
    np.testing.assert_allclose(result.numpy(), MATRIX @ DENSE, rtol=1e-5)


def test_an_output_apart_from_the_inputs_is_required(kernel, torch):
    shared = torch.ones(20 * 40 + 400)
    given = tensors(torch, b=shared[:400].view(10, 40), c=shared[396:1196].view(20, 40))
    with pytest.raises(
        ValueError, match=r"'c': expected an output apart .* overlaps 'b' in memory"
    ):
        kernel.arguments(**given)


def test_a_tensor_of_an_autograd_graph_is_refused_on_a_gpu(kernel, torch):
    with pytest.raises(ValueError, match=r"'b': expected a tensor outside autograd.*\.detach\(\)"):
        kernel.arguments(**tensors(torch, b=torch.ones(10, 40, requires_grad=True)))


def sparse_tensor(torch, layout, index="int64"):
    indptr, indices = (
        torch.from_numpy(aligned(x)).to(getattr(torch, index))
        for x in (MATRIX.indptr, MATRIX.indices)
    )
    values = torch.from_numpy(aligned(MATRIX.data))
    matrix = torch.sparse_csr_tensor(indptr, indices, values, MATRIX.shape)
    return matrix if layout == "csr" else matrix.to_sparse_coo()


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_sparse_tensors_are_taken_apart(kernel, torch, reference_run, layout, index):
    given = tensors(torch, a=sparse_tensor(torch, layout, index))
    del given["indptr"], given["indices"]
    for _ in range(2):
        result = reference_run(kernel, **given)
        np.testing.assert_allclose(result.numpy(), MATRIX @ DENSE, rtol=1e-5)


def test_the_structure_of_a_matrix_is_checked_and_converted_once(kernel, torch, monkeypatch):
    checked = []
    real = device_matrices._check

    def check(*args):
        checked.append(args)
        real(*args)

    monkeypatch.setattr(device_matrices, "_check", check)
    given = tensors(torch, a=sparse_tensor(torch, "csr"))
    del given["indptr"], given["indices"]
    pointers = {kernel.arguments(**given)[3].data_ptr() for _ in range(3)}
    assert len(checked) == 1 and len(pointers) == 1
    kernel.arguments(**given | {"a": sparse_tensor(torch, "csr")})
    assert len(checked) == 2


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 2, 3], [0, 9, 1], r"indices of the matrix: expected coordinates in \[0, 3\), found 9"),
        ([0, 2, 3], [1, 0, 1], "whose indices increase within a row, as the kernel requires"),
        ([0, 3, 2], [0, 1, 2], "indptr of the matrix: expected the last pointer to be 3"),
    ],
)
def test_broken_matrices_are_refused(torch, indptr, indices, message):
    parts = device_matrices._Parts(torch.ones(3), torch.tensor(indptr), torch.tensor(indices))
    arrays = [part.numpy() for part in (parts.indptr, parts.indices)]
    with pytest.raises(ValueError, match=f"f: argument 'a'.*{message}"):
        device_matrices._check("f: argument 'a'", arrays, (True, True), (2, 3), np.dtype("int32"))


def test_a_sparse_result_has_the_structure_of_the_matrix_that_was_passed(torch):
    kernel = schedules.sddmm.build(target={"kind": "cuda", "arch": "sm_80"})["sddmm"]
    x, y = (torch.rand(n, 40) for n in MATRIX.shape)
    structure = sparse_tensor(torch, "csr")

    def launch(x, y, c, *_rest):
        c.copy_(torch.arange(MATRIX.nnz))

    given = {"x": x, "y": y, "c": structure}
    result = device_binding.DeviceBinding(kernel.signature, (), given).run(launch, "cheap")
    assert result.layout is torch.sparse_csr and result.shape == MATRIX.shape
    assert torch.equal(result.crow_indices(), structure.crow_indices())
    assert result.values().tolist() == list(range(MATRIX.nnz))
