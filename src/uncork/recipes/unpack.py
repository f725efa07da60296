"""`python -m uncork.recipes.unpack FILE --out RUN`: a run folder from a packed file."""

import argparse
from pathlib import Path

from uncork.lm.pack import unpack
from uncork.recipes.front import exit_code
from uncork.recipes.pack import describe


def report_unpack(file: str | Path, out: str | Path) -> int:
    """Unpack, and say what packing had lost."""
    print(f"{out}: {describe(unpack(file, out))}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m uncork.recipes.unpack", description=__doc__)
    parser.add_argument("file", help="written by pack")
    parser.add_argument("--out", required=True, help="new run folder")
    options = parser.parse_args(arguments)
    return exit_code(lambda: report_unpack(options.file, options.out))


if __name__ == "__main__":
    raise SystemExit(main())
