"""What the documentation says of the runs on Penn and on WikiText-2 is what they were."""

import csv
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable
from statistics import mean
from typing import Any

import pytest

from tests.test_measured_numbers import ROOT
from tests.test_penn_first import heads, table
from uncork.recipes.published import NUMBERS, Published


# By recipe and dropout of the last layer's output.
Setting = tuple[str, float]
SOFTMAX, MORE_SOFTMAX = ("penn_softmax", 0.4), ("penn_softmax", 0.5)
PLIF, MORE_PLIF, FROZEN = ("penn_plif", 0.4), ("penn_plif", 0.5), ("penn_plif_frozen", 0.4)
TEMPERATURE, MORE_TEMPERATURE = ("penn_temperature", 0.4), ("penn_temperature", 0.5)
AUTHORS, SIGSOFTMAX = ("penn_plif_authors", 0.4), ("penn_sigsoftmax", 0.4)
MOS, MOS_PLIF = ("penn_mos", 0.4), ("penn_mos_plif", 0.4)
TEXTS = ("valid", "test")


PENN, LONGER, WIKITEXT = "lm-penn-160.jsonl", "lm-penn-320.jsonl", "lm-wikitext-2-80.jsonl"


def records(file: str) -> list[dict]:
    return [json.loads(line) for line in (ROOT / "results" / file).read_text().splitlines()]


def setting_of(run: dict) -> Setting:
    return run["config"]["name"], run["config"]["model"]["output_dropout"]


def runs_in(file: str) -> dict[Setting, dict[int, dict]]:
    """The runs of a bundle, by seed; of one that was begun twice the longer."""
    found: dict[Setting, dict[int, dict]] = defaultdict(dict)
    for run in sorted(records(file), key=lambda run: len(run["metrics"])):
        found[setting_of(run)][run["config"]["seed"]] = run
    return found


def penn() -> dict[Setting, dict[int, dict]]:
    return runs_in(PENN)


def first_seed() -> dict[Setting, dict]:
    return {setting: by_seed[141] for setting, by_seed in penn().items()}


def wikitext(*names: str) -> list[dict]:
    found = runs_in(WIKITEXT)
    return [found[f"wikitext2_{name}", 0.4][141] for name in names]


def longer() -> tuple[dict, dict, dict]:
    """Softmax, PLIF from the identity and PLIF random and frozen, of 320 epochs."""
    found = runs_in(LONGER)
    return found[SOFTMAX][141], found[MORE_PLIF][141], found[FROZEN][141]


def valid_of(run: dict) -> dict[int, float]:
    return {line["epoch"]: line["valid_perplexity"] for line in run["metrics"]}


def training(run: dict, epoch: int) -> float:
    return math.exp(run["metrics"][epoch - 1]["train_nll"])


def score(run: dict, text: str) -> float:
    return run["result"][f"{text}_perplexity"]


def slopes(run: dict) -> dict[str, Any]:
    return run["result"]["learned_function"]["slopes"]


def slope_at(run: dict) -> dict[float, float]:
    learned = run["result"]["learned_function"]
    return dict(zip(learned["x"], learned["slope"], strict=True))


def page(name: str = "lm-results.md") -> str:
    return " ".join((ROOT / "docs" / name).read_text().split())


def published(recipe: str, source: str) -> Published:
    (found,) = [numbers for numbers in NUMBERS[recipe] if numbers.source == source]
    return found


def number(printed: str) -> float:
    return float(printed.split("±")[0])


def where_averages_begin(run: dict, softmax: dict) -> str:
    own, other = ("from {:.2f} to {:.2f}".format(*map(valid_of(r).get, (30, 31))) for r in (run, softmax))
    return f"its valid perplexity falls {own}, and that of softmax {other}"


def assert_told(phrases: Iterable[str], text: str) -> None:
    assert [phrase for phrase in phrases if phrase not in text] == []


