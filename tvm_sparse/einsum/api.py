"""``einsum``: products and sums of sparse and dense tensors, with a result whose structure is found."""

from __future__ import annotations

from typing import Any

from .explain import describe
from .options import EinsumOptions
from .plan import EinsumPlan

__all__ = ["einsum", "einsum_plan"]


def einsum(
    expression: str,
    *operands: Any,
    out: str = "csr",
    blocksize: tuple[int, int] | None = None,
    semiring: str = "plus-times",
    dtype: Any = None,
    mask: Any = None,
    complement: bool = False,
    prune: bool = False,
    workspace: str = "auto",
    explain: bool = False,
) -> Any:
    """Compute a sum of products of tensors.

    Parameters
    ----------
    expression : str
        One letter for each dimension; factors are separated by ``,``, terms by ``+`` or ``-``, and a term
        may begin with a number, as in ``"ik,kj - 0.5*ij -> ij"``. The letters of the result follow
        ``->``; those that it lacks are summed over. A letter that an operand repeats stands for its
        diagonal, as in ``"ii->i"``.
    *operands : scipy.sparse matrix or array, Packed, list of these, torch.Tensor or numpy.ndarray
        One for each factor, in any mixture; unsorted and repeated coordinates may come. Repeated ones are
        added up; all places of a dense array count as entries. A list of sparse tensors is one tensor
        whose first letter numbers them; their sizes may differ, its own are the largest.
    out : {"csr", "csc", "coo", "dcsr", "bsr", "dense"}
        What a result is returned as. ``"csr"`` is CSR for matrices, and ``scipy.sparse.coo_array`` for
        other numbers of dimensions; ``"dcsr"`` is packed. A result without dimensions is a number.
    blocksize : tuple of int, optional
        Rows and columns of a block of ``"bsr"``, which stands wherever it has an entry.
    semiring : str
        What adds and multiplies: ``"plus-times"``, ``"min-plus"``, ``"max-plus"``, ``"max-times"``,
        ``"min-times"``, ``"max-min"``, ``"min-max"`` or ``"or-and"``. Differences, numbers in the
        expression and complex values go with ``"plus-times"`` alone.
    dtype : numpy.dtype, optional
        Of the result. By default integers are added up and returned as int64 (uint64 if all are unsigned
        and one is uint64), half precision as float32, other types as NumPy promotes them; a sum of products
        of truth values is one itself, unless it is a difference or has numbers. A number that is no
        integer makes integers float64. A narrower type is filled only if all values fit.
    mask : scipy.sparse matrix or array, Packed, list of these, torch.Tensor or numpy.ndarray, optional
        Of the shape of the result: entries stand only where it has one, explicit zeros included; of a
        dense array, where it is not zero. Its values do not count.
    complement : bool
        Whether entries stand only where the mask has none.
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
    MemoryError
        If the result does not fit into the memory of this machine; found out before it is allocated.

    Notes
    -----
    Complex values are computed as real and imaginary parts, one after another by the same loops
    (:mod:`~tvm_sparse.einsum.complex_values`).

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
    >>> tvm_sparse.einsum("ik,kj - 2*ij -> ij", a, a, a).toarray()
    array([[-1,  4],
           [ 0,  3]])
    >>> tvm_sparse.einsum("ik,kj->ij", a, a, mask=sp.eye(2), complement=True).toarray()
    array([[0, 8],
           [0, 0]])
    >>> tvm_sparse.einsum("bij->b", [a, 2 * a], out="dense")
    array([ 6, 12])
    """
    options = EinsumOptions(out, blocksize, semiring, dtype, mask, complement, prune, workspace)
    plan = EinsumPlan(expression, operands, options)
    if explain:
        print(describe(plan))
    return plan.first_result()


def einsum_plan(
    expression: str,
    *operands: Any,
    out: str = "csr",
    blocksize: tuple[int, int] | None = None,
    semiring: str = "plus-times",
    dtype: Any = None,
    mask: Any = None,
    complement: bool = False,
    prune: bool = False,
    workspace: str = "auto",
) -> EinsumPlan:
    """Find the structure of a sum of products, to compute it for several values.

    Parameters
    ----------
    expression, *operands, out, blocksize, semiring, dtype, mask, complement, prune, workspace
        As :func:`einsum` takes them.

    Returns
    -------
    EinsumPlan
        Call it with operands of the same structure; the mask stays. ``print`` it to see what it runs.

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
    options = EinsumOptions(out, blocksize, semiring, dtype, mask, complement, prune, workspace)
    return EinsumPlan(expression, operands, options)
