import copy
import json

import pytest
import torch

from uncork.lm.optim import TINY, AtEpoch, AveragedSGD, Doubling, Never, NonMonotone


def problem(dtype=torch.float64):
    return [
        torch.nn.Parameter(torch.randn(3, 4, dtype=dtype)),
        torch.nn.Parameter(torch.randn(5, dtype=dtype)),
    ]


def set_gradients(parameters, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)


def test_iterates_equal_torchs_sgd_and_asgd_at_a_constant_rate():
    ours = problem()
    sgd, asgd = copy.deepcopy(ours), copy.deepcopy(ours)
    lr = 0.25  # exact in float32, in which torch's ASGD keeps its rate
    optimizer = AveragedSGD(ours, lr=lr, weight_decay=0.01, trigger=AtEpoch(0))
    others = [
        torch.optim.SGD(sgd, lr=lr, weight_decay=0.01),
        torch.optim.ASGD(asgd, lr=lr, weight_decay=0.01, lambd=0.0, t0=0),
    ]
    for step in range(7):
        for parameters, stepper in zip((ours, sgd, asgd), (optimizer, *others), strict=True):
            set_gradients(parameters, step)
            stepper.step()
        torch.testing.assert_close(ours, sgd, rtol=1e-13, atol=0)
        torch.testing.assert_close(ours, asgd, rtol=1e-13, atol=0)


def test_the_average_is_the_mean_of_all_iterates_and_torchs_lacks_the_first():
    ours = problem()
    other = copy.deepcopy(ours)
    optimizer = AveragedSGD(ours, lr=0.25, trigger=AtEpoch(0))
    asgd = torch.optim.ASGD(other, lr=0.25, lambd=0.0, t0=0)
    iterates = []
    for step in range(6):
        set_gradients(ours, step)
        set_gradients(other, step)
        optimizer.step()
        asgd.step()
        iterates.append(ours[0].detach().clone())
    torch.testing.assert_close(optimizer.state[ours[0]]["average"], torch.stack(iterates).mean(0))
    torch.testing.assert_close(asgd.state[other[0]]["ax"], torch.stack(iterates[1:]).mean(0))


def test_a_pace_multiplies_every_groups_rate_and_its_decay():
    """As a lower rate would; the gradients that were given stay as they are."""
    ours = problem()
    other = copy.deepcopy(ours)
    groups = lambda two, pace: [
        {"params": two[:1], "lr": 0.5 * pace, "weight_decay": 0.2},
        {"params": two[1:], "lr": 0.25 * pace},
    ]
    optimizer, slower = AveragedSGD(groups(ours, 1.0), lr=1.0), AveragedSGD(groups(other, 0.125), lr=1.0)
    optimizer.set_pace(0.5)
    optimizer.set_pace(0.125)
    for step in range(3):
        for parameters, stepper in ((ours, optimizer), (other, slower)):
            set_gradients(parameters, step)
            given = [p.grad.clone() for p in parameters]
            stepper.step()
            assert all(map(torch.equal, given, (p.grad for p in parameters)))
        torch.testing.assert_close(ours, other, rtol=1e-14, atol=0)


@pytest.mark.parametrize("pace", [0.0, -0.5, 1.5, float("nan")])
def test_a_pace_is_above_nothing_and_at_most_the_whole(pace):
    with pytest.raises(ValueError, match=r"`pace` must be above 0 and at most 1; got .* Pass 1"):
        AveragedSGD(problem(), lr=1.0).set_pace(pace)


def test_each_step_uses_its_own_rate_where_torchs_asgd_is_one_late():
    scales = [1.0, 0.5, 2.0, 1.0]
    ours = [torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))]
    other = copy.deepcopy(ours)
    optimizer = AveragedSGD(ours, lr=1.0, trigger=AtEpoch(0))
    asgd = torch.optim.ASGD(other, lr=1.0, lambd=0.0, t0=0)
    moved, moved_late = [], []
    for scale in scales:
        for p in (ours[0], other[0]):
            p.grad = -torch.ones_like(p)
        before, before_late = ours[0].item(), other[0].item()
        asgd.param_groups[0]["lr"] = scale
        optimizer.step(scale=scale)
        asgd.step()
        moved.append(ours[0].item() - before)
        moved_late.append(other[0].item() - before_late)
    assert moved == scales
    assert moved_late == [1.0, 1.0, 0.5, 2.0]


