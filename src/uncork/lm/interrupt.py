"""Ctrl-C and SIGTERM as a request, answered between two steps."""

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType


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


class Interrupted(Exception):
    """A signal ended the run between two steps, after its state was saved."""

    def __init__(self, signal_number: int, step: int, folder: Path) -> None:
        super().__init__(f"stopped after step {step}; continue `{folder}` with --resume.")
        self.exit_code = 128 + signal_number
