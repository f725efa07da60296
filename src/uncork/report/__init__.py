"""One self-contained page from result files. Imports nothing that computes a result."""

from uncork.report.load import Results, load
from uncork.report.markdown import markdown, pictures, write_markdown
from uncork.report.page import build, render, write_report


__all__ = ["Results", "build", "load", "markdown", "pictures", "render", "write_markdown", "write_report"]
