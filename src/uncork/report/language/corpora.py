"""Which runs had the same text: by its fingerprint, and by its name or folder where a run kept none."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from uncork.report.language.runs import Run


CORPORA = {
    "penn": "Penn Treebank",
    "wikitext-2": "WikiText-2",
    "wikitext-103": "WikiText-103",
    "embedded": "Embedded corpus",
}


def by_text(runs: Sequence[Run]) -> list[Run]:
    """The runs, those on one text with one `corpus` and one `text`.

    A run without a fingerprint, older or not ended, is taken to have the text that others found under the
    same name. Where they found several there, nobody knows which one it had, and it stays by itself.
    """
    texts: dict[tuple[str, int | None], set[str]] = defaultdict(set)
    names: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        if run.text is not None:
            texts[_place(run)].add(run.text)
            names[run.text].add(run.corpus)
    found = []
    for run in runs:
        there = texts[_place(run)]
        text = next(iter(there)) if run.text is None and len(there) == 1 else run.text
        found.append(replace(run, text=text, corpus=run.corpus if text is None else _name(names[text])))
    return found


def _place(run: Run) -> tuple[str, int | None]:
    """Of a text that is cut short the fingerprint is another one."""
    return run.corpus, run.config["data"].get("limit_tokens")


def _name(names: set[str]) -> str:
    """Of all names of one text a public one, else the first."""
    return min(names, key=lambda name: (name not in CORPORA, PurePath(name).name, name))
