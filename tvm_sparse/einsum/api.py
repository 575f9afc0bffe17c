"""``einsum``: products and sums of sparse and dense tensors, with a result whose structure is found."""

from __future__ import annotations

from typing import Any

from .explain import describe
from .plan import EinsumPlan

__all__ = ["einsum", "einsum_plan"]


def einsum(
    expression: str,
    *operands: Any,
    out: str = "csr",
    semiring: str = "plus-times",
    dtype: Any = None,
    prune: bool = False,
    workspace: str = "auto",
    explain: bool = False,
) -> Any:
    """Compute a sum of products of tensors.

    Parameters
    ----------
    expression : str
        One letter for each dimension; factors are separated by ``,``, terms by ``+``; the letters of the
        result follow ``->``. Letters that it lacks are summed over.
    *operands : scipy.sparse matrix or array, Packed, torch.Tensor or numpy.ndarray
        One for each factor, in any mixture; unsorted and repeated coordinates may come. Repeated ones are
        added up; all places of a dense array count as entries.
    out : {"csr", "csc", "coo", "dcsr", "dense"}
        What a result is returned as. ``"csr"`` is CSR for matrices, and ``scipy.sparse.coo_array`` for
        other numbers of dimensions; ``"dcsr"`` is packed. A result without dimensions is a number.
    semiring : str
        What adds and multiplies: ``"plus-times"``, ``"min-plus"``, ``"max-plus"``, ``"max-times"``,
        ``"min-times"``, ``"max-min"``, ``"min-max"`` or ``"or-and"``.
    dtype : numpy.dtype, optional
        Of the result. By default integers are added up and returned as int64 (uint64 if all are unsigned
        and one is uint64), half precision as float32, other types as NumPy promotes them; a sum of products
        of truth values is one itself. A narrower type is filled only if all values fit.
    prune : bool
        Whether entries that are zero are left out. Otherwise the structure is that of the products: an
        entry wherever all factors of a term have one, explicit zeros and sums that cancel included.
    workspace : str
        How entries are collected, see :func:`tvm_sparse.compile`.
    explain : bool
        Whether to print what is run.

    Returns
    -------
    scipy.sparse matrix or array, Packed, numpy.ndarray or number
        Sorted, without duplicates. In a dense result places without products hold the sum of nothing: 0,
        or the infinity (for integers, the limit) that leaves other values as they are.

    Raises
    ------
    TypeError, ValueError
        If expression and operands do not fit; the message names the argument.

    Notes
    -----
    Kernels are compiled when first needed and kept; sizes are symbolic. Rows of the result are computed in
    parallel, each by one thread in one order, so that equal calls give equal bits. See
    :mod:`tvm_sparse.einsum.normal_form`, :mod:`~tvm_sparse.einsum.splitting` and
    :mod:`~tvm_sparse.einsum.nests` for how loops are chosen.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> import tvm_sparse
    >>> a = sp.csr_matrix([[1, 2], [0, 3]])
    >>> tvm_sparse.einsum("ik,kj->ij", a, a).toarray()
    array([[1, 8],
           [0, 9]])
    >>> tvm_sparse.einsum("ij->ji", a, out="dense")
    array([[1, 0],
           [2, 3]])
    """
    plan = EinsumPlan(expression, operands, out, semiring, dtype, workspace, prune)
    if explain:
        print(describe(plan))
    return plan.first_result()


def einsum_plan(
    expression: str,
    *operands: Any,
    out: str = "csr",
    semiring: str = "plus-times",
    dtype: Any = None,
    prune: bool = False,
    workspace: str = "auto",
) -> EinsumPlan:
    """Find the structure of a sum of products, to compute it for several values.

    Parameters
    ----------
    expression, *operands, out, semiring, dtype, prune, workspace
        As :func:`einsum` takes them.

    Returns
    -------
    EinsumPlan
        Call it with operands of the same structure; ``print`` it to see what it runs.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> import tvm_sparse
    >>> a = sp.csr_matrix([[1.0, 2.0], [0.0, 3.0]])
    >>> square = tvm_sparse.einsum_plan("ik,kj->ij", a, a)
    >>> square(a, 10 * a).toarray()
    array([[10., 80.],
           [ 0., 90.]])
    """
    return EinsumPlan(expression, operands, out, semiring, dtype, workspace, prune)
