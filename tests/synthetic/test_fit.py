import math
from dataclasses import replace

import pytest
import torch

from uncork.synthetic import HEADS, Cell, Settings, Task, run_cell
from uncork.synthetic.cells import parameter_counts
from uncork.synthetic.fit import _Run, fit
from uncork.synthetic.heads import build_head
from uncork.synthetic.metrics import certify, evaluate, learned_function, model_rank
from uncork.theory import exact_rank


QUICK = Settings(rates=(0.1, 0.3), trial_passes=3, max_passes=8, batches=3, table=400, certified_contexts=20)


def cell(**changes):
    values = {"vocabulary": 12, "width": 3, "concentration": 0.3, "contexts": 60, "head": "softmax"}
    return Cell(**{**values, **changes})


def fitted(settings=QUICK, **changes):
    chosen = cell(**changes)
    task = Task(chosen)
    return fit(chosen, task, settings), task


@pytest.mark.parametrize("head", HEADS)
def test_every_head_learns(head):
    result, task = fitted(head=head)
    assert len(result.search) == 2 and result.rate in (0.1, 0.3)
    assert result.history[-1] < result.history[0] and all(kl > 0 for kl in result.history)
    assert result.hidden().shape == (60, 3)


@pytest.mark.parametrize("head", HEADS)
def test_metrics_are_the_definitions(head):
    result, task = fitted(head=head)
    measured = evaluate(result, task)
    p = task.rows(0, 60).double()
    with torch.no_grad():
        log_q = result.head.log_prob(result.hidden()).double()
    kl = (torch.xlogy(p, p) - p * log_q).sum(-1).mean()
    assert measured["kl"] == pytest.approx(float(kl), rel=1e-5)
    matched = (p.argmax(-1) == log_q.argmax(-1)).double().mean()
    assert measured["mode_matching"] == pytest.approx(100 * float(matched))
    assert measured["cross_entropy"] == pytest.approx(measured["kl"] + measured["entropy_floor"])


def test_a_wide_enough_softmax_reaches_the_floor():
    settings = Settings(max_passes=400, tolerance=1e-3, certified_contexts=0)
    result, task = fitted(settings, vocabulary=5, width=5, concentration=1.0, contexts=40)
    measured = evaluate(result, task)
    assert measured["kl"] < 2e-3 and measured["mode_matching"] > 95


def test_a_narrow_softmax_does_not_and_an_increasing_function_does_better():
    settings = Settings(rates=(0.1, 0.3), table=400, tolerance=2e-3)
    sizes = {"vocabulary": 30, "width": 3, "concentration": 0.05, "contexts": 300}
    softmax, plif = (evaluate(*fitted(settings, head=h, **sizes))["kl"] for h in ("softmax", "plif"))
    assert plif < 0.9 * softmax


def test_the_end_says_how_it_came():
    assert fitted(replace(QUICK, max_passes=2))[0].stopped == "max_passes"
    easy = replace(QUICK, max_passes=500, tolerance=0.05, patience=1, decays=1)
    result, _ = fitted(easy)
    assert result.stopped == "converged" and len(result.history) < 500
    assert fitted(replace(QUICK, rates=(1e30,)))[0].stopped == "diverged"


def test_a_diverging_rate_loses_the_search():
    result, _ = fitted(replace(QUICK, rates=(1e30, 0.1)))
    assert result.rate == 0.1 and math.isinf(result.search[0]["kl"])


def test_plateau_is_the_average_relative_fall():
    run = _Run(cell(), Task(cell()), replace(QUICK, patience=2, tolerance=0.01), 0.1, 60)
    run.uniform = 10.0
    run.history = [1.0, 0.99, 0.979]  # falls by 0.021 over two passes: above 0.01 per pass
    assert not run.plateau()
    run.history = [1.0, 0.999, 0.985]
    assert run.plateau()
    run.uniform = 1.1  # little was gained yet: the same fall is a large part of it
    assert not run.plateau()
    run.uniform = 0.9  # worse than uniform: only a rise ends it
    assert not run.plateau()
    run.history = [1.0, 1.0, 1.001]
    assert run.plateau()


