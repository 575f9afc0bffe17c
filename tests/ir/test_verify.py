"""Every illegal program is refused with the names involved and the source line."""

import re

import pytest

import tvm_sparse
from tvm_sparse.errors import SparseProgramError
from tvm_sparse.script import from_source

HEAD = """
@S.prim_func
def program(a: S.handle, b: S.handle, p: S.handle, q: S.handle, p2: S.handle,
            m: S.int32, n: S.int32, nnz: S.int32, nnz2: S.int32):
    I = S.dense_fixed(m)
    N = S.dense_fixed(n)
    J = S.sparse_variable(I, (n, nnz), (p, q), "int32")
    L = S.dense_variable(I, (n, nnz2), p2, "int32")
"""

CASES = {
    "a parent after its child": (
        """
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([J, I], "RS", "rows") as [j, i]:
        with S.init():
            B[i] = 0.0
        B[i] = B[i] + A[i, j]
""",
        r"iteration rows: axis J is iterated before its parent I",
        "S.sp_iter([J, I]",
    ),
    "too few names": (
        """
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I, J], "SR", "rows") as [i]:
        B[i] = 0.0
""",
        r"S.sp_iter rows: expected 2 names after `as`, one for each iterator of \(I, J\), found 1",
        'S.sp_iter([I, J], "SR", "rows") as [i]',
    ),
    "too few indices": (
        """
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I, J], "SR", "rows") as [i, j]:
        B[i] = B[i] + A[i]
""",
        r"buffer A: expected one index for each of its axes \(I, J\), found 1",
        "B[i] = B[i] + A[i]",
    ),
    "too many indices of a result": (
        """
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I, J], "SR", "rows") as [i, j]:
        B[i, j] = B[i] + A[i, j]
""",
        r"buffer B: expected one index for each of its axes \(I\), found 2",
        "B[i, j] = B[i] + A[i, j]",
    ),
    "an axis without its length": (
        """
    K = S.sparse_output(n)
    A = S.match_sparse_buffer(a, (I, J), "float32")
""",
        r"S.sparse_output: expected \(parent, length, idtype\), found a call with missing",
        "K = S.sparse_output(n)",
    ),
    "a child without its parent": (
        """
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (N,), "float32")
    with S.sp_iter([J], "S", "columns") as [j]:
        B[j] = A[0, j]
""",
        r"axis J is iterated without its parent I",
        'S.sp_iter([J], "S", "columns")',
    ),
    "sibling ragged axes in one buffer": (
        """
    A = S.match_sparse_buffer(a, (I, J, L), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I], "S", "copy") as [i]:
        B[i] = 0.0
""",
        r"buffer A: axes J and L are both children of I.*declare L with parent J",
        None,
    ),
    "a buffer over a child without its parent": (
        """
    A = S.match_sparse_buffer(a, (J,), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I], "S", "copy") as [i]:
        B[i] = 0.0
""",
        r"buffer A: axis J needs its parent I before it; write \(I, J\)",
        None,
    ),
    "a reduction marked spatial": (
        """
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I, J], "SS", "rows") as [i, j]:
        B[i] = B[i] + A[i, j]
""",
        r"axis J is marked S \(spatial\), but B is stored at the same place.*mark J R",
        "B[i] = B[i] + A[i, j]",
    ),
    "an init without a reduction": (
        """
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (I, J), "float32")
    with S.sp_iter([I, J], "SS", "scale") as [i, j]:
        with S.init():
            B[i, j] = 0.0
        B[i, j] = A[i, j]
""",
        r"has init, but no axis is marked R \(reduction\) in 'SS'",
        'S.sp_iter([I, J], "SS", "scale")',
    ),
    "an init that depends on a reduction axis": (
        """
    A = S.match_sparse_buffer(a, (I, J), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I, J], "SR", "rows") as [i, j]:
        with S.init():
            B[i] = A[i, j]
        B[i] = B[i] + A[i, j]
""",
        r"init depends on reduction axis J",
        'S.sp_iter([I, J], "SR", "rows")',
    ),
    "fusing unrelated axes": (
        """
    A = S.match_sparse_buffer(a, (I,), "float32")
    B = S.match_sparse_buffer(b, (I, N), "float32")
    with S.sp_iter([S.fuse(I, N)], "SS", "all") as [i, j]:
        B[i, j] = 0.0
""",
        r"cannot fuse I and N: N is not a child of I",
        "S.fuse(I, N)",
    ),
    "attaching a root": (
        """
    A = S.match_sparse_buffer(a, (I,), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I, J, S.attach(N, J)], "SRR", "rows") as [i, j, k]:
        with S.init():
            B[i] = 0.0
        B[i] = B[i] + 1.0
""",
        r"cannot attach N, which has no parent",
        "S.attach(N, J)",
    ),
    "a float index": (
        """
    A = S.match_sparse_buffer(a, (N,), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I], "S", "gather") as [i]:
        B[i] = A[A[i]]
""",
        r"buffer A: expected an integer index, found A\[i\] of dtype float32",
        "B[i] = A[A[i]]",
    ),
    "the iterator of another iteration": (
        """
    A = S.match_sparse_buffer(a, (I,), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I], "S", "first") as [i]:
        B[i] = 0.0
    with S.sp_iter([I], "S", "second") as [k]:
        B[i] = 1.0
""",
        r"Undefined variable: i",
        "B[i] = 1.0",
    ),
    "a float index dtype": (
        """
    K = S.dense_fixed(n, "float32")
""",
        r"axis K: expected index dtype int32 or int64, found 'float32'",
        "S.dense_fixed",
    ),
    "kinds of the wrong length": (
        """
    A = S.match_sparse_buffer(a, (I,), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I], "SS", "first") as [i]:
        B[i] = 0.0
""",
        r"S.sp_iter first: expected 1 characters S \(spatial\) or R",
        'S.sp_iter([I], "SS"',
    ),
    "a handle that is never matched": (
        """
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I], "S", "first") as [i]:
        B[i] = 0.0
""",
        r"handle parameter a is never matched",
        None,
    ),
    "a negative size": (
        """
    K = S.dense_fixed(-1)
""",
        r"axis K: length must not be negative, found -1",
        "S.dense_fixed(-1)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_illegal_programs_are_refused_by_name_and_line(case):
    body, message, quoted = CASES[case]
    with pytest.raises(SparseProgramError) as caught:
        from_source(HEAD + body)
    text = str(caught.value)
    assert re.search(message, text, re.DOTALL), text
    assert re.search(r"<str>:\d+: ", text), text
    if quoted is not None:
        assert quoted in text.splitlines()[-1], text


def test_all_problems_are_reported_at_once():
    body = """
    A = S.match_sparse_buffer(a, (J,), "float32")
    B = S.match_sparse_buffer(b, (I,), "float32")
    with S.sp_iter([I, J], "SS", "rows") as [i, j]:
        B[i] = 1.0
"""
    with pytest.raises(SparseProgramError) as caught:
        from_source(HEAD + body)
    assert "buffer A" in str(caught.value)
    assert "axis J is marked S" in str(caught.value)


def test_the_line_is_that_of_the_users_file():
    from tvm.script import sparse as S

    with pytest.raises(SparseProgramError) as caught:

        @S.prim_func
        def bad(b: S.handle, n: S.int32):
            I = S.dense_fixed(n)
            B = S.match_sparse_buffer(b, (I,), "float32")
            with S.sp_iter([I], "R", "first") as [i]:
                with S.init():
                    B[i] = 0.0
                B[i] = 1.0

    assert re.match(r".*test_verify\.py:\d+: ", str(caught.value))
    assert 'with S.sp_iter([I], "R", "first") as [i]:' in str(caught.value)


def test_what_only_lowering_finds_names_function_buffer_axis_and_line():
    body = """
    U = S.sparse_variable(I, (n, nnz), (p, q), "int32", unique=False)
    A = S.match_sparse_buffer(a, (I, U), "float32")
    B = S.match_sparse_buffer(b, (I, N), "float32")
    with S.sp_iter([I, N], "SS", "copy") as [i, j]:
        A[i, j] = B[i, j]
"""
    program = from_source(HEAD + body)
    with pytest.raises(SparseProgramError) as caught:
        tvm_sparse.compile(program)
    message = r"<str>:14: function program: buffer A: axis U is declared unique=False"
    assert re.match(message, str(caught.value)), str(caught.value)
