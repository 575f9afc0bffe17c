"""Sparse kernels on TVM: write over coordinates, schedule, tune on real data, export.

>>> import tvm_sparse
>>> from tvm.script import sparse as S
"""

from ._requirements import check_versions as _check_versions

_check_versions()

import tvm.script as _script  # noqa: E402 (versions are checked first)

_script.register_dialect("sparse", "tvm_sparse.script")

from . import formats, ir, schedules, transform  # noqa: E402
from .einsum import einsum, einsum_plan  # noqa: E402
from .errors import SparseProgramError  # noqa: E402
from .runtime import Executable, compile, load  # noqa: E402
from .schedule import SparseSchedule  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "Executable",
    "SparseProgramError",
    "SparseSchedule",
    "compile",
    "einsum",
    "einsum_plan",
    "formats",
    "ir",
    "load",
    "schedules",
    "transform",
]
