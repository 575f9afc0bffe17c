"""Packed tensors are made ready once: later calls are short, and see every change of the arrays."""

import gc
import threading
import weakref

import numpy as np
import pytest
import scipy.sparse as sp
import tvm

import tvm_sparse
from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.formats import BSR, CSR, ELL, Composition, Hyb
from tvm_sparse.runtime import KernelFunction

rng = np.random.default_rng(0)
MATRIX = sp.random(40, 30, 0.2, "csr", dtype="f4", random_state=0)
DENSE = rng.standard_normal((30, 4)).astype("f4")
FORMATS = {
    "csr": CSR(),
    "ell": ELL(),
    "bsr": BSR(2, 2),
    "hyb": Hyb(buckets=[1, 4, 8]),
    "parts": Composition({"blocks": BSR(2, 2, min_fill=0.5), "rest": CSR()}),
}
every_format = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture(scope="module")
def kernels():
    """Kernels by format, none with a tensor kept."""
    return {name: schedules.spmm.build(formats=fmt) for name, fmt in FORMATS.items()}


@pytest.fixture
def only_short_calls(monkeypatch):
    """Calling this makes every longer call fail from then on."""

    def refuse(*_args, **_kwargs):
        raise AssertionError("took the longer path")

    return lambda: monkeypatch.setattr(KernelFunction, "_binding_type", refuse)


def _kept(kernel) -> int:
    return len(kernel["spmm"]._prepared)


def _same(found, expected) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@every_format
def test_later_calls_take_the_short_path(kernels, name, only_short_calls):
    packed = FORMATS[name].pack(MATRIX)
    _same(kernels[name](a=packed, b=DENSE), MATRIX @ DENSE)
    only_short_calls()
    _same(kernels[name](a=packed, b=DENSE), MATRIX @ DENSE)
    out = np.full((40, 4), np.nan, "f4")
    assert kernels[name](a=packed, b=DENSE, c=out) is out
    _same(out, MATRIX @ DENSE)
    wider = rng.standard_normal((30, 7)).astype("f4")
    _same(kernels[name](a=packed, b=wider, c=None), MATRIX @ wider)


@every_format
def test_new_values_are_seen(kernels, name, only_short_calls):
    packed = FORMATS[name].pack(MATRIX)
    kernels[name](a=packed, b=DENSE)
    only_short_calls()
    packed.update_values(3 * MATRIX.data)
    _same(kernels[name](a=packed, b=DENSE), 3 * MATRIX @ DENSE)
    for part in getattr(packed, "parts", {"": packed}).values():
        part.values[...] *= 2
    _same(kernels[name](a=packed, b=DENSE), 6 * MATRIX @ DENSE)


def test_replaced_arrays_are_noticed(kernels):
    packed = CSR().pack(MATRIX)
    kernels["csr"](a=packed, b=DENSE)
    packed.storage.arrays["indices"] = MATRIX.indices[::-1].copy()
    with pytest.raises(ValueError, match="indices"):  # no longer sorted: the structure is checked
        kernels["csr"](a=packed, b=DENSE)
    packed.storage.arrays["indices"] = MATRIX.indices.copy()
    _same(kernels["csr"](a=packed, b=DENSE), MATRIX @ DENSE)


def test_replaced_parts_are_noticed(kernels):
    packed, doubled = (FORMATS["hyb"].pack(matrix) for matrix in (MATRIX, 2 * MATRIX))
    kernels["hyb"](a=packed, b=DENSE)
    packed.parts.update(doubled.parts)
    _same(kernels["hyb"](a=packed, b=DENSE), 2 * MATRIX @ DENSE)


def test_an_array_cannot_be_moved_under_a_kept_view(kernels):
    packed = CSR().pack(MATRIX)
    kernels["csr"](a=packed, b=DENSE)
    with pytest.raises(ValueError, match="resize"):
        packed.values.resize(10**6, refcheck=False)


@every_format
def test_tensors_of_one_format_are_told_apart(kernels, name):
    matrices = [sp.random(9 + k, 11, 0.3, "csr", dtype="f4", random_state=k) for k in range(4)]
    packed = [FORMATS[name].pack(matrix) for matrix in matrices]
    dense = rng.standard_normal((11, 3)).astype("f4")
    for _ in range(2):
        for matrix, one in zip(matrices, packed):
            _same(kernels[name](a=one, b=dense), matrix @ dense)


@every_format
def test_nothing_is_kept_of_a_tensor_that_is_gone(kernels, name):
    gc.collect()
    before = _kept(kernels[name])
    packed = FORMATS[name].pack(MATRIX)
    kernels[name](a=packed, b=DENSE)
    part = next(iter(packed.parts.values())) if hasattr(packed, "parts") else packed
    values = weakref.ref(part.values)
    assert _kept(kernels[name]) == before + 1
    del packed, part
    assert _kept(kernels[name]) == before
    assert values() is None


def test_a_kept_tensor_does_not_keep_the_kernel():
    kernel = schedules.spmm.build(formats=CSR())
    packed = CSR().pack(MATRIX)
    kernel(a=packed, b=DENSE)
    reference = weakref.ref(kernel["spmm"]._prepared)
    del kernel
    gc.collect()
    assert reference() is None


