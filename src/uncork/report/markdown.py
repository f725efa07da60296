"""The sections of a report as Markdown, for documentation: sentences, tables, and some of the pictures."""

from pathlib import Path

from uncork.report.figures import Figure
from uncork.report.section import Section
from uncork.report.tables import Table
from uncork.report.target import check_markdown
from uncork.results import write_atomic


def write_markdown(sections: list[Section], path: Path) -> None:
    """The text, and beside it the pictures it shows as SVG."""
    check_markdown("markdown", path)
    for figure in pictures(sections):
        write_atomic(path.with_name(figure.name + ".svg"), figure.svg)
    write_atomic(path, markdown(sections, path.resolve().parent.name).encode())


def pictures(sections: list[Section]) -> list[Figure]:
    """The figures that Markdown shows."""
    return [figure for section in sections if section.pictured for figure in section.drawn]


def markdown(sections: list[Section], folder: str = "results") -> str:
    """Headings, paragraphs and tables; the best of each column in bold.

    Pictures are linked as `../folder/name.svg`, which is right in that folder and in one beside it.
    """
    lines = []
    for section in sections:
        lines += [f"#### {section.title}", ""]
        for paragraph in section.paragraphs:
            lines += [_plain(paragraph), ""]
        for figure in pictures([section]):
            lines += [f"![{_plain(figure.alt)}](../{folder}/{figure.name}.svg)", ""]
        for table in section.tables:
            lines += [f"**{_plain(table.caption)}**", "", *_table(table), ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(table: Table) -> list[str]:
    rows = ["| " + " | ".join(_plain(column) for column in table.columns) + " |"]
    left = {table.columns[0], "command", *table.words}
    rows.append("|" + "".join("---|" if column in left else "---:|" for column in table.columns))
    for row in table.rows:
        cells = [_cell(text, best, name) for (text, best), name in zip(row, table.columns, strict=True)]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _cell(text: str, best: bool, column: str) -> str:
    if column == "command":
        return f"`{text}`"
    return f"**{_plain(text)}**" if best else _plain(text)


def _plain(text: str) -> str:
    """A bar would end a table cell, an angle bracket would start a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
