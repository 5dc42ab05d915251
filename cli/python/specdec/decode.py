"""Turns the JSON objects of the program into the dataclasses of results.py."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, TypeVar

from .errors import UnexpectedOutput

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a command. `exit_code` is the program's exit code, which states the verdict: 0 = good, 3 = bad,
    4 = undecided, 5 = the draft belongs to another target, 6 = speculation is not worth its cost. `raw` is the whole
    JSON object that the program printed."""

    SCHEMA: ClassVar[str] = ""
    exit_code: int
    raw: dict[str, Any] = field(repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """True if the exit code is 0."""
        return self.exit_code == 0


_HINTS: dict[type[Any], dict[str, Any]] = {}


def _hints(cls: type[Any]) -> dict[str, Any]:
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]


def _refuse(where: str, expected: str, value: object) -> typing.NoReturn:
    raise UnexpectedOutput(f"{where}: expected {expected}, found {value!r:.80}")


def _number(kind: Any, value: object, where: str) -> Any:
    if kind is bool or isinstance(value, bool):
        return value if kind is bool and isinstance(value, bool) else _refuse(where, str(kind), value)
    if kind is float and isinstance(value, int | float):
        return float(value)
    return value if isinstance(value, kind) else _refuse(where, kind.__name__, value)


def _union(kinds: tuple[Any, ...], value: object, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if len(kinds) == 1:
        return decode(kinds[0], value, where)
    for kind in kinds:
        try:
            return decode(kind, value, where)
        except UnexpectedOutput:
            continue
    _refuse(where, " or ".join(map(str, kinds)), value)


def _object(cls: type[Any], value: object, where: str, extra: dict[str, Any]) -> Any:
    if not isinstance(value, dict):
        _refuse(where, "an object", value)
    hints, given = _hints(cls), dict(extra)
    for member in fields(cls):
        key = member.metadata.get("key", member.name)
        if member.name in extra:
            continue
        if key in value:
            given[member.name] = decode(hints[member.name], value[key], f"{where}.{key}")
        elif member.default is MISSING:
            raise UnexpectedOutput(f"{where}: has no {key}")
    return cls(**given)


def decode(kind: Any, value: object, where: str, **extra: Any) -> Any:
    """Returns `value` converted to the type `kind`. Unknown keys are left out. Raises UnexpectedOutput if `value` is of
    another type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _object(typing.cast(type[Any], kind), value, where, extra)
    if origin is typing.Literal:
        return value if value in arguments else _refuse(where, f"one of {arguments}", value)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, value, where)
    if origin is list:
        if not isinstance(value, list):
            _refuse(where, "an array", value)
        return [decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            _refuse(where, "an object", value)
        return {key: decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    return _number(kind, value, where)


def decode_result(cls: type[T], value: dict[str, Any], exit_code: int) -> T:
    """Converts the JSON object that a command printed to its dataclass."""
    result: T = decode(cls, value, value.get("schema", "$"), exit_code=exit_code, raw=value)
    return result
