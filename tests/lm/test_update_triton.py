"""The update as one kernel, in Triton's interpreter or on a GPU, against the same by torch's operations."""

import pytest
import torch

from tests.helpers import DEVICE, rms
from uncork.lm import FunctionConfig, HeadConfig
from uncork.lm.build import build_model, build_optimizer
from uncork.lm.optim import AtEpoch, AveragedSGD
from uncork.lm.step import Carried, TrainingStep
from uncork.ops import triton


pytestmark = pytest.mark.skipif(
    bool(triton.obstacle(DEVICE)),
    reason="needs TRITON_INTERPRET=1, as in the run of its own in `make test`, or UNCORK_TEST_DEVICE=cuda",
)
SHAPES = [(3, 5), (1,), (4096,), (4099,), (33, 65), (7,), (2, 2), (9000,), (16,), (1, 9)]  # two launches


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(DEVICE, dtype)) for shape in SHAPES]


def run(mine, dtype, factor, first=2, steps=9, slower=False, beta2=None):
    """All parameters and averages after some steps, averaging from the sixth on; with `first` 0 at once.

    `slower`: at a pace that falls. `beta2`: steps of the first group are divided by the gradients' size.
    """
    torch.manual_seed(0)
    groups = [{"params": mine[::2], "beta2": beta2}, {"params": mine[1::2], "lr": 0.02, "weight_decay": 0.3}]
    optimizer = AveragedSGD(groups, lr=0.5, weight_decay=0.01, trigger=AtEpoch(first))
    generator = torch.Generator().manual_seed(5)
    for step in range(steps):
        if step in (3, 5):
            optimizer.observe(1.0)
        for p in mine:
            p.grad = torch.randn(p.shape, generator=generator).to(DEVICE, dtype)
        if slower:
            optimizer.set_pace(1.0 / (1 + step))
        number = None if factor is None else torch.tensor(factor * (1 + step), device=DEVICE, dtype=dtype)
        optimizer.step(scale=0.3 + 0.1 * step, factor=number)
    assert optimizer.averaged_steps == (max(0, steps - 5) if first else steps)
    kept = [optimizer.state[p] for p in mine]
    return [
        [p.detach() for p in mine],
        [one["average"] for one in kept if "average" in one],
        [one["square"] for one in kept if "square" in one],
    ]


def all_of(tensors):
    return torch.cat([torch.zeros(0, dtype=torch.float64), *(t.double().cpu().flatten() for t in tensors)])


@pytest.mark.parametrize("factor", [None, 0.03])
@pytest.mark.parametrize(("steps", "slower"), [(4, False), (6, False), (9, False), (4, True), (9, True)])
@pytest.mark.parametrize("beta2", [None, 0.9, 0.999])
def test_triton_update_is_torchs_to_rounding(monkeypatch, factor, steps, slower, beta2):
    from uncork.lm import update_kernel

    calls, update = [], update_kernel.update
    monkeypatch.setattr(update_kernel, "update", lambda *a: calls.append(update(*a)))
    settings = {"steps": steps, "slower": slower, "beta2": beta2}
    fused = run(parameters(), torch.float32, factor, **settings)
    launched = steps * (1 if beta2 is None else 2)  # a launch for each kind of step
    assert len(calls) == launched
    exact = run(parameters(torch.float64), torch.float64, factor, **settings)
    assert len(calls) == launched, "float64 goes through torch"
    with monkeypatch.context() as patch:
        patch.setattr(AveragedSGD, "_can_fuse", lambda self: False)
        plain = run(parameters(), torch.float32, factor, **settings)
    assert len(fused[1]) == len(exact[1]) == (0 if steps == 4 else len(SHAPES))
    assert len(fused[2]) == len(exact[2]) == (0 if beta2 is None else len(SHAPES[::2]))
    for kind in range(3):
        for ours, theirs in zip(fused[kind], plain[kind], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
        # Over all numbers of a kind: in a tensor of few, torch may hit the right ones by luck.
        errors = [rms(all_of(some[kind]) - all_of(exact[kind])) for some in (fused, plain)]
        assert errors[0] <= 1.2 * errors[1]


def test_triton_update_averages_from_the_first_step():
    mine = parameters()
    _, averages, _ = run(mine, torch.float32, None, first=0, steps=1)
    assert all(torch.equal(average, p) for average, p in zip(averages, mine, strict=True))


def test_triton_update_leaves_to_torch_what_it_cannot_take():
    one, other = parameters()[:2]
    optimizer = AveragedSGD([one, other], lr=1.0)
    one.grad = torch.ones_like(one)
    assert not optimizer._can_fuse(), "a gradient is missing"
    other.grad = torch.ones_like(other)
    assert optimizer._can_fuse()
    one.grad = torch.ones(5, 3, device=DEVICE).t()
    assert not optimizer._can_fuse(), "not contiguous"
    one.grad = torch.ones_like(one)
    optimizer.state[one]["square"] = torch.ones(5, 3, device=DEVICE).t()  # as a loaded state may be
    assert not optimizer._can_fuse(), "mean squares not contiguous"


HEADS = {
    "softmax": HeadConfig(),
    "plif": HeadConfig(
        kind="monotonic",
        function=FunctionConfig(name="PLIF", options={"knots": 50}, lr=0.5, weight_decay=1e-3),
    ),
    "scale": HeadConfig(kind="monotonic", function=FunctionConfig(name="Scale", lr=0.1)),
    "mixture": HeadConfig(kind="mixture", components=3),
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("finetune", [None, "run"])
def test_triton_update_of_whole_steps(make_config, monkeypatch, head, finetune):
    """Models as built, clipped, the function's group at its own rate and decay; finetuning averages."""
    config = make_config(HEADS[head], finetune=finetune)
    ends = []
    for fused in (True, False):
        with monkeypatch.context() as patch:
            if not fused:
                patch.setattr(AveragedSGD, "_can_fuse", lambda self: False)
            torch.manual_seed(3)
            model = build_model(config, 30).to(DEVICE).train()
            optimizer = build_optimizer(config, model)
            stream_TB = torch.randint(30, (40, 4), generator=torch.Generator().manual_seed(5)).to(DEVICE)
            carried = Carried.fresh(model, 4, DEVICE)
            step = TrainingStep(config, model, model, optimizer, stream_TB, carried)
            torch.manual_seed(4)
            for length in (7, 5):
                step(length, 0)
            assert optimizer.averaging is (finetune is not None)
            averages = [one["average"] for one in map(optimizer.state.get, model.parameters()) if one]
            ends.append([*model.parameters(), *averages])
    assert len(ends[0]) == (2 if finetune else 1) * len(list(model.parameters()))
    for ours, theirs in zip(*ends, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)
