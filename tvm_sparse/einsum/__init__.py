"""Sums of products of sparse and dense tensors, compiled."""

from .api import einsum, einsum_plan
from .plan import EinsumPlan

__all__ = ["EinsumPlan", "einsum", "einsum_plan"]
