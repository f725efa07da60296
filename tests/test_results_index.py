"""What the index of the results says is what the runs were, and no more than the report makes of them."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from statistics import mean

from tests.documented import ROOT, assert_told, page, table, welch
from tests.head_runs import (
    AUTHORS,
    FROZEN,
    LONGER,
    MORE_PLIF,
    MORE_SOFTMAX,
    MORE_TEMPERATURE,
    MOS,
    MOS_PLIF,
    PENN,
    PLIF,
    SOFTMAX,
    TEMPERATURE as TEMPERATURE_04,
    TEXTS,
    first_seed,
    longer,
    penn,
    published,
    records,
    score,
    training,
    valid_of,
    wikitext,
)
from tests.test_adam_heads import (
    FAST,
    FROZEN as ADAM_FROZEN,
    SOFTMAX as ADAM_SOFTMAX,
    TEMPERATURE as ADAM_TEMPERATURE,
    heads,
)
from tests.test_narrow_heads import (
    PLIF as NARROW_PLIF,
    SOFTMAX as NARROW_SOFTMAX,
    TEMPERATURE,
    longer as longer_narrow,
    runs as six_epochs,
)
from uncork.report import build, load


PAGE = "lm-results.md"
Seeds = dict[int, dict]  # runs by seed
# What the report made of each setting; where no page is made of the runs, the runs.
REPORTS = {
    "Penn, 160 epochs": "lm-penn-160.md",
    "Penn, 320 epochs": "lm-penn-320.md",
    "WikiText-2, 80 epochs": "lm-wikitext-2-80.md",
    "Penn with Adam, 84 epochs": "lm-penn-adam.md",
    "8 numbers for 10,000 words, 6 epochs": "penn-narrow/heads.jsonl",
    "8 numbers for 10,000 words, 12 epochs": "penn-narrow/longer.jsonl",
    "8 numbers for 10,000 words, 24 epochs": "penn-narrow/longest.jsonl",
    "embedded corpus, 8 epochs": "lm-embedded.md",
}
ONE, TWO, WIKI, ADAM, SIX, TWELVE, LONGEST, EMBEDDED = REPORTS
IDENTITY, RANDOM, PUBLISHED = "PLIF from the identity", "PLIF, random and frozen", "PLIF, the authors' start"
SCALE = "learned temperature"


@cache
def of_report(setting: str, caption: str) -> list[list[str]]:
    """The rows of a table of the report, by how its caption begins."""
    path = ROOT / "results" / REPORTS[setting]
    if path.suffix == ".jsonl":
        tables = [each for section in build(load([path])) for each in section.tables]
        rows = [row for each in tables if each.caption.startswith(caption) for row in each.rows]
        return [[text for text, _ in row] for row in rows]
    _, _, after = path.read_text(encoding="utf-8").partition(f"**{caption}")
    own = takewhile(lambda line: not line.startswith(("**", "#")), after.splitlines()[1:])
    rows = [line for line in own if line.startswith("|")][2:]
    return [[cell.strip().strip("*") for cell in row.strip("|").split("|")] for row in rows]


def clear(setting: str, head: str) -> str:
    """What the report's test says of a head beside softmax, where there are seeds for one."""
    rows = of_report(setting, "Tests of differences")
    found = {re.sub(r" \(.*?\)", "", row[0]): row for row in rows}
    if (row := found.get(f"{head} against softmax")) is None:
        return "–"
    return ("yes" if len(row) == 8 else "by seeds alone") if row[-1] == "yes" else "no"


def row(finding: str, setting: str, link: str, head: str, runs: Seeds, softmax: Seeds) -> str:
    """Less softmax with the same seeds."""
    gaps = [mean(score(runs[seed], text) - score(softmax[seed], text) for seed in runs) for text in TEXTS]
    numbers = f"{gaps[0]:+.2f} | {gaps[1]:+.2f} | {len(runs)} | {clear(setting, head)}"
    return f"| {finding} | [{setting}]({link}) | {numbers} |"


def of_penn(finding: str, which: tuple, head: str, section: str = "the-controls") -> str:
    return row(finding, ONE, f"lm-penn.md#{section}", head, penn()[which], penn()[SOFTMAX])


