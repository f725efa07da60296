"""A section of a report, before it becomes HTML or Markdown."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from uncork.report.figures import Figure
from uncork.report.tables import Table


Drawing = Callable[[], Figure]


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, figures yet to be drawn, and tables; `anchor` is the target of links to it."""

    anchor: str
    title: str
    paragraphs: list[str] = field(default_factory=list)
    figures: list[Drawing] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    columns: int = 3  # of figures side by side, where there is room
    pictured: bool = False  # whether Markdown shows the figures too

    @cached_property
    def drawn(self) -> list[Figure]:
        """Its figures, drawn once for all who show them."""
        return [draw() for draw in self.figures]
