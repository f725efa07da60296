"""The persistent LSTM: run as C++ on a CPU against torch in float64, and on a GPU where there is one."""

import contextlib

import pytest
import torch

from tests.lm.persistent_on_cpu import PlainOperands, take_the_place_of_a_gpu
from uncork.lm import persistent
from uncork.lm.persistent import SOURCE, Layer, macros, persistent_stack, unsuited
from uncork.lm.weight_drop import library_lstm


GPU = torch.cuda.is_available()
# Widths that do and do not fill the blocks, more streams than a group has, more than 32 units for each warp.
SIZES = [(24, 3), (50, 20), (16, 1), (40, 30), (386, 2)]


@pytest.fixture(params=["wide", "narrow"], autouse=True)
def layout(request, monkeypatch):
    monkeypatch.setattr(persistent, "FORWARD_LAYOUT", request.param)
    monkeypatch.setattr(persistent, "BACKWARD_LAYOUT", request.param)
    # Kernels are kept for good, whatever their layout.
    persistent._kernels.cache_clear()
    return request.param


@pytest.fixture(params=["cpu", "cuda"])
def device(request, emulated, monkeypatch):
    if request.param == "cuda":
        if not GPU:
            pytest.skip("needs a GPU")
        return request.param
    take_the_place_of_a_gpu(monkeypatch, emulated)
    monkeypatch.setattr(persistent, "_operands", lambda: PlainOperands)
    return request.param


def one_layer(x, hidden, cell, *weights):
    """A stack of one: all outputs, the last of them and the last cell."""
    y, [(hidden, cell)] = persistent_stack(x, [Layer(None, hidden, cell, *weights)], [0.0])
    return y, hidden, cell


def problem(size, streams, steps=5, width=8):
    """Inputs that bfloat16 holds exactly, so that only the recurrence rounds, and their gradients."""
    generator = torch.Generator().manual_seed(size)

    def draw(*shape, scale=1.0):
        return (scale * torch.randn(*shape, generator=generator)).bfloat16().double()

    gates = 4 * size
    inputs = [
        draw(steps, streams, width), draw(streams, size, scale=0.5), draw(streams, size),
        draw(gates, width, scale=0.5), draw(gates, size, scale=size**-0.5), draw(gates, scale=0.1),
        draw(gates, scale=0.1),
    ]  # fmt: skip
    upstream = [draw(steps, streams, size), draw(streams, size), draw(streams, size)]
    return inputs, upstream


def truth(inputs, upstream):
    """Results and gradients by torch's LSTM, as layers call it, in the dtype of the inputs."""
    x, h, c, *weights = (t.clone().requires_grad_() for t in inputs)
    y, hidden, cell = library_lstm(x, (h[None], c[None]), weights)
    results = [y, hidden[0], cell[0]]
    torch.autograd.backward(results, upstream)
    return results, [t.grad for t in (x, h, c, *weights)]


def rounded_loop(inputs, upstream):
    """The same in float64 but for the states and gates' gradients, which are rounded as the kernels do."""
    x, h, c, *weights = (t.clone().requires_grad_() for t in inputs)
    ys, state, cell = [], h, c
    for x_B in x:
        gates = x_B @ weights[0].T + state @ weights[1].T + weights[2] + weights[3]
        gates.register_hook(lambda gradient: gradient.bfloat16().double())
        i, f, g, o = gates.chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        state = o.sigmoid() * cell.tanh()
        state = state + (state.bfloat16().double() - state).detach()
        ys.append(state)
    results = [torch.stack(ys), state, cell]
    torch.autograd.backward(results, upstream)
    return results, [t.grad for t in (x, h, c, *weights)]


NAMES = ["y", "h", "c", "dx", "dh", "dc", "dweight_ih", "dweight_hh", "dbias_ih", "dbias_hh"]


