"""`uncork train`: run a recipe."""

import sys
from pathlib import Path

from uncork.lm import Interrupted, train as run
from uncork.recipes import build


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
    try:
        result = run(config, folder, resume=resume)
    except Interrupted as interruption:
        print(f"uncork: {interruption}", file=sys.stderr)
        return interruption.exit_code
    print(f"{folder}: valid {result['valid_perplexity']:.2f}  test {result['test_perplexity']:.2f}")
    return 0
