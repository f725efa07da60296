"""`python -m uncork.recipes.pack RUN -o FILE`: a run in one small file, to carry it to another machine."""

import argparse
import re
from pathlib import Path
from typing import Any

from uncork.lm.pack import DEFAULT_BYTES, pack
from uncork.recipes.front import exit_code


UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_bytes(text: str) -> int:
    """A size such as 60MiB or 500000."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(\w*)", text.strip())
    if not found or found[2] not in UNITS or not 0 < float(found[1]) < 1e18:
        units = ", ".join(unit for unit in UNITS if unit)
        raise ValueError(
            f"`bytes` must be a positive number, alone or with one of {units}, below 10^18; got {text!r}. "
            "Try 60MiB."
        )
    return int(float(found[1]) * UNITS[found[2]])


def describe(note: dict[str, Any]) -> str:
    """What carrying a run cost it, in a sentence."""
    if note["bits"] is None:
        return f"step {note['step']}, nothing lost"
    names = {"base": "model", "iterate": "iterate beside the average", "best": "best model's difference"}
    parts = [f"{name} in {note['bits'][role]} bits" for role, name in names.items() if role in note["bits"]]
    errors = dict(note["relative_error"])
    squares = errors.pop("square", None)
    if squares is not None:
        parts.append(f"sizes of gradients as means of rows and columns, which are {squares:.0%} off")
    largest = max(errors.values())
    return f"step {note['step']}, with loss: {', '.join(parts)}; largest relative error {largest:.2g}"


def report_pack(run: str | Path, out: str | Path, size: str) -> int:
    """Pack, and say what it came to."""
    note = pack(run, out, parse_bytes(size))
    print(f"{out}: {note['bytes']} bytes, {describe(note)}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m uncork.recipes.pack", description=__doc__)
    parser.add_argument("run", help="run folder")
    parser.add_argument("-o", "--out", required=True, help="file to write")
    parser.add_argument("--bytes", default=str(DEFAULT_BYTES), help="its largest size, such as 60MiB")
    options = parser.parse_args(arguments)
    return exit_code(lambda: report_pack(options.run, options.out, options.bytes))


if __name__ == "__main__":
    raise SystemExit(main())
