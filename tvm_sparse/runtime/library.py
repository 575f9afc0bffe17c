"""Load a library that holds kernels and their argument metadata.

In: the path of a file that ``Executable.export_library`` wrote. Out: an
:class:`~tvm_sparse.runtime.executable.Executable`.
"""

from __future__ import annotations

import os
from pathlib import Path

from .adaptive_results import loaded_kernel
from .executable import Executable
from .minimal import attach_launcher, check_target, open_library
from .sparse_results import SparseResultKernel


def load(path: str | os.PathLike) -> Executable | SparseResultKernel:
    """Load a library that ``Executable.export_library`` wrote.

    Parameters
    ----------
    path : path-like
        The library.

    Returns
    -------
    Executable or SparseResultKernel
        Callable like the one that was exported.

    Raises
    ------
    ValueError
        If the file is missing, truncated or no kernel library, or if this processor lacks CPU
        features that it was compiled for (the message names them).
    """
    module, metadata = open_library(path)
    check_target(metadata, path)
    attach_launcher(module)
    executable = Executable(module, metadata, path=Path(path).resolve())
    result = metadata.get("result")
    return executable if result is None else loaded_kernel(executable, result)
