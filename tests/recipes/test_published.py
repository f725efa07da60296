"""Published numbers stand in one place; what else prints them agrees with it."""

import re
from pathlib import Path

import pytest

from uncork.recipes import PUBLISHED, find
from uncork.recipes.published import NUMBERS, SOURCES


PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PUBLISHED)
def test_docstrings_give_the_published_numbers(name):
    text = find(name).__doc__ or ""
    for number in NUMBERS.get(name, ()):
        assert f"{number.source} {number}" in text
    assert (name in NUMBERS) != text.startswith("Not published")


def test_every_number_belongs_to_a_recipe_and_a_source():
    assert NUMBERS.keys() <= PUBLISHED.keys()
    assert {number.source for numbers in NUMBERS.values() for number in numbers} == SOURCES.keys()


def test_the_page_of_recipes_prints_those_numbers():
    """Every published cell of its table, and no other: the cell follows the recipe's name."""
    cells = dict(re.findall(r"\| `(\w+)` \| ([^|]+?) (?=\|)", PAGE))
    assert cells.keys() == PUBLISHED.keys()
    for name, cell in cells.items():
        said = [f"{number.source} {number}" for number in NUMBERS.get(name, ())]
        assert cell == ("; ".join(said) or "-")