@pytest.mark.parametrize(("size", "streams"), SIZES)
@pytest.mark.parametrize("width", [8, 11])
def test_values_and_every_gradient(device, size, streams, width):
    """Against the truth, no worse than twice what rounding states and gates' gradients alone costs."""
    inputs, upstream = problem(size, streams, width=width)
    leaves = [t.float().to(device).requires_grad_() for t in inputs]
    results = one_layer(*leaves)
    torch.autograd.backward(results, [g.float().to(device) for g in upstream])
    ours = [*results, *(leaf.grad for leaf in leaves)]
    # Clipping scales gradients in place, so no two may share their memory.
    assert len({leaf.grad.data_ptr() for leaf in leaves}) == len(leaves)
    right, floor = ([*a, *b] for a, b in (truth(inputs, upstream), rounded_loop(inputs, upstream)))
    for name, got, exact, rounded in zip(NAMES, ours, right, floor, strict=True):
        error = (got.detach().double().cpu() - exact).norm() / exact.norm()
        allowed = 2.0 * (rounded - exact).norm() / exact.norm() + 1e-6
        # The values of gates are kept in bfloat16 for backward: 2^-9 of each factor.
        allowed += 4e-3 if name.startswith("d") else 0.0
        assert error <= allowed, f"{name}: {error:.2e} against {allowed:.2e}"


@pytest.mark.parametrize("asked", [(0,), (1,), (2,), (0, 2)])
def test_results_nobody_descends_have_no_part_in_the_gradient(device, asked):
    """As in training, where only the outputs are; a gradient that is missing is one of zeros."""
    gradients = []
    for given in (asked, (0, 1, 2)):
        inputs, upstream = problem(24, 3)
        leaves = [t.float().to(device).requires_grad_() for t in inputs]
        results = one_layer(*leaves)
        upstream = [(t if n in asked else 0 * t).float().to(device) for n, t in enumerate(upstream)]
        torch.autograd.backward([results[n] for n in given], [upstream[n] for n in given])
        gradients.append([leaf.grad for leaf in leaves])
    for missing, zero in zip(*gradients, strict=True):
        torch.testing.assert_close(missing, zero, rtol=1e-6, atol=1e-6)


def test_every_operand_of_a_product_has_rows_of_whole_16_bytes(device, monkeypatch):
    """But those of the first hidden state's gradient, which training does not ask for."""
    product, seen = persistent._product, []

    def watched(a, b):
        seen.append((a, b))
        return product(a, b)

    monkeypatch.setattr(persistent, "_product", watched)
    inputs, upstream = problem(50, 3, width=11)
    leaves = [t.float().to(device).requires_grad_(n != 1) for n, t in enumerate(inputs)]
    y, _, _ = one_layer(*leaves)
    y.backward(upstream[0].float().to(device))
    assert len(seen) == 4
    for operand in (operand for operands in seen for operand in operands):
        fast, slow = (1, 0) if operand.stride(1) == 1 else (0, 1)
        assert operand.stride(fast) == 1 and operand.stride(slow) % persistent.ALIGNED == 0
        assert operand.shape[fast] % persistent.ALIGNED == 0
        assert operand.data_ptr() % 16 == 0
    for leaf in leaves[3:]:
        assert leaf.grad.is_contiguous() and leaf.grad.shape == leaf.shape


def both_kernels(kernels, size, streams, steps=3, masked=None):
    """What the two kernels write, of one problem; with `masked`, who multiplies with a mask in backward."""
    generator = torch.Generator().manual_seed(size)
    low = {"dtype": torch.bfloat16}

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    weight = (draw(4 * size, size) * size**-0.5).to(**low)
    hidden = torch.zeros(steps + 1, streams, macros(size, streams)["PITCH"], **low)
    hidden[0, :, :size] = draw(streams, size)
    cell = draw(steps + 1, streams, size)
    gates, dgates = (torch.empty(steps, streams, 4 * size, **low) for _ in range(2))
    dcell = draw(streams, size)
    kernels.forward(draw(steps, streams, 4 * size), weight, hidden, cell, gates, steps)
    forward = [hidden, cell, gates]
    dhidden, mask = draw(steps, streams, size), None
    if masked is not None:
        mask = 2.0 * (draw(streams, size) > 0)
        if masked:  # by the kernel, from rows further apart
            between = torch.full((steps, streams, 6), torch.nan)
            dhidden = torch.cat([dhidden, between], 2)
        else:
            dhidden, mask = dhidden * mask, None
    if all(torch.isfinite(t).all() for t in forward):
        kernels.backward(dhidden, mask, weight, gates, cell, dcell, dgates, dhidden.shape[2], steps)
    return [*forward, dcell, dgates]


