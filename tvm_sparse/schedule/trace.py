"""The record of a schedule: what was called with what, to print, save, and apply again.

An argument is a handle (iteration or iterator), a format, a sampled number, or plain data. All of them have
a JSON form, so a trace saved by one process is applied by another.
"""

from __future__ import annotations

import importlib
import inspect
import json
import keyword
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..formats import Composition, Format

__all__ = ["IterationHandle", "IteratorHandle", "Sample", "Trace", "TraceEntry", "primitive"]

#: Names of the methods that a trace may call.
_PRIMITIVES: set[str] = set()


def primitive(method: Callable) -> Callable:
    """Mark a method of a schedule as one that adds itself to the trace."""
    _PRIMITIVES.add(method.__name__)
    return method


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
            Other decisions for samples, by label; they also reach formats that were made of samples.

        Raises
        ------
        ValueError
            If a decision is for no sample of the trace.
        """
        labels = [entry.result.label for entry in self.entries if isinstance(entry.result, Sample)]
        unknown = [label for label in decisions or {} if label not in labels]
        if unknown:
            raise ValueError(
                f"decisions: expected labels of samples ({', '.join(labels) or 'there are none'}), "
                f"found {unknown[0]!r}"
            )
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

        Formats are made by importing their classes: read only traces that you would run as code.

        Raises
        ------
        ValueError
            If the text is no trace, or of another version, or names a primitive that there is not, or a
            format that cannot be imported: those of a user are found where their module is importable
            by the same name.
        """
        if not isinstance(text, str | bytes):
            raise TypeError(f"trace: expected a JSON text, found {text!r}")
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"trace: expected a JSON text, found something else: {error}"
            ) from error
        if not isinstance(document, dict) or document.get("version") != 1:
            found = document.get("version") if isinstance(document, dict) else document
            raise ValueError(f"trace: expected a JSON document of version 1, found {found!r}")
        calls = document.get("calls")
        if not isinstance(calls, list):
            raise ValueError(f"trace: expected a list of calls, found {calls!r}")
        return Trace([_decode_call(call) for call in calls])

    def __str__(self) -> str:
        names: dict[Any, str] = {"sch": "sch"}
        names |= {kind: kind.__name__ for kind in _classes_of(self.entries)}
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
    if isinstance(value, dict):
        return {key: _exchange(item, made) for key, item in value.items()}
    if _is_described(value) and not _lacks(value):
        old = _description(value)
        new = {key: _exchange(item, made) for key, item in old.items()}
        return value if _is_same(old, new) else type(value)(**new)
    return value


def _is_same(old: Any, new: Any) -> bool:
    """Whether nothing was exchanged."""
    if isinstance(old, list):
        return all(map(_is_same, old, new))
    if isinstance(old, dict):
        return all(_is_same(item, new[key]) for key, item in old.items())
    return old is new


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
    if not wanted.isidentifier() or keyword.iskeyword(wanted):
        wanted = "_" + "".join(ch if ch.isalnum() else "_" for ch in wanted)
    taken = {name for other, name in names.items() if other != key}
    chosen, number = wanted, 1
    while chosen in taken:
        chosen, number = f"{wanted}_{number}", number + 1
    names[key] = chosen
    return chosen


def _classes_of(value: Any) -> set[type]:
    """Return the classes of all formats in calls, whose names a printed trace uses."""
    if isinstance(value, TraceEntry):
        return _classes_of(value.arguments)
    if isinstance(value, list | dict):
        items = value.values() if isinstance(value, dict) else value
        return set().union(*map(_classes_of, items))
    if not _is_described(value) or _lacks(value):
        return set()
    return {type(value)} | _classes_of(_description(value))


def _show(value: Any, names: Mapping[Any, str]) -> str:
    if isinstance(value, Sample):
        return names.get(("sample", value.label), str(int(value)))
    if isinstance(value, IterationHandle | IteratorHandle):
        return names.get(value, repr(value.name))
    if isinstance(value, list):
        return "[" + ", ".join(_show(item, names) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {_show(v, names)}" for k, v in value.items()) + "}"
    if _is_described(value) and not _lacks(value):  # else it can be shown, if not saved
        arguments = ", ".join(f"{k}={_show(v, names)}" for k, v in _description(value).items())
        return f"{type(value).__name__}({arguments})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
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
        if "<locals>" in kind.__qualname__:
            raise TypeError(
                f"trace: class {kind.__name__} is local to a function, and another process could not "
                "import it; define it in a module"
            )
        arguments = {key: _encode(item) for key, item in _description(value).items()}
        return {"format": f"{kind.__module__}:{kind.__qualname__}", "arguments": arguments}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"trace: expected handles, formats, numbers, text, lists and dicts, found {value!r}"
    )


def _decode_call(call: Any) -> TraceEntry:
    wanted = {"primitive", "arguments", "result"}
    if not isinstance(call, dict) or set(call) != wanted or not isinstance(call["arguments"], dict):
        raise ValueError(
            f"trace: expected a call as a dict of {', '.join(sorted(wanted))}, found {call!r}"
        )
    if call["primitive"] not in _PRIMITIVES:
        raise ValueError(
            f"trace: expected one of the primitives {', '.join(sorted(_PRIMITIVES))}, found "
            f"{call['primitive']!r}"
        )
    arguments = {key: _decode(value) for key, value in call["arguments"].items()}
    return TraceEntry(call["primitive"], arguments, _decode(call["result"]))


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    try:
        if "sample" in value:
            return Sample(value["value"], value["sample"])
        if "iterator" in value:
            return IteratorHandle(value["iterator"], value["iteration"])
        if "iteration" in value:
            return IterationHandle(value["iteration"], value["function"])
        if "items" in value:
            return {key: _decode(item) for key, item in value["items"]}
        kind = _find_format(value["format"])
        arguments = {key: _decode(item) for key, item in value["arguments"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"trace: expected a handle, a sample, items or a format, found {value!r}"
        ) from error
    try:
        return kind(**arguments)
    except TypeError as error:
        raise ValueError(f"trace: format {value['format']}: {error}") from error


def _find_format(path: str) -> type[Format | Composition]:
    """Import a format by ``module:class``; a trace that was changed may name other things."""
    module, _, name = path.partition(":")
    try:
        kind = importlib.import_module(module)
        for part in name.split("."):
            kind = getattr(kind, part)
    except (AttributeError, ImportError, ValueError) as error:
        raise ValueError(f"trace: expected a format, found none at {path!r} ({error})") from error
    if not (isinstance(kind, type) and issubclass(kind, Format | Composition)):
        raise ValueError(f"trace: expected a Format or a Composition, found {path!r}")
    return kind


def _is_described(value: Any) -> bool:
    return isinstance(value, Format | Composition)


def _lacks(value: Any) -> list[str]:
    """Return the parameters of ``__init__`` for which a format has no attribute."""
    parameters = inspect.signature(type(value).__init__).parameters
    return [name for name in parameters if name != "self" and not hasattr(value, name)]


def _description(value: Any) -> dict[str, Any]:
    """The arguments that make an equal format: attributes named as the parameters of ``__init__``."""
    missing = _lacks(value)
    if missing:
        raise TypeError(
            f"trace: format {type(value).__name__} needs an attribute for each parameter of its "
            f"__init__, and has none for {', '.join(missing)}"
        )
    names = [name for name in inspect.signature(type(value).__init__).parameters if name != "self"]
    found = {name: getattr(value, name) for name in names}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in found.items()}
