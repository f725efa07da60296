"""What a sweep shows while it runs: a line per run, live where `rich` and a terminal are."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uncork.lm.progress import duration
from uncork.recipes.outcome import Outcome, read_outcome
from uncork.recipes.plan import Run
from uncork.results import perplexity_text


# Without a terminal each run speaks this often, and when its status changes.
PLAIN_SECONDS = 30.0


@dataclass
class Watched:
    """A run and where it stands: waiting, running, finished, stopped or failed."""

    run: Run
    status: str = "waiting"
    message: str = ""


class Watch:
    """Shows the runs of a sweep, at the sweep's own pace."""

    def __init__(self, runs: Sequence[Watched]) -> None:
        self.runs = runs
        self.width = max(len(watched.run.name) for watched in runs)
        self.shown: dict[str, tuple[str, float, str]] = {}  # status, time and line by name
        self.read: dict[str, tuple[object, Outcome]] = {}  # state of the files, and what they say
        self.live = _live() if sys.stderr.isatty() else None

    def __enter__(self) -> "Watch":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.update()
        if self.live:
            self.live.stop()

    def update(self) -> None:
        lines = [(watched, self._line(watched)) for watched in self.runs]
        if self.live:
            from rich.text import Text

            self.live.update(Text("\n".join(line for _, line in lines)), refresh=True)
            return
        for watched, line in lines:
            self._print_if_new(watched, line)

    def _print_if_new(self, watched: Watched, line: str) -> None:
        status, printed_at, printed = self.shown.get(watched.run.name, ("waiting", 0.0, ""))
        now = time.monotonic()
        later = watched.status == "running" and line != printed and now - printed_at >= PLAIN_SECONDS
        if watched.status != status or later:
            print(line, file=sys.stderr, flush=True)
            self.shown[watched.run.name] = (watched.status, now, line)

    def _line(self, watched: Watched) -> str:
        outcome = self._outcome(watched.run)
        what = watched.message or outcome.damage or describe(outcome, watched.run.config.epochs)
        return f"{watched.run.name:<{self.width}}  {watched.status:<8}  {what}".rstrip()

    def _outcome(self, run: Run) -> Outcome:
        """Read when a file has changed: many long runs, read at every look, would keep a core busy."""
        files = [file_state(run.folder / name) for name in ("metrics.jsonl", "result.json")]
        if self.read.get(run.name, (None,))[0] != files:
            self.read[run.name] = (files, read_outcome(run.folder))
        return self.read[run.name][1]


def file_state(path: Path) -> tuple[int, int] | None:
    """What differs when a file has been written to, or None if it is not there."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size


def describe(outcome: Outcome, epochs: int) -> str:
    """Epoch, perplexity, seconds per epoch and time left, as far as they are known."""
    if outcome.result is not None:
        valid, test = (perplexity_text(outcome.result[f"{split}_perplexity"]) for split in ("valid", "test"))
        return f"valid {valid}  test {test}"
    if outcome.valid_perplexity is None or outcome.epoch_seconds is None:
        return f"epoch 0/{epochs}"
    left = duration((epochs - outcome.epochs) * outcome.epoch_seconds)
    return (
        f"epoch {outcome.epochs}/{epochs}  valid {perplexity_text(outcome.valid_perplexity)}  "
        f"{outcome.epoch_seconds:.1f} s/epoch  left {left}"
    )


def _live() -> Any:
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        return None
    return Live(console=Console(stderr=True), auto_refresh=False)
