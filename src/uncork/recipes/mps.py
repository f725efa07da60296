"""NVIDIA's multi-process service for as long as a sweep lasts, so that its runs share a GPU at once."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress


PROGRAM = "nvidia-cuda-mps-control"
QUIT_SECONDS = 60.0


@contextmanager
def shared_gpu(enabled: bool) -> Iterator[dict[str, str]]:
    """Start the service; yields what the environment of its clients must hold."""
    if not enabled:
        yield {}
        return
    if shutil.which(PROGRAM) is None:
        raise ValueError(
            f"`mps` must be off where `{PROGRAM}` is not installed, and it is not on PATH here. "
            "Leave --mps out, or install the driver's MPS."
        )
    # The service may still be tidying this folder up when it is removed.
    with tempfile.TemporaryDirectory(prefix="uncork-mps-", ignore_cleanup_errors=True) as folder:
        settings = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        started = subprocess.run([PROGRAM, "-d"], env=os.environ | settings, capture_output=True, text=True)
        if started.returncode != 0:
            text = (started.stderr or started.stdout).strip()
            raise OSError(f"`{PROGRAM} -d` failed with code {started.returncode} ({text}). Leave --mps out.")
        try:
            yield settings
        finally:
            with suppress(subprocess.TimeoutExpired):  # by then the runs have ended, and their results count
                subprocess.run(
                    [PROGRAM], input="quit\n", env=os.environ | settings, capture_output=True, text=True,
                    timeout=QUIT_SECONDS,
                )  # fmt: skip
