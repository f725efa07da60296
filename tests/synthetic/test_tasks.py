import pytest
import torch

from uncork.synthetic import Cell, Task, tasks
from uncork.synthetic.tasks import BLOCK, dirichlet


def cell(**changes):
    values = {"vocabulary": 20, "width": 2, "concentration": 0.1, "contexts": 50, "head": "softmax"}
    return Cell(**{**values, **changes})


@pytest.mark.parametrize("concentration", [1e-3, 0.01, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("size", [2, 100])
def test_rows_are_distributions_at_any_concentration(concentration, size):
    sample = dirichlet(300, size, concentration, torch.Generator().manual_seed(0))
    assert torch.isfinite(sample).all() and (sample >= 0).all()
    torch.testing.assert_close(sample.sum(-1), torch.ones(300))


@pytest.mark.parametrize("concentration", [0.01, 0.1, 1.0])
def test_moments_are_those_of_the_dirichlet(concentration):
    size = 20
    sample = dirichlet(40_000, size, concentration, torch.Generator().manual_seed(1)).double()
    # E[p_i] = 1/M and E[sum p_i^2] = (alpha + 1) / (M alpha + 1).
    assert (sample.mean(0) - 1 / size).abs().max() < 0.006
    expected = (concentration + 1) / (size * concentration + 1)
    assert float(sample.square().sum(-1).mean()) == pytest.approx(expected, rel=0.01)


def test_any_range_of_rows_is_the_same_however_it_is_asked_for():
    contexts = 2 * BLOCK + 10
    task = Task(cell(contexts=contexts))
    whole = task.rows(0, contexts)
    assert whole.shape == (contexts, 20)
    for start, stop in [(0, 1), (BLOCK - 3, BLOCK + 3), (5, 2 * BLOCK + 7), (contexts - 1, contexts)]:
        assert torch.equal(task.rows(start, stop), whole[start:stop])


def test_blocks_beyond_the_budget_are_made_again_and_not_kept():
    contexts = 3 * BLOCK
    kept = Task(cell(contexts=contexts))
    forgetful = Task(cell(contexts=contexts), cache_bytes=BLOCK * 20 * 4)
    for block in (0, 1, 2, 1):
        assert torch.equal(forgetful.block(block), kept.block(block))
    assert list(forgetful._blocks) == [0] and len(kept._blocks) == 3


def test_no_block_is_larger_than_promised(monkeypatch):
    sizes = []
    original = tasks.dirichlet
    monkeypatch.setattr(tasks, "dirichlet", lambda rows, *rest: sizes.append(rows) or original(rows, *rest))
    Task(cell(contexts=5 * BLOCK + 1), cache_bytes=0).entropy_floor()
    assert sizes == [BLOCK] * 5 + [1]


def test_seeds_concentrations_and_blocks_differ():
    draw = lambda **changes: Task(cell(contexts=2 * BLOCK, **changes))
    first = draw()
    assert torch.equal(first.block(0), draw().block(0))
    assert not torch.equal(first.block(0), first.block(1))
    assert not torch.equal(first.block(0), draw(seed=1).block(0))
    assert not torch.equal(first.block(1), draw(seed=1).block(0))


def test_entropy_floor():
    task = Task(cell(contexts=BLOCK + 100))
    p = task.rows(0, BLOCK + 100).double()
    expected = -torch.xlogy(p, p).sum(-1).mean()
    assert task.entropy_floor() == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(
    "name, value",
    [
        ("vocabulary", 1),
        ("width", 0),
        ("contexts", 0),
        ("seed", -1),
        ("concentration", 0.0),
        ("concentration", float("nan")),
        ("head", "linear"),
        ("width", 2.5),
        ("vocabulary", True),
    ],
)
def test_bad_cells_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"`{name}`"):
        cell(**{name: value})
