"""The gate of the GPU benchmark: nothing is timed that is not right."""

import pytest
import torch

import benchmarks.__main__ as command
from benchmarks import contenders as who, gpu, losses


@pytest.fixture
def red(monkeypatch, tmp_path, capsys):
    """What the gate says of a wrong softmax; nothing must be measured or written."""

    def run(wrong):
        made = who.make_loss
        make = lambda name, *rest: wrong if name == who.SOFTMAX else made(name, *rest)
        monkeypatch.setattr(who, "make_loss", make)
        monkeypatch.setattr(gpu, "in_turn", lambda *_: pytest.fail("measured all the same"))
        assert command.main(["gpu", "--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 1
        assert not list(tmp_path.iterdir())
        return capsys.readouterr().out.splitlines()[1:]

    return run


def test_refuses_on_red(red):
    lines = red(lambda p: losses.Eager()(p) * 1.001)
    assert lines and all("uncork softmax" in line for line in lines)


def test_refuses_on_red_of_one_dtype(red):
    """Right in float32, and in bfloat16 not."""
    lines = red(lambda p: losses.Eager()(p) * (1.05 if p["weight"].dtype == torch.bfloat16 else 1.0))
    assert lines and all("uncork softmax" in line and "bf16" in line for line in lines)


class Skewed(losses.Eager):
    """Right in its value, and by 1 % wrong in the gradient of what `skew` names."""

    def __init__(self, skew: str) -> None:
        super().__init__(who.Scale())
        self.skew = skew

    def forward(self, p):
        more = p.get(self.skew, self.function.v)
        return super().forward(p) + 0.01 * (more - more.detach()).sum()


@pytest.mark.parametrize("skew", ["hidden", "weight", "function.v"])
def test_a_wrong_gradient_of_any_leaf_is_red(skew):
    problem, wide = (losses.make_problem((6, 4, 9), dtype=t) for t in (torch.float32, torch.float64))
    right = losses.Eager(who.Scale())
    truth = losses.Eager(who.Scale()).double()
    assert losses.disagreement("x", right, truth, problem, wide) == []
    (red,) = losses.disagreement("x", Skewed(skew), truth, problem, wide)
    assert f"in {skew}, at most 1.0e-04 is right" in red
    assert losses.disagreement("x", Skewed(skew), truth, problem, wide, 1e-4, (Skewed(skew), problem)) == []
    nothing = losses.disagreement("x", losses.Eager(), truth, problem, wide)
    assert nothing == ["x: no gradient of function.v"]


def test_the_gate_reaches_the_kernels_that_are_timed():
    pytest.importorskip("triton")
    from uncork.ops.triton import compressed, kernel_pass, window_sums

    _, long, *short = gpu.gate_blocks(tiny=False)
    width = 2 * who.BOUND / long.knots
    assert long.words > max(window_sums.LONG_ROW, kernel_pass.SHORT_ROW) and width <= window_sums.NARROW
    assert long.dtype == "bf16" and not long.components
    assert {block.dtype for block in short} == {"tf32", "bf16"}
    for block in short:
        assert block.components > 1 and block.words < window_sums.LONG_ROW
        assert block.knots >= compressed.MANY and 2 * who.BOUND / block.knots <= compressed.NARROW
    assert all(block.words <= 2000 and block.knots <= 4000 for block in gpu.gate_blocks(tiny=True))


def test_logits_on_the_grid_are_exact_and_clear_of_knots():
    drawn = losses.make_problem((64, 16, 500), components=3, spread=3.5)
    low, wide = (losses.on_grid(drawn, t) for t in (torch.bfloat16, torch.float64))
    assert all(torch.equal(low[name].double(), wide[name].double()) for name in wide)
    for rows in ("hidden", "latent"):
        logits = torch.nn.functional.linear(wide[rows], wide["weight"])
        assert (logits * 128 % 2 == 1).all()
        assert torch.equal(
            torch.nn.functional.linear(low[rows].float(), low["weight"].float()), logits.float()
        )
        position = (logits + who.BOUND) * (100_000 / (2 * who.BOUND))
        assert (position - position.round()).abs().min() >= 1 / 32
