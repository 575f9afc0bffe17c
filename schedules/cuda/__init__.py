"""Default CUDA schedules of the operators."""

from . import parts

__all__ = ["parts"]
