"""`uncork report`: result files to one page."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from uncork.report import build, load, write_markdown, write_report


# Without it `uncork.cli.main` says what to install, and the annotations below stay text.
with suppress(ImportError):
    import tyro


def report(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html"),
    figures: Path | None = None,
    markdown: Path | None = None,
) -> None:
    """Build one self-contained HTML page from results of `uncork synthetic`, `train` and `theory`.

    Args:
        runs: Folders, run folders, .json files or .jsonl bundles with results.
        output: The page to write.
        figures: Folder for the figures as SVG and PNG; beside the page unless told.
        markdown: Also write sentences and tables to this Markdown file; curves as SVG beside it.
    """
    try:
        written = write_report(list(runs), output, figures)
    except ImportError as error:
        raise ValueError(f"a report needs `pip install 'uncork[report]'` ({error}).") from error
    if markdown:
        write_markdown(build(load(runs)), markdown)
    print(f"{written[0].resolve()} and {len(written) - 1} figure files in {written[-1].parent}")
