"""What a caller asks of a sum of products, besides expression and operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["EinsumOptions"]


@dataclass(frozen=True, eq=False)
class EinsumOptions:
    """The options of :func:`einsum` and :func:`einsum_plan`, which say what each means, in their order."""

    out: str
    blocksize: tuple[int, int] | None
    semiring: str
    dtype: Any
    mask: Any
    complement: bool
    prune: bool
    workspace: str
