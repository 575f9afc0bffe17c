"""Decompositions that would change a result are refused."""

from __future__ import annotations

import pytest

from tests.schedule.decomposed_programs import reduction
from tvm_sparse import SparseProgramError, SparseSchedule, schedules
from tvm_sparse.formats import BSR, COO, CSF, CSR, DIA, ELL, Composition, Hyb
from tvm_sparse.script import from_source


def refuses(*parts: str, error: type[Exception] = SparseProgramError):
    """Expect an error whose message names all of these."""
    return pytest.raises(error, match="(?s)" + "".join(f"(?=.*{part})" for part in parts))


def spmv_with(update: str, extra: str = "") -> SparseSchedule:
    text = schedules.spmv.program().script()
    return SparseSchedule(from_source(text.replace("Y[i] = Y[i] + A[i, j] * X[j]", update) + extra))


@pytest.mark.parametrize(
    "update, parts",
    [
        (
            "Y[i] = A[i, j] * X[j]",
            [r"expected Y\[...\] = op\(Y\[...\], term\)", r"found Y\[...\] = A"],
        ),
        ("Y[i] = Y[i] + A[i, j] * Y[i]", [r"expected Y\[...\] = op"]),
        ("Y[i] = A[i, j] - Y[i]", [r"expected Y\[...\] = op"]),
        (
            "Y[i] = Y[i] + A[i, j]\n        Y[i] = Y[i] * X[j]",
            ["one operation on Y, found several"],
        ),
        (
            "if Y[i] < T.float32(3):\n            Y[i] = Y[i] + A[i, j]",
            ["Y is read while", "order"],
        ),
        ("v: T.let = Y[i]\n        Y[i] = Y[i] + A[i, j] * v", ["Y is read while", "order"]),
        ("Y[i] = Y[i] + A[i, j] * A[i, 0]", [r"expected A\[i, j\], found A\[i, 0\]"]),
        (
            "Y[i] = Y[i] + A[i, j + 1]",
            [r"expected A\[i, j\], found A\[i, j \+ 1\]", "another part"],
        ),
        ("Y[i] = Y[i] + A[j, i]", [r"expected A\[i, j\], found A\[j, i\]"]),
    ],
)
def test_statements_whose_parts_would_not_add_up_are_refused(update, parts):
    sch = spmv_with(update)
    with refuses("decompose_format: iteration spmv", *parts):
        sch.decompose_format("spmv", "A", [CSR(), COO()])
    assert sch.trace.entries == []


def test_results_that_others_use_are_refused():
    sddmm = (
        schedules.sddmm.program().script()
        + """
    with S.sp_iter([I, J], "SS", "after") as [i, j]:
        C[i, j] = C[i, j] * T.float32(2)
"""
    )
    sch = SparseSchedule(from_source(sddmm))
    with refuses("operand C is a result that other statements use as well"):
        sch.decompose_format("sddmm", "C", CSR())
    chained = """
    with S.sp_iter([I, J], "SR", "after") as [i, j]:
        with T.init():
            W[i] = T.float32(0)
        W[i] = W[i] + C[i, j]
"""
    text = schedules.sddmm.program().script() + chained
    text = text.replace("c: S.handle,", "c: S.handle, w: S.handle,").replace(
        "    C = S.match", "    W = S.match_sparse_buffer(w, (I,), 'float32')\n    C = S.match"
    )
    with refuses("operand C is computed by other statements, which would not fill its parts"):
        SparseSchedule(from_source(text)).decompose_format("after", "C", CSR())


def test_operands_that_share_axes_with_repeated_coordinates_are_decomposed_together():
    sch = SparseSchedule(schedules.sddmm.program(scaled=True))
    with refuses("C is stored over axis J too", r"decompose \['A', 'C'\] together"):
        sch.decompose_format("sddmm", "A", CSR())
    with refuses("A is stored over axis J too", r"decompose \['C', 'A'\] together"):
        sch.decompose_format("sddmm", "C", CSR())


def test_operands_over_different_axes_are_refused():
    sch = SparseSchedule(schedules.spmm.program())
    with refuses("operands A and B are stored over different axes", r"\(I, J and Jd, F\)"):
        sch.decompose_format("spmm", ["A", "B"], CSR())
    with refuses("axis Jd of operand B is not iterated there", "iterates I, J, F"):
        sch.decompose_format("spmm", "B", CSR())
    with refuses(r"axis J \(iterator j\) is stored under axis I of operand C"):
        sch.decompose_format("spmm", "C", CSR())


@pytest.mark.parametrize(
    "operand, error, parts",
    [
        ("Z", SparseProgramError, ["one of the sparse buffers A, B, C, found 'Z'"]),
        ("", SparseProgramError, ["one of the sparse buffers A, B, C, found ''"]),
        ("indptr", SparseProgramError, ["one of the sparse buffers", "'indptr'"]),
        (["A", "A"], ValueError, ["each name once, found 'A' again"]),
        ([], ValueError, ["operand: expected at least one"]),
        (None, TypeError, ["operand: expected a name", "None"]),
        (3, TypeError, ["operand: expected a name", "3"]),
        ([None], TypeError, ["operand: expected a name", "None"]),
    ],
)
def test_other_operands_are_refused(operand, error, parts):
    with refuses(*parts, error=error):
        SparseSchedule(schedules.spmm.program()).decompose_format("spmm", operand, CSR())


