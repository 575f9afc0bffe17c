"""Choose the format of a matrix: a few that may suit it, timed with the real kernel on the real matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import tvm

from ..formats import (
    BSR,
    CSR,
    ELL,
    ColumnParts,
    Hyb,
    RowList,
    as_entries,
    choose_column_parts,
)
from ..formats.bsr import find_blocks
from ..formats.entries import Entries
from ..runtime import Executable, resolve_target
from ._types import result_dtype

__all__ = ["FormatChoice", "candidate_formats", "choose_format"]

#: Most slots for each entry that a candidate may have.
_MOST_PADDING = 1.25
#: Least share of blocks that must be filled.
_LEAST_FILL = 0.6
_BLOCK_SIZES = (16, 8, 4)
#: Seconds that a candidate runs in one round.
_SLICE = 3e-3
#: What another format must gain over the first.
_LEAST_GAIN = 0.03


@dataclass(frozen=True)
class FormatChoice:
    """The fastest of some formats for one matrix.

    Attributes
    ----------
    name : str
        Of the format among the candidates.
    format : Format or Composition
        The format.
    packed : Packed or PackedComposition
        The matrix in it.
    kernel : Executable
        The kernel that takes it.
    seconds : dict of str to float
        Median time of a call, by candidate.
    """

    name: str
    format: Any
    packed: Any
    kernel: Executable
    seconds: dict[str, float]


def candidate_formats(
    matrix: Any, features: int, dtype: str = "float32", cache_bytes: int | None = None
) -> dict[str, Any]:
    """Return formats worth trying for the sparse operand of a product, at most twelve.

    CSR; rows by reverse Cuthill-McKee; BSR of 16, 8 and 4 where at least 60 % of the blocks are filled,
    else ELL and hyb where padding makes them at most a quarter larger; ranges of columns, in both
    orders of rows, where the dense operand exceeds half of the second-level cache and rows are long enough,
    see :func:`choose_column_parts`.

    Parameters
    ----------
    matrix : scipy.sparse matrix or array, torch.Tensor, Packed or tuple
        See :func:`as_entries`.
    features : int
        Columns of the dense operand.
    dtype : str
        Of the dense operand.
    cache_bytes : int, optional
        Size of the second-level cache; by default this machine's.

    Returns
    -------
    dict of str to Format or Composition
        The formats by name, ``"csr"`` first.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from tvm_sparse import schedules
    >>> list(schedules.spmm.candidate_formats(sp.eye(64, format="csr"), 32))
    ['csr', 'rows_rcm', 'ell']
    """
    entries = as_entries(matrix, 2).sorted()
    candidates: dict[str, Any] = {"csr": CSR(), "rows_rcm": RowList("rcm")}
    for size in _BLOCK_SIZES:
        if _fill(entries, size) >= _LEAST_FILL:
            candidates[f"bsr{size}"] = BSR(size, size)
    if len(candidates) == 2:
        candidates |= _padded_formats(entries)
    parts = choose_column_parts(entries.shape, entries.count, features, dtype, cache_bytes)
    for count in sorted({parts, (parts + 1) // 2} - {1}):
        candidates[f"columns{count}"] = ColumnParts(count)
        candidates[f"columns{count}_rcm"] = ColumnParts(count, "rcm")
    return candidates


def choose_format(
    build: Callable[..., Executable],
    reference: Callable[..., np.ndarray],
    matrix: sp.spmatrix,
    features: int,
    *,
    candidates: Mapping[str, Any] | Sequence[Any] | None = None,
    rounds: int = 9,
    target: Any = "llvm",
) -> FormatChoice:
    """Time candidates in turns, check every result, and return the fastest; see ``spmm.choose_format``."""
    from ..tune.timing import same_result, seconds_per_call  # noqa: PLC0415 (tuning sits beside)

    matrix = sp.csr_matrix(matrix)
    dtype = str(matrix.dtype)
    if resolve_target(target).kind.name != "llvm":
        raise ValueError(
            f"target: expected a CPU (llvm), on which candidates are timed, found {target!r}"
        )
    if candidates is None:
        candidates = candidate_formats(matrix, features, dtype)
    elif not isinstance(candidates, Mapping):
        candidates = {f"{number}: {fmt!r}": fmt for number, fmt in enumerate(candidates)}
    candidates = dict(candidates)
    if not candidates:
        raise ValueError("candidates: expected one format or more, found none")
    out_dtype = result_dtype(dtype, None, "choose_format")
    dense = np.random.default_rng(0).standard_normal((matrix.shape[1], features))
    dense = (2 * dense).astype(dtype)
    expected = reference(matrix, dense)
    operand = tvm.runtime.tensor(dense)  # aligned, so that all candidates see the same memory
    packed, kernels, calls = {}, {}, {}
    for name, fmt in candidates.items():
        fitted = fmt.fitted(matrix) if hasattr(fmt, "fitted") else fmt
        candidates[name] = fitted
        packed[name] = fitted.pack(matrix)
        kernels[name] = build(dtype, features=features, formats=fitted, target=target)
        function = kernels[name]["spmm"]
        filler = np.nan if np.dtype(out_dtype).kind == "f" else 77
        result = tvm.runtime.tensor(np.full(expected.shape, filler, out_dtype))
        arguments = function.arguments(a=packed[name], b=operand, c=result)
        calls[name] = lambda function=function, arguments=arguments: function(*arguments)
        calls[name]()
        if not same_result(result.numpy(), expected, 1e-4):
            raise RuntimeError(f"candidates: wrong result with {name} ({fitted!r})")
    samples = np.array(
        [[seconds_per_call(call, _SLICE) for call in calls.values()] for _ in range(rounds)]
    )
    seconds = dict(zip(calls, np.median(samples, axis=0).tolist()))
    # Other work on the machine slows all candidates of a round alike.
    ratios = dict(zip(calls, np.median(samples / samples[:, :1], axis=0).tolist()))
    best = min(ratios, key=lambda name: ratios[name])
    if ratios[best] > 1 - _LEAST_GAIN:
        best = next(iter(calls))
    return FormatChoice(best, candidates[best], packed[best], kernels[best], seconds)


def _fill(entries: Entries, size: int) -> float:
    """Share of the slots of square blocks that hold entries."""
    count = find_blocks(entries, size, size).count
    return entries.count / (count * size * size) if count else 0.0


def _padded_formats(entries: Entries) -> dict[str, Any]:
    lengths = np.diff(entries.row_pointers)
    found: dict[str, Any] = {}
    if lengths.size and lengths.max() * lengths.size <= _MOST_PADDING * entries.count:
        return {"ell": ELL()}
    for name, fmt in {"hyb": Hyb(), "hyb_to_32": Hyb(buckets=[1, 2, 4, 8, 16, 32])}.items():
        fitted = fmt.fitted(entries)
        if _slots(fitted, lengths) <= _MOST_PADDING * entries.count:
            found[name] = fitted
    return found


def _slots(hyb: Hyb, lengths: np.ndarray) -> int:
    """Slots that rows of these lengths take in buckets."""
    widths = np.array(hyb.buckets)
    number = np.minimum(np.searchsorted(widths, lengths), widths.size - 1)
    return int((-(-lengths // widths[number]) * widths[number]).sum())
