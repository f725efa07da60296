"""Persistent layers on top of each other, with every mask, against float64 and the library's layers."""

import pytest
import torch

from tests.lm.persistent_on_cpu import PlainOperands, take_the_place_of_a_gpu
from uncork.lm import ModelConfig, dropout, persistent, weight_drop
from uncork.lm.awd_lstm import AWDLSTM
from uncork.lm.persistent import Layer, persistent_stack
from uncork.ops import triton


T, B = 5, 3
WIDTHS = [11, 50, 50, 24]
GPU = torch.cuda.is_available()
NEEDS_GPU = pytest.mark.skipif(not GPU, reason="needs a GPU")


@pytest.fixture(params=["cpu-plain", "cpu-triton", "cuda"])
def device(request, emulated, monkeypatch):
    if request.param == "cuda":
        if not GPU:
            pytest.skip("needs a GPU")
        return request.param
    take_the_place_of_a_gpu(monkeypatch, emulated)
    # As if it were a GPU.
    monkeypatch.setattr(weight_drop, "unsuited", lambda size, streams, device: None)
    if request.param == "cpu-plain":
        monkeypatch.setattr(persistent, "_operands", lambda: PlainOperands)
    elif triton.obstacle(torch.device("cpu")):
        pytest.skip("needs TRITON_INTERPRET=1, as in the run of its own in `make test`")
    return "cpu"


@pytest.fixture
def seeds(device, monkeypatch):
    """The seeds of all weight dropouts to come."""
    fixed = torch.tensor([5, 2**45 + 1, 2**62 + 7], device=device)
    monkeypatch.setattr(persistent, "_seeds", lambda layers, device: fixed[:layers])
    return fixed


def factors_of(seed, size, p):
    """What the recurrent matrix is multiplied with, by entry, in float64."""
    kept = persistent._operands().dropped(torch.ones(4 * size, size, device=seed.device), p, seed) != 0
    return kept.double().cpu() / (1.0 - p)


