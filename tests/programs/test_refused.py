"""Programs that SparseTIR accepted although they mean something else than intended."""

from __future__ import annotations

import pytest

from tests.programs.scripts import PROGRAMS, parse
from tvm_sparse.errors import SparseProgramError


def _rewritten(name: str, *replacements: tuple[str, str]) -> str:
    text = PROGRAMS[name]
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return text


def test_ragged_product_over_sibling_axes_says_which_parent_to_declare():
    text = _rewritten(
        "bmm",
        ("IJ = S.dense_variable(I,", "IJ = S.dense_variable(B,"),
        ("JK = S.dense_variable(J,", "JK = S.dense_variable(B,"),
        ("IK = S.dense_variable(I,", "IK = S.dense_variable(B,"),
    )
    with pytest.raises(SparseProgramError) as refusal:
        parse("bmm", text=text)
    message = str(refusal.value)
    assert "bmm" in message and "buffer X" in message
    assert "axes I and IJ are both children of B" in message
    assert "declare IJ with parent I" in message
    assert "declare JK with parent J" in message


def test_relations_marked_spatial_are_refused_with_the_kinds_to_write():
    text = _rewritten("rgcn_hetero", ('"SRSRR"', '"SSSRR"'))
    with pytest.raises(SparseProgramError) as refusal:
        parse("rgcn_hetero", text=text)
    message = str(refusal.value)
    assert "rgcn_hetero" in message
    assert "axis R is marked S (spatial)" in message and "mark R R" in message
    assert "Y[i, fo] = Y[i, fo]" in message or ":2" in message  # where it stands


def test_child_before_its_parent_is_refused():
    text = _rewritten(
        "csrmm", ('[I, J, F], "SRS"', '[J, I, F], "RSS"'), ("as [i, j, k]", "as [j, i, k]")
    )
    with pytest.raises(SparseProgramError, match=r"J is iterated before its parent I"):
        parse("csrmm", text=text)


def test_fusing_axes_that_are_no_chain_is_refused():
    text = _rewritten("sddmm", ("[I, J, K]", "[I, S.fuse(J, K)]"))
    with pytest.raises(SparseProgramError, match=r"cannot fuse J and K"):
        parse("sddmm", text=text)


def test_attaching_to_an_axis_of_another_range_is_refused():
    """It would walk rows of the attached axis that are not there."""
    text = _rewritten("hyper_gnn", ("Jd = S.dense_fixed(m)", "Jd = S.dense_fixed(n)"))
    with pytest.raises(SparseProgramError) as refusal:
        parse("hyper_gnn", text=text)
    message = str(refusal.value)
    assert "It" in message and "Jd" in message and "J" in message


@pytest.mark.parametrize("dtype", ["float32", "int16", "uint32"])
def test_index_types_other_than_int32_and_int64_are_refused(dtype):
    with pytest.raises(SparseProgramError, match=rf"axis J: .*int32 or int64, found '{dtype}'"):
        parse("csrmm", index=dtype)