def test_each_context_vector_gets_one_step_per_pass():
    run = _Run(cell(), Task(cell()), QUICK, 0.1, 60)
    run.passes(3)
    steps = [
        optimiser.state[part]["step"]
        for optimiser, part in zip(run.context_optimisers, run.contexts, strict=True)
    ]
    assert [int(step) for step in steps] == [3, 3, 3]
    assert sorted(run.ranges) == [(0, 20), (20, 40), (40, 60)]


def test_results_do_not_depend_on_what_is_cached():
    chosen = cell(head="plif", contexts=2100)
    settings = replace(QUICK, max_passes=2, trial_passes=1)
    results = [
        evaluate(fit(chosen, task, settings), task) for task in (Task(chosen), Task(chosen, cache_bytes=0))
    ]
    assert results[0] == results[1]


def test_certificate_brackets_the_optimum():
    result, task = fitted()
    found = certify(result, task, contexts=25)
    assert found["contexts"] == 25
    assert 0 < found["kl_lower_bound"] <= found["kl_optimum"] + 1e-9
    assert found["kl_optimum"] < found["kl_reached"] - 1e-3  # eight passes are not enough
    assert found["largest_gap"] <= 1e-6


def test_ranks_of_linear_softmax_stay_within_the_bound():
    result, task = fitted(width=2)
    assert model_rank(result, task)["press"] <= 3
    with torch.no_grad():
        logits = result.hidden()[:4].double() @ result.head.weight.double().T
    assert exact_rank(logits[:, :4]) <= 4
    assert model_rank(*fitted(width=2, head="plif"))["press"] > 3
    assert next(result.head.parameters()).dtype == torch.float32  # put back


def test_learned_function_of_a_temperature_is_a_line():
    result, task = fitted(head="temperature")
    found = learned_function(result, task, points=11)
    assert found is not None
    statistics = found["slope_statistics"]
    assert statistics["std"] < 1e-5 and statistics["min"] == pytest.approx(statistics["max"])
    rise = (found["f"][-1] - found["f"][0]) / (found["x"][-1] - found["x"][0])
    assert rise == pytest.approx(statistics["mean"], rel=1e-3)
    assert learned_function(*fitted()) is None


@pytest.mark.parametrize(
    "head, extra", [("softmax", 0), ("temperature", 1), ("sigsoftmax", 0), ("plif", 100)]
)
def test_parameter_counts(head, extra):
    result, _ = fitted(head=head)
    assert parameter_counts(result) == {"words": 36, "beside_words": extra, "contexts": 180}


def test_heads_have_no_bias():
    for name in HEADS:
        assert build_head(name, 3, 12, QUICK).bias is None


def test_a_cell_record_is_complete_and_plain():
    import json

    chosen = cell(head="plif")
    record = run_cell(chosen, Task(chosen), QUICK)
    assert json.loads(json.dumps(record)) == record
    assert record["certified"] is None and record["function"] is not None
    assert record["passes"] == len(record["history"])
    assert set(record["metrics"]) == {"kl", "mode_matching", "cross_entropy", "entropy_floor"}
    assert record["provenance"]["torch"]


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"rates": ()}, "rates"),
        ({"rates": (0.1, -1.0)}, "rates"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"decay": 1.0}, "decay"),
        ({"table": 150}, "table"),
        ({"batches": 0}, "batches"),
        ({"knots": 1}, "knots"),
    ],
)
def test_bad_settings_are_refused_by_name(changes, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        Settings(**changes)


def test_a_diverged_cell_is_recorded_as_such():
    import json

    record = run_cell(cell(), Task(cell()), replace(QUICK, rates=(1e30,)))
    assert record["stopped"] == "diverged" and record["metrics"] is None
    json.dumps(record, allow_nan=False)
