"""What the schedule of an operator takes beside the program: named options of the types that it says."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["check_options"]

#: Parameters of schedules that are no options of a build.
_GIVEN = ("sch", "parts", "target", "name", "groups", "deterministic", "return")


def check_options(schedule: Callable, options: Mapping[str, Any], target: str) -> None:
    """Refuse options that a schedule does not have, and those of another type.

    Parameters
    ----------
    schedule : callable
        Schedules an operator; its type hints say what it takes.
    options : dict of str to object
        Keyword arguments for it.
    target : str
        The kind of target that it schedules for.

    Raises
    ------
    TypeError
        Names the option, what was expected and what was found.

    Examples
    --------
    >>> from tvm_sparse.schedules import cpu
    >>> check_options(cpu.spmm.schedule, {"share": 3}, "a CPU")
    Traceback (most recent call last):
        ...
    TypeError: share: expected one of the options that this operator has on a CPU (tile), found 'share'
    """
    hints = typing.get_type_hints(schedule)
    known = [name for name in hints if name not in _GIVEN]
    for name, value in options.items():
        if name not in known:
            listed = f"({', '.join(known)})" if known else "(none)"
            raise TypeError(
                f"{name}: expected one of the options that this operator has on {target} {listed}, "
                f"found {name!r}"
            )
        kinds = _kinds(hints[name])
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(map(_name, kinds))
            raise TypeError(f"{name}: expected {names}, found {value!r}")


def _kinds(hint: Any) -> tuple[type, ...]:
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if is_union else (hint,)


def _name(kind: type) -> str:
    if kind is type(None):
        return "None"
    package = kind.__module__.rpartition(".")[0]
    return f"{package}.{kind.__name__}" if package else kind.__name__
