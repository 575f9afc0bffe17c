"""The sizes of a call: what scalars, matrices, packed tensors and arrays say, and where they differ.

In: the arguments that are known so far. Out: the value of every symbol; or an error that names the argument
at fault, the expected and the found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .dimensions import Dimension, dimension, solve_sizes
from .signature import Signature
from .sparse_arguments import SparseArrays, accepts_matrices

__all__ = ["SizeInference", "shape_text"]


class SizeInference:
    """Finds the sizes of one call.

    Parameters
    ----------
    signature : Signature
        Of the function.
    values, packed : dict of str to object
        Arguments as they were passed, and the packed tensors among them.
    views : dict of str to array
        Arrays, as NumPy's or on a device.
    matrices : dict of str to SparseArrays
        Sparse matrices, taken apart.
    given : dict of str to int
        Sizes that were passed themselves.
    """

    def __init__(
        self,
        signature: Signature,
        values: Mapping[str, Any],
        views: Mapping[str, Any],
        matrices: Mapping[str, SparseArrays],
        packed: Mapping[str, Any],
        given: Mapping[str, Any],
    ) -> None:
        self._signature, self._values, self._views = signature, values, views
        self._matrices, self._packed, self._given = matrices, packed, given

    def infer(self) -> dict[str, Any]:
        """Return all sizes.

        Raises
        ------
        TypeError
            If an array or a size is missing.
        ValueError
            If two arguments contradict each other.
        """
        sizes = self.known()
        self._check_ranks(sizes)
        self._check_given_sizes()
        self._check_matrix_sizes(sizes)
        missing = [name for name in self._signature.scalars if name not in sizes]
        if missing:
            raise TypeError(
                f"{self._signature.function}: missing argument {missing[0]!r}, which the shapes "
                f"given do not determine; pass {missing[0]}="
            )
        return sizes

    def known(self) -> dict[str, Any]:
        """Return all sizes that scalars, matrices and shapes determine so far."""
        return solve_sizes([(extent, value) for _, extent, value in self._equations()], self._given)

    def _check_ranks(self, sizes: Mapping[str, Any]) -> None:
        """Check presence and rank, the likely reasons why a size is not known, by argument.

        A flat array passes for any rank where the other arguments determine all of its sizes.
        """
        signature = self._signature
        for parameter in signature.buffers:
            name = parameter["name"]
            view, shape = self._views.get(name), signature.shapes[name]
            if view is None:
                if name in signature.inputs:
                    raise TypeError(self._missing(parameter))
                continue
            if name in signature.pointer_names and view.ndim == 1 and not view.size:
                raise ValueError(
                    f"{signature.label(name)}: expected row pointers, one more than there are rows, "
                    "found none"
                )
            symbols = {symbol for extent in shape for symbol in extent.symbols}
            if view.ndim == len(shape) or (view.ndim == 1 and symbols <= set(sizes)):
                continue
            if self._lacks_structure(name):
                raise ValueError(
                    f"{signature.label(name)}: expected {self._sparse_forms(name)}, found a dense "
                    f"array of shape {view.shape}"
                )
            raise ValueError(
                f"{signature.label(name)}: expected {_count(len(shape), 'dimension')}, "
                f"{shape_text(shape)}, found shape {view.shape}"
            )

    def _missing(self, parameter: Mapping[str, Any]) -> str:
        signature, name = self._signature, parameter["name"]
        shape = shape_text(signature.shapes[name])
        wanted = f"an array of shape {shape} and dtype {parameter['dtype']}"
        for other in signature.buffers:
            if name != other["name"] and name in signature.index_arrays(other["name"]):
                wanted = f"{wanted}; or, for {other['name']!r}, {self._sparse_forms(other['name'])}"
                break
        role = parameter.get("role")
        hint = ", which is read before it is written" if role == "inout" else ""
        return f"{signature.label(name)}: missing{hint}; expected {wanted}"

    def _lacks_structure(self, name: str) -> bool:
        """Tell whether index arrays of a buffer are missing."""
        return any(other not in self._views for other in self._signature.index_arrays(name))

    def _sparse_forms(self, name: str) -> str:
        """Say in which forms a sparse buffer is passed."""
        arrays = ", ".join(map(repr, [name, *self._signature.index_arrays(name)]))
        signature = self._signature
        fmt = signature.formats.get(name)
        if not accepts_matrices(signature.sparse_axes(name), fmt):
            return f"the arrays {arrays}" if fmt is None else f"a tensor packed as {fmt}"
        return f"a SciPy or PyTorch sparse matrix, or the arrays {arrays}"

    def _equations(self) -> list[tuple[str, Dimension, int]]:
        """Return (argument, extent, value) of every extent that matrices and arrays show."""
        equations = [
            (name, dimension(text), value)
            for name, arrays in self._matrices.items()
            for text, value in arrays.sizes
        ]
        tensors = self._packed | {name: self._values[name] for name in self._matrices}
        for name, tensor in tensors.items():
            texts = self._signature.tensors.get(name, [])
            equations += [(name, dimension(t), size) for t, size in zip(texts, tensor.shape)]
        for name, view in self._views.items():
            shape = self._signature.shapes[name]
            if view.ndim == len(shape) and name not in self._matrices:
                equations += [(name, *pair) for pair in zip(shape, view.shape)]
        return equations

    def _check_given_sizes(self) -> None:
        """Refuse a size that the caller passed and that the arrays contradict.

        The size is at fault where a matrix or an index array says otherwise, or two arrays agree
        against it; else the shape check names the one array that does not fit.
        """
        signature = self._signature
        shown: dict[str, dict[str, int]] = {name: {} for name in self._given}
        for argument, extent, size in self._equations():
            if len(extent.symbols) == 1 and extent.symbols[0] in shown:
                solution = extent.solve(size, {})
                if solution is not None:
                    shown[solution[0]].setdefault(argument, solution[1])
        for name, value in self._given.items():
            found = shown[name]
            matrices = [argument for argument in found if argument in self._matrices]
            pointers = [argument for argument in found if argument in signature.structure]
            is_agreed = len(set(found.values())) == 1
            if matrices or (is_agreed and (pointers or len(found) > 1)):
                source = [*matrices, *pointers, *found][0]
            else:
                continue
            if found[source] != value:
                raise ValueError(
                    f"{signature.label(name)}: expected {found[source]} (from the shape of "
                    f"{source!r}), found {value}"
                )

    def _check_matrix_sizes(self, sizes: Mapping[str, Any]) -> None:
        """Refuse a matrix whose shape contradicts another argument."""
        for name, arrays in self._matrices.items():
            for text, value in arrays.sizes:
                extent = dimension(text)
                known = set(extent.symbols) <= set(sizes)
                if known and (expected := extent.evaluate(sizes)) != value:
                    raise ValueError(
                        f"{self._signature.label(name)}: expected a matrix with {extent.text} = "
                        f"{expected}, found {value}"
                    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def shape_text(shape: Sequence[Dimension]) -> str:
    """Write a shape as ``(m + 1)`` or ``(n, f)``."""
    return f"({', '.join(extent.text for extent in shape)})"