@pytest.mark.parametrize(("size", "streams"), [(24, 3), (40, 30)])
def test_backward_reads_rows_of_any_pitch_and_multiplies_with_the_mask(emulated, size, streams):
    """Zeros and twos, so that nothing rounds."""
    kernels = emulated(size, streams)
    ours, right = (both_kernels(kernels, size, streams, masked=by_kernel) for by_kernel in (True, False))
    without = both_kernels(kernels, size, streams)
    assert all(
        torch.isfinite(t).all() and torch.equal(t, other) for t, other in zip(ours, right, strict=True)
    )
    assert not torch.equal(ours[-1], without[-1])


def late_blocks_show(emulated, size, streams, source=None):
    """Whether a block that is late, whichever it is, changes anything."""
    right = both_kernels(emulated(size, streams), size, streams)
    assert all(torch.isfinite(t).all() for t in right)
    kernels = emulated(size, streams, source)
    for late in range(max(kernels.blocks)):
        kernels.held_back = late
        got = both_kernels(kernels, size, streams)
        if not all(torch.equal(a, b) for a, b in zip(got, right, strict=True)):
            return True
    return False


@pytest.mark.parametrize(("size", "streams"), [(130, 3), (40, 30)])
def test_no_warp_runs_ahead_of_a_block_it_reads_from(emulated, size, streams):
    assert not late_blocks_show(emulated, size, streams)


@pytest.mark.parametrize(
    ("waits", "instead"),
    [
        ("wait_for(flags, watched, t);", ";"),
        ("wait_for(flags, watched, t);", "wait_for(flags, watched, t - 1);"),
        ("wait_for(flags, watched, s);", ";"),
        ("wait_for(flags, watched, s);", "wait_for(flags, watched, s - 1);"),
        ("min(end - 32 * PAIRS, turns * HIDDEN - 8)", "end - 32 * PAIRS"),
        ("first < end && last >= start", "first < end && last >= start + UNITS"),
        ("first < end && last >= start", "first < end - UNITS && last >= start"),
    ],
)
def test_a_wait_that_is_missing_is_found(emulated, waits, instead):
    source = SOURCE.read_text()
    assert source.count(waits) == 1
    assert late_blocks_show(emulated, 130, 3, source.replace(waits, instead))


def test_weights_in_shared_memory_give_what_registers_give(emulated, monkeypatch):
    """Two blocks of 32 for each warp, as from 386 units on, and few of them in registers."""
    all_held = emulated(386, 2)
    right = both_kernels(all_held, 386, 2, steps=2)
    for name in ("FORWARD", "BACKWARD"):
        tables = getattr(persistent, name)
        monkeypatch.setattr(
            persistent, name, {key: table._replace(held=3, ahead=1) for key, table in tables.items()}
        )
    spilt = emulated(386, 2)
    assert all(more > less for more, less in zip(spilt.shared, all_held.shared, strict=True))
    got = both_kernels(spilt, 386, 2, steps=2)
    assert all(torch.isfinite(t).all() and torch.equal(t, other) for t, other in zip(got, right, strict=True))


