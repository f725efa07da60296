"""How tests read what the documentation says."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scipy import stats


ROOT = Path(__file__).parents[1]


def page(name: str = "lm-results.md") -> str:
    """A page of the documentation, its lines joined."""
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


def assert_told(phrases: Iterable[str], text: str) -> None:
    missing = [phrase for phrase in phrases if phrase not in text]
    assert not missing, missing


def table(page: str, name: str) -> list[str]:
    """The rows between two comments, without their heading."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    part = text.split(f"<!-- {name} -->")[1].split(f"<!-- end of {name} -->")[0]
    return [line for line in part.splitlines() if line.startswith("|")][2:]


def welch(original: list[float], library: list[float]) -> tuple[float, float, float]:
    """The two-sided p-value, and the 95 % interval of the difference of the means."""
    test: Any = stats.ttest_ind(original, library, equal_var=False)
    return test.pvalue, *test.confidence_interval(0.95)
