"""Where a page may be written: never over what it is made from."""

from pathlib import Path

from uncork.results import check_target


RESULT_SUFFIXES = (".json", ".jsonl", ".safetensors")


def check_page(name: str, path: Path) -> None:
    """Refuse to write a page over a result, or where one would be looked for; `name` is the argument."""
    check_target(name, path, "a page", lambda page: True)
    if path.suffix in RESULT_SUFFIXES:
        raise ValueError(
            f"`{name}` must not end in {', '.join(RESULT_SUFFIXES)}, by which results are known; got "
            f"`{path}`. Write to a name such as report.html or report.md."
        )
