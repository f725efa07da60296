"""What a page is made of."""

from collections.abc import Callable
from dataclasses import dataclass

from uncork.report.figures import Figure
from uncork.report.tables import Table


Drawing = Callable[[], Figure]


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, figures yet to be drawn, tables."""

    anchor: str
    title: str
    paragraphs: list[str]
    figures: list[Drawing]
    tables: list[Table]
    columns: int = 3  # of figures, where there is room
    pictured: bool = False  # in Markdown too
