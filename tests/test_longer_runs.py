"""What the documentation says of the runs of 320 epochs on Penn, of those on WikiText-2, and of all."""

import csv
import json
import re
import statistics
from collections import defaultdict
from statistics import mean

import pytest

from tests.documented import ROOT, assert_told, page
from tests.head_runs import (
    FROZEN,
    MORE_PLIF,
    MORE_TEMPERATURE,
    MOS,
    MOS_PLIF,
    PLIF,
    SOFTMAX,
    TEXTS,
    first_seed,
    longer,
    number,
    penn,
    published,
    score,
    slope_at,
    slopes,
    training,
    valid_of,
    where_averages_begin,
    wikitext,
)


PAGE, WIKITEXT_PAGE = "lm-penn.md", "lm-wikitext-2.md"


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
        f"of {replication:.2f} over 11 seeds, and the paper one of {paper:.2f} for its learned PLIF",
        f"the best it has, at {plif[240]:.2f}. The one started anew there begins "
        f"{plif[241] - plif[240]:.2f} higher ({plif[241]:.2f}), where that of softmax begins "
        f"{softmax[241] - softmax[240]:.2f} higher, and never makes up for it: {plif[320]:.2f} at the end",
        f"with slopes up to {max(slope_at(runs[1]).values()):.1f}",
        f"**Softmax reaches the paper's numbers**, {of_paper.valid} and {of_paper.test} after 1000 epochs; "
        f"the replication's, at {of_replication.valid} and {of_replication.test.split('±')[0]},",
        f"still falling, by {frozen[315] - frozen[320]:.2f} and {softmax[315] - softmax[320]:.2f} in",
    )
    assert_told(told, page(PAGE))
    for run, setting in ((runs[0], SOFTMAX), (runs[2], FROZEN)):
        before = first_seed()[setting]["metrics"]
        for name in ("train_nll", "valid_nll"):
            assert [line[name] for line in run["metrics"][:160]] == [line[name] for line in before]
    assert valid_of(first_seed()[MORE_PLIF])[160] != plif[160]


def test_what_is_said_of_the_replication():
    softmax, plif, frozen = (
        published(name, "AAAI").test for name in ("penn_softmax", "penn_plif_authors", "penn_plif_frozen")
    )
    told = (
        f"found {softmax} for softmax, {plif} for the authors' PLIF and {frozen} for".replace("±", " ± "),
        f"and {abs(number(plif) - number(frozen)):.2f} apart",
    )
    assert_told(told, page(PAGE))
    assert max(number(plif), number(frozen)) < number(softmax)


def test_what_is_said_of_runs_that_are_not_finished():
    """By their epochs alone: none has a result."""
    begun = {}
    for line in (ROOT / "results" / "lm-penn-320.jsonl").read_text().splitlines():
        run = json.loads(line)
        name, seed = run["config"]["name"].removeprefix("penn_"), run["config"]["seed"]
        more = run["config"]["model"]["output_dropout"] == 0.5
        begun[name + "_more" * (more and name == "softmax"), seed] = run
    stopped = [run for run in begun.values() if run["result"] is None]
    lasted = [len(run["metrics"]) for run in stopped]
    seconds = [statistics.median(line["seconds"] for line in run["metrics"]) for run in stopped]
    valid = {which: valid_of(run) for which, run in begun.items()}

    def behind(name, seed, epoch):
        return valid[name, seed][epoch] - valid["softmax", seed][epoch]

    frozen = [[behind("plif_frozen", seed, epoch) for seed in (142, 143)] for epoch in (31, 172)]
    more = [behind("softmax_more", 141, epoch) for epoch in (31, 172)]
    # Of seed 141 the one with more dropout was ahead of the frozen one, and no longer is.
    assert more[0] < behind("plif_frozen", 141, 31) and more[1] > behind("plif_frozen", 141, 172)
    told = (
        f"**Other seeds are not finished**: they have {min(lasted)} to {max(lasted)} epochs",
        "behind softmax by {:.2f} and {:.2f} at epoch 31 with seeds 142 and 143, and by {:.2f} and {:.2f} at "
        "172".format(*frozen[0], *frozen[1]),
        f"was behind by {behind('plif_frozen', 141, 172):.2f}.",
        "is {:.2f} behind plain softmax at epoch 31 and {:.2f} at 172".format(*more),
        f"the five that are not finished took {min(seconds):.1f} to {max(seconds):.1f}.",
    )
    assert len(stopped) == 5
    assert_told(told, page(PAGE))
    again = [
        json.loads(line)
        for line in (ROOT / "results" / "penn-epochs" / "repeats.jsonl").read_text().splitlines()
    ]
    for run in again:
        before = begun[run["config"]["name"].removeprefix("penn_"), run["config"]["seed"]]
        assert before["provenance"]["started"] != run["provenance"]["started"]
        for name in ("train_nll", "valid_nll"):
            values = [line[name] for line in run["metrics"]]
            assert values == [line[name] for line in before["metrics"]][: len(values)]
    assert {len(run["metrics"]) for run in again} == {147, 153} and len(again) == 3


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
    report = (ROOT / "results" / "lm-wikitext-2-80.md").read_text()
    (ends,) = re.findall(r"PLIF from the identity against softmax -([0-9.]+) to -([0-9]+\.[0-9]+)", report)
    told = (
        "by {:.2f} on valid and {:.2f} on test at the end".format(*ahead),
        f"the lead has an interval of {ends[1]} to {ends[0]}",
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
    assert_told(told, page(WIKITEXT_PAGE))


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
    assert_told(told, page(PAGE))


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
        *(
            f"Two seeds of the temperature took {seconds:.1f} beside the two mixtures"
            for seconds in temperatures
        ),
        f"with PLIF {carried:.1f} beside the three runs",
        f"the three took {min(last):.1f} to {max(last):.1f} seconds an epoch each",
    )
    assert_told(told, page(PAGE))
    told = (
        f"softmax and the two PLIFs took {min(three):.1f} to {max(three):.1f} seconds an epoch each",
        f"the temperature {by_clock(wikitext('temperature'))[0]:.1f} beside the mixture with PLIF",
    )
    assert_told(told, page(WIKITEXT_PAGE))
    for runs in (five, seven):
        results = [run["result"] for run in runs]
        trained = [result["seconds_per_epoch"] for result in results]
        each = mean(r["seconds_per_epoch"] * r["epochs"] / r["steps"] for r in results) / len(results)
        row = f"| {len(runs)}, the head's products in bfloat16 | {min(trained):.1f} to {max(trained):.1f} |"
        assert f"{row} {1e3 * each:.1f} |" in page("sweep.md")
