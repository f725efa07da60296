"""The sections of a report as Markdown, for documentation: sentences and tables, no pictures."""

from uncork.report.page import Section
from uncork.report.tables import Table


def markdown(sections: list[Section]) -> str:
    """Headings, paragraphs and tables; the best of each column in bold."""
    lines = []
    for section in sections:
        lines += [f"#### {section.title}", ""]
        for paragraph in section.paragraphs:
            lines += [_plain(paragraph), ""]
        for table in section.tables:
            lines += [f"**{_plain(table.caption)}**", "", *_table(table), ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(table: Table) -> list[str]:
    rows = ["| " + " | ".join(_plain(column) for column in table.columns) + " |"]
    rows.append("|---|" + "---:|" * (len(table.columns) - 1))
    for row in table.rows:
        cells = [f"**{_plain(text)}**" if best else _plain(text) for text, best in row]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _plain(text: str) -> str:
    """A bar would end a table cell, an angle bracket would start a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
