"""`uncork pack`: a run in one small file."""

from pathlib import Path
from typing import Annotated

from uncork.recipes.pack import report_pack


try:
    from tyro.conf import arg

    OUT = arg(aliases=("-o",))
except ImportError:  # the command then says what to install
    OUT = None


def pack(run: Path, /, out: Annotated[Path, OUT], bytes: str = "60MiB") -> None:
    """Write a run to one file, to carry it to another machine; says what had to be lost for its size.

    Args:
        run: Run folder that nobody trains at the moment.
        out: File to write.
        bytes: Its largest size. Where the run fits exactly, nothing is lost.
    """
    report_pack(run, out, bytes)
