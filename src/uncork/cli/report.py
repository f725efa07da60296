"""`uncork report`: result files to one page."""

from pathlib import Path
from typing import Annotated

from uncork.cli._short import SHORT_O
from uncork.report import write_report


def report(
    runs: tuple[Path, ...],
    /,
    output: Annotated[Path, SHORT_O] = Path("report.html"),
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
    written = write_report(list(runs), output, figures, markdown)
    print(f"{written[0].resolve()} and {len(written) - 1} figure files in {written[-1].parent}")
