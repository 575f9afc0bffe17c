"""CUDA kernels run on the CPU, from the CUDA C that TVM generates for them, with every access checked.

:func:`emulated` takes what ``tvm_sparse.compile`` takes and returns a kernel that is called in the same
way; :func:`emulated_source` takes CUDA C written by hand. A kernel that reads or writes outside of its
arrays, reads shared memory that nothing was written to, races, waits at a barrier that not all threads
come to, or is launched beyond the limits of CUDA raises :class:`EmulationError`.

The generated text is rewritten to C++ (``rewrite.py``), compiled against ``emulation.h`` with the host's
compiler (``compiler.py``), and launched by TVM's own host code (``host.py``).
"""

from .callables import EmulatedSource, emulated, emulated_source, running_last, running_order
from .errors import EmulationError

__all__ = [
    "EmulatedSource",
    "EmulationError",
    "emulated",
    "emulated_source",
    "running_last",
    "running_order",
]
