"""Trainers as processes of their own: started, told to stop, and never left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from uncork.recipes.plan import Run


LOG = "log.txt"


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


def reason(code: int, folder: Path) -> str:
    """Why a trainer failed: the last line it wrote."""
    path = folder / LOG
    lines = path.read_text(errors="replace").split("\n") if path.exists() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
    return f"killed by signal {-code}; last words: {last}" if code < 0 else last
