"""What decompose_format takes as formats, and what it says to other things."""

import pytest
import scipy.sparse as sp

from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.formats import BSR, CSR, Composition, Hyb


class Hyphened(CSR):
    def __init__(self) -> None:
        self.name = "c-sr"


def names_of(formats) -> list[str]:
    made = SparseSchedule(schedules.spmm.program()).decompose_format("spmm", "A", formats)
    return [handle.name for handle in made]


@pytest.mark.parametrize(
    "formats, expected",
    [
        (CSR(), ["spmm_csr"]),
        ([BSR(2, 2), CSR()], ["spmm_bsr2x2", "spmm_csr"]),
        ({"blocks": BSR(2, 2), "rest": CSR()}, ["spmm_blocks", "spmm_rest"]),
        (Composition({"blocks": BSR(2, 2), "rest": CSR()}), ["spmm_blocks", "spmm_rest"]),
    ],
)
def test_parts_are_iterations_by_name(formats, expected):
    assert names_of(formats) == expected


@pytest.mark.parametrize(
    "formats, kind, message",
    [
        (CSR().pack(sp.eye(3)), TypeError, r"expected a description, found a tensor; .*\.format"),
        (Hyb().pack(sp.eye(3)), TypeError, r"expected a description, found a tensor; .*\.comp"),
        (CSR, TypeError, r"expected a format such as CSR\(\), a dict of .*, found <class"),
        ([CSR], TypeError, "expected a Format for each part, found <class"),
        ("csr", TypeError, "found 'csr'"),
        ([], ValueError, "expected one format or more, found none"),
        ({}, ValueError, "expected one format or more, found none"),
        ([CSR(), CSR()], ValueError, "two have the same name"),
        ({"a b": CSR()}, ValueError, "expected names that are identifiers, found 'a b'"),
        (Hyphened(), ValueError, "expected names that are identifiers, found 'c-sr'"),
    ],
)
def test_other_things_are_refused_by_name(formats, kind, message):
    with pytest.raises(kind, match=rf"formats: .*{message}"):
        names_of(formats)
