"""`uncork bundle`: run folders to one file."""

from pathlib import Path
from typing import Annotated

from uncork.cli._short import SHORT_O
from uncork.recipes.bundle import report_bundle


def bundle(
    runs: tuple[Path, ...],
    /,
    output: Annotated[Path, SHORT_O],
) -> None:
    """Put language-model runs into one file that `uncork report` reads, without weights and words.

    Args:
        runs: Run folders of `uncork train`, folders of them, or bundles, whose runs are taken over.
        output: The .jsonl file to write.
    """
    report_bundle(runs, output)