def test_a_written_out_run_with_changing_rates_and_two_groups():
    a, b = problem()
    expected = {a: a.detach().clone(), b: b.detach().clone()}
    rates, decay = {a: 0.5, b: 0.02}, 0.1
    optimizer = AveragedSGD(
        [{"params": [a]}, {"params": [b], "lr": 0.02}], lr=0.5, weight_decay=decay, trigger=AtEpoch(2)
    )
    sums, count = {a: 0.0, b: 0.0}, 0
    for step in range(9):
        if step in (3, 6):
            optimizer.observe(1.0)  # the second evaluation starts averaging
        scale = 0.3 + 0.1 * step
        set_gradients([a, b], step)
        optimizer.step(scale=scale)
        for p in (a, b):
            expected[p] = expected[p] - rates[p] * scale * (p.grad + decay * expected[p])
            if step >= 6:
                sums[p] = sums[p] + expected[p]
        count += step >= 6
    for p in (a, b):
        torch.testing.assert_close(p.detach(), expected[p], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(optimizer.state[p]["average"], sums[p] / count)


def test_a_factor_multiplies_the_gradients_of_every_group_and_not_their_decay():
    ours = problem()
    other = copy.deepcopy(ours)
    groups = lambda pair: [{"params": pair[:1]}, {"params": pair[1:], "lr": 0.5, "weight_decay": 0.1}]
    optimizer = AveragedSGD(groups(ours), lr=0.25, weight_decay=0.01)
    sgd = torch.optim.SGD(groups(other), lr=0.25, weight_decay=0.01)
    set_gradients(ours, 0)
    for p, q in zip(ours, other, strict=True):
        q.grad = 0.125 * p.grad
    optimizer.step(factor=torch.tensor(0.125, dtype=torch.float64))
    sgd.step()
    torch.testing.assert_close(ours, other, rtol=1e-13, atol=0)


def test_a_small_gradient_makes_a_whole_step():
    """That of a rare word's row, say: what is added to its size must not swallow it."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.full((3,), 1e-7)
    AveragedSGD([parameter], lr=0.5, beta2=0.999).step()
    torch.testing.assert_close(parameter.detach(), torch.full((3,), -0.5), rtol=0.02, atol=0.0)


@pytest.mark.parametrize("beta2", [0.0, 0.9, 0.999])
def test_divided_steps_are_adams_without_momentum(beta2):
    """Its decay, as AdamW's, is not divided; a factor comes before, a pace after."""
    ours = problem()
    other = copy.deepcopy(ours)
    optimizer = AveragedSGD(ours, lr=0.5, weight_decay=0.01, beta2=beta2)
    adam = torch.optim.AdamW(other, lr=0.25, betas=(0.0, beta2), eps=TINY, weight_decay=0.01)
    optimizer.set_pace(0.5)
    for step in range(7):
        set_gradients(ours, step)
        for p, q in zip(ours, other, strict=True):
            q.grad = p.grad * 0.125 * (step + 1)
        optimizer.step(factor=torch.tensor(0.125 * (step + 1), dtype=torch.float64))
        adam.step()
        torch.testing.assert_close(ours, other, rtol=1e-12, atol=1e-12)


def test_a_group_may_take_plain_steps_beside_divided_ones():
    ours = problem()
    other = copy.deepcopy(ours)
    optimizer = AveragedSGD(
        [{"params": ours[:1]}, {"params": ours[1:], "lr": 0.25, "beta2": None}], lr=0.5, beta2=0.9
    )
    steppers = [
        torch.optim.Adam(other[:1], lr=0.5, betas=(0.0, 0.9), eps=TINY),
        torch.optim.SGD(other[1:], lr=0.25),
    ]
    for step in range(5):
        for parameters in (ours, other):
            set_gradients(parameters, step)
        for stepper in (optimizer, *steppers):
            stepper.step()
    torch.testing.assert_close(ours, other, rtol=1e-12, atol=1e-12)
    assert "square" in optimizer.state[ours[0]] and "square" not in optimizer.state[ours[1]]


@pytest.mark.parametrize(
    ("first", "second", "what"), [(1, 2, "has its first one now"), (2, 1, "has none now")]
)
def test_divided_steps_are_refused_where_gradients_come_and_go(first, second, what):
    """They count steps for all parameters at once: a step by fewer squares would be many times too long."""
    parameters = problem()
    optimizer = AveragedSGD(parameters, lr=0.5, beta2=0.999)
    optimizer.step()  # no gradient at all yet: nothing is counted
    before = parameters[0].detach().clone()
    set_gradients(parameters[:first], 0)
    optimizer.step()
    moved = (parameters[0].detach() - before).abs()
    assert moved.max().item() == pytest.approx(0.5)  # the first step is as long as the rate
    optimizer.zero_grad()
    set_gradients(parameters[:second], 1)
    before = [p.detach().clone() for p in parameters]
    with pytest.raises(ValueError, match=rf"`beta2` must be None for .* {what}. Put it into a group"):
        optimizer.step()
    assert all(map(torch.equal, parameters, before))


def test_a_parameter_that_never_has_a_gradient_is_left_alone_by_divided_steps():
    parameters = problem()
    optimizer = AveragedSGD(parameters, lr=0.5, beta2=0.9)
    before = parameters[1].detach().clone()
    for step in range(3):
        set_gradients(parameters[:1], step)
        optimizer.step()
    assert torch.equal(parameters[1], before)


@pytest.mark.parametrize(
    ("losses", "fires_at"),
    [
        ([5, 4, 3, 2, 1, 0.5, 0.4], None),
        ([5, 4, 3, 3.5, 3.4, 3.3, 3.2], 5),  # 3.3 > min(5, 4, 3) once three are behind by two
        ([1, 2, 3, 4], 3),
    ],
)
def test_non_monotone_trigger(losses, fires_at):
    optimizer = AveragedSGD(problem(), lr=1.0, trigger=NonMonotone(2))
    fired = [step for step, loss in enumerate(losses) if optimizer.observe(loss)]
    assert (fired[0] if fired else None) == fires_at
    assert optimizer.averaging == bool(fired)


def test_non_monotone_trigger_is_the_references_condition():
    generator = torch.Generator().manual_seed(1)
    losses = torch.rand(60, generator=generator).tolist()
    best_val_loss: list[float] = []
    trigger = NonMonotone(5)
    for loss in losses:
        reference = len(best_val_loss) > 5 and loss > min(best_val_loss[:-5])
        assert trigger.fires(best_val_loss, loss) == reference
        best_val_loss.append(loss)


def test_epoch_trigger_and_never():
    optimizer = AveragedSGD(problem(), lr=1.0, trigger=AtEpoch(3))
    assert [optimizer.observe(1.0) for _ in range(4)] == [False, False, True, True]
    never = AveragedSGD(problem(), lr=1.0, trigger=Never())
    assert not any(never.observe(float(i)) for i in range(100)) and not never.averaging


def test_a_doubling_average_starts_anew_at_every_doubling():
    trigger = Doubling(20)
    assert [epoch for epoch in range(1, 700) if trigger.restarts(epoch)] == [40, 80, 160, 320, 640]


@pytest.mark.parametrize("stopped_after", [None, 3, 4, 5])
def test_a_doubling_average_is_the_mean_since_it_last_started(stopped_after):
    """Also if the run stops, at a new start or beside it, and goes on from its state."""
    parameters = problem()
    optimizer = AveragedSGD(parameters, lr=0.25, trigger=Doubling(2))
    iterates = []
    for epoch in range(1, 7):
        iterates.append([])
        for step in range(3):
            set_gradients(parameters, 10 * epoch + step)
            optimizer.step()
            iterates[-1].append(parameters[0].detach().clone())
        if epoch > 2:
            since = iterates[2:4] if epoch <= 4 else iterates[4:]
            mean = torch.stack([one for epoch in since for one in epoch]).mean(0)
            torch.testing.assert_close(optimizer.state[parameters[0]]["average"], mean)
        optimizer.observe(1.0)
        if epoch == stopped_after:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = AveragedSGD(parameters, lr=0.25, trigger=Doubling(2))
            optimizer.load_state_dict(state)


def test_averaged_swaps_and_restores_even_after_an_error():
    parameters = problem()
    optimizer = AveragedSGD(parameters, lr=0.3, trigger=AtEpoch(0))
    for step in range(3):
        set_gradients(parameters, step)
        optimizer.step()
    iterate = parameters[0].detach().clone()
    with pytest.raises(RuntimeError), optimizer.averaged():
        torch.testing.assert_close(parameters[0], optimizer.state[parameters[0]]["average"])
        assert not torch.equal(parameters[0], iterate)
        raise RuntimeError
    assert torch.equal(parameters[0], iterate)


def test_averaged_changes_nothing_before_averaging():
    parameters = problem()
    optimizer = AveragedSGD(parameters, lr=0.3)
    set_gradients(parameters, 0)
    optimizer.step()
    before = parameters[0].detach().clone()
    with optimizer.averaged():
        assert torch.equal(parameters[0], before)


def test_parameters_without_gradient_are_averaged_too_and_frozen_ones_left_out():
    moved, still, frozen = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    frozen.requires_grad_(False)
    optimizer = AveragedSGD([moved, still, frozen], lr=1.0, trigger=AtEpoch(0))
    moved.grad = torch.ones(2)
    optimizer.step()
    assert set(optimizer.state) == {moved, still}


@pytest.mark.parametrize("beta2", [None, 0.9])
@pytest.mark.parametrize("averaging", [False, True])
def test_state_dict_continues_exactly(averaging, beta2):
    def steps(optimizer, parameters, numbers):
        for number in numbers:
            set_gradients(parameters, number)
            optimizer.step(scale=1.0 + 0.1 * number)
            if number % 3 == 2:
                optimizer.observe(float(number))

    trigger = AtEpoch(1) if averaging else NonMonotone(1)
    whole = problem(torch.float32)
    halves = copy.deepcopy(whole)
    reference = AveragedSGD(whole, lr=0.3, weight_decay=0.1, trigger=trigger, beta2=beta2)
    steps(reference, whole, range(12))
    first = AveragedSGD(halves, lr=0.3, weight_decay=0.1, trigger=trigger, beta2=beta2)
    steps(first, halves, range(5))
    saved = copy.deepcopy(first.state_dict())
    json.dumps({name: value for name, value in saved.items() if name != "state"})  # all but tensors
    resumed = AveragedSGD(halves, lr=9.0, weight_decay=0.0, trigger=trigger)
    resumed.load_state_dict(saved)
    steps(resumed, halves, range(5, 12))
    assert all(torch.equal(a, b) for a, b in zip(whole, halves, strict=True))
    assert resumed.history == reference.history and resumed.averaging == reference.averaging
    for a, b in zip(whole, halves, strict=True):
        assert reference.state.get(a, {}).keys() == resumed.state.get(b, {}).keys()
        assert (beta2 is not None) == ("square" in reference.state.get(a, {}))
        for name, tensor in reference.state.get(a, {}).items():
            assert torch.equal(tensor, resumed.state[b][name])


def test_a_state_of_before_steps_could_be_divided_is_read():
    parameters = problem()
    optimizer = AveragedSGD(parameters, lr=0.3, trigger=AtEpoch(0))
    set_gradients(parameters, 0)
    optimizer.step()
    state = optimizer.state_dict()
    del state["squared_steps"]
    for group in state["param_groups"]:
        del group["beta2"]
    resumed = AveragedSGD(parameters, lr=0.3, trigger=AtEpoch(0))
    resumed.load_state_dict(copy.deepcopy(state))
    resumed.step()
    assert resumed.averaged_steps == 2 and all("square" not in resumed.state[p] for p in parameters)


def test_closure_and_torchs_schedulers_work():
    (p, _) = problem()
    optimizer = AveragedSGD([p], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    def closure():
        optimizer.zero_grad()
        loss = p.sum()
        loss.backward()
        return loss

    before = p.detach().clone()
    assert optimizer.step(closure) is not None
    scheduler.step()
    optimizer.step(closure)
    torch.testing.assert_close(p.detach(), before - 1.5)


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="`lr` must be positive and finite; got 0"):
        AveragedSGD(problem(), lr=0.0)
    with pytest.raises(ValueError, match="`weight_decay` must be zero or more"):
        AveragedSGD(problem(), lr=1.0, weight_decay=-1.0)
    for name in ("lr", "weight_decay"):
        with pytest.raises(ValueError, match=rf"`{name}` must be .* and finite; got inf"):
            AveragedSGD(problem(), **{"lr": 1.0, name: float("inf")})
    for beta2 in (1.0, -0.1, float("nan")):
        for groups, others in ((problem(), {"beta2": beta2}), ([{"params": problem(), "beta2": beta2}], {})):
            with pytest.raises(
                ValueError, match=r"`beta2` must be in \[0, 1\), or None for plain steps; got"
            ):
                AveragedSGD(groups, lr=1.0, **others)
    with pytest.raises(ValueError, match="must come from AveragedSGD"):
        AveragedSGD(problem(), lr=1.0).load_state_dict(torch.optim.SGD(problem(), lr=1.0).state_dict())


def test_a_group_that_is_refused_is_not_stepped():
    kept, refused = (torch.ones(2, requires_grad=True) for _ in range(2))
    optimizer = AveragedSGD([kept], lr=1.0)
    with pytest.raises(ValueError, match="`lr` must be positive and finite; got -5"):
        optimizer.add_param_group({"params": [refused], "lr": -5.0})
    (kept.sum() + refused.sum()).backward()
    optimizer.step()
    assert kept.tolist() == [0.0, 0.0] and refused.tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match="must be a dict"):
        optimizer.add_param_group([refused])
