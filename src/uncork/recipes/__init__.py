"""Full configurations of published runs, one function each, found by name."""

import importlib
from collections.abc import Callable
from typing import cast

from uncork.lm.config import Config, did_you_mean
from uncork.recipes import penn, small, wikitext2


Recipe = Callable[[], Config]


def _functions(module: object, prefix: str) -> dict[str, Recipe]:
    return {name: value for name, value in vars(module).items() if name.startswith(prefix)}


def _tiny(recipe: Recipe) -> Recipe:
    def make() -> Config:
        return small.tiny(recipe())

    make.__doc__ = f"{recipe.__name__} in a size for a processor; its published numbers do not apply."
    return make


PUBLISHED: dict[str, Recipe] = _functions(penn, "penn_") | _functions(wikitext2, "wikitext2_")
RECIPES: dict[str, Recipe] = {
    **PUBLISHED,
    **{f"{name}_tiny": _tiny(recipe) for name, recipe in PUBLISHED.items()},
    **_functions(small, "embedded_"),
}


def find(name: str) -> Recipe:
    """A recipe of this package by name, or anybody's as `package.module:function`."""
    if name in RECIPES:
        return RECIPES[name]
    if ":" in name:
        return _outside(name)
    raise ValueError(
        f"`recipe` must be a name listed by `uncork recipes` or `package.module:function`; "
        f"got {name!r}.{did_you_mean(name, RECIPES)}"
    )


def _outside(name: str) -> Recipe:
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"`recipe` must name a module that can be imported; got {name!r} ({error}). "
            "Is its folder on PYTHONPATH?"
        ) from error
    recipe = getattr(module, function_name, None)
    if not callable(recipe):
        raise ValueError(f"`recipe` must name a function; {module_name!r} has no {function_name!r}.")
    return cast(Recipe, recipe)


def build(name: str, overrides: tuple[str, ...] = ()) -> Config:
    """The configuration of a recipe with `path=value` overrides applied."""
    from uncork.lm.config_io import override

    config = find(name)()
    if not isinstance(config, Config):
        raise TypeError(
            f"`recipe` must return an uncork.lm.Config; {name!r} returned {type(config).__name__}."
        )
    return override(config, overrides)


__all__ = ["PUBLISHED", "RECIPES", "Recipe", "build", "find"]