def test_full_validation_reads_the_arrays_at_each_call(kernels):
    packed = CSR().pack(MATRIX)
    for _ in range(2):
        _same(kernels["csr"](a=packed, b=DENSE, validate="full"), MATRIX @ DENSE)
    packed.storage.arrays["indices"][3] = 30
    with pytest.raises(ValueError, match=r"expected coordinates of dimension 1 in 0\.\.29"):
        kernels["csr"](a=packed, b=DENSE, validate="full")


def test_the_ends_of_pointers_are_read_at_each_call(kernels):
    packed = CSR().pack(MATRIX)
    kernels["csr"](a=packed, b=DENSE)
    packed.storage.arrays["indptr"][-1] += 1
    with pytest.raises(ValueError, match="expected the last pointer to be"):
        kernels["csr"](a=packed, b=DENSE)


def test_wrong_dense_arrays_are_explained_as_ever(kernels):
    packed = CSR().pack(MATRIX)
    kernels["csr"](a=packed, b=DENSE)
    for wrong, error, message in [
        ({"b": DENSE[:-1]}, ValueError, "argument 'b': expected shape"),
        ({"b": DENSE.astype("f8")}, TypeError, "argument 'b': expected dtype float32"),
        ({"b": DENSE, "c": np.empty((41, 4), "f4")}, ValueError, "argument 'c': expected shape"),
        ({}, TypeError, "argument 'b': missing"),
        ({"b": DENSE, "x": 1}, TypeError, "unexpected argument 'x'"),
        ({"b": DENSE, "m": 41}, ValueError, "argument 'm'|argument 'a"),
    ]:
        with pytest.raises(error, match=message):
            kernels["csr"](a=packed, **wrong)


def test_strided_dense_arrays_are_copied_as_ever(kernels):
    packed = CSR().pack(MATRIX)
    wide = rng.standard_normal((30, 8)).astype("f4")
    for _ in range(2):
        _same(kernels["csr"](a=packed, b=wide[:, ::2]), MATRIX @ wide[:, ::2])


@every_format
def test_outputs_that_overlap_are_refused(kernels, name):
    matrix = sp.random(30, 30, 0.9, "csr", dtype="f4", random_state=0)
    packed = FORMATS[name].pack(matrix)
    kernels[name](a=packed, b=DENSE)
    parts = getattr(packed, "parts", {"": packed}).values()
    largest = max((part.values for part in parts), key=lambda values: values.size)
    inside = largest.reshape(-1)[5 : 5 + 120].reshape(30, 4)
    both = rng.standard_normal(240).astype("f4")
    for b, c in ((DENSE, inside), (both[:120].reshape(30, 4), both[40:160].reshape(30, 4))):
        with pytest.raises(ValueError, match="expected an output apart from the other arguments"):
            kernels[name](a=packed, b=b, c=c)


def test_results_are_of_the_framework_of_the_dense_operand(kernels):
    torch = pytest.importorskip("torch")
    packed = CSR().pack(MATRIX)
    for _ in range(2):
        found = kernels["csr"](a=packed, b=torch.from_numpy(DENSE))
        assert isinstance(found, torch.Tensor)
        _same(found.numpy(), MATRIX @ DENSE)
        with pytest.raises(ValueError, match="autograd"):
            kernels["csr"](a=packed, b=torch.from_numpy(DENSE).requires_grad_())
    _same(kernels["csr"](a=packed, b=tvm.runtime.tensor(DENSE)), MATRIX @ DENSE)


def test_packed_results_keep_their_padding(only_short_calls):
    fmt = BSR(2, 2)
    schedule = SparseSchedule(schedules.sddmm.program())
    schedule.decompose_format("sddmm", "C", fmt)
    kernel = tvm_sparse.compile(schedule)
    pattern = sp.random(30, 30, 0.2, "csr", dtype="f4", random_state=1)
    packed = fmt.pack(pattern)
    x, y = rng.standard_normal((2, 30, 8)).astype("f4")
    kernel(x=x, y=y, c=packed)
    packed.values[...] = 7
    only_short_calls()
    assert kernel(x=x, y=y, c=packed) is packed.values
    packed.check()
    expected = pattern.multiply(x @ y.T != 0).astype(bool).multiply(x @ y.T)
    _same(packed.unpack().toarray(), expected.toarray())


def test_read_only_arrays_are_read(kernels, only_short_calls):
    packed = CSR().pack(MATRIX)
    packed.values.setflags(write=False)
    kernels["csr"](a=packed, b=DENSE)
    only_short_calls()
    _same(kernels["csr"](a=packed, b=DENSE), MATRIX @ DENSE)


def test_exported_kernels_keep_tensors_too(kernels, tmp_path, only_short_calls):
    loaded = tvm_sparse.load(kernels["hyb"].export_library(tmp_path / "hyb.so"))
    packed = FORMATS["hyb"].pack(MATRIX)
    loaded(a=packed, b=DENSE)
    only_short_calls()
    _same(loaded(a=packed, b=DENSE), MATRIX @ DENSE)


def test_threads_share_kept_tensors(kernels):
    packed = [FORMATS["hyb"].pack(k * MATRIX) for k in range(1, 5)]
    wrong = []

    def call(number: int) -> None:
        dense = rng.standard_normal((30, 4 + number)).astype("f4")
        for turn in range(100):
            k = (turn + number) % 4
            found = kernels["hyb"](a=packed[k], b=dense)
            if not np.allclose(found, (k + 1) * (MATRIX @ dense), rtol=1e-3, atol=1e-4):
                wrong.append((number, turn))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
