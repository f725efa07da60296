"""`uncork unpack`: a run folder from a packed file."""

from pathlib import Path

from uncork.lm.pack import unpack as read
from uncork.recipes.pack import describe


def unpack(file: Path, /, out: Path) -> None:
    """Make a run folder from a file of `uncork pack`; continue it with `--resume`.

    Args:
        file: Packed run.
        out: New run folder.
    """
    print(f"{out}: {describe(read(file, out))}")
