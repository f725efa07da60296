"""`uncork pack`: a run in one small file."""

from pathlib import Path
from typing import Annotated

from uncork.cli._short import SHORT_O
from uncork.recipes.pack import report_pack


def pack(run: Path, /, out: Annotated[Path, SHORT_O], bytes: str = "60MiB") -> None:
    """Write a run to one file, to carry it to another machine; prints what precision that cost.

    Args:
        run: Run folder that nobody trains at the moment.
        out: File to write.
        bytes: Its largest size. Where the run fits exactly, nothing is lost.
    """
    report_pack(run, out, bytes)