def products_rows() -> list[str]:
    """Heads trained twice: with products of the head in TF32 and in bfloat16."""
    before = heads("valid_nll")
    rows = []
    for name, label in (("penn_softmax", "softmax"), ("penn_plif", "PLIF from the identity"),
                        ("penn_plif_frozen", "PLIF, random and frozen")):  # fmt: skip
        after = valid_of(penn()[name, 0.4][141])
        both = [mean(values[epoch] for epoch in range(11, 31)) for values in (before[name], after)]
        rows.append(f"| {label} | {both[0]:.2f} | {both[1]:.2f} | {both[1] - both[0]:+.2f} |")
    return rows


def test_products():
    assert table("lm.md", "penn products") == products_rows()


def test_what_is_said_of_two_dropouts():
    runs = first_seed()
    valid = {k: valid_of(r) for k, r in runs.items()}
    ended = {k: r for k, r in runs.items() if r["result"]}
    train = {k: training(r, 160) for k, r in ended.items()}
    test = {k: score(r, "test") for k, r in ended.items()}
    end = {k: valid[k][160] for k in ended}
    anew = lambda k: f"({valid[k][121]:.2f} after {valid[k][120]:.2f})"
    more, more_plif = MORE_SOFTMAX, MORE_PLIF
    factors = [slopes(runs[k])["at_logits"]["mean"] for k in (TEMPERATURE, MORE_TEMPERATURE)]
    told = (
        f"({train[PLIF]:.1f} against {train[SOFTMAX]:.1f})",
        f"and ends {end[PLIF] - end[SOFTMAX]:.2f} above softmax with the same seed on valid",
        f"still {valid[SOFTMAX][120] - valid[PLIF][120]:.2f} ahead",
        f"a whole point worse than that {anew(PLIF)}",
        f"stays where it was {anew(SOFTMAX)}",
        f"a whole point worse {anew(TEMPERATURE)}, at the larger one hardly {anew(MORE_TEMPERATURE)}",
        f"{end[PLIF]:.2f} to {end[more_plif]:.2f} and {end[SOFTMAX]:.2f} to {end[more]:.2f} on valid",
        f"{test[PLIF]:.2f} to {test[more_plif]:.2f} and {test[SOFTMAX]:.2f} to {test[more]:.2f} on test",
        f"it was higher on valid ({end[PLIF]:.2f} and {end[FROZEN]:.2f})",
        f"beside it on test ({test[PLIF]:.2f} and {test[FROZEN]:.2f})",
        f"training text ({train[FROZEN]:.1f} and {train[more]:.1f})",
        f"on valid ({end[FROZEN]:.2f} and {end[more]:.2f})",
        f"on test ({test[FROZEN]:.2f} and {test[more]:.2f})",
        "It learns a factor of {:.1f}, and {:.1f}.".format(*factors),
        f"Where averages begin {where_averages_begin(runs[TEMPERATURE], runs[SOFTMAX])}; so a lower rate",
        f"**Sigsoftmax** ends at {end[SIGSOFTMAX]:.2f} and {test[SIGSOFTMAX]:.2f}, where softmax with the "
        f"same seed has {end[SOFTMAX]:.2f} and {test[SOFTMAX]:.2f}.",
    )
    assert_told(told, page())


