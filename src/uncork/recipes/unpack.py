"""`python -m uncork.recipes.unpack FILE --out RUN`: a run folder from a packed file."""

import argparse
import sys

from uncork.lm.pack import unpack
from uncork.recipes.pack import describe


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m uncork.recipes.unpack", description=__doc__)
    parser.add_argument("file", help="written by pack")
    parser.add_argument("--out", required=True, help="new run folder")
    options = parser.parse_args(arguments)
    try:
        note = unpack(options.file, options.out)
    except (ValueError, TypeError, OSError) as error:
        print(f"uncork: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {describe(note)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