def problem(masked):
    """In float64, numbers that bfloat16 holds exactly: the input, then for each layer its `Layer`."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape, scale=1.0):
        return (scale * torch.randn(*shape, generator=generator)).bfloat16().double()

    layers = []
    for width, size in zip(WIDTHS, WIDTHS[1:], strict=False):
        mask = 2.0 * torch.randint(2, (B, width), generator=generator).double() if masked else None
        layers.append(
            Layer(
                mask, draw(B, size, scale=0.5), draw(B, size), draw(4 * size, width, scale=0.5),
                draw(4 * size, size, scale=size**-0.5), draw(4 * size, scale=0.1), draw(4 * size, scale=0.1),
            )
        )  # fmt: skip
    ends = [draw(B, size) for size in WIDTHS[1:] for _ in range(2)]
    return draw(T, B, WIDTHS[0]), layers, [draw(T, B, WIDTHS[-1]), *ends]


def leaves_of(x, layers, dtype, device):
    """Copies that ask for gradients, the masks excepted, and a flat list of them."""
    x, *rest = (
        t.to(device, dtype, copy=True).requires_grad_() for t in (x, *(t for one in layers for t in one[1:]))
    )
    masks = [None if one.mask_BD is None else one.mask_BD.to(device, dtype) for one in layers]
    return x, [Layer(mask, *rest[6 * n : 6 * n + 6]) for n, mask in enumerate(masks)], [x, *rest]


def reference(x, layers, factors, upstream, rounded):
    """Results and gradients written out in float64; `rounded` rounds what the kernels round."""

    def low(t):
        return t + (t.bfloat16().double() - t).detach() if rounded else t

    x_TBD, layers, leaves = leaves_of(x, layers, torch.float64, "cpu")
    ends = []
    for layer, factor in zip(layers, factors, strict=True):
        x_TBD = x_TBD if layer.mask_BD is None else x_TBD * layer.mask_BD
        hidden, cell, outputs = layer.hidden_BH, layer.cell_BH, []
        weight_hh = low(layer.weight_hh * factor)
        for x_BD in low(x_TBD):
            gates = x_BD @ layer.weight_ih.T + hidden @ weight_hh.T + layer.bias_ih + layer.bias_hh
            if rounded:
                gates.register_hook(lambda gradient: gradient.bfloat16().double())
            i, f, g, o = gates.chunk(4, -1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = low(o.sigmoid() * cell.tanh())
            outputs.append(hidden)
        x_TBD = torch.stack(outputs)
        ends += [hidden, cell]
    results = [x_TBD, *ends]
    asked = [n for n, gradient in enumerate(upstream) if gradient is not None]
    torch.autograd.backward([results[n] for n in asked], [upstream[n] for n in asked])
    return [*results, *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("asked", ["outputs", "outputs and states"])
@pytest.mark.parametrize(
    ("masked", "drops"), [(False, 0.0), (True, 0.0), (False, 0.5), (True, 0.5), (True, 0.3)]
)
def test_values_and_every_gradient(device, seeds, request, asked, masked, drops):
    """No worse than twice what the rounding that is meant costs, and 2^-9 of each factor kept in bfloat16."""
    if drops == 0.3 and "cpu-triton" in request.node.name:
        pytest.skip("Triton's interpreter does not round to the nearest")
    x, layers, upstream = problem(masked)
    if asked == "outputs":
        upstream = [upstream[0], *[None] * 6]
    factors = [
        factors_of(seed, size, drops) if drops else 1.0 for seed, size in zip(seeds, WIDTHS[1:], strict=True)
    ]
    x_TBD, given, leaves = leaves_of(x, layers, torch.float32, device)
    y, ends = persistent_stack(x_TBD, given, [drops] * 3)
    results = [y, *(part for end in ends for part in end)]
    pairs = [(r, g.float().to(device)) for r, g in zip(results, upstream, strict=True) if g is not None]
    torch.autograd.backward(*zip(*pairs, strict=True))
    # Clipping scales gradients in place, so no two may share their memory.
    assert len({leaf.grad.data_ptr() for leaf in leaves}) == len(leaves)
    assert all(leaf.grad.is_contiguous() for leaf in leaves[1:])
    exact, floor = (reference(x, layers, factors, upstream, rounded) for rounded in (False, True))
    names = ["y", *(f"{part}{n}" for n in range(3) for part in "hc"), "dx"]
    names += [f"d{part}{n}" for n in range(3) for part in Layer._fields[1:]]
    ours = [*results, *(leaf.grad for leaf in leaves)]
    for name, got, right, rounded in zip(names, ours, exact, floor, strict=True):
        error = (got.detach().double().cpu() - right).norm() / right.norm()
        allowed = 2.0 * (rounded - right).norm() / right.norm() + 1e-6
        allowed += 4e-3 if name.startswith("d") else 0.0
        assert error <= allowed, f"{name}: {error:.2e} against {allowed:.2e}"
    if drops:
        for layer, factor in zip(given, factors, strict=True):
            assert torch.equal(layer.weight_hh.grad.cpu() == 0, factor == 0)


def test_new_masks_in_every_call_and_the_same_from_a_restored_generator(device):
    x, layers, _ = problem(masked=False)
    x_TBD, given, _ = leaves_of(x, layers, torch.float32, device)
    torch.manual_seed(4)
    first, second = (persistent_stack(x_TBD, given, [0.5] * 3)[0] for _ in range(2))
    torch.manual_seed(4)
    again = persistent_stack(x_TBD, given, [0.5] * 3)[0]
    assert torch.equal(first, again) and not torch.equal(first, second)


CONFIG = ModelConfig(embedding=12, hidden=24, layers=3)


def build(persist, device, config=CONFIG):
    torch.manual_seed(2)
    return AWDLSTM(30, config, torch.bfloat16 if persist else None, persist).to(device)


def fix_masks(monkeypatch, seeds):
    """The nth mask of a shape is the same in every model, in whatever order shapes come."""
    counts: dict[object, int] = {}

    def keep_mask(like, p):
        number = counts[tuple(like.shape)] = counts.get(tuple(like.shape), 0) + 1
        generator = torch.Generator().manual_seed(100 * sum(like.shape) + number)
        return (torch.rand(like.shape, generator=generator) >= p).to(like) / (1.0 - p)

    def drop(weight, p):
        number = counts["drop"] = counts.get("drop", 0) + 1
        return weight * factors_of(seeds[number - 1], weight.shape[1], p).to(weight)

    monkeypatch.setattr(dropout, "keep_mask", keep_mask)
    monkeypatch.setattr(weight_drop, "drop", drop)
    return counts


def losses_and_gradients(encoder, tokens_TB, states):
    features = encoder(tokens_TB, states)
    loss = features.dropped_TBD.square().sum() + features.raw_TBD.sum()
    loss.backward()
    gradients = [p.grad.clone() for p in encoder.parameters()]
    return [features.raw_TBD, *(part for state in features.states for part in state), *gradients]


@pytest.mark.parametrize("training", [True, False])
def test_the_encoder_stacks_its_layers_and_gives_what_single_ones_give(device, seeds, monkeypatch, training):
    """Against the library's float32 layers with the same masks."""
    tokens_TB = torch.randint(30, (T, B)).to(device)
    counts = fix_masks(monkeypatch, seeds)
    ends = []
    for persist in (False, True):
        counts.clear()
        encoder = build(persist, device).train(training)
        states = [tuple(0.3 * torch.ones_like(part) for part in s) for s in encoder.initial_states(B)]
        ends.append(losses_and_gradients(encoder, tokens_TB, states))
        assert counts.get("drop", 0) == (3 if training and not persist else 0)
        assert sum(n for shape, n in counts.items() if shape != "drop") == (5 if training else 0)
    for theirs, ours in zip(*ends, strict=True):
        assert (ours - theirs).norm() <= 0.02 * theirs.norm()


