"""`uncork train`: run a recipe."""

from pathlib import Path

from uncork.recipes import build
from uncork.recipes.front import report_training


def train(
    recipe: str,
    overrides: tuple[str, ...] = (),
    /,
    out: Path | None = None,
    resume: bool = False,
) -> int:
    """Train a recipe in a run folder.

    Args:
        recipe: A name listed by `uncork recipes`, or `package.module:function`.
        overrides: Changes to it, such as `optim.lr=20 seed=1 data.corpus=my/texts`.
        out: Run folder; `runs/RECIPE` unless given.
        resume: Continue the run in that folder.
    """
    config = build(recipe, overrides)
    return report_training(config, _usual_folder(config.name) if out is None else out, resume)


def _usual_folder(name: str) -> Path:
    """One level below `runs`, so that no run lies inside another."""
    if name in ("", ".", "..") or "/" in name or "\\" in name:
        raise ValueError(
            f"`name` must be that of a folder where --out is not given; got {name!r}. Give --out, or a name "
            "without slashes."
        )
    return Path("runs") / name