def test_what_is_said_of_three_seeds():
    runs = penn()
    assert {setting: len(by_seed) for setting, by_seed in runs.items() if len(by_seed) > 1} == {
        SOFTMAX: 3, MORE_PLIF: 3, FROZEN: 3, MORE_TEMPERATURE: 3
    }  # fmt: skip

    def gaps(text: str, setting: Setting, other: Setting) -> list[float]:
        return [score(runs[setting][seed], text) - score(runs[other][seed], text) for seed in runs[setting]]

    def behind(setting: Setting) -> list[float]:
        means = [
            [mean(score(r, text) for r in runs[k].values()) for text in TEXTS] for k in (setting, SOFTMAX)
        ]
        return [own - softmax for own, softmax in zip(*means, strict=True)]

    test, valid = gaps("test", MORE_PLIF, SOFTMAX), gaps("valid", MORE_PLIF, SOFTMAX)
    assert max(test) < 0 < min(valid)
    learned = [-mean(gaps(text, MORE_PLIF, FROZEN)) for text in TEXTS]
    to_temperature = [gaps(text, MORE_PLIF, MORE_TEMPERATURE) for text in TEXTS]
    assert all(gap < 0 for text in to_temperature for gap in text)
    assert all(gap > 0 for text in TEXTS for gap in gaps(text, MORE_TEMPERATURE, SOFTMAX))
    ended = [run for by_seed in runs.values() for run in by_seed.values() if run["result"]]
    ends = [valid_of(run) for run in ended if setting_of(run) != MOS_PLIF]
    assert len(ended) == 19 and all(min(values.values()) == values[160] for values in ends)
    last = [values[155] - values[160] for values in ends]
    told = (
        f"lower by {-mean(test):.2f}, with each of the three seeds (by {-max(test):.2f} to {-min(test):.2f})",
        f"higher by {mean(valid):.2f}, again with each (by {min(valid):.2f} to {max(valid):.2f})",
        "on both texts, by {:.2f} and {:.2f}, the second clearly by seeds alone".format(*learned),
        "with each of three seeds: by {:.2f} on valid and {:.2f} on test, the second clearly by seeds alone. "
        "At the smaller dropout one seed is behind by {:.2f} and {:.2f}, and overfits".format(
            *behind(MORE_TEMPERATURE), *behind(TEMPERATURE)
        ),
        "on both texts: by {:.2f} and {:.2f}, the second clearly by seeds alone. - **PLIF at its".format(
            *(-mean(text) for text in to_temperature)
        ),
        "It ends at {:.2f} on valid and {:.2f} on test, {:.2f} and {:.2f} below the mean of softmax.".format(
            *(score(runs[MOS][141], text) for text in TEXTS), *(-gap for gap in behind(MOS))
        ),
        "nineteen runs that have ended all but this one were still falling, by "
        f"{min(last):.2f} to {max(last):.2f} in",
    )
    assert_told(told, page())


def test_what_is_called_clear_is_so_in_the_report():
    report = (ROOT / "results" / "lm-penn-160.md").read_text()
    plif = r"\| PLIF from the identity \(output_dropout=0\.5\) against ([^(|]*?) (?:\(.*?\) )?\|.*\| (.*) \|"
    assert dict(re.findall(plif, report)) == {
        "softmax": "no", "learned temperature": "**yes**", "PLIF, random and frozen": "**yes**"
    }  # fmt: skip
    assert "learned temperature (output_dropout=0.5) clearly higher than softmax by seeds alone" in report
    (p,) = re.findall(r"PLIF from .* against softmax \|.* ([0-9.]+) \| no \|", report)
    (level,) = re.findall(r"only p below 0\.05/5 = ([0-9.]+) is called clear", report)
    assert f"its p of {p} misses the {level} that five comparisons ask for" in page()


