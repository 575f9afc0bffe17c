"""What calls of CUDA kernels do, seen by a driver that records it: launches, copies, streams, devices."""

import textwrap
from pathlib import Path

import pytest
from cuda_kernels import SPMM_IN_C

from tests.cuda.recorder import Recorder
from tvm_sparse.runtime import cuda_compiler

PRELUDE = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np, scipy.sparse as sp, tvm, tvm_ffi, tvm_sparse
from arrays_on_device import ArrayOnDevice, aligned
from cuda_kernels import reversed_block, sddmm, spmm

def on_gpu(array, device=0):
    return tvm.runtime.tensor(array, tvm.cuda(device))

def say(text):
    print(text)
    with open(__import__("os").environ["CUDA_RECORD"], "a") as record:
        record.write(f"# {{text}}\\n")

MATRIX = sp.random(20, 10, 0.3, "csr", dtype="f4", random_state=0)
DENSE = np.random.default_rng(0).random((10, 40), "f4")
HOST = MATRIX.data, DENSE, MATRIX.indptr, MATRIX.indices

def arrays(device=0):
    return [on_gpu(array, device) for array in HOST]

def check(result):
    np.testing.assert_allclose(result.numpy(), MATRIX @ DENSE, rtol=1e-5)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a script where kernels are C functions; returns what it printed and the calls of each part."""
    if not cuda_compiler.supported_architectures():
        pytest.skip("needs NVRTC or nvcc")
    with Recorder(tmp_path_factory.mktemp("recorder")) as recorder:
        yield _runner(recorder)


def _runner(recorder):
    kernels = recorder.kernels(SPMM_IN_C)
    prelude = PRELUDE.format(folder=str(Path(__file__).parent))

    def run_script(script, devices="9.0", kernels=kernels):
        done = recorder.run(prelude + textwrap.dedent(script), devices=devices, kernels=kernels)
        parts, name = {}, ""
        for line in done.record:
            if line.startswith("# "):
                name = line[2:]
            parts.setdefault(name, []).append(line)
        return done, parts

    return run_script


def launches(lines):
    return [line for line in lines if line.startswith("launch")]


def copies_to_host(lines):
    return [line for line in lines if line.endswith("to the host")]


def test_results_are_right_and_structure_is_copied_to_the_host_once(run):
    _, parts = run("""
        kernel = spmm()
        a, b, indptr, indices = arrays()
        say("first")
        result = kernel(a, b, indptr, indices)
        say("second")
        kernel(a, b, indptr, indices)
        say("named")
        kernel(a=a, b=b, indptr=indptr, indices=indices)
        say("full")
        kernel(a, b, indptr, indices, validate="full")
        say("other values")
        kernel(on_gpu(MATRIX.data), b, indptr, indices)
        say("end")
        check(result)
        assert isinstance(result, tvm.runtime.Tensor) and result.device == tvm.cuda(0)
        out = on_gpu(np.full((20, 40), np.nan, "f4"))
        assert kernel(a, b, out, indptr, indices) is out
        check(out)
        again = on_gpu(np.full((20, 40), np.nan, "f4"))
        check(kernel(a, b, again, indptr, indices, 20, 10, 40, MATRIX.nnz))
    """)
    counts = {name: len(copies_to_host(lines)) for name, lines in parts.items()}
    assert counts["first"] == counts["full"] == 2  # pointers and indices
    assert counts["second"] == counts["named"] == counts["other values"] == 0
    assert all(len(launches(parts[name])) == 1 for name in ("first", "second", "named", "full"))


def test_broken_structure_is_refused_before_the_launch(run):
    done, _ = run("""
        kernel = spmm()
        a, b, indptr, indices = arrays()
        broken = MATRIX.indices.copy()
        broken[5] = 99
        pointers = MATRIX.indptr.copy()
        pointers[-1] += 1
        for given in ([indptr, on_gpu(broken)], [on_gpu(pointers), indices]):
            for _ in range(2):
                try:
                    kernel(a, b, *given)
                except ValueError as error:
                    print(error)
    """)
    lines = done.output.splitlines()
    assert len(lines) == 4 and not done.calls("launch")
    assert all(
        "'indices' (axis 'J'): expected coordinates in [0, 10), found 99" in x for x in lines[:2]
    )
    assert all("'indptr' (axis 'J'): expected the last pointer to be" in x for x in lines[2:])


def test_dlpack_arrays_are_used_in_place_or_copied_on_the_gpu(run):
    done, parts = run("""
        kernel = spmm()
        given = [ArrayOnDevice(aligned(array)) for array in HOST]
        say("in place")
        check(kernel(*given))
        say("offset")
        check(kernel(given[0], ArrayOnDevice(aligned(DENSE), offset=64), *given[2:]))
        say("managed")
        check(kernel(given[0], ArrayOnDevice(aligned(DENSE), (13, 0)), *given[2:]))
        say("unaligned")
        check(kernel(given[0], ArrayOnDevice(aligned(DENSE, 4)), *given[2:]))
        say("unaligned result")
        out = aligned(np.full((20, 40), np.nan, "f4"), 8)
        kernel(given[0], given[1], ArrayOnDevice(out), *given[2:])
        np.testing.assert_allclose(out, MATRIX @ DENSE, rtol=1e-5)
        say("flat")
        flat = ArrayOnDevice(aligned(DENSE.reshape(-1)))
        check(kernel(a=given[0], b=flat, indptr=given[2], indices=given[3], n=10, f=40))
        say("strided")
        try:
            kernel(given[0], ArrayOnDevice(DENSE[:, ::2]), *given[2:])
        except ValueError as error:
            print(error)
        print(given[1].streams)
        with tvm_ffi.use_raw_stream(tvm.cuda(0), 77):
            kernel(*given)
        print(given[1].streams[-1])
    """)
    on_device = {
        name: sum(line.endswith("on the device") for line in lines) for name, lines in parts.items()
    }
    assert on_device["in place"] == on_device["offset"] == on_device["managed"] == 0
    assert on_device["unaligned"] == 1
    assert on_device["unaligned result"] == 2  # to an aligned copy, and back
    lines = done.output.splitlines()
    assert "argument 'b': contiguous array required, found a strided one" in lines[-3]
    assert set(eval(lines[-2])) == {1}  # DLPack's name of the default stream
    assert lines[-1] == "77"
    assert done.calls("launch")[-1].startswith("launch spmm_kernel on 0, stream 77, ")


def test_kernels_run_where_the_arrays_are_and_leave_the_current_device_alone(run):
    done, parts = run(
        """
        set_device = tvm.get_global_func("__tvm_set_device")
        kernel = spmm({"kind": "cuda", "arch": "sm_90"})
        kept = [arrays(0), arrays(1), arrays(2)]
        results = []  # TVM makes the device of a tensor that goes the current one
        for current in (0, 1):
            set_device(2, current, None)
            for place in (0, 1):
                for _ in range(2):
                    say(f"{place} from {current}")
                    results.append(kernel(*kept[place]))
                assert results[-1].device == tvm.cuda(place)
                say("look")
                with tvm_ffi.use_raw_stream(tvm.cuda(place), 5):
                    results.append(kernel(*kept[place]))
        try:
            kernel(*kept[0][:3], kept[1][3])
        except ValueError as error:
            print(error)
        try:
            kernel(*kept[2])
        except ValueError as error:
            print(error)
        """,
        devices="9.0,9.0,8.0",
    )
    for current in (0, 1):
        for place in (0, 1):
            lines = parts[f"{place} from {current}"]
            assert all(f"on {place}, stream 0" in line for line in launches(lines))
            assert len(launches(lines)) == 2
            devices = [line for line in lines if line.startswith("device")]
            assert devices == (
                [] if place == current else [f"device {place}", f"device {current}"] * 2
            )
    assert all("stream 5, " in line for line in launches(parts["look"]))
    mixed, other = done.output.splitlines()[-2:]
    assert "'indices': expected an array on cuda:0, as argument 'a', found one on cuda:1" in mixed
    assert "holds CUDA code for sm_90, and the device cuda:2 is sm_80; compile it for that" in other


def test_temporary_arrays_are_not_shared_by_two_streams(run):
    done, _ = run(
        """
        from tvm_sparse import schedules
        from tvm_sparse.formats import Hyb

        fmt = Hyb(1, [1, 2, 4])
        kernels = {"scratch": schedules.spmm.build(formats=fmt, target="cuda"), "none": spmm()}
        print([kernel.metadata["scratch"] for kernel in kernels.values()])
        operand = fmt.pack(MATRIX).to("cuda")
        given = {"none": dict(zip(("a", "b", "indptr", "indices"), arrays()))}
        given["scratch"] = {"a": operand, "b": given["none"]["b"]}
        for name in ("scratch", "none"):
            for number in range(2):
                for stream in (0, 5, 5, 0):
                    say(f"{name} {number} {stream}")
                    with tvm_ffi.use_raw_stream(tvm.cuda(0), stream):
                        kernels[name](**given[name])
        """,
        kernels=None,
    )
    assert done.output.splitlines()[0] == "[True, False]"
    order = [line for line in done.record if line.startswith(("# scratch", "synchronize"))]
    waits = [order[place - 1] for place, line in enumerate(order) if line == "synchronize 0"]
    assert waits == ["# scratch 0 5", "# scratch 0 0", "# scratch 1 5", "# scratch 1 0"]


def test_arrays_without_values_come_with_any_strides(run):
    _, parts = run("""
        kernel = spmm()
        a, _, indptr, indices = arrays()
        for rows, columns in ((10, 0), (0, 40)):
            b = ArrayOnDevice(np.zeros((rows, columns), "f4"))
            values, pointers, coordinates = (
                (a, indptr, indices)
                if rows
                else (on_gpu(np.zeros(size, kind)) for size, kind in ((0, "f4"), (21, "i4"), (0, "i4")))
            )
            say(f"{rows}, {columns}")
            for _ in range(2):
                result = kernel(values, b, pointers, coordinates)
                assert result.shape == (20, columns)
    """)
    assert not launches(parts["10, 0"]) and len(launches(parts["0, 40"])) == 2


def test_empty_grids_are_not_launched(run):
    """O01, O02: no block is launched where there is none, and the result is right."""
    _, parts = run("""
        kernel = spmm()
        for m, k, n in [(0, 10, 4), (10, 0, 4), (10, 7, 0), (0, 0, 0), (1, 1, 1), (1000, 700, 33)]:
            say(f"{m}, {k}, {n}")
            matrix = sp.csr_matrix((m, k), dtype="f4")
            given = matrix.data, np.ones((k, n), "f4"), matrix.indptr, matrix.indices
            out = on_gpu(np.full((m, n), np.nan, "f4"))
            result = kernel(*(on_gpu(array) for array in given[:2]), out, *map(on_gpu, given[2:]))
            assert result.shape == (m, n) and not result.numpy().any()
    """)
    counts = {name: len(launches(lines)) for name, lines in parts.items() if name}
    expected = dict.fromkeys(counts, 1) | {"0, 10, 4": 0, "10, 7, 0": 0, "0, 0, 0": 0}
    assert counts == expected and len(counts) == 6


def test_grids_that_are_too_large_are_refused(run):
    """CUDA would refuse them, or see the lower 32 bits of their sizes."""
    done, _ = run("""
        kernel = spmm()
        wide = 32 * 65536
        nothing = sp.csr_matrix((1, 1), dtype="f4")
        dense, out = np.ones((1, wide), "f4"), np.ones((1, wide), "f4")
        given = [on_gpu(x) for x in (nothing.data, dense, out, nothing.indptr, nothing.indices)]
        try:
            kernel(*given)
        except ValueError as error:
            print(error)
        narrow = [given[0], on_gpu(dense[:, :-32].copy()), *given[3:]]
        kernel(*narrow)
    """)
    message = "kernel spmm_kernel: expected at most 65535 blocks along y, found more"
    assert message in done.output
    (launch,) = done.calls("launch")
    assert "grid 1 65535 1" in launch


def test_shared_memory_above_48_kib_is_asked_for(run):
    done, _ = run("""
        kernel = tvm_sparse.compile(reversed_block, "cuda")
        x, y = (on_gpu(np.zeros(16384, "f4")) for _ in range(2))
        for _ in range(2):
            kernel(x, y)
    """)
    (attribute,) = done.calls("attribute")
    assert attribute.endswith(" is 65536")
    assert [line.split("shared ")[1] for line in done.calls("launch")] == ["65536", "65536"]


def test_packed_tensors_lie_on_the_gpu_and_are_passed_there(run):
    script = """
        from tvm_sparse import schedules
        from tvm_sparse.formats import BSR, CSR, Composition, Hyb

        formats = {
            "hyb": Hyb(1, [1, 2, 4]),
            "csr": CSR(),
        }
        b = on_gpu(DENSE)
        for name, fmt in formats.items():
            kernel = schedules.spmm.build(formats=fmt, target="cuda")
            packed = fmt.pack(MATRIX)
            moved = packed.to("cuda:0")
            assert moved.shape == packed.shape and moved.nbytes == packed.nbytes
            assert "on cuda:0>" in repr(moved)
            assert (moved.unpack() != MATRIX).nnz == 0
            say(f"{name} arguments")
            ready = dict(zip(kernel["spmm"].signature.names, kernel["spmm"].arguments(a=moved, b=b)))
            for key, expected in packed.arguments("a").items():
                if isinstance(expected, np.ndarray) and expected.size:
                    np.testing.assert_array_equal(ready[key].numpy().reshape(expected.shape), expected)
            say(f"{name} first")
            result = kernel(a=moved, b=b)
            assert result.shape == (20, 40) and result.device == tvm.cuda(0)
            say(f"{name} second")
            kernel(a=moved, b=b)
            say(f"{name} into")
            assert kernel(a=moved, b=b, c=result) is result
            say("end")
            assert len(kernel["spmm"]._prepared) == 1
            moved.update_values(2 * MATRIX.data)
            np.testing.assert_array_equal(moved.unpack().data, 2 * MATRIX.data)
            np.testing.assert_array_equal(packed.unpack().data, MATRIX.data)
            for wrong, value in (("a", packed), ("b", DENSE)):
                try:
                    kernel(**{"a": moved, "b": b} | {wrong: value})
                except ValueError as error:
                    print(error)
            try:
                kernel(a=moved, b=ArrayOnDevice(DENSE, (2, 1)))
            except ValueError as error:
                print(error)
            try:
                schedules.spmm.build(formats=fmt)(a=moved, b=DENSE)
            except ValueError as error:
                print(error)
            del moved
            assert len(kernel["spmm"]._prepared) == 0
    """
    done, parts = run(script, kernels=None)
    for name in ("hyb", "csr"):
        assert copies_to_host(parts[f"{name} arguments"])
        for later in ("first", "second", "into"):
            lines = parts[f"{name} {later}"]
            assert launches(lines) and not copies_to_host(lines)
        assert not [line for line in parts[f"{name} into"] if line.startswith("allocate")]
    errors = [line for line in done.output.splitlines() if ": argument " in line]
    assert len(errors) == 8
    for place, text in enumerate(
        (
            "expected a packed tensor on a GPU, found one in host memory",
            "on a GPU, found one on the host",
            "found one on cuda:1",
            "found one on cuda:0; pass its to_host()",
        )
    ):
        assert text in errors[place] and text in errors[place + 4]


def test_a_sparse_result_is_written_into_a_packed_tensor_on_the_gpu(run):
    _, parts = run("""
        from tvm_sparse.formats import BSR

        fmt = BSR(2, 2)
        kernel = sddmm(fmt)
        x, y = on_gpu(np.ones((20, 8), "f4")), on_gpu(np.ones((10, 8), "f4"))
        moved = fmt.pack(MATRIX).to("cuda")
        for name in ("first", "second"):
            say(name)
            result = kernel(x=x, y=y, c=moved)
            assert result is moved.values
        say("end")
        moved.values.copyfrom(np.full(moved.values.shape, np.nan, "f4"))
        moved.restore_padding()
        found = moved.unpack()
        assert (found.indices == MATRIX.indices).all() and (found.indptr == MATRIX.indptr).all()
        assert np.isnan(found.data).all()
        host = moved.to_host()
        assert np.isnan(host.values).sum() == MATRIX.nnz
        moved.check()
    """)
    assert len(copies_to_host(parts["first"])) > len(copies_to_host(parts["second"])) == 1  # values
    assert launches(parts["first"]) == launches(parts["second"])


def test_builds_of_tvm_compile_as_this_package_does_where_they_are_told_to(run):
    """MetaSchedule's candidates, which are measured, get the options of the kernel that is kept."""
    done, _ = run("""
        from tvm_sparse.runtime import device_code, resolve_target
        from tvm_sparse.tune.runner import _build

        compiled = []
        real = device_code.compile_device_code
        def note(source, architecture, fast_math):
            compiled.append((architecture, fast_math))
            return real(source, architecture, fast_math)
        device_code.compile_device_code = note
        target = resolve_target({"kind": "cuda", "arch": "sm_90", "fast-math": True})
        built = _build(tvm.IRModule({"reversed_block": reversed_block}), target, None)
        x, y = on_gpu(np.zeros(16384, "f4")), on_gpu(np.zeros(16384, "f4"))
        built.mod["reversed_block"](x, y)
        device_code.compile_device_code = real
        print(compiled)
    """)
    assert done.output.splitlines() == ["[('sm_90', True)]"]
    assert done.calls("load") == ["load cubin on 0"]
