"""What kind of target a function is compiled for, once targets are bound to functions."""

from __future__ import annotations

from tvm import tirx

__all__ = ["is_for_cuda"]


def is_for_cuda(func: tirx.PrimFunc) -> bool:
    """Whether a function is compiled for CUDA; not of functions without a target."""
    target = (func.attrs or {}).get("target")
    return target is not None and target.kind.name == "cuda"
