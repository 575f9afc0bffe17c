"""Compiled kernels: called, exported, loaded, and their threads."""

from .compile import compile, describe_functions, lower, resolve_target
from .executable import Executable
from .kernel_function import KernelFunction
from .library import load
from .sparse_arguments import SparseArrays, SparseUnpacker, register_sparse_unpacker
from .threads import add_launcher_entry, get_num_threads, openmp_runtime, set_num_threads

__all__ = [
    "Executable",
    "KernelFunction",
    "SparseArrays",
    "SparseUnpacker",
    "add_launcher_entry",
    "compile",
    "describe_functions",
    "get_num_threads",
    "load",
    "lower",
    "openmp_runtime",
    "register_sparse_unpacker",
    "resolve_target",
    "set_num_threads",
]
