"""Pictures of packed matrices show every entry once, and say how much is padding."""

from __future__ import annotations

import builtins
import sys

import numpy as np
import pytest
import scipy.sparse as sp

from tests.formats.cases import CASES, Case
from tvm_sparse.formats import BSR, COO, CSC, CSR, DBSR, DIA, ELL, SRBCRS, Entries
from tvm_sparse.formats.plot import draw

MATRICES = [case for case in CASES if case.format.rank == 2]


@pytest.fixture
def axes():
    return pytest.importorskip("matplotlib.figure").Figure().subplots()


def _cells(axes) -> np.ma.MaskedArray:
    return axes.get_images()[0].get_array()


@pytest.mark.parametrize("case", MATRICES, ids=str)
def test_a_cell_for_each_entry_coloured_by_its_slot(case: Case, axes):
    tensor = case.arrange(Entries((np.array([0, 2, 2]), np.array([0, 0, 1])), np.ones(3), (3, 4)))
    packed = case.format.pack(tensor)
    assert packed.plot(axes) is axes
    cells = _cells(axes)
    assert cells.shape == (3, 4)
    rows, columns = packed.entries().coordinates
    assert cells.count() == rows.size
    np.testing.assert_array_equal(cells[rows, columns], packed.storage.slots)


def test_the_order_of_storage_shows(axes):
    matrix = sp.coo_matrix(np.array([[1.0, 2.0], [3.0, 0]]))
    draw(CSR().pack(matrix), axes)
    assert _cells(axes).compressed().tolist() == [0, 1, 2]
    draw(CSC().pack(matrix), axes)
    assert axes.get_images()[1].get_array().compressed().tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    "fmt, expected",
    [
        (BSR(2, 2), [[0, 1, 0], [1, 1, 0], [0, 0, 0]]),
        (DBSR(2, 2), [[0, 1, 0], [1, 1, 0], [0, 0, 0]]),
        (SRBCRS(2, 2), [[0, 0, 0], [1, 0, 0], [0, 0, 0]]),
        (DIA(), [[0, 0, 0], [1, 1, 0], [0, 0, 1]]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_padding_at_coordinates_of_the_matrix_is_grey(fmt, expected, axes):
    entries = np.array([0, 2, 2]), np.array([0, 0, 1])
    draw(fmt.pack((entries, np.ones(3), (3, 3))), axes)
    shown = axes.get_images()[1].get_array()
    assert (shown[..., 3] > 0).astype(int).tolist() == expected


def test_the_title_says_format_size_and_padding(axes):
    packed = ELL(width=2).pack(sp.coo_matrix(np.array([[1.0, 2.0], [3.0, 0]])))
    assert draw(packed, axes).get_title() == f"ell2: {packed.nbytes} bytes, 25 % padding"


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 2)])
def test_matrices_without_entries_are_drawn(shape, axes):
    draw(CSR().pack(sp.coo_matrix(shape)), axes)
    axes.figure.canvas.draw()


def test_matrices_that_are_too_large_and_other_tensors_are_refused(axes):
    with pytest.raises(ValueError, match=r"at most 512 rows and columns, found shape \(2, 513\)"):
        draw(CSR().pack(sp.coo_matrix((2, 513))), axes)
    with pytest.raises(ValueError, match="expected a matrix, found 1 dimension"):
        draw(COO(rank=1).pack(([[0]], [1.0], (2,))), axes)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    found = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return found(name, *args, **kwargs)

    for module in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"needs matplotlib.*pip install matplotlib"):
        draw(CSR().pack(sp.coo_matrix((2, 2))))
