"""Configurations as JSON and as `path=value` overrides, both checked against the dataclasses."""

import dataclasses
import difflib
import json
import sys
import types
import typing
from typing import Any, TypeVar

from uncork.lm.config import Config, did_you_mean


T = TypeVar("T")
# Fields that earlier versions wrote into `config.json`, each with the value that asked for nothing.
GONE = {"pieces": 1}
# What a stored configuration from before there was such a field asked for, where that is not None.
OLDER = {"model.head.products": "float32", "optim.rule": "sgd", "optim.beta2": 0.999}
# What may differ between a start and its resumption. `device` and `recurrence` may change rounding, since
# "auto" differs between machines; the others change no number.
FREE_FIELDS = {
    "log_every", "save_every", "save_epochs", "tensorboard", "device", "data.root", "graphs", "recurrence",
}  # fmt: skip


def to_dict(config: Config) -> dict[str, Any]:
    """The configuration as nested dictionaries that JSON can hold."""
    return dataclasses.asdict(config)


def from_dict(cls: type[T], values: dict[str, Any], where: str = "") -> T:
    """Build the dataclass `cls`; unknown names and wrong types are errors."""
    hints = typing.get_type_hints(cls)
    if cls is Config:
        values = without_gone(values)
    for name in values:
        _check_name(name, hints, where)
    converted = {name: _convert(hints[name], value, where + name) for name, value in values.items()}
    missing = [
        field.name
        for field in dataclasses.fields(typing.cast(Any, cls))
        if field.name not in converted
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"`{where}{missing[0]}` must be given; it has no default.")
    return cls(**converted)


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested configuration as `path: value`, such as `optim.lr: 20`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def without_gone(values: dict[str, Any]) -> dict[str, Any]:
    """A stored configuration without fields that no longer exist, where they asked for nothing."""
    return {name: value for name, value in values.items() if name not in GONE or value != GONE[name]}


def override(config: T, assignments: typing.Iterable[str]) -> T:
    """Apply `optim.lr=20`-like assignments. Only what they come to together is checked, not their order."""
    values = dataclasses.asdict(typing.cast(Any, config))
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise ValueError(f"An override must read `name=value`, such as optim.lr=20; got {assignment!r}.")
        _assign(values, type(config), path.split("."), _literal(text), "")
    return from_dict(type(config), values)


def refuse_repeated(assignments: typing.Iterable[str]) -> None:
    """Of an override given twice in one place only the last would count, and the wrong experiment be run."""
    names = [assignment.partition("=")[0] for assignment in assignments]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"`{name}` must be given once; got it {names.count(name)} times. Leave all but one out."
            )


def _assign(values: dict[str, Any], cls: type, path: list[str], value: Any, where: str) -> None:
    """Put the value where the path leads from `values`, which are those of the dataclass `cls`."""
    name, *rest = path
    hints = typing.get_type_hints(cls)
    _check_name(name, hints, where)
    if not rest:
        values[name] = value
        return
    part = next((choice for choice in _choices(hints[name]) if dataclasses.is_dataclass(choice)), None)
    if part is not None and values.get(name) is None:
        values[name] = {}  # its parts are about to be given
    inner = values.setdefault(name, {})
    if not isinstance(inner, dict):
        raise ValueError(f"`{where}{name}` is {inner!r} and has no part named {rest[0]!r}.")
    if part is not None:
        _assign(inner, typing.cast(type, part), rest, value, f"{where}{name}.")
    elif len(rest) > 1:  # a function's options, say: the constructor checks them
        raise ValueError(f"`{where}{name}.{rest[0]}` is a single value and has no part named {rest[1]!r}.")
    else:
        inner[rest[0]] = value


def _literal(text: str) -> Any:
    """JSON where it reads as JSON, else the text itself; `none` and `true` in any case."""
    if text.lower() in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text.lower()]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _convert(hint: Any, value: Any, where: str) -> Any:
    choices = _choices(hint)
    if value is None and type(None) in choices:
        return None
    for choice in choices:
        if dataclasses.is_dataclass(choice) and isinstance(value, dict):
            return from_dict(typing.cast(type, choice), value, f"{where}.")
        if dataclasses.is_dataclass(choice) and isinstance(value, typing.cast(type, choice)):
            return value
        if typing.get_origin(choice) is typing.Literal and value in typing.get_args(choice):
            return value
        if choice is float and isinstance(value, int | float) and not isinstance(value, bool):
            return _finite(value, where)
        if typing.get_origin(choice) is dict and isinstance(value, dict):
            return dict(value)
        if choice in (int, str, bool) and type(value) is choice:
            return value
    raise ValueError(f"`{where}` must be {_expected(choices)}; got {value!r}.{_guess(choices, value)}")


def _finite(value: float, where: str) -> float:
    """JSON as Python reads it has infinities, NaN and whole numbers of any length."""
    if not abs(value) <= sys.float_info.max:
        raise ValueError(f"`{where}` must be a finite number; got {str(value)[:20]}. Give a smaller one.")
    return float(value)


def _expected(choices: tuple[Any, ...]) -> str:
    """What a field may hold, in words: its types and the values it is chosen from."""
    values = _values(choices)
    types_of = [
        getattr(choice, "__name__", str(choice))
        for choice in choices
        if choice is not type(None) and typing.get_origin(choice) is not typing.Literal
    ]
    if len(values) > 1:
        types_of.append(f"one of {', '.join(values)}")
    return " or ".join(types_of + (values if len(values) == 1 else []))


def _guess(choices: tuple[Any, ...], value: Any) -> str:
    return did_you_mean(value, _values(choices)) if isinstance(value, str) else ""


def _values(choices: tuple[Any, ...]) -> list[str]:
    literals = [choice for choice in choices if typing.get_origin(choice) is typing.Literal]
    return [str(value) for literal in literals for value in typing.get_args(literal)]


def _choices(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _check_name(name: str, hints: dict[str, Any], where: str) -> None:
    if name in hints:
        return
    near = difflib.get_close_matches(name, hints, n=1)
    guess = f" Did you mean `{where}{near[0]}`?" if near else f" There are: {', '.join(hints)}."
    raise ValueError(f"`{where}{name}` is not part of the configuration.{guess}")
