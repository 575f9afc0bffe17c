"""Sparse results: workspaces that collect entries, and the functions that assemble a result."""

from . import dense_bitmap as _dense_bitmap
from . import dense_flags as _dense_flags
from .assembly import assemble
from .policy import Policy, Scratch, find_policy, register_policy
from .producer import sparse_result

__all__ = ["Policy", "Scratch", "assemble", "find_policy", "register_policy", "sparse_result"]

del _dense_bitmap, _dense_flags
