"""`python -m uncork.recipes RECIPE --out FOLDER`: training where only torch is installed."""

import argparse
import sys

from uncork.lm import Interrupted, train
from uncork.lm.interrupt import stop_without
from uncork.recipes import build


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m uncork.recipes", description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", help="such as optim.lr=20 seed=1")
    parser.add_argument("--out", required=True, help="run folder")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--parent", type=int, help="stop, saved, when the process of this number is gone")
    options = parser.parse_args(arguments)
    if options.parent is not None:
        stop_without(options.parent)
    try:
        config = build(options.recipe, tuple(options.overrides))
        result = train(config, options.out, resume=options.resume)
    except (ValueError, TypeError, OSError) as error:
        print(f"uncork: {error}", file=sys.stderr)
        return 2
    except Interrupted as interruption:
        print(f"uncork: {interruption}", file=sys.stderr)
        return interruption.exit_code
    print(f"valid {result['valid_perplexity']:.2f}  test {result['test_perplexity']:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