def test_what_is_said_in_short():
    runs = penn()
    valid, test = (
        {setting: mean(score(run, text) for run in by_seed.values()) for setting, by_seed in runs.items()}
        for text in TEXTS
    )
    own, learned, frozen = ([score(run, text) for text in TEXTS] for run in longer())
    paper = published("penn_softmax", "LMS")
    behind = [at[MOS_PLIF] - at[MOS] for at in (valid, test)]
    assert all(at[FROZEN] > at[SOFTMAX] and at[FROZEN] > at[MORE_PLIF] for at in (valid, test))
    softmax, plif, temperature = wikitext("softmax", "plif", "temperature")
    moved = runs[AUTHORS][141]["result"]["learned_function"]["moved"]["slope_over_knots"]
    told = (
        f"MoS is {test[SOFTMAX] - test[MOS]:.2f} below softmax on the test text",
        f"is {test[SOFTMAX] - test[MORE_PLIF]:.2f} lower on test and "
        f"{valid[MORE_PLIF] - valid[SOFTMAX]:.2f} higher on valid.",
        f"it is behind by {learned[0] - own[0]:.2f} on valid and {learned[1] - own[1]:.2f} on test.",
        "it makes it worse by {:.2f} and {:.2f}, with one seed".format(*behind),
        f"ahead of softmax by {own[0] - frozen[0]:.2f} on valid and {own[1] - frozen[1]:.2f} on test",
        f"its slopes move by {moved:.3f}",
        "it has {:.2f} on valid and {:.2f} on test, where the paper has {} and {} after 1000".format(
            *own, paper.valid, paper.test
        ),
        f"PLIF leads so far**, by {score(softmax, 'test') - score(plif, 'test'):.2f} on test, and a learned "
        f"temperature is behind by {score(temperature, 'test') - score(softmax, 'test'):.2f}.",
    )
    assert_told(told, page())
    told = (
        f"PLIF is {test[SOFTMAX] - test[MORE_PLIF]:.1f} perplexity better than softmax on the test text and "
        f"{valid[MORE_PLIF] - valid[SOFTMAX]:.1f} worse on the validation text",
        f"is ahead by {test[SOFTMAX] - test[MOS]:.1f} perplexity on test, with one seed",
        "After 320 epochs PLIF is behind softmax on both texts, and a PLIF that is drawn at random and never "
        f"learned is {own[1] - frozen[1]:.1f} ahead on test, with one seed each",
    )
    assert all(theirs > ours for theirs, ours in zip(learned, own, strict=True))
    for name in ("index.md", "getting-started.md", "../README.md"):
        assert_told(told, page(name))


def test_what_is_said_of_the_authors_settings():
    authors, frozen = (first_seed()[setting] for setting in (AUTHORS, FROZEN))
    # One start: learning would have moved the ends of the range of slopes by more than it rounds.
    for end in ("min", "max"):
        assert slopes(authors)["over_knots"][end] == pytest.approx(slopes(frozen)["over_knots"][end])
    apart = [abs(valid_of(authors)[epoch] - valid_of(frozen)[epoch]) for epoch in range(31, 121)]
    scores = [score(run, text) for run in (authors, frozen) for text in TEXTS]
    told = (
        f"a standard deviation of {slopes(frozen)['over_knots']['std']:.2f}, move by "
        f"{authors['result']['learned_function']['moved']['slope_over_knots']:.3f}.",
        f"never further than {max(apart):.2f} from that of the frozen function",
        "ends at {:.2f} on valid and {:.2f} on test, where that one has {:.2f} and {:.2f}".format(*scores),
        f"{scores[2] - scores[0]:.2f} apart on valid, by rounding and slopes that moved by half a percent",
    )
    assert_told(told, page())


def test_what_is_said_of_mixtures():
    softmax, mos, both = (first_seed()[setting] for setting in (SOFTMAX, MOS, MOS_PLIF))
    steps = [run["metrics"][159]["step"] for run in (mos, softmax)]
    (packed,) = mos["result"]["packed"]
    assert mos["metrics"][49]["step"] < packed["step"] < mos["metrics"][50]["step"]
    (carried,) = both["result"]["packed"]
    assert both["metrics"][63]["step"] <= carried["step"] < both["metrics"][64]["step"]
    (lost,) = [run for run in records(PENN) if setting_of(run) == MOS_PLIF and run["result"] is None]
    valid, other = valid_of(both), valid_of(mos)
    assert min(valid, key=valid.__getitem__) == 120 and len(lost["metrics"]) == 99
    paper = [number(published(name, "LMS").test) for name in ("penn_mos", "penn_mos_plif")]
    anew = lambda at: (f"{at[121] - at[120]:.2f}", f"({at[121]:.2f} after {at[120]:.2f})")
    told = (
        "of its own publication: {:,}, to {:,} of softmax.".format(*steps),
        "it ends at {:.2f} on valid and {:.2f} on test, {:.2f} and {:.2f} above MoS".format(
            *(score(both, text) for text in TEXTS),
            *(score(both, text) - score(mos, text) for text in TEXTS),
        ),
        f"({training(both, 160):.1f} to {training(mos, 160):.1f} at the end)",
        f"The average started anew there is {anew(valid)[0]} worse {anew(valid)[1]}, that of MoS "
        f"{anew(other)[0]} {anew(other)[1]}",
        f"lost after 99 epochs, was at {valid_of(lost)[99]:.2f} there, and this one at {valid[99]:.2f}",
        f"with PLIF, {paper[0] - paper[1]:.2f} better than MoS",
    )
    assert_told(told, page())


