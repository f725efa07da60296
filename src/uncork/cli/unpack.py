"""`uncork unpack`: a run folder from a packed file."""

from pathlib import Path

from uncork.recipes.unpack import report_unpack


def unpack(file: Path, /, out: Path) -> None:
    """Make a run folder from a file of `uncork pack`; continue it with `--resume`.

    Args:
        file: Packed run.
        out: New run folder.
    """
    report_unpack(file, out)
