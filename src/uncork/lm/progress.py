"""What a run says while it trains: a live bar where `rich` and a terminal are, else plain lines."""

import sys
import time
from typing import Any

from uncork.results import perplexity, perplexity_text


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, such as 1:02:03."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


class Progress:
    """Reports steps and evaluations, with the time left judged by the work done since the start."""

    def __init__(self, name: str, *, enabled: bool = True) -> None:
        self.name = name
        self.enabled = enabled
        self.began = time.monotonic()
        self.first: float | None = None
        self.bar: Any = None
        self.task: Any = None
        if enabled and sys.stderr.isatty():
            self._start_bar()

    def step(self, done: float, step: int, epoch: int, nll: float, milliseconds: float) -> None:
        """`done` is the share of the whole run, in [0, 1]."""
        if not self.enabled:
            return
        line = (
            f"epoch {epoch}  step {step}  train ppl {perplexity_text(perplexity(nll), '.1f')}  "
            f"{milliseconds:.0f} ms/step  left {self.left(done)}"
        )
        self._show(line, done)

    def say(self, line: str) -> None:
        """A line that stays."""
        if self.enabled and self.bar:
            self.bar.console.print(line, markup=False, highlight=False)
        elif self.enabled:
            self._print(line)

    def download(self, url: str, received: int, total: int | None) -> None:
        """Progress of a download, a line or a movement of the bar per tenth."""
        if not self.enabled or not total:
            return
        if received == total or received * 10 // total != (received - 65536) * 10 // total:
            self._show(f"{url}  {received >> 10} of {total >> 10} KiB", received / total)

    def left(self, done: float) -> str:
        if self.first is None:
            self.first = done
        progressed = done - self.first
        if progressed <= 0.0:
            self.began = time.monotonic()
            return "unknown"
        return duration((time.monotonic() - self.began) * (1.0 - done) / progressed)

    def close(self) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None

    def _show(self, line: str, done: float) -> None:
        if self.bar:
            self.bar.update(self.task, completed=done, description=f"{self.name}  {line}")
        else:
            self._print(f"{done:6.1%}  {line}")

    def _start_bar(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress as Bar, TaskProgressColumn, TextColumn
        except ImportError:
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
        self.bar = Bar(*columns, console=Console(stderr=True))
        self.task = self.bar.add_task(self.name, total=1.0)
        self.bar.start()

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
