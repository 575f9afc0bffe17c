"""The TVMScript dialect: ``from tvm.script import sparse as S``."""

from . import builder, parser
from .parser import *  # noqa: F403
from .parser import from_source, prim_func

__all__ = [*parser.__all__, "builder", "from_source", "parser", "prim_func"]