def test_one_layer_alone_is_a_stack_of_one(device, seeds):
    layer = weight_drop.WeightDropLSTM(7, 24, 0.5, torch.bfloat16, persistent=True).to(device)
    x_TBD = torch.randn(T, B, 7, device=device)
    state = tuple(0.3 * torch.ones_like(part) for part in layer.initial_state(B))
    y_TBH, (hidden, cell) = layer(x_TBD, state)
    weight_hh = layer.weight_hh * factors_of(seeds[0], 24, 0.5).to(layer.weight_hh)
    weights = [layer.weight_ih, weight_hh, layer.bias_ih, layer.bias_hh]
    right = weight_drop.library_lstm(x_TBD, state, weights)
    for ours, theirs in zip((y_TBH, hidden, cell), right, strict=True):
        assert ours.shape == theirs.shape
        assert (ours - theirs).norm() <= 0.01 * theirs.norm()


@NEEDS_GPU
def test_in_a_graph_as_out_of_it():
    """Replays draw new masks, those that calls would draw from the same state of the generator."""
    encoder = build(True, "cuda", ModelConfig(embedding=40, hidden=130, layers=3))
    tokens_TB = torch.randint(30, (12, 20), device="cuda")
    states = encoder.initial_states(20)
    torch.cuda.manual_seed(6)
    calls, stream = [], torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            encoder.zero_grad()
            calls.append([t.detach().clone() for t in losses_and_gradients(encoder, tokens_TB, states)])
    stream.synchronize()
    assert not torch.equal(calls[0][0], calls[1][0])
    encoder.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        recorded = losses_and_gradients(encoder, tokens_TB, states)
    torch.cuda.manual_seed(6)
    for call in calls:
        graph.replay()
        torch.cuda.synchronize()
        for ours, theirs in zip(recorded, call, strict=True):
            assert (ours.detach() - theirs).norm() <= 1e-4 * theirs.norm()


@NEEDS_GPU
def test_at_the_size_of_penn_with_every_mask(monkeypatch):
    """Forward, backward and masks at 1,150 and 400 units, against the library's layers in float32."""
    fixed = torch.tensor([5, 2**45 + 1, 2**62 + 7], device="cuda")
    monkeypatch.setattr(persistent, "_seeds", lambda layers, device: fixed[:layers])
    config = ModelConfig()
    counts, ends = fix_masks(monkeypatch, fixed), []
    tokens_TB = torch.randint(30, (70, 20), device="cuda")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    for persist in (False, True):
        counts.clear()
        encoder = build(persist, "cuda", config)
        ends.append(losses_and_gradients(encoder, tokens_TB, encoder.initial_states(20)))
    for theirs, ours in zip(*ends, strict=True):
        assert (ours - theirs).norm() <= 0.05 * theirs.norm()