def of_longer(finding: str, which: int, head: str) -> str:
    runs = longer()
    return row(finding, TWO, "lm-penn.md#after-320-epochs", head, {141: runs[which]}, {141: runs[0]})


def of_wikitext(finding: str, name: str, head: str) -> str:
    softmax, run = wikitext("softmax", name)
    return row(finding, WIKI, "lm-wikitext-2.md", head, {141: run}, {141: softmax})


def of_adam(finding: str, which: tuple, head: str) -> str:
    return row(finding, ADAM, "lm-penn-adam.md", head, {141: heads()[which]}, {141: heads()[ADAM_SOFTMAX]})


def of_narrow(finding: str, setting: str, label: str, head: str) -> str:
    of = narrow(setting)
    return row(finding, setting, "lm-narrow.md", head, of[label], of[NARROW_SOFTMAX])


def narrow(setting: str) -> dict[str, Seeds]:
    """The heads of 8 numbers by label."""
    if setting == SIX:
        return {label: by_seed for (width, label), by_seed in six_epochs().items() if width == 8}
    return longer_narrow(12 if setting == TWELVE else 24)


def of_embedded(finding: str, name: str, head: str) -> str:
    def runs(name: str) -> Seeds:
        found = [run for run in records("lm-embedded.jsonl") if run["config"]["name"] == f"embedded_{name}"]
        return {run["config"]["seed"]: run for run in found}

    return row(finding, EMBEDDED, "lm-embedded.md", head, runs(name), runs("softmax"))


def findings() -> list[str]:
    frozen, temperature = "A PLIF drawn at random and never learned", "A learned temperature"
    lower = temperature.lower()
    not_on_penn = "Learned PLIF does not pay on Penn under SGD, at full width"
    return [
        of_penn("**A mixture of 15 softmaxes (MoS) is best**", MOS, "MoS", "mixtures"),
        of_penn("**With PLIF in it, it is ahead by less**", MOS_PLIF, "MoS with PLIF", "mixtures"),
        of_penn(f"**{not_on_penn}**", MORE_PLIF, IDENTITY, "plif-and-softmax"),
        of_longer("twice as long", 1, IDENTITY),
        of_penn(f"**{frozen} is behind softmax, then ahead**", FROZEN, RANDOM),
        of_longer("twice as long", 2, RANDOM),
        of_penn("**The authors' PLIF hardly moves**, and does much the same", AUTHORS, PUBLISHED),
        of_penn(f"**{temperature} is behind under SGD**", MORE_TEMPERATURE, SCALE),
        of_wikitext("on the other text too", "temperature", SCALE),
        of_wikitext("**On WikiText-2 learned PLIF leads after 80 epochs**", "plif", IDENTITY),
        of_adam(f"**With Adam a function helps, after 84 epochs**: {lower}", ADAM_TEMPERATURE, SCALE),
        of_adam("a PLIF whose slopes learn fast", FAST, IDENTITY),
        of_narrow("**Where the head is very narrow, learned PLIF pays**", SIX, NARROW_PLIF, IDENTITY),
        of_narrow(lower, SIX, TEMPERATURE, SCALE),
        of_narrow("PLIF, twice as long", TWELVE, NARROW_PLIF, IDENTITY),
        of_narrow("a learned temperature, twice as long", TWELVE, TEMPERATURE, SCALE),
        of_narrow("PLIF, four times as long", LONGEST, NARROW_PLIF, IDENTITY),
        of_narrow("a learned temperature, four times as long", LONGEST, TEMPERATURE, SCALE),
        of_embedded("**On text drawn from a process of full rank a mixture is ahead**", "mos", "MoS"),
        of_embedded("and PLIF is not", "plif", IDENTITY),
    ]  # fmt: skip


# What the page calls each explanation, and what the report calls it and how it would show.
EXPLANATIONS = {
    "**temperature**: a learned factor is lower than softmax": (
        "temperature", "one learned factor is lower than softmax"
    ),
    "**gradient noise**: a random PLIF, never learned, is lower than softmax": (
        "gradient noise", "PLIF, random and frozen, is lower than softmax"
    ),
    "**learning**: learned PLIF is lower than the random one": (
        "learning", "PLIF from the identity is lower than the frozen one"
    ),
    "learned PLIF is lower than softmax": ("learning", "PLIF from the identity is lower than softmax"),
    "as published: the authors' PLIF is lower than the random one": (
        "learning, as published", "PLIF, the authors' start, is lower than the frozen one"
    ),
    "**rank**, by a mixture: MoS is lower than softmax": ("rank, by a mixture", "MoS is lower than softmax"),
}  # fmt: skip