def test_what_is_said_of_320_epochs():
    runs = longer()
    softmax, plif, frozen = (valid_of(run) for run in runs)
    scores = [[score(run, text) for text in TEXTS] for run in runs]
    behind = {epoch: frozen[epoch] - softmax[epoch] for epoch in softmax}
    ahead_from = max(epoch for epoch, gap in behind.items() if gap > 0) + 1
    report = (ROOT / "results" / "lm-penn-320.md").read_text()
    (ends,) = re.findall(r"PLIF, random and frozen against softmax -([0-9.]+) to -([0-9]+\.[0-9]+)", report)
    of_paper, of_replication = (published("penn_softmax", source) for source in ("LMS", "AAAI"))
    paper = number(of_paper.test) - number(published("penn_plif_authors", "LMS").test)
    replication = number(of_replication.test) - number(published("penn_plif_frozen", "AAAI").test)
    # The average over epochs 121 to 240 stays its best.
    assert min(plif, key=plif.__getitem__) == 240
    told = (
        "the frozen random PLIF ends at {:.2f} and {:.2f}, softmax at {:.2f} and {:.2f}, learned PLIF at "
        "{:.2f} and {:.2f}.".format(*scores[2], *scores[0], *scores[1]),
        f"It is {behind[31]:.2f} behind softmax at epoch 31, {behind[160]:.2f} at 160, {behind[241]:.2f} at "
        f"241, and ahead from {ahead_from} on.",
        f"({training(runs[2], 320):.1f} to {training(runs[0], 320):.1f} at the end)",
        f"the lead of {scores[0][1] - scores[2][1]:.2f} has an interval of {ends[1]} to {ends[0]}",
        f"over 11 seeds ({replication:.2f}); the paper's own is {paper:.2f}",
        f"the best it has, at {plif[240]:.2f}. The one started anew there begins "
        f"{plif[241] - plif[240]:.2f} higher ({plif[241]:.2f}), where that of softmax begins "
        f"{softmax[241] - softmax[240]:.2f} higher, and never makes up for it: {plif[320]:.2f} at the end",
        f"with slopes up to {max(slope_at(runs[1]).values()):.1f}",
        f"the paper has it**, {of_paper.valid} and {of_paper.test} after 1000 epochs; the replication's, at "
        f"{of_replication.valid} and {of_replication.test.split('±')[0]},",
        f"still falling, by {frozen[315] - frozen[320]:.2f} and {softmax[315] - softmax[320]:.2f} in",
    )
    assert_told(told, page())
    for run, setting in ((runs[0], SOFTMAX), (runs[2], FROZEN)):
        before = first_seed()[setting]["metrics"]
        for name in ("train_nll", "valid_nll"):
            assert [line[name] for line in run["metrics"][:160]] == [line[name] for line in before]
    assert valid_of(first_seed()[MORE_PLIF])[160] != plif[160]


