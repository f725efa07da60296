"""Differences of mean test perplexity between arms, with Welch's test."""

from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from uncork.report.language.trials import Arm, Trial


LEVEL = 0.05
# Learned functions, and what each must beat before its shape can be said to matter.
CONTROLS = {
    "plif": ("softmax", "temperature", "plif_frozen"),
    "plif_authors": ("softmax", "temperature", "plif_frozen"),
    "monotone": ("softmax", "temperature", "plif_frozen"),
    "mos_plif": ("mos",),
}


@dataclass(frozen=True)
class Difference:
    """Mean test perplexity of `arm` minus that of `control`; below zero the arm is better.

    That of valid has no test: epochs and settings are chosen by it. Seeds tell how much training varies;
    `over_text` tells how much texts do, where the runs have scores of parts of the test text.
    """

    arm: Arm
    control: Arm
    valid: float
    mean: float
    low: float
    high: float
    p: float
    over_text: "OverText | None" = None

    @property
    def worst_p(self) -> float:
        """Over seeds or over text, whichever leaves more doubt."""
        return self.p if self.over_text is None else max(self.p, self.over_text.p)

    @property
    def pair(self) -> tuple[str, str]:
        return self.arm.label, self.control.label


@dataclass(frozen=True)
class OverText:
    """The interval of the same difference over parts of the text, and p, of a paired t-test."""

    low: float
    high: float
    p: float


def over_text(arm: Arm, control: Arm) -> OverText | None:
    """None where a run has no scores of parts or diverged, or where no part differs from another."""
    from scipy import stats

    own, other = arm.parts, control.parts
    if own is None or other is None or len(own) != len(other) or arm.diverged or control.diverged:
        return None
    gaps = [a - b for a, b in zip(own, other, strict=True)]
    if len(gaps) < 2 or stdev(gaps) == 0.0:
        return None
    test: Any = stats.ttest_1samp(gaps, 0.0)
    low, high = test.confidence_interval(1.0 - LEVEL)
    return OverText(float(low), float(high), float(test.pvalue))


def difference(arm: Arm, control: Arm) -> Difference | None:
    """None where one of them has one seed only or one that diverged, or where no run differs from another."""
    from scipy import stats

    own, other = arm.values("test_perplexity"), control.values("test_perplexity")
    if min(len(own), len(other)) < 2 or arm.diverged or control.diverged:
        return None
    if stdev(own) == stdev(other) == 0.0:
        return None
    test: Any = stats.ttest_ind(own, other, equal_var=False)
    low, high = test.confidence_interval(1.0 - LEVEL)
    valid = mean(arm.values("valid_perplexity")) - mean(control.values("valid_perplexity"))
    gap = mean(own) - mean(other)
    text = over_text(arm, control)
    return Difference(arm, control, valid, gap, float(low), float(high), float(test.pvalue), text)


def mean_difference(trial: Trial, arm: Arm) -> float | None:
    """To softmax, of however many seeds."""
    softmax = trial.softmax_of(arm)
    if softmax is None:
        return None
    return mean(arm.values("test_perplexity")) - mean(softmax.values("test_perplexity"))


def to_softmax(trial: Trial) -> dict[str, Difference]:
    """Every other arm against softmax, by label."""
    found = {}
    for arm in trial.arms:
        softmax = trial.softmax_of(arm)
        compared = difference(arm, softmax) if softmax else None
        if compared:
            found[arm.label] = compared
    return found


def over_text_alone(trial: Trial) -> list[tuple[Arm, Arm, OverText]]:
    """Heads against softmax where seeds are too few for a test and text alone can be looked at."""
    tested = to_softmax(trial)
    pairs = [(arm, trial.softmax_of(arm)) for arm in trial.arms if arm.label not in tested]
    found = [(arm, softmax, over_text(arm, softmax)) for arm, softmax in pairs if softmax]
    return [(arm, softmax, text) for arm, softmax, text in found if text]


def to_controls(trial: Trial) -> list[Difference]:
    """Learned functions against their controls."""
    pairs = [(arm, trial.control(arm, role)) for arm in trial.arms for role in CONTROLS.get(arm.role, ())]
    compared = [difference(arm, control) for arm, control in pairs if control]
    return [found for found in compared if found]


def untested(trial: Trial) -> list[tuple[Arm, Arm]]:
    """Learned functions of several seeds, and controls that have one seed only."""
    pairs = [(arm, trial.control(arm, role)) for arm in trial.arms for role in CONTROLS.get(arm.role, ())]
    return [(arm, control) for arm, control in pairs if control and len(control.runs) < 2 <= len(arm.runs)]


def count(trial: Trial) -> int:
    """How many comparisons the page of a trial makes: some stand in both tables."""
    return len({found.pair for found in [*to_softmax(trial).values(), *to_controls(trial)]})
