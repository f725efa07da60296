"""Where a page may be written: never over what it is made from, nor over what is no page."""

from pathlib import Path

from uncork.results import check_outside, check_target


RESULT_SUFFIXES = (".json", ".jsonl", ".safetensors")
MARKDOWN_SUFFIXES = (".md", ".markdown")


def check_page(name: str, path: Path) -> None:
    """Refuse to write an HTML page over anything else, or where a result would be looked for."""
    _check_place(name, path)
    check_target(name, path, "an HTML page", _is_html)


def check_markdown(name: str, path: Path) -> None:
    """The same of a Markdown page, which only its name tells from other texts."""
    _check_place(name, path)
    check_target(name, path, "a .md page", lambda page: page.suffix.lower() in MARKDOWN_SUFFIXES)


def _check_place(name: str, path: Path) -> None:
    check_outside(name, path)
    if path.suffix in RESULT_SUFFIXES:
        raise ValueError(
            f"`{name}` must not end in {', '.join(RESULT_SUFFIXES)}, by which results are known; got "
            f"`{path}`. Write to a name such as report.html or report.md."
        )


def _is_html(page: Path) -> bool:
    with page.open("rb") as file:
        start = file.read(64).lstrip().lower()
    return not start or start.startswith((b"<!doctype html", b"<html"))
