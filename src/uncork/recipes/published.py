"""Published perplexities by recipe, in one place: docstrings and pages are held to it by tests.

Valid and test, of one model without finetuning, cache or dynamic evaluation.
"""

from dataclasses import dataclass


SOURCES = {
    "LMS": "Ganea et al. 2019, table 1, seconds on a Tesla P100",
    "AAAI": "Parthiban, Mao and Inkpen 2021, table 2: 11 seeds, spread of test",
    "AWD": "Merity et al. 2018, the numbers of its repository",
    "MoS": "Yang et al. 2018",
}
# Slopes of the PLIF learned on WikiText-2, in table 2 of Ganea et al. 2019.
LEARNED_SLOPES = {"mean": 1.10, "std": 0.62, "min": 0.02, "max": 5.16}


@dataclass(frozen=True)
class Published:
    """One published result; `source` is a key of `SOURCES`."""

    source: str
    valid: str | None
    """As printed, so that no digit is added or lost."""
    test: str

    def __str__(self) -> str:
        return f"test {self.test}" if self.valid is None else f"{self.valid}/{self.test}"


def _all(**entries: str) -> tuple[Published, ...]:
    """`LMS="60.83/58.37"`, or the test number alone."""
    pairs = {source: text.rpartition("/") for source, text in entries.items()}
    return tuple(Published(source, valid or None, test) for source, (valid, _, test) in pairs.items())


NUMBERS: dict[str, tuple[Published, ...]] = {
    "penn_softmax": _all(LMS="60.83/58.37", AAAI="59.55/57.08±0.09"),
    "penn_softmax_reference": _all(AWD="61.2/58.8"),
    "penn_sigsoftmax": _all(AAAI="59.69/57.05±0.15"),
    "penn_plif_authors": _all(LMS="59.45/57.25", AAAI="59.08/56.80±0.11"),
    "penn_plif_frozen": _all(AAAI="56.83±0.10"),
    "penn_mos": _all(LMS="58.58/56.43", MoS="58.08/55.97", AAAI="57.14/54.91±0.26"),
    "penn_mos_plif": _all(LMS="58.20/56.02"),
    "wikitext2_softmax": _all(LMS="68.11/65.22", AAAI="67.57/64.63±0.08", AWD="68.7/65.6"),
    "wikitext2_sigsoftmax": _all(AAAI="67.28/64.35±0.17"),
    "wikitext2_plif_authors": _all(LMS="67.87/64.86", AAAI="67.15/64.16±0.17"),
    "wikitext2_plif_frozen": _all(AAAI="64.28±0.17"),
    "wikitext2_mos": _all(MoS="66.01/63.33", AAAI="64.54/61.96±0.40"),
}
# Table 1 of Ganea et al. 2019: parameters, and seconds per epoch on a Tesla P100.
COSTS: dict[str, tuple[str, int]] = {
    "penn_softmax": ("24.2M", 60),
    "penn_plif_authors": ("24.4M", 70),
    "penn_mos": ("26.6M", 150),
    "penn_mos_plif": ("28.6M", 220),
    "wikitext2_softmax": ("33M", 120),
    "wikitext2_plif_authors": ("33.2M", 150),
    "wikitext2_mos": ("33M", 550),
}