def verdict(row: list[str]) -> str:
    """The report's, and where that leaves it open what the signs on valid and test lean to."""
    *_, valid, test, found = row
    if not found.startswith("open"):
        return found.replace("higher, ", "")
    signs = {number[0] for number in (valid, test)}
    return "open; leans to " + ({"-": "yes", "+": "no"}[signs.pop()] if len(signs) == 1 else "neither")


def explanations() -> list[str]:
    columns = []
    for setting in (ONE, TWO, WIKI, ADAM, SIX, EMBEDDED):
        rows = of_report(setting, "Which explanation holds")
        shown = lambda text: re.sub(r", with widths or batch of its own$|, at width 8$", "", text)
        columns.append({(row[0], shown(row[1])): verdict(row) for row in rows})
    return [
        f"| {label} | {' | '.join(column.get(key, '–') for column in columns)} |"
        for label, key in EXPLANATIONS.items()
    ]


def test_the_tables_are_those_of_the_runs():
    assert table(PAGE, "findings") == findings(), "\n".join(findings())
    assert table(PAGE, "explanations") == explanations(), "\n".join(explanations())


def test_what_is_said_in_short():
    runs, (own, learned, frozen) = penn(), ([score(run, text) for text in TEXTS] for run in longer())
    valid, test = (
        {setting: mean(score(run, text) for run in by_seed.values()) for setting, by_seed in runs.items()}
        for text in TEXTS
    )
    assert all(at[FROZEN] > at[SOFTMAX] and at[FROZEN] > at[MORE_PLIF] for at in (valid, test))
    assert all(ours > theirs for ours, theirs in zip(own, frozen, strict=True))
    assert all(ours < theirs for ours, theirs in zip(own, learned, strict=True))
    paper = published("penn_softmax", "LMS")
    moved = runs[AUTHORS][141]["result"]["learned_function"]["moved"]["slope_over_knots"]
    train = [training(first_seed()[setting], 160) for setting in (PLIF, SOFTMAX)]
    adam = [score(heads()[ADAM_TEMPERATURE], text) - score(heads()[FAST], text) for text in TEXTS]
    told = (
        "it has {:.2f} on valid and {:.2f} on test, where the paper has {} and {} after 1000".format(
            *own, paper.valid, paper.test
        ),
        "its training perplexity is {:.1f} after 160 epochs where that of softmax is {:.1f}".format(*train),
        "by {:.2f} on valid and {:.2f} on test against the same mixture without it, with one seed".format(
            *(at[MOS_PLIF] - at[MOS] for at in (valid, test))
        ),
        f"its slopes move by {moved:.3f} in 160 epochs",
        "than the temperature by {:.2f} on valid and {:.2f} on test, with one seed".format(*adam),
    )
    assert_told(told, page(PAGE))


def on_test_by_setting() -> Iterator[tuple[str, str, str]]:
    for row in findings():
        finding, where, _, number, *_ = row.strip("| ").split(" | ")
        yield where[1:].split("]")[0], "temperature" if "temperature" in finding else "PLIF", number


def test_what_is_said_in_short_of_narrow_heads():
    gaps, ps = [], []
    for setting in (SIX, TWELVE, LONGEST):
        ends = [
            {s: score(run, "test") for s, run in narrow(setting)[label].items()}
            for label in (NARROW_PLIF, TEMPERATURE)
        ]
        plif, temperature = ends
        assert all(plif[seed] < temperature[seed] for seed in plif) and len(plif) == len(temperature) == 3
        gaps.append(mean(temperature.values()) - mean(plif.values()))
        ps.append(welch([*plif.values()], [*temperature.values()])[0])
    told = (
        f"it is {gaps[0]:.2f} lower on test after six epochs, {gaps[1]:.2f} after twelve and {gaps[2]:.2f} "
        f"after 24, each with each of three seeds, which is not clear (p = {ps[0]:.3f}, {ps[1]:.2f} and "
        f"{ps[2]:.2f})",
        "on test what PLIF has beyond it about halves with each doubling of the epochs",
    )
    assert all(0.4 < later / before < 0.6 for before, later in zip(gaps, gaps[1:], strict=False))
    assert_told(told, page(PAGE))
    gains = {(setting, head): float(number) for setting, head, number in on_test_by_setting()}
    for setting in (ADAM, SIX, TWELVE, LONGEST):
        assert gains[setting, "temperature"] < 0.5 * gains[setting, "PLIF"]


