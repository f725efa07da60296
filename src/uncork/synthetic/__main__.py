"""`python -m uncork.synthetic`: the grid with torch and numpy alone, for machines without the extras."""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from uncork.synthetic.bundle import bundle, check_bundle, unbundle
from uncork.synthetic.config import HEADS, Settings
from uncork.synthetic.grid import Grid, full_grid, run_grid


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 also when a time limit leaves cells for the next run; 2 for bad input, with one line."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except (ValueError, TypeError, OSError) as error:
        print(f"uncork: {error}", file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> None:
    axes = ("vocabularies", "widths", "concentrations", "heads", "seeds", "contexts")
    grid = replace(full_grid() if options.full else Grid(), **_given(options, *axes))
    settings = Settings(**_given(options, "tolerance", "max_passes", "trial_passes"))
    if options.resume and options.resume.exists():
        found = unbundle(options.resume, options.out, settings)
        print(f"resuming from {found} cells of {options.resume}", flush=True)
    if options.bundle:
        check_bundle(options.out, options.bundle)
    outcome = run_grid(
        grid,
        options.out,
        settings,
        device=options.device,
        workers=options.workers,
        time_limit=options.time_limit,
        report=_Printer(options.out, options.bundle),
    )
    print(f"{outcome.found} cells found, {outcome.made} made, {outcome.left} left", flush=True)
    if options.bundle:
        print(f"{bundle(options.out, options.bundle)} cells in {options.bundle}", flush=True)


def _given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Those of the options that were on the command line."""
    values = {name: getattr(options, name) for name in names}
    return {n: tuple(v) if isinstance(v, list) else v for n, v in values.items() if v is not None}


class _Printer:
    """Prints one line per finished cell. Every half minute it writes the bundle, too."""

    def __init__(self, folder: Path, file: Path | None) -> None:
        self.folder, self.file = folder, file
        self.began, self.done = time.perf_counter(), -1
        self.bundled = self.began

    def __call__(self, done: int, total: int, text: str) -> None:
        if done == self.done:
            return
        self.done = done
        print(f"[{time.perf_counter() - self.began:7.1f} s] {done}/{total} {text}", flush=True)
        # If the machine is taken away, the last bundle is what remains.
        if self.file and done and time.perf_counter() - self.bundled > 30:
            bundle(self.folder, self.file)
            self.bundled = time.perf_counter()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m uncork.synthetic", description=__doc__)
    parser.add_argument("--full", action="store_true", help="start from the paper's grid")
    parser.add_argument("--out", type=Path, required=True, help="folder of the cells; finished ones are kept")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1")
    parser.add_argument("--workers", type=int, default=1, help="processes side by side")
    parser.add_argument("--time-limit", type=float, help="seconds after which no cell should end")
    parser.add_argument("--bundle", type=Path, help="also write all cells to this .jsonl file")
    parser.add_argument("--resume", type=Path, help="a bundle of an earlier run to go on from")
    parser.add_argument("--vocabularies", type=int, nargs="+")
    parser.add_argument("--widths", type=int, nargs="+")
    parser.add_argument("--concentrations", type=float, nargs="+")
    parser.add_argument("--heads", nargs="+", choices=HEADS)
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--contexts", type=int)
    parser.add_argument("--tolerance", type=float)
    parser.add_argument("--max-passes", type=int)
    parser.add_argument("--trial-passes", type=int)
    return parser


if __name__ == "__main__":
    sys.exit(main())
