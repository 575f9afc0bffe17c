"""The record of a schedule: what was called with what, to print, save, and apply again.

An argument is a handle (iteration or iterator), a format, a sampled number, or plain data. All of them have
a JSON form, so a trace saved by one process is applied by another.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..formats import Composition, Format

__all__ = ["IterationHandle", "IteratorHandle", "Sample", "Trace", "TraceEntry"]


@dataclass(frozen=True)
class IterationHandle:
    """A sparse iteration of a function, by name."""

    name: str
    function: str


@dataclass(frozen=True)
class IteratorHandle:
    """An iterator of a sparse iteration, by name."""

    name: str
    iteration: str


class Sample(int):
    """A sampled integer, which a trace recognises where it is used."""

    label: str

    def __new__(cls, value: int, label: str) -> Sample:
        sample = super().__new__(cls, value)
        sample.label = label
        return sample


@dataclass(frozen=True)
class TraceEntry:
    """One call.

    Attributes
    ----------
    primitive : str
        Name of the method.
    arguments : dict
        Its arguments by name.
    result : object
        What it returned: a handle, a list of handles, a sample, or None.
    """

    primitive: str
    arguments: dict[str, Any]
    result: Any = None


@dataclass
class Trace:
    """The calls on a schedule, in order.

    Examples
    --------
    >>> from tvm_sparse import SparseSchedule, schedules
    >>> sch = SparseSchedule(schedules.spmm.program())
    >>> spmm = sch.get_sparse_iteration("spmm")
    >>> i, j, k = sch.get_axes(spmm)
    >>> sch.sparse_reorder(spmm, [i, k, j])
    >>> print(sch.trace)
    def apply(sch):
        spmm = sch.get_sparse_iteration(name='spmm')
        i, j, k = sch.get_axes(iteration=spmm)
        sch.sparse_reorder(iteration=spmm, order=[i, k, j])
    """

    entries: list[TraceEntry] = field(default_factory=list)

    def append(self, primitive: str, arguments: dict[str, Any], result: Any) -> None:
        """Add a call."""
        self.entries.append(TraceEntry(primitive, arguments, result))

    def apply(self, schedule: Any, decisions: Mapping[str, int] | None = None) -> None:
        """Repeat the calls on another schedule of the same program.

        Parameters
        ----------
        schedule : SparseSchedule
            What to call.
        decisions : dict, optional
            Other decisions for samples, by label.
        """
        made: dict[Any, Any] = {}
        for entry in self.entries:
            arguments = {key: _exchange(value, made) for key, value in entry.arguments.items()}
            if isinstance(entry.result, Sample):
                chosen = (decisions or {}).get(entry.result.label)
                if chosen is not None:
                    arguments["decision"] = chosen
            result = getattr(schedule, entry.primitive)(**arguments)
            _note(entry.result, result, made)

    def as_json(self) -> str:
        """Return the trace as a JSON text."""
        calls = [
            {
                "primitive": entry.primitive,
                "arguments": {key: _encode(value) for key, value in entry.arguments.items()},
                "result": _encode(entry.result),
            }
            for entry in self.entries
        ]
        return json.dumps({"version": 1, "calls": calls}, indent=1)

    @staticmethod
    def from_json(text: str) -> Trace:
        """Read what :meth:`as_json` wrote.

        Raises
        ------
        ValueError
            If the text is no trace, or of another version, or names a format that cannot be
            imported: those of a user are found where their module is importable by the same name.
        """
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("version") != 1:
            raise ValueError("trace: expected a JSON document of version 1")
        return Trace(
            [
                TraceEntry(
                    call["primitive"],
                    {key: _decode(value) for key, value in call["arguments"].items()},
                    _decode(call["result"]),
                )
                for call in document["calls"]
            ]
        )

    def __str__(self) -> str:
        names: dict[Any, str] = {}
        lines = ["def apply(sch):"]
        for entry in self.entries:
            arguments = ", ".join(f"{k}={_show(v, names)}" for k, v in entry.arguments.items())
            call = f"sch.{entry.primitive}({arguments})"
            target = _targets(entry.result, names)
            lines.append(f"    {target} = {call}" if target else f"    {call}")
        return "\n".join(lines if self.entries else [*lines, "    pass"])


def _exchange(value: Any, made: Mapping[Any, Any]) -> Any:
    """Put what a repeated call returned in place of what the first one had."""
    if isinstance(value, Sample):
        return made.get(("sample", value.label), value)
    if isinstance(value, IterationHandle | IteratorHandle):
        return made.get(value, value)
    if isinstance(value, list):
        return [_exchange(item, made) for item in value]
    return value


def _note(old: Any, new: Any, made: dict[Any, Any]) -> None:
    if isinstance(old, Sample):
        made["sample", old.label] = new
    elif isinstance(old, IterationHandle | IteratorHandle):
        made[old] = new
    elif isinstance(old, list):
        for first, second in zip(old, new):
            _note(first, second, made)


# --- printing ----------------------------------------------------------------------------------


def _targets(result: Any, names: dict[Any, str]) -> str:
    items = result if isinstance(result, list) else [] if result is None else [result]
    return ", ".join(_name(item, names) for item in items) + ("," if _is_single(result) else "")


def _is_single(result: Any) -> bool:
    return isinstance(result, list) and len(result) == 1


def _name(item: Any, names: dict[Any, str]) -> str:
    key = ("sample", item.label) if isinstance(item, Sample) else item
    wanted = item.label if isinstance(item, Sample) else item.name
    wanted = (
        wanted
        if wanted.isidentifier()
        else "_" + "".join(ch if ch.isalnum() else "_" for ch in wanted)
    )
    taken = {name for other, name in names.items() if other != key}
    chosen, number = wanted, 1
    while chosen in taken:
        chosen, number = f"{wanted}_{number}", number + 1
    names[key] = chosen
    return chosen


def _show(value: Any, names: Mapping[Any, str]) -> str:
    if isinstance(value, Sample):
        return names.get(("sample", value.label), str(int(value)))
    if isinstance(value, IterationHandle | IteratorHandle):
        return names.get(value, repr(value.name))
    if isinstance(value, list):
        return "[" + ", ".join(_show(item, names) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {_show(v, names)}" for k, v in value.items()) + "}"
    if _is_described(value):
        try:
            described = _description(value)
        except TypeError:  # it can be shown, if not saved
            return repr(value)
        arguments = ", ".join(f"{k}={_show(v, names)}" for k, v in described.items())
        return f"{type(value).__name__}({arguments})"
    return repr(value)


# --- JSON --------------------------------------------------------------------------------------


def _encode(value: Any) -> Any:
    if isinstance(value, Sample):
        return {"sample": value.label, "value": int(value)}
    if isinstance(value, IterationHandle):
        return {"iteration": value.name, "function": value.function}
    if isinstance(value, IteratorHandle):
        return {"iterator": value.name, "iteration": value.iteration}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, dict):
        return {"items": [[key, _encode(item)] for key, item in value.items()]}
    if _is_described(value):
        kind = type(value)
        arguments = {key: _encode(item) for key, item in _description(value).items()}
        return {"format": f"{kind.__module__}:{kind.__qualname__}", "arguments": arguments}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"trace: expected handles, formats, numbers, text, lists and dicts, found {value!r}"
    )


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "sample" in value:
        return Sample(value["value"], value["sample"])
    if "iterator" in value:
        return IteratorHandle(value["iterator"], value["iteration"])
    if "iteration" in value:
        return IterationHandle(value["iteration"], value["function"])
    if "items" in value:
        return {key: _decode(item) for key, item in value["items"]}
    return _find_format(value["format"])(
        **{key: _decode(item) for key, item in value["arguments"].items()}
    )


def _find_format(path: str) -> type[Format | Composition]:
    """Import a format by ``module:class``; a trace that was changed may name other things."""
    module, _, name = path.partition(":")
    try:
        kind = importlib.import_module(module)
        for part in name.split("."):
            kind = getattr(kind, part)
    except (AttributeError, ImportError) as error:
        raise ValueError(f"trace: expected a format, found none at {path!r} ({error})") from error
    if not (isinstance(kind, type) and issubclass(kind, Format | Composition)):
        raise ValueError(f"trace: expected a Format or a Composition, found {path!r}")
    return kind


def _is_described(value: Any) -> bool:
    return isinstance(value, Format | Composition)


def _description(value: Any) -> dict[str, Any]:
    """The arguments that make an equal format: attributes named as the parameters of ``__init__``."""
    parameters = inspect.signature(type(value).__init__).parameters
    names = [name for name in parameters if name != "self"]
    missing = [name for name in names if not hasattr(value, name)]
    if missing:
        raise TypeError(
            f"trace: format {type(value).__name__} needs an attribute for each parameter of its "
            f"__init__, and has none for {', '.join(missing)}"
        )
    found = {name: getattr(value, name) for name in names}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in found.items()}
