"""Give a row loop one version for each common feature width, besides the one for any width.

A schedule marks its row loop with ``"tvm_sparse.versions"``, a list of widths. Once blocks are
loops, this pass puts a copy of the loop for each width in front of the loop itself; in a copy the
width is a constant, so that its tiles need no tests and its rows no multiplications.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from ._tile_loops import TAIL, tile_guard

VERSIONS = "tvm_sparse.versions"


def VersionWidths() -> tvm.transform.Pass:
    """Build the pass that adds versions to annotated row loops.

    Returns
    -------
    tvm.transform.Pass
        A pass over PrimFuncs whose blocks are already lowered to loops. ``PeelVectorTail`` begins
        with it.

    Notes
    -----
    Before::

        for i in T.serial(m, annotations={"tvm_sparse.versions": [32, 64]}):
            row(i, f)

    and after::

        if f == 32:
            for i in range(m): row(i, 32)
        elif f == 64:
            for i in range(m): row(i, 64)
        else:
            for i in range(m): row(i, f)

    Examples
    --------
    >>> from tvm_sparse.transform.versions import VersionWidths
    >>> VersionWidths().info.name
    'tvm_sparse.VersionWidths'
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        versioned = []

        def rewrite(loop: tirx.For) -> tirx.Stmt:
            if VERSIONS not in loop.annotations:
                return loop
            versioned.append(loop)
            return _version(loop, [int(width) for width in loop.annotations[VERSIONS]])

        body = tvm_ffi.structural_map(func.body, (tirx.For, rewrite))
        return func.with_body(body) if versioned else func

    add = tirx.transform.prim_func_pass(transform, opt_level=0, name="tvm_sparse.VersionWidths")
    return tvm.transform.Sequential(
        [add, tirx.transform.ConvertSSA()], name="tvm_sparse.VersionWidths"
    )


def _version(loop: tirx.For, widths: list[int]) -> tirx.Stmt:
    annotations = {key: value for key, value in loop.annotations.items() if key != VERSIONS}
    plain = tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, annotations=annotations
    )
    width = _width_variable(loop)
    if width is None:
        return plain
    chosen: tirx.Stmt = plain
    for value in reversed(widths):
        constant = tirx.IntImm(str(width.ty.dtype), value)
        version = tvm_ffi.structural_map(
            plain, (tirx.Var, lambda var, by=constant: by if var.same_as(width) else var)
        )
        chosen = tirx.IfThenElse(width == constant, version, chosen)
    return chosen


def _width_variable(loop: tirx.For) -> tirx.Var | None:
    """The variable that is the extent of the tiles inside a row loop, None unless there is one."""
    found: list[tirx.Var] = []

    def visit(inner: tirx.For) -> None:
        guard = tile_guard(inner) if TAIL in inner.annotations else None
        if guard is None:
            return
        extent = guard[1]
        while isinstance(extent, tirx.Cast):
            extent = extent.value
        if isinstance(extent, tirx.Var) and not any(extent.same_as(var) for var in found):
            found.append(extent)

    tvm_ffi.structural_walk(loop.body, (tirx.For, visit))
    return found[0] if len(found) == 1 else None
