"""SDDMM over formats on CUDA: patterns of blocks."""

from __future__ import annotations

from .sddmm_blocks import schedule

__all__ = ["schedule"]
