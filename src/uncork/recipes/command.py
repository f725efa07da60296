"""A run's configuration as the command that makes it again."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from uncork.lm.config import Config
from uncork.lm.config_io import from_dict, to_dict
from uncork.recipes import RECIPES


def overrides(values: dict[str, Any]) -> list[str] | None:
    """What `values` (a `config.json`) changes in the recipe it names, as `path=value`.

    None where the name is not that of a recipe of this package, or the file is of another version.
    """
    recipe = RECIPES.get(values.get("name", ""))
    if recipe is None:
        return None
    try:
        config = from_dict(Config, values)
    except ValueError:
        return None
    return _differences(to_dict(recipe()), to_dict(config), "")


def command(values: dict[str, Any], changes: Sequence[str]) -> str:
    """`uncork train RECIPE seed=... path=value ...`; the seed is always said, the corpora's place never."""
    said = [change for change in changes if not change.startswith(("seed=", "data.root="))]
    return shlex.join(["uncork", "train", values["name"], f"seed={values['seed']}", *said])


def _differences(before: dict[str, Any], after: dict[str, Any], where: str) -> list[str]:
    found = []
    for name, value in after.items():
        path, old = where + name, before.get(name)
        # An assignment adds options and cannot take any away: then all of them are given.
        if isinstance(old, dict) and isinstance(value, dict) and old.keys() <= value.keys():
            found += _differences(old, value, f"{path}.")
        elif name not in before or value != old:
            found.append(f"{path}={_text(value)}")
    return found


def _text(value: Any) -> str:
    """As an override reads it: a text that reads as JSON is quoted, any other stands for itself."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value.lower())
    except json.JSONDecodeError:
        return json.dumps(value) if value.lower() == "none" else value
    return json.dumps(value)