@pytest.mark.parametrize(
    "formats, error, parts",
    [
        (None, TypeError, ["formats: expected a format such as", "None"]),
        (3, TypeError, ["formats: expected a format such as", "3"]),
        ("csr", TypeError, ["formats: expected a format such as", "'csr'"]),
        (CSR, TypeError, ["formats: expected a format such as", "class", "CSR"]),
        ([], ValueError, ["formats: expected one format or more"]),
        ({}, ValueError, ["formats: expected one format or more"]),
        ([None], TypeError, ["formats: expected a Format for each part", "None"]),
        ({"x": "csr"}, TypeError, ["formats: expected a Format for each part", "'csr'"]),
        ({"x": Hyb(buckets=[1])}, TypeError, ["a Format for each part", "name its parts"]),
        ([CSR(), CSR()], ValueError, ["two have the same name", "dict"]),
        ({"a b": CSR()}, ValueError, ["names that are identifiers, found 'a b'"]),
        ({"": CSR()}, ValueError, ["names that are identifiers, found ''"]),
        ({1: CSR()}, ValueError, ["names that are identifiers, found 1"]),
        (Hyb(), ValueError, ["widths are open", "fitted"]),
        (COO(rank=3), SparseProgramError, ["A has 2 dimensions", "coo stores 3"]),
        (Composition({"x": CSF(3)}), SparseProgramError, ["A has 2 dimensions", "csf stores 3"]),
        ({"init": CSR()}, SparseProgramError, ["part 'init'", "another name"]),
    ],
)
def test_other_formats_are_refused(formats, error, parts):
    sch = SparseSchedule(schedules.spmm.program())
    with refuses(*parts, error=error):
        sch.decompose_format("spmm", "A", formats)
    assert sch.trace.entries == []


def test_parts_whose_parameters_exist_already_are_refused():
    twice = spmv_with(
        "Y[i] = Y[i] + A[i, j] * X[j]",
        '\n    with S.sp_iter([I, J], "SR", "again") as [i, j]:\n        Y[i] = Y[i] + A[i, j]\n',
    )
    with refuses("part '' needs parameters that exist already", "a", "dict"):
        twice.decompose_format("spmv", "A", CSR())
    twice.decompose_format("spmv", "A", {"p": CSR()})
    with refuses("part 'p' needs parameters that exist already", "a_p_indices", "another name"):
        twice.decompose_format("again", "A", {"p": ELL()})
    with refuses("part 'x_indices' needs parameters that exist already", "a_x_indices"):
        decomposing = SparseSchedule(schedules.spmv.program())
        decomposing.decompose_format("spmv", "A", {"x": CSR(), "x_indices": COO()})


def test_iterations_that_would_share_a_name_are_refused():
    sch = SparseSchedule(schedules.spmv.program("float16"))
    with refuses("two iterations would be called spmv_cast", "another name"):
        sch.decompose_format("spmv", "A", {"cast": CSR()})


def test_fused_and_nested_iterations_are_refused():
    sch = SparseSchedule(schedules.spmm.program())
    sch.sparse_fuse("spmm", ["i", "j"])
    with refuses("decompose operands before loops are fused"):
        sch.decompose_format("spmm", "A", CSR())
    nested = from_source(
        """
@S.prim_func
def nested(
    a: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, m: T.int32, n: T.int32, nnz: T.int32
):
    I = S.dense_fixed(m)
    J = S.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    A = S.match_sparse_buffer(a, (I, J), "float32")
    Y = S.match_sparse_buffer(y, (I,), "float32")
    with S.sp_iter([I], "S", "outer") as [i]:
        with S.sp_iter([J], "R", "inner") as [j]:
            with T.init():
                Y[i] = T.float32(0)
            Y[i] = Y[i] + A[i, j]
"""
    )
    with refuses("iteration inner", "axis I of operand A is not iterated there"):
        SparseSchedule(nested).decompose_format("inner", "A", CSR())


@pytest.mark.parametrize("kind", ["max", "min", "product"])
@pytest.mark.parametrize("fmt", [BSR(2, 2), DIA()], ids=["bsr", "dia"])
def test_integers_in_formats_whose_padding_would_count_are_refused(kind, fmt):
    sch = SparseSchedule(reduction("sum_of_5" if kind == "max" else kind, "int32"))
    if kind == "max":
        sch = SparseSchedule(
            from_source(
                sch.mod["rows"].script().replace("A[i, j] * X[j] + Y[i]", "T.max(Y[i], A[i, j])")
            )
        )
    with refuses(
        f"format {fmt.name} pads with zeros", r"operand A \(int32\)", "change Y", "CSR or ELL"
    ):
        sch.decompose_format("rows", "A", fmt)
    sch.decompose_format("rows", "A", ELL())


def test_integers_times_floats_that_may_be_infinite_are_refused_in_blocks():
    text = (
        schedules.spmv.program()
        .script()
        .replace(
            "A = S.match_sparse_buffer(a, (I, J), 'float32', default=T.float32(0.0))",
            "A = S.match_sparse_buffer(a, (I, J), 'int8')",
        )
    )
    text = text.replace("A[i, j] * X[j]", "T.cast(A[i, j], 'float32') * X[j]")
    with refuses("format bsr2x2 pads with zeros", r"operand A \(int8\)"):
        SparseSchedule(from_source(text)).decompose_format("spmv", "A", BSR(2, 2))
