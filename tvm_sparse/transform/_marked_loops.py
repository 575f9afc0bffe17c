"""A pass over loops that carry a mark, each rewritten together with the statement before it if need be."""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import For

from ..ir.statements import in_sequence
from ._store_nests import with_body

__all__ = ["marked_loops_pass"]

#: From a loop and the statement before it, if any, to what the loop becomes, and whether that takes
#: the place of the statement too.
Rewrite = Callable[[For, tirx.Stmt | None], tuple[tirx.Stmt, bool]]


def marked_loops_pass(name: str, mark: str, rewrite: Rewrite) -> tvm.transform.Pass:
    """Build a pass over PrimFuncs that rewrites loops with an annotation.

    Parameters
    ----------
    name : str
        Of the pass.
    mark : str
        The annotation.
    rewrite : callable
        Takes a loop, without the mark, and the statement before it; returns what the loop becomes, and
        whether that takes the place of the statement too.
    """

    def transform(func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        found = []

        def without_mark(loop: For) -> For:
            found.append(loop)
            kept = {key: value for key, value in loop.annotations.items() if key != mark}
            return with_body(loop, loop.body, kept)

        def alone(loop: For, mutator) -> tirx.Stmt:
            if mark not in loop.annotations:
                return mutator.default_mutate(loop)
            return rewrite(without_mark(loop), None)[0]

        def sequence(node: tirx.SeqStmt, mutator) -> tirx.Stmt:
            parts: list[tirx.Stmt] = []
            for part in node.seq:
                if not isinstance(part, For) or mark not in part.annotations:
                    parts.append(mutator.mutate(part))
                    continue
                statement, replaces = rewrite(without_mark(part), parts[-1] if parts else None)
                parts[len(parts) - replaces :] = [statement]
            return in_sequence(parts)

        body = tvm_ffi.structural_mutate(func.body, [(For, alone), (tirx.SeqStmt, sequence)])
        return func.with_body(body) if found else func

    each = tirx.transform.prim_func_pass(transform, opt_level=0, name=name)
    return tvm.transform.Sequential([each, tirx.transform.ConvertSSA()], name=name)
