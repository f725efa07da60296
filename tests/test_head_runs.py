"""What the documentation says of the runs of 160 epochs on Penn is what they were."""

import re
from statistics import mean

import pytest

from tests.documented import ROOT, assert_told, page, table
from tests.head_runs import (
    AUTHORS,
    FROZEN,
    MORE_PLIF,
    MORE_SOFTMAX,
    MORE_TEMPERATURE,
    MOS,
    MOS_PLIF,
    PENN,
    PLIF,
    SIGSOFTMAX,
    SOFTMAX,
    TEMPERATURE,
    TEXTS,
    Setting,
    first_seed,
    number,
    penn,
    published,
    records,
    score,
    setting_of,
    slope_at,
    slopes,
    training,
    valid_of,
    where_averages_begin,
)
from tests.test_penn_first import heads


PAGE = "lm-penn.md"


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
    assert_told(told, page(PAGE))


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
        "It ends at {:.2f} on valid and {:.2f} on test, {:.2f} and {:.2f} below the mean of softmax over "
        "three seeds, and {:.2f} and {:.2f} below softmax with the same one.".format(
            *(score(runs[MOS][141], text) for text in TEXTS),
            *(-gap for gap in behind(MOS)),
            *(-gaps(text, MOS, SOFTMAX)[0] for text in TEXTS),
        ),
        "nineteen finished runs all but the mixture with PLIF were still falling, by "
        f"{min(last):.2f} to {max(last):.2f} in",
    )
    assert_told(told, page(PAGE))


def test_what_is_called_clear_is_so_in_the_report():
    report = (ROOT / "results" / "lm-penn-160.md").read_text()
    plif = r"\| PLIF from the identity \(output_dropout=0\.5\) against ([^(|]*?) (?:\(.*?\) )?\|.*\| (.*) \|"
    assert dict(re.findall(plif, report)) == {
        "softmax": "no", "learned temperature": "**yes**", "PLIF, random and frozen": "**yes**"
    }  # fmt: skip
    assert "learned temperature (output_dropout=0.5) clearly higher than softmax by seeds alone" in report
    (p,) = re.findall(r"PLIF from .* against softmax \|.* ([0-9.]+) \| no \|", report)
    (level,) = re.findall(r"only p below 0\.05/5 = ([0-9.]+) is called clear", report)
    assert f"its p of {p} misses the {level} that five comparisons ask for" in page(PAGE)


def test_what_is_said_of_the_authors_settings():
    authors, frozen = (first_seed()[setting] for setting in (AUTHORS, FROZEN))
    # One start: learning would have moved the ends of the range of slopes by more than it rounds.
    for end in ("min", "max"):
        assert slopes(authors)["over_knots"][end] == pytest.approx(slopes(frozen)["over_knots"][end])
    apart = [abs(valid_of(authors)[epoch] - valid_of(frozen)[epoch]) for epoch in range(31, 121)]
    scores = [score(run, text) for run in (authors, frozen) for text in TEXTS]
    told = (
        f"a standard deviation of {slopes(frozen)['over_knots']['std']:.2f}, move by "
        f"{authors['result']['learned_function']['moved']['slope_over_knots']:.3f} in 160 epochs.",
        f"never further than {max(apart):.2f} from that of the frozen function",
        "ends at {:.2f} on valid and {:.2f} on test, where that one has {:.2f} and {:.2f}".format(*scores),
        f"{scores[2] - scores[0]:.2f} apart on valid, by rounding and slopes that moved by half a percent",
    )
    assert_told(told, page(PAGE))


def test_what_is_said_of_mixtures():
    softmax, mos, both = (first_seed()[setting] for setting in (SOFTMAX, MOS, MOS_PLIF))
    steps = [run["metrics"][159]["step"] for run in (mos, softmax)]
    (packed,) = mos["result"]["packed"]
    assert mos["metrics"][49]["step"] < packed["step"] < mos["metrics"][50]["step"]
    (carried,) = both["result"]["packed"]
    assert both["metrics"][63]["step"] <= carried["step"] < both["metrics"][64]["step"]
    (other_run,) = [run for run in records(PENN) if setting_of(run) == MOS_PLIF and run["result"] is None]
    valid, other = valid_of(both), valid_of(mos)
    assert min(valid, key=valid.__getitem__) == 120 and len(other_run["metrics"]) == 99
    furthest = max(slope_at(both))
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
        f"not finished, is at {valid_of(other_run)[99]:.2f} after 99 epochs, and this one at {valid[99]:.2f}",
        f"with PLIF, {paper[0] - paper[1]:.2f} better than MoS",
        f"Its logits reach {furthest:.1f}, beyond the end of its table at 20, where it goes on as a line of "
        f"slope {slope_at(both)[furthest]:.2f}",
    )
    assert_told(told, page(PAGE))