def test_both_layouts_give_the_same_bits(emulated, monkeypatch, layout):
    """So an average over runs may mix them: which one a run had depends on what ran beside it."""
    here = both_kernels(emulated(130, 3), 130, 3)
    for name in ("FORWARD_LAYOUT", "BACKWARD_LAYOUT"):
        monkeypatch.setattr(persistent, name, "narrow" if layout == "wide" else "wide")
    there = both_kernels(emulated(130, 3), 130, 3)
    assert all(
        torch.isfinite(t).all() and torch.equal(t, other) for t, other in zip(here, there, strict=True)
    )


def test_a_window_of_one_step_and_none_that_asks_for_dx(device):
    inputs, upstream = problem(24, 3, steps=1)
    leaves = [t.float().to(device) for t in inputs]
    for leaf in leaves[3:]:
        leaf.requires_grad_()
    y, h, c = one_layer(*leaves)
    assert torch.equal(y[0], h) and c.shape == h.shape
    (y * upstream[0].float().to(device)).sum().backward()
    assert all(leaf.grad is None for leaf in leaves[:3])
    assert all(torch.isfinite(leaf.grad).all() for leaf in leaves[3:])


def test_what_does_not_suit_is_said():
    cpu = torch.device("cpu")
    assert "CUDA device, not cpu" in (unsuited(1150, 20, cpu) or "")


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize(
    ("size", "streams", "steps"), [(1150, 20, 70), (400, 20, 95), (960, 12, 70), (1150, 80, 40)]
)
def test_at_the_sizes_of_the_recipes_no_worse_than_cudnn(size, streams, steps):
    inputs, upstream = problem(size, streams, steps, width=size)
    leaves = [t.float().cuda().requires_grad_() for t in inputs]
    results = one_layer(*leaves)
    torch.autograd.backward(results, [g.float().cuda() for g in upstream])
    ours = [*results, *(leaf.grad for leaf in leaves)]
    low = [[t.bfloat16().cuda() for t in part] for part in (inputs, upstream)]
    wide = [[t.cuda() for t in part] for part in (inputs, upstream)]
    theirs, right = ([*a, *b] for a, b in (truth(*low), truth(*wide)))
    for name, got, cudnn, exact in zip(NAMES, ours, theirs, right, strict=True):
        errors = [((t.detach().double() - exact).norm() / exact.norm()).item() for t in (got, cudnn)]
        assert errors[0] <= 1.5 * errors[1] + 1e-6, f"{name}: {errors[0]:.2e} against {errors[1]:.2e}"


def test_what_is_not_needed_is_not_compiled(monkeypatch):
    """Scoring a text needs no backward, and compiling takes a second or two for each kernel and size."""
    compiled, launched = [], []
    make = lambda source, name, given, shared, device: compiled.append(name) or name
    monkeypatch.setattr(persistent.nvrtc, "compiled", make)
    monkeypatch.setattr(persistent.nvrtc, "launch_together", lambda kernel, *_: launched.append(kernel))
    run = persistent._Kernels(24, 3, 0)
    assert not compiled
    run.forward(torch.zeros(1), None, 5)
    run.forward(torch.zeros(1), None, 5)
    assert compiled == ["lstm_forward"]
    run.backward(torch.zeros(1), None, 5)
    assert compiled == ["lstm_forward", "lstm_backward"]
    assert launched == ["lstm_forward", "lstm_forward", "lstm_backward"]


def test_launches_are_on_the_device_of_the_layer(monkeypatch):
    """A run may be told cuda:1 while another device is the current one."""
    seen = []

    @contextlib.contextmanager
    def device_of(tensor):
        seen.append(tensor.device)
        yield
        seen.append("after")

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(persistent.nvrtc, "compiled", lambda *_: None)
    monkeypatch.setattr(persistent.nvrtc, "launch_together", lambda *_: seen.append("launch"))
    kernels = persistent._Kernels(24, 3, 1)
    kernels.forward(*[torch.empty(0, device="meta")] * 5, 7)
    kernels.backward(*[torch.empty(0, device="meta")] * 7, 24, 7)
    assert seen == [torch.device("meta"), "launch", "after"] * 2
