"""`uncork bundle`: run folders to one file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from uncork.recipes.bundle import report_bundle


# Without it `uncork.cli.main` says what to install, and the annotations below stay text.
with suppress(ImportError):
    import tyro


def bundle(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
) -> None:
    """Put language-model runs into one file that `uncork report` reads, without weights and words.

    Args:
        runs: Run folders of `uncork train`, folders of them, or bundles, whose runs are taken over.
        output: The .jsonl file to write.
    """
    report_bundle(runs, output)
