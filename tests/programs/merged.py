"""Programs over several sparse operands of one shape, and arguments for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from tests.execution import run
from tests.interpreter import interpret
from tvm_sparse.ir import SparseFunc
from tvm_sparse.script import from_source

__all__ = ["check", "operands", "program", "random_rows", "rows_of", "structures"]

#: Coordinates of each row of an operand.
Rows = Sequence[Sequence[int]]


def program(
    count: int,
    body: str,
    result: str = "(I, N)",
    values: str = "float64",
    indices: Sequence[str] = ("int32",),
    default: str = "",
    extra: str = "",
    params: str = "",
) -> SparseFunc:
    """Parse a program over operands A0, A1, ... that are stored over I and J0, J1, ...

    Parameters
    ----------
    count : int
        Number of operands.
    body : str
        The iterations, which store to Y.
    result : str
        Axes of Y. N holds all columns, M all rows.
    values : str
        Type of all values.
    indices : sequence of str
        Index types of the operands, repeated as often as needed.
    default : str
        Of the operands, as it is written after their types.
    extra, params : str
        Further declarations and parameters.
    """
    types = [indices[k % len(indices)] for k in range(count)]
    arrays = [
        f"a{k}: S.handle, p{k}: S.handle, q{k}: S.handle, z{k}: S.int32" for k in range(count)
    ]
    lines = ["I = S.dense_fixed(m)", "M = S.dense_fixed(m)", "N = S.dense_fixed(n)"]
    for k, dtype in enumerate(types):
        lines += [
            f'J{k} = S.sparse_variable(I, (n, z{k}), (p{k}, q{k}), "{dtype}")',
            f'A{k} = S.match_sparse_buffer(a{k}, (I, J{k}), "{values}"{default})',
        ]
    lines += extra.strip("\n").splitlines()
    lines += [f'Y = S.match_sparse_buffer(y, {result}, "{values}")', *body.strip("\n").splitlines()]
    names = ", ".join(["y: S.handle", "m: S.int32", "n: S.int32", *arrays, *filter(None, [params])])
    head = f"def program({names}):"
    return from_source("\n".join(["@S.prim_func", head, *(f"    {line}" for line in lines)]))


def operands(
    rows: Sequence[Rows], columns: int, values: str = "float64", indices: Sequence[str] = ("int32",)
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Return index arrays, small values, and sizes of operands that store these coordinates."""
    arrays: dict[str, np.ndarray] = {}
    scalars = {"m": len(rows[0]), "n": columns}
    rng = np.random.default_rng(0)
    for k, own in enumerate(rows):
        dtype = indices[k % len(indices)]
        arrays[f"p{k}"] = np.cumsum([0, *map(len, own)]).astype(dtype)
        arrays[f"q{k}"] = np.array([c for row in own for c in row], dtype)
        count = scalars[f"z{k}"] = arrays[f"q{k}"].size
        numbers = rng.integers(0, 2, count) if values == "bool" else rng.integers(1, 7, count)
        arrays[f"a{k}"] = numbers.astype(values)
    return arrays, scalars


def check(
    func: SparseFunc, arrays: dict[str, np.ndarray], scalars: dict[str, int], shape: tuple[int, ...]
) -> np.ndarray:
    """Compare a compiled program, whose Y holds rubbish before, with the interpreter."""
    dtype = next(b for b in func.buffers if b.name == "Y").dtype
    arguments = arrays | {"y": np.zeros(shape, dtype)}
    expected = interpret(func, arguments, scalars)["y"]
    found = run(func, arguments, scalars, ("y",))["y"]
    np.testing.assert_array_equal(found.astype("float64"), expected.astype("float64"))
    return found


def rows_of(*texts: str) -> list[list[int]]:
    """Read rows: ``rows_of("0 3", "")`` are a row of two coordinates and an empty one."""
    return [[int(word) for word in text.split()] for text in texts]


def random_rows(rows: int, columns: int, density: float, seed: int) -> list[list[int]]:
    """Return random coordinates; every seventh row is empty."""
    rng = np.random.default_rng(seed)
    stored = rng.random((rows, columns)) < density
    return [[] if k % 7 == 3 else np.flatnonzero(row).tolist() for k, row in enumerate(stored)]


@st.composite
def structures(draw, count: int = 2) -> tuple[list[Rows], int]:
    """Draw coordinates of operands with runs that they share, and the number of columns."""
    rows, columns = draw(st.integers(0, 3)), draw(st.integers(1, 60))
    shared = [draw(st.sets(st.integers(0, columns - 1))) for _ in range(rows)]

    def own(row: set[int]) -> list[int]:
        change = draw(st.sets(st.integers(0, columns - 1), max_size=4))
        how = draw(st.sampled_from(["same", "toggled", "other", "full", "empty"]))
        made = {
            "same": row,
            "toggled": row ^ change,
            "other": change,
            "full": set(range(columns)) - change,
            "empty": set(),
        }[how]
        return sorted(made)

    return [[own(row) for row in shared] for _ in range(count)], columns
