"""`uncork sweep`: many runs side by side."""

from pathlib import Path

from uncork.recipes.sweep import sweep as work


def sweep(
    recipes: tuple[str, ...],
    /,
    out: Path,
    seeds: tuple[int, ...] = (),
    set: tuple[str, ...] = (),
    parallel: int = 1,
    minutes: float | None = None,
    resume: bool = False,
    mps: bool = False,
) -> int:
    """Train every recipe with every seed, each in a folder of its own, and write one table.

    Args:
        recipes: Names listed by `uncork recipes`; a variant is `[name=]recipe:override,override`.
        out: Sweep folder.
        seeds: Seeds; each recipe's own unless given.
        set: Overrides for all runs, such as `data.root=/corpora epochs=200`.
        parallel: Runs side by side.
        minutes: Tell runs to save and stop before this time is over. One that does not is killed later.
        resume: Go on with the runs of this folder; finished ones are skipped.
        mps: Start NVIDIA's multi-process service, so that the runs share one GPU at once.
    """
    return work(
        recipes, out, seeds=seeds, changes=set, parallel=parallel, minutes=minutes, resume=resume, mps=mps
    )
