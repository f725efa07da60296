"""`python -m uncork.recipes.sweep RECIPES --out FOLDER`: many runs side by side, that stop and go on.

Each run is a process of its own in a folder of its own, so one that fails takes no other with it,
and whatever ends the sweep, every run continues from its last state.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from uncork.lm.interrupt import StopRequest
from uncork.lm.run_folder import check_folder
from uncork.recipes.children import log_size, reason, start, was_stopped
from uncork.recipes.front import exit_code
from uncork.recipes.mps import shared_gpu
from uncork.recipes.outcome import Outcome, read_outcome
from uncork.recipes.plan import plan
from uncork.recipes.table import markdown, write_table
from uncork.recipes.watch import Watch, Watched
from uncork.results import check_outside


POLL_SECONDS = 0.3
# Runs are told to stop this long before the time is up, or at nine tenths of a shorter time.
SAVING_SECONDS = 30.0
# One that has not ended by then is killed; its last saved state is whole.
KILL_SECONDS = 120.0


def sweep(
    recipes: Sequence[str],
    out: str | Path,
    *,
    seeds: Sequence[int] = (),
    changes: Sequence[str] = (),
    parallel: int = 1,
    minutes: float | None = None,
    resume: bool = False,
    mps: bool = False,
) -> int:
    """Train every recipe with every seed in `out`, `parallel` at a time; returns the exit code.

    0: nothing failed; 1: some run did; 130 or 143: a signal stopped the sweep. Runs that time or a signal
    stopped continue with `resume`, which skips finished ones.
    """
    for name, value in (("parallel", parallel), ("minutes", minutes)):
        if value is not None and not value > 0:
            raise ValueError(f"`{name}` must be positive; got {value}. Give a number above 0.")
    out = Path(out)
    check_outside("out", out)
    runs = [Watched(run) for run in plan(recipes, seeds, changes, out)]
    for watched in runs:  # before any is started
        check_folder(watched.run.config, watched.run.folder, resume)
    with StopRequest() as stop, shared_gpu(mps) as settings, Watch(runs) as watch:
        engine = _Engine(runs, parallel, _environment(parallel) | settings, out)
        engine.work(stop, watch, _deadline(minutes))
    table = write_table(out, runs)
    print(markdown(table), end="")
    failed, left = table["failed"], table["unfinished"]
    if failed:
        again = "--resume tries them again"
        if any(run["damaged"] for run in failed):
            again += ", those with a damaged file once it is put back or deleted"
        print(f"uncork: {len(failed)} of {len(runs)} runs failed; {again}.", file=sys.stderr)
    if left:
        print(
            f"uncork: {len(left)} of {len(runs)} runs are not finished; go on with --resume.", file=sys.stderr
        )
    if stop.signal is not None:
        return 128 + stop.signal
    return 1 if failed else 0


class _Engine:
    """Processes of the runs that train now."""

    def __init__(self, runs: list[Watched], parallel: int, environment: dict[str, str], out: Path) -> None:
        self.runs = runs
        self.parallel = parallel
        self.environment = environment
        self.out = out
        self.waiting = deque(runs)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.logged: dict[str, int] = {}  # bytes of a run's log when it was started

    def work(self, stop: StopRequest, watch: Watch, deadline: float) -> None:
        """Until every run has ended, or time or a signal stops them."""
        told_to_stop = None
        try:
            while self.processes or (self.waiting and told_to_stop is None):
                if told_to_stop is None and (stop or time.monotonic() > deadline):
                    self._send(signal.SIGTERM)
                    told_to_stop = time.monotonic()
                if told_to_stop is None:
                    self._start_some()
                elif time.monotonic() > told_to_stop + KILL_SECONDS:
                    self._send(signal.SIGKILL)
                self._collect(told_to_stop is not None)
                watch.update()
                time.sleep(POLL_SECONDS)
        finally:
            self._send(signal.SIGTERM)  # none is left, unless an error brought us here
            for process in self.processes.values():
                process.wait()

    def _start_some(self) -> None:
        while self.waiting and len(self.processes) < self.parallel:
            watched = self.waiting.popleft()
            outcome = read_outcome(watched.run.folder)
            if outcome.damage or outcome.result is not None:
                _end(watched, outcome)
                continue
            self.logged[watched.run.name] = log_size(watched.run.folder)
            self.processes[watched.run.name] = start(watched.run, self.environment)
            watched.status = "running"

    def _collect(self, stopping: bool) -> None:
        ended = [watched for watched in self.runs if self._has_ended(watched)]
        for watched in ended:
            code = self.processes.pop(watched.run.name).returncode
            outcome = read_outcome(watched.run.folder)
            if code == 0 or outcome.result is not None:  # which may come just as it is told to stop
                _end(watched, outcome)
            elif stopping and (was_stopped(code) or code == -signal.SIGKILL):
                watched.status = "stopped"
            else:
                written = self.logged[watched.run.name]
                watched.status, watched.message = "failed", reason(code, watched.run.folder, written)
        if ended:
            write_table(self.out, self.runs)

    def _has_ended(self, watched: Watched) -> bool:
        process = self.processes.get(watched.run.name)
        return process is not None and process.poll() is not None

    def _send(self, number: int) -> None:
        for process in self.processes.values():
            process.send_signal(number)


def _end(watched: Watched, outcome: Outcome) -> None:
    """A run that is over has finished, unless its files cannot be read."""
    watched.message = outcome.damage
    watched.status = "failed" if outcome.damage else "finished"


def _deadline(minutes: float | None) -> float:
    if minutes is None:
        return float("inf")
    seconds = 60.0 * minutes
    return time.monotonic() + seconds - min(SAVING_SECONDS, seconds / 10.0)


def _environment(parallel: int) -> dict[str, str]:
    """The environment of the trainers, whose threads must not fight for the cores."""
    threads = max(1, (os.cpu_count() or 1) // parallel)
    return {"OMP_NUM_THREADS": str(threads)} | os.environ


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m uncork.recipes.sweep", description=__doc__)
    parser.add_argument("recipes", nargs="+", help="recipe, recipe:override,override or name=recipe:...")
    parser.add_argument("--out", required=True, help="sweep folder")
    parser.add_argument(
        "--seeds", nargs="*", type=int, action="extend", default=[], help="each recipe's own unless given"
    )
    parser.add_argument(
        "--set", nargs="*", action="extend", default=[], dest="changes", help="overrides for all runs"
    )
    parser.add_argument("--parallel", type=int, default=1, help="runs side by side")
    parser.add_argument("--minutes", type=float, help="tell runs to save and stop before this time is over")
    parser.add_argument("--resume", action="store_true", help="go on with the runs of this folder")
    parser.add_argument("--mps", action="store_true", help="let the runs share one NVIDIA GPU at once")
    options = vars(parser.parse_args(arguments))
    return exit_code(lambda: sweep(options.pop("recipes"), options.pop("out"), **options))


if __name__ == "__main__":
    raise SystemExit(main())