def test_what_is_said_of_wikitext():
    softmax, plif, frozen, temperature = wikitext("softmax", "plif", "plif_frozen", "temperature")
    valid = [valid_of(run) for run in (softmax, plif, frozen)]
    lead = {epoch: valid[0][epoch] - valid[1][epoch] for epoch in valid[0]}
    assert min(lead.values()) > 0 and len(lead) == 80
    behind = [score(run, text) - score(softmax, text) for run in (temperature, frozen) for text in TEXTS]
    ahead = [score(softmax, text) - score(plif, text) for text in TEXTS]
    train = [training(run, 80) for run in (softmax, plif, frozen, temperature)]
    # As many steps on Penn, at the same dropout.
    own, other = (first_seed()[setting] for setting in (SOFTMAX, PLIF))
    steps = [run["metrics"][epoch - 1]["step"] for run, epoch in ((softmax, 80), (own, 45))]
    assert [round(each, -3) for each in steps] == [31_000, 31_000]
    penn_lead = {epoch: valid_of(own)[epoch] - valid_of(other)[epoch] for epoch in valid_of(own)}
    assert max(penn_lead[epoch] for epoch in range(121, 161)) < 0 < min(penn_lead[e] for e in range(31, 121))
    told = (
        "by {:.2f} on valid and {:.2f} on test at the end".format(*ahead),
        f"The training perplexity is {train[0] - train[1]:.1f} lower.",
        f"The lead was {lead[60]:.2f} at epoch 60 and {lead[61]:.2f} at 61",
        f"PLIF led softmax by {penn_lead[45]:.2f} after as many steps (31,000, in epoch 45) and was "
        "behind from epoch 121 on",
        "is behind softmax**, by {:.2f} and {:.2f}, with a training perplexity {:.1f} higher".format(
            *behind[:2], train[3] - train[0]
        ),
        f"It learns a factor of {slopes(temperature)['at_logits']['mean']:.1f}. Here too",
        f"where averages begin {where_averages_begin(temperature, softmax)}.",
        "is {:.2f} and {:.2f} behind".format(*behind[2:]),
        f"with a training perplexity {train[2] - train[0]:.1f} higher",
        f"it was {valid[2][31] - valid[0][31]:.2f} behind at epoch 31",
    )
    assert_told(told, page())


@pytest.mark.parametrize(("steepest", "near"), [("2.1", 0.06), ("1.7", 0.07)], ids=["penn", "wikitext-2"])
def test_what_is_said_of_the_learned_functions(steepest, near):
    """The identity below -1, steepest around 2, and 1 again from 8 on, to 20 on Penn."""
    runs = penn()
    learned = [*runs[PLIF].values(), *runs[MORE_PLIF].values()] if steepest == "2.1" else wikitext("plif")
    for run in learned:
        by_logit = slope_at(run)
        top = max(by_logit, key=by_logit.__getitem__)
        assert f"{by_logit[top]:.1f}" == steepest and 1.0 < top < 3.0
        assert all(abs(slope - 1.0) < near for x, slope in by_logit.items() if x < -1.0 or 8.0 < x < 20.0)


def test_which_explanation_is_said_to_hold():
    """The signs behind the words; the report's table of explanations has the numbers."""
    runs = penn()
    gap = lambda text, one, other: (
        mean(score(r, text) for r in runs[one].values()) - mean(score(r, text) for r in runs[other].values())
    )
    for text in TEXTS:
        assert gap(text, MORE_TEMPERATURE, SOFTMAX) > 0 and gap(text, TEMPERATURE, SOFTMAX) > 0
        assert gap(text, FROZEN, SOFTMAX) > 0 and gap(text, AUTHORS, SOFTMAX) > 0
        assert gap(text, MORE_PLIF, FROZEN) < 0 and gap(text, MORE_PLIF, MORE_TEMPERATURE) < 0
        assert gap(text, MOS, SOFTMAX) < 0
        softmax, plif, temperature = wikitext("softmax", "plif", "temperature")
        assert score(plif, text) < score(softmax, text) < score(temperature, text)
    own, learned, frozen = longer()
    for text in TEXTS:
        assert score(frozen, text) < score(own, text) < score(learned, text)
    # Catching up: further behind where averages begin than at the end.
    behind = [valid_of(runs[FROZEN][141])[e] - valid_of(runs[SOFTMAX][141])[e] for e in (31, 160)]
    assert behind[0] > behind[1] > 0


