"""One self-contained page from result files. Imports nothing that computes a result."""

from uncork.report.load import Results, load
from uncork.report.page import build, render, write_report


__all__ = ["Results", "build", "load", "render", "write_report"]
