"""Ctrl-C and SIGTERM as a request, answered between two steps."""

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType


# A run whose parent is gone notices within this time.
PARENT_SECONDS = 1.0


class StopRequest:
    """Inside, the first SIGINT or SIGTERM is only noted; a second one acts at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.former: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        # Only the main thread may set handlers; elsewhere signals keep their usual effect.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def __bool__(self) -> bool:
        return self.signal is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        while self.former:
            number, handler = self.former.popitem()
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]


def stop_when_orphaned(parent: int) -> None:
    """Have this process send itself SIGTERM once its parent is no longer `parent`, however that died."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


class Interrupted(Exception):
    """A signal ended the run between two steps, after its state was saved."""

    def __init__(self, signal_number: int, step: int, folder: Path) -> None:
        super().__init__(f"stopped after step {step}; continue `{folder}` with --resume.")
        self.exit_code = 128 + signal_number