def test_what_is_said_of_the_ablation():
    """None but these was run on Penn: once more are, the page has to tell."""
    functions = [run["config"]["model"]["head"]["function"] for run in records(PENN)]
    plif = [f for f in functions if f and f["name"] == "PLIF"]
    assert {f["lr"] for f in plif if not f["frozen"]} == {2.0, 0.02}
    assert {(f["pull"], f["smoothness"], bool(f["refine"])) for f in plif} == {(0.0, 0.0, False)}
    assert not any(f and f["name"] == "MonotoneNetwork" for f in functions)
    assert {k for k in penn() if k[1] == 0.5} == {MORE_SOFTMAX, MORE_PLIF, MORE_TEMPERATURE}
    assert "none but the recipe's (2) and the authors' (0.02), which has another start" in page()


def test_what_is_said_of_seconds_alone():
    """A step measured alone times the steps of an epoch; the last way measured is the one the runs had."""
    steps = ROOT / "benchmarks" / "results" / "training_nvidia-h200_2026-11-16.csv"
    with steps.open(newline="") as file:
        ms = {row["recipe"]: float(row["ms"]) for row in csv.DictReader(file)}
    number = lambda setting: penn()[setting][141]["metrics"][159]["step"] / 160
    softmax = ms["penn_softmax"] * number(SOFTMAX) / 1000
    plif, mos = ms["penn_plif"] * number(MORE_PLIF) / 1000, ms["penn_mos"] * number(MOS) / 1000
    told = (
        f"softmax takes {softmax:.1f} seconds, PLIF {plif:.1f} ({plif / softmax:.2f} times softmax) and MoS "
        f"{mos:.1f} ({mos / softmax:.1f} times)",
    )
    assert_told(told, page())


def test_what_is_said_of_their_seconds():
    """Of five runs side by side, of seven, of three beside four on Penn, and of those beside mixtures."""
    sweeps: dict[str, list[dict]] = defaultdict(list)
    for run in (run for by_seed in penn().values() for run in by_seed.values()):
        sweeps[run["provenance"]["commit"][:7]].append(run)
    five, seven = sweeps["cd5b1c6"], sweeps["7b4fccb"]
    assert (len(five), len(seven), len(sweeps)) == (5, 7, 4)
    by_clock = lambda runs: [statistics.median(line["seconds"] for line in run["metrics"]) for run in runs]
    ends = [end for runs in (five, seven) for end in (min(by_clock(runs)), max(by_clock(runs)))]
    three = by_clock(wikitext("softmax", "plif", "plif_frozen"))
    carried = statistics.median(line["seconds"] for line in penn()[MOS_PLIF][141]["metrics"][64:])
    last = by_clock(longer())
    temperatures = by_clock(penn()[MORE_TEMPERATURE][seed] for seed in (142, 143))
    told = (
        "{:.1f} to {:.1f} seconds an epoch each, and seven {:.1f} to {:.1f}.".format(*ends),
        f"three of these took {min(three):.1f} to {max(three):.1f} seconds an epoch each",
        *(
            f"Two seeds of the temperature took {seconds:.1f} beside the two mixtures"
            for seconds in temperatures
        ),
        f"the temperature took {by_clock(wikitext('temperature'))[0]:.1f} beside the mixture with PLIF",
        f"with PLIF {carried:.1f} beside the three runs",
        f"the three took {min(last):.1f} to {max(last):.1f} seconds an epoch each",
    )
    assert_told(told, page())
    for runs in (five, seven):
        results = [run["result"] for run in runs]
        trained = [result["seconds_per_epoch"] for result in results]
        each = mean(r["seconds_per_epoch"] * r["epochs"] / r["steps"] for r in results) / len(results)
        row = f"| {len(runs)}, the head's products in bfloat16 | {min(trained):.1f} to {max(trained):.1f} |"
        assert f"{row} {1e3 * each:.1f} |" in page("sweep.md")
