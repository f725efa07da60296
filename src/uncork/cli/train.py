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
    folder = Path("runs") / config.name if out is None else out
    return report_training(config, folder, resume)
