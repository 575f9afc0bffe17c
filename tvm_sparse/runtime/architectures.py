"""CUDA targets: for which architectures device code is made.

In: a target as users write it, with one architecture, several, or none. Out: the target that TVM
generates code for, the architectures that this code is compiled for, and how. The same CUDA C is
compiled for all of them, so it is generated for the smallest. TVM's targets have one architecture; the
others stand among their keys, so that a target can be passed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.target import Target

from .minimal import compute_capabilities, load_cuda_runtime, parse_architecture

__all__ = ["CudaTarget", "cuda_target", "read_target"]

_FAST_MATH = "fast-math"


@dataclass(frozen=True)
class CudaTarget:
    """What device code is made for.

    Attributes
    ----------
    target : tvm.target.Target
        For which TVM generates the CUDA C; :func:`read_target` reads the rest from it.
    architectures : tuple of str
        For which it is compiled: ``"sm_90"`` gives a cubin, ``"compute_90"`` PTX.
    fast_math : bool
        Whether it is compiled with ``--use_fast_math``.
    """

    target: Target
    architectures: tuple[str, ...]
    fast_math: bool = False


def cuda_target(attrs: Mapping[str, Any]) -> CudaTarget:
    """Read a target of the kind ``"cuda"``.

    Parameters
    ----------
    attrs : dict
        Of TVM's target, except that ``"arch"`` may be a list, and that ``"fast-math"`` may stand with
        them. Without ``"arch"``, the architecture of the first GPU of this machine is taken.

    Returns
    -------
    CudaTarget
        The target.

    Raises
    ------
    ValueError
        If an architecture is unknown, or none is given and this machine has no GPU.

    Examples
    --------
    >>> from tvm_sparse.runtime.architectures import cuda_target
    >>> found = cuda_target({"kind": "cuda", "arch": ["sm_90", "sm_80", "compute_90"]})
    >>> found.architectures, str(found.target.attrs["arch"])
    (('sm_80', 'sm_90', 'compute_90'), 'sm_80')
    """
    attrs = dict(attrs)
    fast_math = attrs.pop(_FAST_MATH, False)
    if not isinstance(fast_math, bool):
        raise TypeError(f"{_FAST_MATH}: expected a bool, found {fast_math!r}")
    given = attrs.pop("arch", None)
    if given is None:
        given = _architecture_of_this_machine()
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not names:
        raise ValueError(
            f'arch: expected an architecture such as "sm_90" or a list, found {given!r}'
        )
    versions = {name: parse_architecture(name)[:3] for name in names}
    cubins_first = sorted(
        versions, key=lambda name: (versions[name][0] == "compute", versions[name])
    )
    smallest = "sm_" + min(versions, key=lambda name: versions[name][1:]).split("_")[1]
    keys = cubins_first if cubins_first != [smallest] else []
    keys = [*keys, *([_FAST_MATH] if fast_math else [])]
    if keys:
        attrs["keys"] = [*attrs.get("keys", ["cuda", "gpu"]), *keys]
    return read_target(Target({**attrs, "kind": "cuda", "arch": smallest}))


def read_target(target: Target) -> CudaTarget:
    """Read a target of TVM, perhaps one that :func:`cuda_target` made."""
    keys = [str(key) for key in target.keys]
    names = [key for key in keys if key.startswith(("sm_", "compute_"))]
    return CudaTarget(target, tuple(names or [str(target.attrs["arch"])]), _FAST_MATH in keys)


def _architecture_of_this_machine() -> str:
    reason = load_cuda_runtime()
    capabilities = compute_capabilities() if reason is None else []
    if not capabilities:
        why = f"this machine {reason}" if reason else "this machine has no GPU that CUDA can use"
        raise ValueError(
            f"target: expected the architecture of the GPU, as in "
            f'{{"kind": "cuda", "arch": "sm_90"}}, found none, and {why}'
        )
    return "sm_" + capabilities[0].replace(".", "")
