"""Stage-I nodes: equality, hashing, JSON, attributes, specialisation."""

import pytest
import tvm
import tvm_ffi

from tvm_sparse import schedules
from tvm_sparse.ir import SparseFunc
from tvm_sparse.script import from_source

SPMM = """
@S.prim_func
def spmm({a}: S.handle, b: S.handle, c: S.handle, p: S.handle, q: S.handle,
         {m}: S.int32, n: S.int32, f: S.int32, nnz: S.int32):
    {I} = S.dense_fixed({m})
    J = S.sparse_variable({I}, (n, nnz), (p, q), "int32")
    N = S.dense_fixed(n)
    F = S.dense_fixed(f)
    A = S.match_sparse_buffer({a}, ({I}, J), "float32", default={default})
    B = S.match_sparse_buffer(b, (N, F), "float32")
    C = S.match_sparse_buffer(c, ({I}, F), "float32")
    with S.sp_iter([{I}, J, F], "SRS", "spmm") as [{i}, j, k]:
        with S.init():
            C[{i}, k] = 0.0
        C[{i}, k] = C[{i}, k] + A[{i}, j] * B[j, k]
"""
NAMES = {"a": "a", "m": "m", "I": "I", "i": "i", "default": "0.0"}


def parse(**names):
    return from_source(SPMM.format(**{**NAMES, **names}))


def test_alpha_renamed_functions_are_equal_and_hash_alike():
    original, renamed = parse(), parse(a="values", m="rows", I="Rows", i="row")
    assert tvm_ffi.structural_equal(original, renamed)
    assert tvm_ffi.structural_hash(original) == tvm_ffi.structural_hash(renamed)


def test_functions_that_differ_in_a_default_are_not_equal():
    assert not tvm_ffi.structural_equal(parse(), parse(default="1.0"))


def test_functions_that_differ_in_an_axis_flag_are_not_equal():
    changed = from_source(SPMM.format(**NAMES).replace('"int32")', '"int32", sorted=False)', 1))
    assert not tvm_ffi.structural_equal(parse(), changed)


@pytest.mark.parametrize("operator", ["spmm", "spmv", "sddmm", "segment_reduce"])
def test_json_keeps_a_function(operator):
    program = getattr(schedules, operator).program()
    loaded = tvm.ir.load_json(tvm.ir.save_json(program))
    assert isinstance(loaded, SparseFunc)
    assert tvm_ffi.structural_equal(loaded, program)
    assert loaded.arg_names == program.arg_names


def test_json_keeps_a_module_of_both_kinds_of_function():
    @tvm.script.tirx.prim_func(s_tir=True)
    def stock(A: tvm.script.tirx.Buffer((4,), "float32")):
        for i in range(4):
            A[i] = 1.0

    module = tvm.IRModule({"spmm": parse(), "stock": stock})
    loaded = tvm.ir.load_json(tvm.ir.save_json(module))
    assert tvm_ffi.structural_equal(loaded["spmm"], module["spmm"])
    assert tvm_ffi.structural_equal(loaded["stock"], module["stock"])


def test_with_attr_leaves_the_original_alone():
    program = parse()
    marked = program.with_attr("mark", 1)
    assert marked.attrs["mark"] == 1
    assert "mark" not in dict(program.attrs)
    assert tvm_ffi.structural_equal(marked.without_attr("mark"), program)


def test_structural_map_rewrites_statements_inside_iterations():
    doubled = tvm_ffi.structural_map(
        parse(),
        [(tvm.tirx.BufferStore, lambda s: tvm.tirx.BufferStore(s.buffer, s.value * 2, s.indices))],
    )
    assert isinstance(doubled, SparseFunc)
    assert "* T.float32(2.0)" in doubled.script()


def test_specialize_binds_by_name_and_drops_the_parameter():
    narrow = parse().specialize({"f": 64})
    assert narrow.arg_names == ["a", "b", "c", "p", "q", "m", "n", "nnz"]
    assert int(narrow.axes[3].length) == 64
    assert int(narrow.buffers[1].buffer.ty.shape[1]) == 64


def test_specialize_binds_by_variable():
    program = parse()
    assert tvm_ffi.structural_equal(
        program.specialize({program.params[7]: 64}), program.specialize({"f": 64})
    )


@pytest.mark.parametrize("key", ["unknown", "a"])
def test_specialize_refuses_what_is_no_scalar_parameter(key):
    with pytest.raises(
        ValueError, match=r"expected one of the scalar parameters .*'m'.*found " + key
    ):
        parse().specialize({key: 1})


def test_specialize_binds_a_float_parameter():
    program = from_source("""
@S.prim_func
def scaled(a: S.handle, b: S.handle, n: S.int32, factor: S.float32):
    I = S.dense_fixed(n)
    A = S.match_sparse_buffer(a, (I,), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I], "S", "scaled") as [i]:
        B[i] = A[i] * factor
""")
    assert "T.float32(0.25)" in program.specialize({"factor": 0.25}).script()
    with pytest.raises(
        ValueError, match=r"expected an integer for a parameter of int32, found 2\.5"
    ):
        program.specialize({"n": 2.5})
