"""TensorBoard events, for those who have it installed and ask for it."""

from pathlib import Path
from typing import Any


class Events:
    """Writes each evaluation's numbers under `folder`/tensorboard; does nothing unless enabled."""

    def __init__(self, folder: Path, *, enabled: bool) -> None:
        self.writer: Any = None
        if not enabled:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                "`tensorboard` must be installed to write its events: `pip install 'uncork[tensorboard]'`."
            ) from error
        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def write(self, record: dict[str, Any]) -> None:
        if self.writer is None:
            return
        for name, value in record.items():
            if isinstance(value, int | float):
                self.writer.add_scalar(name, value, record["step"])
        self.writer.flush()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
