"""`uncork recipes`: what can be trained."""

import inspect
import json

from uncork.lm.config_io import to_dict
from uncork.recipes import RECIPES, build, find


def recipes(name: str | None = None, /) -> None:
    """List the recipes with their published numbers, or show one in full.

    Args:
        name: A recipe, to print its whole configuration.
    """
    if name is not None:
        config = build(name)
        print(inspect.getdoc(find(name)) or "")
        print(json.dumps(to_dict(config), indent=2))
        return
    width = max(map(len, RECIPES))
    for recipe_name, recipe in RECIPES.items():
        first_line = (inspect.getdoc(recipe) or "").split("\n")[0]
        print(f"{recipe_name:<{width}}  {first_line}")
