"""Unions and intersections that have no meaning are refused with the axes involved."""

from __future__ import annotations

import pytest

from tvm_sparse.errors import SparseProgramError
from tvm_sparse.script import from_source

HEAD = """
@S.prim_func
def program(a: S.handle, p: S.handle, q: S.handle, r: S.handle, s: S.handle, c: S.handle, y: S.handle,
            m: S.int32, n: S.int32, l: S.int32, z: S.int32, w: S.int32):
    I = S.dense_fixed(m)
    N = S.dense_fixed(n)
    J = S.sparse_variable(I, (n, z), (p, q), "int32"FLAGS)
    K = S.sparse_variable(I, (LENGTH, w), (r, s), "int32")
    A = S.match_sparse_buffer(a, (I, J), "float64")
    C = S.match_sparse_buffer(c, (I, K), "float64")
    Y = S.match_sparse_buffer(y, RESULT, "float64")
    with S.sp_iter(AXES, KINDS, "merged") as [i, j]:
        Y[i, j] = A[i, j] + C[i, j]
"""
BOTH = "[I, S.union(J, K)]"
CASES = {
    "one axis": ({"AXES": "[I, S.union(J)]"}, r"S\.union: expected two or more axes"),
    "no axis": ({"AXES": "[I, S.intersect(J, 3)]"}, r"S\.intersect: expected two or more axes"),
    "twice": ({"AXES": "[I, S.union(J, J)]"}, r"S\.union: axis J appears twice"),
    "unsorted": ({"FLAGS": ", sorted=False"}, r"sorted and store no coordinate twice, found J"),
    "repeated": ({"FLAGS": ", unique=False"}, r"sorted and store no coordinate twice, found J"),
    "other length": ({"LENGTH": "l"}, r"expected axes of one length, found J \(n\) and K \(l\)"),
    "nested": (
        {"AXES": "[I, S.union(J, S.union(K, N))]"},
        r"expected stored axes, found K_N \(union\)",
    ),
    "fused": (
        {"AXES": "[I, S.union(S.fuse(I, J), K)]"},
        r"expected stored axes, found I_J \(fuse\)",
    ),
    "before its parent": ({"AXES": "[S.union(J, K), I]"}, r"J_K is iterated before its parent I"),
    "without its parent": ({"AXES": "[N, S.union(J, K)]"}, r"J_K is iterated without its parent I"),
    "attached to a sparse level": (
        {"AXES": "[I, S.union(J, S.attach(K, N))]"},
        r"J_K_N is iterated without its parent N",
    ),
    "not told apart": ({"RESULT": "(I, I)", "STORE": "Y[i, i]"}, r"axis J_K is marked S"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_has_no_meaning_is_refused(name):
    changes, message = CASES[name]
    values = {"FLAGS": "", "LENGTH": "n", "RESULT": "(I, N)", "AXES": BOTH, "KINDS": '"SS"'}
    text = HEAD.replace("Y[i, j] =", f"{changes.get('STORE', 'Y[i, j]')} =")
    for key, value in {**values, **changes}.items():
        text = text.replace(key, value)
    with pytest.raises(SparseProgramError, match=message):
        from_source(text)


def test_buffers_are_not_stored_over_merged_axes():
    text = HEAD.replace("RESULT", "(I, S.union(J, K))").replace("AXES", BOTH)
    text = text.replace("FLAGS", "").replace("LENGTH", "n").replace("KINDS", '"SS"')
    with pytest.raises(SparseProgramError, match=r"axes \['J_K'\] exist only inside S.sp_iter"):
        from_source(text)
