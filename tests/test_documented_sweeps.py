"""Every sweep that the documentation names can be planned: its recipes, fields and values are there."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from uncork.recipes.plan import plan


ROOT = Path(__file__).parents[1]
# With one value or none; what is left belongs to the option before, or to the recipes.
ENDS = {"--out": 1, "--parallel": 1, "--minutes": 1, "--resume": 0, "--mps": 0}


def sweeps() -> Iterator[tuple[str, str]]:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for name, value in re.findall(r'^([A-Z]+)="(.*)"$', text, flags=re.MULTILINE):
            text = text.replace(f"${name} ", f"{value} ")
        for line in text.splitlines():
            if line.startswith("uncork sweep "):
                assert "$" not in line, f"{page.name}: a variable is not set"
                yield page.name, line


def arguments(line: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"recipes": [], "--seeds": [], "--set": []}
    into, skip = "recipes", 0
    for word in shlex.split(line)[2:]:
        if skip:
            skip -= 1
        elif word.startswith("--"):
            assert word in found or word in ENDS, word
            into, skip = (word, 0) if word in found else (into, ENDS[word])
        else:
            found[into].append(word)
    return found


@pytest.mark.parametrize(("page", "line"), list(sweeps()))
def test_a_sweep_of_the_documentation_can_be_planned(page, line):
    found = arguments(line)
    runs = plan(found["recipes"], [int(seed) for seed in found["--seeds"]], found["--set"], Path("out"))
    assert len(runs) == len(found["recipes"]) * max(1, len(found["--seeds"]))


def test_there_are_some():
    assert len(list(sweeps())) >= 8
