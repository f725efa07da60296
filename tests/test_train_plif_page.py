"""The rates that the page on training a PLIF tells of are those of the runs."""

from tests.documented import page, table
from tests.head_runs import penn, score
from tests.test_adam_heads import heads as with_adam
from tests.test_embedded_ablation import runs as embedded
from tests.test_narrow_heads import of_rates as narrow


PLIF, TEMPERATURE = ("penn_plif", "embedded_plif"), ("penn_temperature", "embedded_temperature")


def runs_of_penn() -> list[dict]:
    return [run for by_seed in penn().values() for run in by_seed.values()]


def groups() -> dict[str, list[dict]]:
    """The runs of each row, by what its link leads to."""
    return {
        "lm-penn.md#after-160-epochs": runs_of_penn(),
        "lm-penn-adam.md": list(with_adam().values()),
        "lm-narrow.md#rates": [run for (_, lr, _), run in narrow().items() if lr == 20.0],
        "lm-embedded.md#the-ablation": embedded(),
    }


def function_of(run: dict) -> dict:
    return run["config"]["model"]["head"]["function"] or {}


def is_plain(run: dict) -> bool:
    """A PLIF from the identity, with no setting but its rate."""
    function = function_of(run)
    return (
        run["config"]["name"] in PLIF
        and function["options"] == {"bound": 20.0, "init": "identity", "knots": function["options"]["knots"]}
        and function["options"]["knots"] in (1000, 100_000)
        and not (function["pull"] or function["smoothness"] or function["weight_decay"] or function["refine"])
    )


def rates(runs: list[dict]) -> dict[float, list[float]]:
    """By rate of the slopes, the perplexities on valid."""
    found: dict[float, list[float]] = {}
    for run in filter(is_plain, runs):
        found.setdefault(function_of(run)["lr"], []).append(score(run, "valid"))
    return found


def test_the_rates_of_slopes_are_those_of_the_runs():
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in table("howto/train-plif.md", "rates")
    ]
    assert len(rows) == len(groups())
    for (link, runs), (where, model, tried, best) in zip(groups().items(), rows, strict=True):
        found = rates(runs)
        plain = [run for run in runs if is_plain(run)]
        assert link in where
        assert model == " ".join({f"{run['config']['optim']['lr']:g}" for run in plain})
        numbers = [f"{rate:,.0f}" for rate in sorted(found)]
        assert tried == (f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 3 else ", ".join(numbers))
        lowest = min(found, key=lambda rate: sum(found[rate]) / len(found[rate]))
        assert best == (f"{lowest:,.0f}" if len(found) > 1 else "-")


def test_a_temperature_has_a_rate_of_its_own():
    small = [run for run in groups()["lm-narrow.md#rates"] if run["config"]["name"] in TEMPERATURE]
    every = [run for runs in groups().values() for run in runs if run["config"]["name"] in TEMPERATURE]
    tried = {function_of(run)["lr"]: score(run, "valid") for run in small}
    assert {function_of(run)["lr"] for run in every if run not in small} == {0.1}
    assert sorted(tried, key=tried.__getitem__) == [0.1, 0.01, 1.0]
    assert tried[1.0] - tried[0.1] < 2.0
    told = (
        "The runs have 0.1 for it, where the model has 20 and under Adam 0.002. In [a head of 8 numbers]"
        "(../lm-narrow.md#rates) 0.01 and 1 did a little worse."
    )
    assert told in page("howto/train-plif.md")
