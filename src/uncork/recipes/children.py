"""Trainers as processes of their own: started, told to stop, and never left behind."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from uncork.recipes.plan import Run


LOG = "log.txt"
PR_SET_PDEATHSIG = 1
# Loaded here, since nothing may be loaded between fork and exec.
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def start(run: Run, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Train `run` in a process; what it says is added to `log.txt` in its folder."""
    run.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "uncork.recipes", run.variant.recipe, *run.overrides]
    with open(run.folder / LOG, "ab") as log:
        return subprocess.Popen(
            [*command, "--out", str(run.folder), "--resume"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C in a terminal goes to a whole group: it must reach the sweep alone, since a
            # trainer takes a second signal as an order to end without saving.
            process_group=0,
            preexec_fn=_end_with(os.getpid()),
        )


def _end_with(parent: int) -> Callable[[], None] | None:
    """For the child to call: have the kernel send it SIGTERM when the sweep dies, even by SIGKILL."""
    if LIBC is None:
        return None
    libc = LIBC

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before it was asked
            os._exit(128 + signal.SIGTERM)

    return ask


def was_stopped(code: int) -> bool:
    """Whether this exit code is that of a run ended by SIGINT or SIGTERM, and not of a failure."""
    return code in (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)


def reason(code: int, folder: Path) -> str:
    """Why a trainer failed: the last line it wrote."""
    path = folder / LOG
    lines = path.read_text(errors="replace").split("\n") if path.exists() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
    return f"killed by signal {-code}; last words: {last}" if code < 0 else last