def test_what_is_said_of_explanations():
    """The signs behind the words; the table has what the report finds."""
    runs = penn()
    gap = lambda text, one, other: (
        mean(score(r, text) for r in runs[one].values()) - mean(score(r, text) for r in runs[other].values())
    )
    softmax, plif, temperature, frozen = wikitext("softmax", "plif", "temperature", "plif_frozen")
    adam = heads()
    for text in TEXTS:
        assert gap(text, MORE_TEMPERATURE, SOFTMAX) > 0 and gap(text, TEMPERATURE_04, SOFTMAX) > 0
        assert gap(text, FROZEN, SOFTMAX) > 0 and gap(text, AUTHORS, SOFTMAX) > 0
        assert gap(text, MORE_PLIF, FROZEN) < 0 and gap(text, MORE_PLIF, MORE_TEMPERATURE) < 0
        assert gap(text, MOS, SOFTMAX) < 0
        own, *others = (score(run, text) for run in (plif, softmax, temperature, frozen))
        assert own < min(others) and others[0] < min(others[1:])
        own, learned, random = (score(run, text) for run in longer())
        assert random < own < learned
        ranks = [score(adam[which], text) for which in (ADAM_TEMPERATURE, ADAM_SOFTMAX, ADAM_FROZEN)]
        assert ranks == sorted(ranks)
    # Catching up: further behind where averages begin than at the end.
    behind = [valid_of(runs[FROZEN][141])[e] - valid_of(runs[SOFTMAX][141])[e] for e in (31, 160)]
    assert behind[0] > behind[1] > 0


def test_what_is_said_of_what_was_not_run():
    """None but these was run on Penn under SGD: once more are, the page has to tell."""
    functions = [run["config"]["model"]["head"]["function"] for run in records(PENN)]
    plif = [f for f in functions if f and f["name"] == "PLIF"]
    assert {f["lr"] for f in plif if not f["frozen"]} == {2.0, 0.02}
    assert {f["lr"] for f in plif if not f["frozen"] and f["weight_decay"]} == {0.02}
    assert {(f["pull"], f["smoothness"], bool(f["refine"])) for f in plif} == {(0.0, 0.0, False)}
    assert not any(f and f["name"] == "MonotoneNetwork" for f in functions)
    on_penn = [f for f in functions if f] + [
        run["config"]["model"]["head"]["function"]
        for run in records(LONGER)
        if run["config"]["model"]["head"]["function"]
    ]
    assert {f["options"]["knots"] for f in on_penn if f["name"] == "PLIF"} == {100_000}
    assert not any(f["frozen"] for f in on_penn if f["name"] == "Scale")
    assert_told(("Of these `scale`, `bend` and `noise` were not run on Penn.",), page("lm.md"))
    assert {k for k in penn() if k[1] == 0.5} == {MORE_SOFTMAX, MORE_PLIF, MORE_TEMPERATURE}
    assert len([run for run in records(LONGER) if run["result"] is None]) == 5
    begun = [run["config"]["model"]["head"]["function"] for run in records("penn-adam/stopped.jsonl")]
    assert all(any(f[name] for f in begun) for name in ("pull", "smoothness", "refine"))
    assert [f["name"] for f in begun].count("MonotoneNetwork") == 1
    told = (
        "on Penn none but the recipe's (2) and the authors' (0.02), which has another start",
        "Five such runs are [not finished]",
    )
    assert_told(told, page(PAGE))


if __name__ == "__main__":
    print("\n".join([*findings(), *explanations()]))
