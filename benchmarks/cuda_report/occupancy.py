"""Theoretical occupancy: the share of a multiprocessor's warps that a kernel can keep there."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LIMITS", "Limits", "occupancy"]

_WARP = 32


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor offers (CUDA C++ Programming Guide, compute capabilities).

    Parameters
    ----------
    warps, blocks : int
        Most resident warps and blocks.
    registers, register_unit : int
        32-bit registers, and the unit in which a warp gets them.
    shared, shared_of_block, shared_unit : int
        Bytes of shared memory, the most that one block may have, and the unit in which a block gets it.
    shared_reserved : int
        Bytes that the system takes for each block.
    partitions : int
        Parts of the multiprocessor with registers of their own; a warp lives in one.
    """

    warps: int = 64
    blocks: int = 32
    registers: int = 65536
    register_unit: int = 256
    registers_of_thread: int = 255
    shared: int = 164 * 1024
    shared_of_block: int = 163 * 1024
    shared_unit: int = 128
    shared_reserved: int = 1024
    partitions: int = 4


#: Limits by architecture.
LIMITS = {
    "sm_80": Limits(),
    "sm_90": Limits(shared=228 * 1024, shared_of_block=227 * 1024),
}
LIMITS["sm_90a"] = LIMITS["sm_90"]


def occupancy(arch: str, threads: int, registers: int, shared: int = 0) -> float:
    """Return resident warps over the most there can be, between 0 and 1.

    Parameters
    ----------
    arch : str
        A key of :data:`LIMITS`.
    threads : int
        Of a block.
    registers : int
        Of a thread.
    shared : int
        Bytes of shared memory of a block, static and dynamic.

    Returns
    -------
    float
        0 if a block doesn't fit at all.

    Examples
    --------
    >>> occupancy("sm_90", threads=256, registers=32)
    1.0
    >>> occupancy("sm_90", threads=256, registers=64)
    0.5
    """
    limits = LIMITS[arch]
    warps = -(-threads // _WARP)
    if threads < 1 or warps * _WARP > 1024 or shared > limits.shared_of_block:
        return 0.0
    if registers > limits.registers_of_thread:
        return 0.0
    of_warp = _round_up(max(registers, 1) * _WARP, limits.register_unit)
    of_partition = limits.registers // limits.partitions // of_warp
    by_registers = of_partition * limits.partitions // warps
    by_shared = limits.shared // (_round_up(shared, limits.shared_unit) + limits.shared_reserved)
    blocks = min(limits.blocks, limits.warps // warps, by_registers, by_shared)
    return blocks * warps / limits.warps


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
