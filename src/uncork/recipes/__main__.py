"""`python -m uncork.recipes RECIPE --out FOLDER`: training with torch, numpy and safetensors alone."""

import argparse

from uncork.lm.config_io import refuse_repeated
from uncork.lm.interrupt import stop_when_orphaned
from uncork.recipes import build
from uncork.recipes.front import exit_code, report_training


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m uncork.recipes", description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", help="such as optim.lr=20 seed=1")
    parser.add_argument("--out", required=True, help="run folder")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--parent", type=int, help="stop, saved, when the process of this number is gone")
    options = parser.parse_intermixed_args(arguments)  # overrides may stand after options too
    if options.parent is not None:
        stop_when_orphaned(options.parent)

    def train() -> int:
        refuse_repeated(options.overrides)
        return report_training(build(options.recipe, tuple(options.overrides)), options.out, options.resume)

    return exit_code(train)


if __name__ == "__main__":
    raise SystemExit(main())
