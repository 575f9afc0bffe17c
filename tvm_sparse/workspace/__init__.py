"""Sparse results: workspaces that collect entries, and the functions that assemble a result."""

from . import buckets as _buckets
from . import coordinate_list as _coordinate_list
from . import dense_flags as _dense_flags
from . import hash_table as _hash_table
from . import index_list as _index_list
from . import merged_runs as _merged_runs
from . import stream as _stream
from .assembly import assemble, automatic_policies
from .costs import COSTS, Costs, Work
from .policy import Memory, Policy, Row, Scratch, find_policy, known_policies, register_policy
from .producer import sparse_result

__all__ = [
    "COSTS",
    "Costs",
    "Memory",
    "Policy",
    "Row",
    "Scratch",
    "Work",
    "assemble",
    "automatic_policies",
    "find_policy",
    "known_policies",
    "register_policy",
    "sparse_result",
]

del _buckets, _coordinate_list, _dense_flags, _hash_table, _index_list, _merged_runs, _stream
