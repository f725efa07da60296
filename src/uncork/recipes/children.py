"""Trainers as processes of their own: started, told to stop, and never left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from uncork.recipes.plan import Run


LOG = "log.txt"
# How a trainer ends over bad input, and how the line begins that says why: `uncork.recipes.front.exit_code`.
REFUSED, REFUSAL = 2, "uncork: "


def start(run: Run, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Train `run` in a process; what it says is added to `log.txt` in its folder."""
    run.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "uncork.recipes", run.variant.recipe, *run.overrides]
    with open(run.folder / LOG, "ab") as log:
        return subprocess.Popen(
            [*command, "--out", str(run.folder), "--resume", "--parent", str(os.getpid())],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C in a terminal goes to a whole group: it must reach the sweep alone, since a
            # trainer takes a second signal as an order to end without saving.
            process_group=0,
        )


def was_stopped(code: int) -> bool:
    """Whether this exit code is that of a run ended by SIGINT or SIGTERM, and not of a failure."""
    return code in (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)


def log_size(folder: Path) -> int:
    """Bytes in a run's log, which earlier attempts have written."""
    path = folder / LOG
    return path.stat().st_size if path.exists() else 0


def reason(code: int, folder: Path, since: int = 0) -> str:
    """Why a trainer failed: the last line it wrote, in what its log has after the first `since` bytes.

    A trainer that refuses says so after `uncork: `. Such a line goes before later ones, since the trainer
    that holds the folder may be writing to the same log.
    """
    path = folder / LOG
    written = path.read_bytes()[since:].decode(errors="replace") if path.exists() else ""
    lines = [line.strip() for line in written.split("\n") if line.strip()]
    refusals = [line for line in lines if line.startswith(REFUSAL)] if code == REFUSED else []
    last = (refusals or lines or ["it wrote nothing"])[-1]
    return f"killed by signal {-code}; last words: {last}" if code < 0 else last
