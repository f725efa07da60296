"""What the first pages say of whether heads help is what the runs were."""

import re
import statistics
from statistics import mean

from tests.documented import ROOT, assert_told, page, table
from tests.head_runs import (
    FROZEN,
    MORE_PLIF,
    MORE_TEMPERATURE,
    MOS,
    SOFTMAX,
    TEXTS,
    longer,
    penn,
    score,
    wikitext,
)
from tests.test_adam_heads import FAST, SOFTMAX as ADAM_SOFTMAX, TEMPERATURE as ADAM_TEMPERATURE, heads
from tests.test_narrow_heads import PLIF, SOFTMAX as NARROW_SOFTMAX, TEMPERATURE, longer as narrow
from uncork.report.load import load
from uncork.report.summary import comparisons, panels


FIRST_PAGES = ("../README.md", "index.md")


def row(where: str, head: str, runs: dict[int, dict], softmax: dict[int, dict]) -> str:
    """The mean over its seeds less that of softmax with the same seeds, and where softmax stands."""
    ends = {
        text: [mean(score(some[seed], text) for seed in runs) for some in (runs, softmax)] for text in TEXTS
    }
    valid, test = (own - other for own, other in ends.values())
    return f"| {where} | {head} | {valid:+.2f} | {test:+.2f} | {ends['test'][1]:.2f} | {len(runs)} |"


def rows() -> list[str]:
    runs, small, adam = penn(), narrow(24), heads()
    softmax, plif, temperature = wikitext("softmax", "plif", "temperature")
    own, learned, frozen = longer()
    alone = lambda run: {141: run}
    return [
        row("Penn Treebank, 160 epochs", "mixture of 15 softmaxes", runs[MOS], runs[SOFTMAX]),
        row("", "PLIF", runs[MORE_PLIF], runs[SOFTMAX]),
        row("", "learned temperature", runs[MORE_TEMPERATURE], runs[SOFTMAX]),
        row("Penn Treebank, 320 epochs", "PLIF", alone(learned), alone(own)),
        row("", "PLIF drawn at random and never learned", alone(frozen), alone(own)),
        row("WikiText-2, 80 epochs", "PLIF", alone(plif), alone(softmax)),
        row("", "learned temperature", alone(temperature), alone(softmax)),
        row(
            "Penn with Adam, 84 epochs",
            "learned temperature",
            alone(adam[ADAM_TEMPERATURE]),
            alone(adam[ADAM_SOFTMAX]),
        ),
        row("", "PLIF, slope rate 20", alone(adam[FAST]), alone(adam[ADAM_SOFTMAX])),
        row(
            "Penn, 8 numbers for 10,000 words, 24 epochs",
            "learned temperature",
            small[TEMPERATURE],
            small[NARROW_SOFTMAX],
        ),
        row("", "PLIF, slope rate 2,000", small[PLIF], small[NARROW_SOFTMAX]),
    ]


def test_the_tables_are_those_of_the_runs():
    assert FROZEN in penn()
    for name in FIRST_PAGES:
        assert table(name, "do they help") == rows(), "\n".join(rows())


def test_plif_has_the_lower_kl_in_every_combination_committed():
    tried, gains = 0, []
    for name in ("small", "full"):
        text = (ROOT / "results" / f"synthetic-{name}.md").read_text(encoding="utf-8")
        (said,) = re.findall(
            r"LMS, PLIF beats .* of (\d+) combinations .* KL alone it is ahead in (\d+),", text
        )
        assert said[0] == said[1]
        tried += int(said[0])
        cells = load([ROOT / "results" / f"synthetic-{name}.jsonl"]).cells
        gains += [100.0 * each.gain for each in comparisons(panels(cells)) if each.head == "plif"]
    assert len(gains) == tried
    told = (
        f"has a lower KL than softmax and than a mixture in each of the {tried} combinations of the "
        f"committed results, by {min(gains):.2f} % to {max(gains):.0f} %, by "
        f"{statistics.median(gains):.1f} % in the median"
    )
    for name in FIRST_PAGES:
        assert_told((told,), page(name))
