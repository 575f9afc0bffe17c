"""A fingerprint of a sparsity pattern, so that records of one pattern are not used for another."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

__all__ = ["fingerprint"]


def fingerprint(structure: Sequence[np.ndarray]) -> str:
    """Return a short hash of index arrays: their dtypes, shapes and contents.

    Parameters
    ----------
    structure : sequence of numpy.ndarray
        ``indptr`` and ``indices`` arrays, in a fixed order.

    Returns
    -------
    str
        32 hexadecimal digits.

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.array([0, 1, 2]), np.array([0, 2, 2])
    >>> fingerprint([a]) == fingerprint([a.copy()]), fingerprint([a]) == fingerprint([b])
    (True, False)
    """
    digest = hashlib.blake2b(digest_size=16)
    for array in structure:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
