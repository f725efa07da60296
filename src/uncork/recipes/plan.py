"""Which runs a sweep has: every variant of a recipe with every seed, each with a folder of its own."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from uncork.lm.build import check
from uncork.lm.config import Config
from uncork.lm.config_io import refuse_repeated
from uncork.recipes import build


LONGEST_NAME = 120
NAME = re.compile(r"[A-Za-z0-9][\w.,=+-]*")


@dataclass(frozen=True)
class Variant:
    """A recipe with overrides of its own; `name` begins the names of its run folders."""

    name: str
    recipe: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """One variant with one seed."""

    variant: Variant
    seed: int
    overrides: tuple[str, ...]
    config: Config
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name


def parse_variant(text: str) -> Variant:
    """`recipe`, `recipe:override,override`, or either after `name=`.

    A recipe may be `package.module:function`, so only what reads as `path=value` is an override, and
    a comma separates two of them only where another `path=` follows: values may hold commas.
    """
    first, equals, after = text.partition("=")
    named = bool(equals) and ":" not in first
    parts = (after if named else text).split(":")
    count = next((number for number, part in enumerate(parts) if "=" in part), len(parts))
    recipe, rest = ":".join(parts[:count]), ":".join(parts[count:])
    overrides = tuple(re.split(r",(?=[A-Za-z_][\w.]*=)", rest)) if rest else ()
    refuse_repeated(overrides)
    if not recipe:
        raise ValueError(
            "A variant must read `recipe`, `recipe:override,override` or `name=recipe:override`; "
            f"got {text!r}."
        )
    name = first if named else re.sub(r"[^\w.,=+-]+", "_", ",".join((recipe, *overrides)))
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise ValueError(
            f"A variant must have a name of at most {LONGEST_NAME} letters, digits and any of `_.,=+-`, "
            f"the first a letter or digit, since it names folders; got {name!r}. "
            f"Give one, such as `slow={recipe}:...`."
        )
    return Variant(name, recipe, overrides)


def plan(variants: Sequence[str], seeds: Sequence[int], changes: Sequence[str], out: Path) -> list[Run]:
    """All runs, seed by seed, checked as far as that is possible without data.

    Without seeds each recipe keeps its own. What a variant says goes before what is said for all.
    """
    refuse_repeated(changes)
    parsed = [parse_variant(text) for text in variants]
    if not parsed:
        raise ValueError("`recipes` must name at least one recipe; got none. See `uncork recipes`.")
    runs = [_run(variant, seed, tuple(changes), out) for seed in seeds or (None,) for variant in parsed]
    names = [run.name for run in runs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(
            f"`recipes` and `seeds` must give every run a folder of its own, but two are `{twice[0]}`. "
            "Give each seed once, and variants names of their own: `name=recipe:override`."
        )
    return runs


def _run(variant: Variant, seed: int | None, changes: tuple[str, ...], out: Path) -> Run:
    own = {change.partition("=")[0] for change in variant.overrides}
    overrides = (*(each for each in changes if each.partition("=")[0] not in own), *variant.overrides)
    if seed is not None:
        given = [change for change in overrides if change.startswith("seed=")]
        if given:
            raise ValueError(
                f"`seeds` must not be given together with an override of the seed; got {given[0]!r}. "
                "Leave one of them out."
            )
        overrides = (*overrides, f"seed={seed}")
    config = build(variant.recipe, overrides)
    try:
        check(config)
    except (ValueError, TypeError) as error:  # a sweep has many variants: say which
        raise ValueError(f"{variant.name}: {error}") from error
    return Run(variant, config.seed, overrides, config, out / f"{variant.name}-{config.seed}")
