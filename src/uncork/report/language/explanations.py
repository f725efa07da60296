"""What a gain may be due to, and what the runs say of each: one comparison for each explanation."""

from dataclasses import dataclass
from statistics import mean

from uncork.report.language.compare import LEVEL, Difference, difference
from uncork.report.language.tables import SCORES
from uncork.report.language.trials import Arm, Trial
from uncork.report.tables import Table, unmarked
from uncork.results import perplexity_text


SHOWN, FOUND = "would show as", "found"
# Explanation, what would show it, and the two heads: the first would be lower than the second.
QUESTIONS = (
    ("temperature", "one learned factor is lower than softmax", "temperature", "softmax"),
    ("gradient noise", "PLIF, random and frozen, is lower than softmax", "plif_frozen", "softmax"),
    ("learning", "PLIF from the identity is lower than the frozen one", "plif", "plif_frozen"),
    ("learning", "PLIF from the identity is lower than softmax", "plif", "softmax"),
    (
        "learning, as published",
        "PLIF, the authors' start, is lower than the frozen one",
        "plif_authors",
        "plif_frozen",
    ),
    ("rank, by a mixture", "MoS is lower than softmax", "mos", "softmax"),
)


@dataclass(frozen=True)
class Answer:
    """Mean perplexity of one head minus that of another, on valid and test, and a word on it."""

    arm: Arm
    control: Arm
    valid: float
    test: float
    word: str


def answers(trial: Trial, role: str, other: str, comparisons: int) -> list[Answer]:
    """One for each size that both heads have. A head stands at the setting with the lowest on valid."""
    pairs = [(arm, trial.control(arm, other)) for arm in trial.best_by_size(role)]
    return [_answer(arm, control, comparisons) for arm, control in pairs if control]


def _answer(arm: Arm, control: Arm, comparisons: int) -> Answer:
    valid, test = (mean(arm.values(name)) - mean(control.values(name)) for name in SCORES)
    diverged = arm.diverged or control.diverged
    word = "open: diverged" if diverged else _word(difference(arm, control), comparisons)
    return Answer(arm, control, valid, test, word)


def _word(found: Difference | None, comparisons: int) -> str:
    if found is None:
        return "open: too few seeds"
    if found.worst_p >= LEVEL / max(comparisons, 1):
        return "open: not told apart" if found.worst_p >= LEVEL else "open: not clearly"
    alone = ", by seeds alone" if found.over_text is None else ""
    if found.mean > 0:
        return f"no, higher{alone}"
    return f"yes{alone}" if found.valid < 0 else f"on test only{alone}"


def _where(trial: Trial, found: Answer) -> str:
    """At which size, where there are several, and whether more than the head differs."""
    size = trial.size_name(found.arm)
    text = f", at {size}" if size else ""
    return text + (", with widths or batch of its own" if found.arm.setting != found.control.setting else "")


def explanation_table(trial: Trial, comparisons: int) -> Table | None:
    """A row for each question that the runs can be asked, at each size of the model."""
    rows = []
    for name, shown, role, other in QUESTIONS:
        for found in answers(trial, role, other, comparisons):
            seeds = f"{len(found.arm.runs)} and {len(found.control.runs)}"
            gaps = (perplexity_text(gap, "+.2f") for gap in (found.valid, found.test))
            rows.append(unmarked(name, shown + _where(trial, found), seeds, *gaps, found.word))
    columns = ["explanation", SHOWN, "seeds", "on valid", "on test", FOUND]
    caption = "Which explanation holds: differences of mean perplexity"
    return Table(caption, columns, rows, (SHOWN, FOUND)) if rows else None
