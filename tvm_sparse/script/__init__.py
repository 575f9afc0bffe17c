"""The TVMScript dialect: ``from tvm.script import sparse as S``.

``S`` holds everything that ``T`` holds, so that one import is enough.
"""

import tvm.tirx.script as _stock

from . import builder, parser
from .parser import *  # noqa: F403
from .parser import from_source, prim_func

globals().update(
    {
        name: getattr(_stock, name)
        for name in dir(_stock)
        if not name.startswith("_") and name not in globals()
    }
)

__all__ = [*parser.__all__, "builder", "from_source", "parser", "prim_func"]
