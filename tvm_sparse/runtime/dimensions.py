"""Dimension expressions of argument metadata: evaluated, and solved for the sizes they hold.

In: texts such as ``"m + 1"`` or ``"nnz * 4"`` and the sizes found in arrays. Out: the values of the
scalar arguments that the caller left out.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Mapping

_ALLOWED_NODES = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.USub,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Name,
    ast.Load,
    ast.Constant,
)


class Dimension:
    """An integer expression over the names of scalar arguments.

    Parameters
    ----------
    text : str
        Names, integers, ``+``, ``-``, ``*``, ``//`` and parentheses.

    Raises
    ------
    ValueError
        If the text holds anything else.

    Examples
    --------
    >>> from tvm_sparse.runtime.dimensions import Dimension
    >>> Dimension("m + 1").solve(8, {})
    ('m', 7)
    >>> Dimension("2 * m + 1").evaluate({"m": 3})
    7
    """

    def __init__(self, text: str) -> None:
        tree = ast.parse(text, mode="eval")
        for node in ast.walk(tree):
            bad_constant = isinstance(node, ast.Constant) and type(node.value) is not int
            if not isinstance(node, _ALLOWED_NODES) or bad_constant:
                raise ValueError(
                    f"dimension {text!r}: expected names, integers, +, -, * and //, "
                    f"found {ast.unparse(node)!r}"
                )
        self.text = ast.unparse(tree.body)
        self.symbols = tuple(
            dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
        )
        self.is_name = isinstance(tree.body, ast.Name)
        self._code = compile(tree, "<dimension>", "eval")

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Return the value under `sizes`, which must hold every name of the expression."""
        if self.is_name:
            return sizes[self.symbols[0]]
        return eval(self._code, {"__builtins__": {}}, dict(sizes))

    def solve(self, value: int, sizes: Mapping[str, int]) -> tuple[str, int] | None:
        """Solve ``self == value`` for the one name that `sizes` lacks.

        Returns None when not exactly one is lacking, or when the value does not depend on it. A
        value that no integer gives is solved to the next smaller one, so that a later check of the
        expression reports it.
        """
        unknown = [name for name in self.symbols if name not in sizes]
        if len(unknown) != 1:
            return None
        name = unknown[0]
        if self.is_name:
            return name, value
        try:
            at_zero = self.evaluate({**sizes, name: 0})
            slope = self.evaluate({**sizes, name: 1}) - at_zero
        except ZeroDivisionError:
            return None
        if slope == 0:
            return None
        return name, (value - at_zero) // slope

    def __repr__(self) -> str:
        return f"Dimension({self.text!r})"


@functools.lru_cache(maxsize=4096)
def dimension(text: str | int) -> Dimension:
    """Return the (cached) dimension of a text or a plain integer."""
    return Dimension(str(text))


def solve_sizes(
    equations: Iterable[tuple[Dimension, int]], known: Mapping[str, int]
) -> dict[str, int]:
    """Extend `known` by every size that the equations determine, in their order.

    Examples
    --------
    >>> from tvm_sparse.runtime.dimensions import dimension, solve_sizes
    >>> solve_sizes([(dimension("m * f"), 12), (dimension("m + 1"), 4)], {})
    {'m': 3, 'f': 4}
    """
    sizes = dict(known)
    waiting = [equation for equation in equations if equation[0].symbols]
    progress = True
    while progress:
        progress = False
        still_waiting = []
        for extent, value in waiting:
            solution = extent.solve(value, sizes)
            if solution is not None:
                sizes[solution[0]] = solution[1]
                progress = True
            elif any(name not in sizes for name in extent.symbols):
                still_waiting.append((extent, value))
        waiting = still_waiting
    return sizes
