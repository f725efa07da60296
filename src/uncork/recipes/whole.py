"""What a record of a run must have, so that nothing is read of it later that is not there."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from uncork.results import ORIGIN, RESULT_NAMES, is_number, lost_of_line, lost_of_result


RUN_PARTS = {
    "config": ("name", "seed", "epochs", "model", "data", "optim"),
    "provenance": ORIGIN,
    "result": RESULT_NAMES,
}
CONFIG_PARTS = {
    "model": ("head", "embedding", "hidden", "layers", "last_hidden", "tied"),
    "data": ("corpus",),
    "optim": ("average",),
}
FUNCTION_NAMES = ("name", "options", "frozen")
LEARNED_NAMES = ("x", "f", "slope", "slopes", "moved")
SLOPES_NAMES = ("over_knots", "at_logits")
MOVED_NAMES = ("slope_over_knots", "slope_at_logits")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and is_number(value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _table(value: Any) -> bool:
    return isinstance(value, dict)


def _list_of(is_one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_one, value))


def _numbers_named(*names: str) -> Callable[[Any], bool]:
    return lambda value: _table(value) and value.keys() >= {*names} and all(map(is_number, value.values()))


Kind = tuple[str, Callable[[Any], bool]]
TEXT: Kind = ("a text", _text)
WHOLE: Kind = ("a whole number", _whole)
NUMBER: Kind = ("a number", is_number)
FLAG: Kind = ("true or false", lambda value: isinstance(value, bool))
TABLE: Kind = ("a table", _table)
TEXTS: Kind = ("a list of texts", _list_of(_text))
TABLES: Kind = ("a list of tables", _list_of(_table))
NUMBERS: Kind = ("a list of numbers", lambda value: value != [] and _list_of(is_number)(value))
SLOPES: Kind = ("mean, std, min and max", _numbers_named("mean", "std", "min", "max"))
MOVED: Kind = ("what slopes moved by", lambda value: _table(value) and value.keys() >= {*MOVED_NAMES})


def _or_none(kind: Kind) -> Kind:
    return f"{kind[0]} or null", lambda value: value is None or kind[1](value)


ORIGIN_KINDS = dict.fromkeys(ORIGIN, _or_none(TEXT))
# What is read of a record must be of these kinds, where it is there.
KINDS = {
    "config": {
        "name": TEXT, "seed": WHOLE, "epochs": WHOLE, "max_steps": _or_none(WHOLE),
        "finetune": _or_none(TEXT), "precision": TEXT,
        "model.embedding": WHOLE, "model.hidden": WHOLE, "model.layers": WHOLE,
        "model.last_hidden": _or_none(WHOLE), "model.tied": FLAG, "model.head.kind": TEXT,
        "model.head.function.name": TEXT, "model.head.function.options": TABLE,
        "model.head.function.frozen": FLAG, "data.corpus": TEXT, "data.limit_tokens": _or_none(WHOLE),
        "optim.average": TEXT,
    },
    "overrides": {"": _or_none(TEXTS)},
    "provenance": {**ORIGIN_KINDS, "resumed": TABLES},
    "result": {
        "parameters": WHOLE, "packed": _or_none(TABLES), "corpus_fingerprint": _or_none(TEXT),
        "seconds_per_epoch": _or_none(NUMBER), "peak_memory_bytes": _or_none(NUMBER),
        "valid_nll_parts": _or_none(NUMBERS), "test_nll_parts": _or_none(NUMBERS),
        "learned_function.x": NUMBERS, "learned_function.f": NUMBERS, "learned_function.slope": NUMBERS,
        "learned_function.slopes.over_knots": _or_none(SLOPES),
        "learned_function.slopes.at_logits": _or_none(SLOPES), "learned_function.moved": _or_none(MOVED),
        **{f"learned_function.moved.{name}": _or_none(NUMBER) for name in MOVED_NAMES},
    },
}  # fmt: skip


def whole_run(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """The record, if it has what is read of it; one that was edited or cut may not."""
    # Before a run has ended it has no result.
    check_parts("runs", record, RUN_PARTS, path, optional="result")
    check_parts("runs", record["config"], CONFIG_PARTS, path)
    model = record["config"]["model"]
    check_parts("runs", model, {"head": ("kind", "function")}, path)
    check_parts("runs", model["head"], {"function": FUNCTION_NAMES}, path, optional="function")
    learned = {"learned_function": LEARNED_NAMES}
    check_parts("runs", record["result"] or {}, learned, path, optional="learned_function")
    if (record["result"] or {}).get("learned_function"):
        check_parts("runs", record["result"]["learned_function"], {"slopes": SLOPES_NAMES}, path)
    if record["result"] is not None and (lost := lost_of_result(record["result"])):
        raise ValueError(not_whole(path, f"its result lacks {', '.join(lost)} as a number"))
    for part, kinds in KINDS.items():
        _check_kinds(part, record.get(part), kinds, path)
    curve = (record["result"] or {}).get("learned_function") or {}
    if len({len(curve[name]) for name in ("x", "f", "slope") if name in curve}) > 1:
        raise ValueError(not_whole(path, "x, f and slope of its learned_function differ in length"))
    for origin in record["provenance"].get("resumed", []):
        check_parts("runs", {"provenance": origin}, {"provenance": (*ORIGIN, "step")}, path)
        _check_kinds("provenance.resumed", origin, {**ORIGIN_KINDS, "step": WHOLE}, path)
    if not isinstance(record.get("metrics"), list):
        raise ValueError(not_whole(path, "it has no list of metrics"))
    for number, line in enumerate(record["metrics"], start=1):
        if lost := lost_of_line(line):
            raise ValueError(not_whole(path, f"line {number} of its metrics lacks {', '.join(lost)}"))
    return record


def _check_kinds(part: str, held: Any, kinds: Mapping[str, Kind], path: Path) -> None:
    for name, (what, is_one) in kinds.items():
        for value in _values(held, name):
            if not is_one(value):
                reason = f"`{f'{part}.{name}'.rstrip('.')}` must be {what} and is {str(value)[:40]!r}"
                raise ValueError(not_whole(path, reason))


def _values(held: Any, name: str) -> Iterator[Any]:
    """What stands under a dotted name, if anything does."""
    for step in name.split(".") if name else ():
        if not isinstance(held, dict) or step not in held:
            return
        held = held[step]
    yield held


def check_parts(
    kind: str,
    record: dict[str, Any],
    parts: Mapping[str, tuple[str, ...]],
    path: Path,
    optional: str | None = None,
) -> None:
    """Refuse a record whose parts lack some of their names; the optional one may be None or absent."""
    for part, names in parts.items():
        held = record.get(part)
        if part == optional and held is None:
            continue
        lost = names if not isinstance(held, dict) else [name for name in names if name not in held]
        if lost:
            raise ValueError(not_whole(path, f"its {part} lacks {', '.join(lost)}", kind))


def not_whole(path: Path, reason: str, kind: str = "runs") -> str:
    """The error message for a file that is JSON, but not what it should be."""
    return (
        f"`runs` must hold whole records of {kind}; of `{path}` {reason}. Leave it out, or take it from "
        "where it was made."
    )
