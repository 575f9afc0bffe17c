"""What statements hold is found wherever it stands, and each kind apart."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Var

from tvm_sparse.ir.contents import (
    buffers_loaded,
    buffers_stored,
    buffers_used,
    has_loads,
    loads_from,
    loads_global,
    loads_in,
    stores_to,
    variables_of,
)
from tvm_sparse.ir.statements import in_sequence, thread_loop, thread_scope

INDEX = tirx.decl_buffer((8,), "int32", "index")
VALUES = tirx.decl_buffer((8,), "float32", "values")
REGISTER = tirx.decl_buffer((1,), "float32", "register", scope="local")
ROW = Var("row", "int32")
GATHER = tirx.BufferStore(REGISTER, VALUES[INDEX[ROW]], [0])
SCATTER = tirx.BufferStore(VALUES, REGISTER[0], [INDEX[ROW]])


def test_loads_in_indices_count_and_stores_do_not():
    assert [load.source for load in loads_in(GATHER)].count(INDEX) == 1
    assert buffers_loaded(GATHER) == {INDEX, VALUES}
    assert buffers_stored(GATHER) == {REGISTER}
    assert buffers_used(GATHER) == {INDEX, VALUES, REGISTER}
    assert len(loads_from(SCATTER, INDEX)) == 1 and not loads_from(SCATTER, VALUES)
    assert buffers_loaded(GATHER, SCATTER) == {INDEX, VALUES, REGISTER}


def test_statements_inside_of_others_are_seen():
    loop = tirx.For(ROW, 0, 8, tirx.ForKind.SERIAL, in_sequence([GATHER, SCATTER]))
    assert len(stores_to(loop, VALUES)) == 1
    assert buffers_stored(loop) == {REGISTER, VALUES}


def test_registers_are_loads_but_no_loads_from_arrays():
    assert has_loads(REGISTER[0]) and not loads_global(REGISTER[0])
    assert has_loads(VALUES[ROW]) and loads_global(VALUES[ROW])
    assert not has_loads(ROW + 1)


def test_variables_are_those_of_indices_and_the_buffers_themselves():
    assert variables_of(VALUES[INDEX[ROW]]) == {VALUES, INDEX, ROW}


def test_one_statement_alone_makes_no_sequence():
    assert in_sequence([GATHER]).same_as(GATHER)
    assert list(in_sequence((GATHER, SCATTER)).seq) == [GATHER, SCATTER]


def test_threads_are_bound_in_the_type_of_their_variable():
    wide = Var("thread", "int64")
    extent = tirx.const(32, "int32")
    loop = thread_loop(wide, extent, GATHER, "threadIdx.x", {"note": 1})
    assert loop.kind == tirx.ForKind.THREAD_BINDING and str(loop.extent.ty.dtype) == "int64"
    assert str(loop.thread_binding.thread_tag) == "threadIdx.x" and dict(loop.annotations) == {
        "note": 1
    }
    scope = thread_scope(wide, extent, GATHER, "threadIdx.x")
    assert scope.attr_key == "thread_extent" and scope.node.var.same_as(wide)
    assert str(scope.value.ty.dtype) == "int64" and scope.body.same_as(GATHER)
