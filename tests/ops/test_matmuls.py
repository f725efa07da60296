"""Nothing is computed that nobody asked for: matrix products are counted, chunk by chunk.

And which of them run over padded words, and how their operands lie in memory.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import uncork
from tests.helpers import (
    CHUNKED_TORCH,
    DEVICE,
    assert_as_accurate_as_torch,
    make_case,
    our_loss,
    over_fused,
    reads_values,
)
from uncork.ops import chunked, matmul


N, D, V = 12, 6, 20


class Counter:
    """Multiply-adds of every matrix product, in units of one N x D x V product."""

    work = 0

    @property
    def products(self):
        return self.work / (N * D * V)


@pytest.fixture
def counter(monkeypatch):
    """Counts where products are called from Python: a dispatch mode does not see inside a custom op."""
    counter = Counter()

    def counting(product):
        def call(*args, **kwargs):
            left, right = [a for a in args if isinstance(a, Tensor)][-2:]
            counter.work += left.shape[0] * left.shape[1] * right.shape[1]
            return product(*args, **kwargs)

        return call

    for owner, name in [(torch, "mm"), (torch, "addmm"), (Tensor, "addmm_"), (Tensor, "__matmul__")]:
        monkeypatch.setattr(owner, name, counting(getattr(owner, name)))
    return counter


def counted(case, backend, counter):
    counter.work = 0
    with backend.on():
        loss = our_loss(case, backend.name)
        forward = counter.products
        if loss.requires_grad:
            loss.sum().backward()
    return forward, counter.products - forward


def case_of(function="plif7", wanted=("input", "weight"), **options):
    case = make_case((N,), D, V, function=function, dtype=torch.float32, **options)
    case.input.requires_grad_("input" in wanted)
    case.weight.requires_grad_("weight" in wanted)
    return case


@pytest.mark.parametrize("function", [None, "scale", "softcap", "plif7", "users_own"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@over_fused
def test_three_in_training(backend, reduction, function, counter):
    assert counted(case_of(function, reduction=reduction), backend, counter) == (3, 0)


@over_fused
def test_one_when_no_gradient_is_wanted(backend, counter):
    with torch.no_grad():
        assert counted(case_of(), backend, counter) == (1, 0)
    frozen = case_of(wanted=())
    frozen.bias.requires_grad_(False)
    frozen.function.requires_grad_(False)
    assert counted(frozen, backend, counter) == (1, 0)


@pytest.mark.parametrize("wanted, products", [(("input",), 2), (("weight",), 2), ((), 1)], ids=str)
@over_fused
def test_two_when_one_side_is_frozen(backend, wanted, products, counter):
    """The bias and the function's parameters need no product of their own."""
    assert counted(case_of(wanted=wanted), backend, counter) == (products, 0)


@over_fused
def test_four_for_losses_per_token(backend, counter):
    """Their upstream gradients are not known before the backward pass: one product is done again."""
    assert counted(case_of(reduction="none"), backend, counter) == (1, 3)


@over_fused
def test_three_per_component(backend, counter):
    case = case_of(components=4)
    assert counted(case, backend, counter) == (12, 0)


@over_fused
def test_a_second_backward_pays_again(backend, counter):
    case = case_of()
    with backend.on():
        loss = our_loss(case, backend.name)
        loss.backward(retain_graph=True)
        assert counter.products == 3
        loss.backward()
    assert counter.products == 6


@reads_values
@over_fused
def test_rejected_targets_cost_nothing(backend, counter):
    case = case_of()
    case.target = case.target + V
    with backend.on(), pytest.raises(ValueError, match="`target`"):
        our_loss(case, backend.name)
    assert counter.work == 0


@over_fused
def test_no_graph_for_a_users_module_without_gradients(backend, counter):
    """Evaluation must not keep what only a backward pass would read."""
    seen = []

    class Watch(torch.nn.Module):
        def forward(self, z):
            seen.append(torch.is_grad_enabled())
            return 2 * z

    case = case_of()
    case.function = Watch()
    with torch.no_grad():
        counted(case, backend, counter)
    assert seen and not any(seen)


def test_the_budget_sets_the_number_of_chunks(monkeypatch):
    lengths = []
    original = matmul.logits
    monkeypatch.setattr(matmul, "logits", lambda x, *rest: (lengths.append(len(x)), original(x, *rest))[1])
    case = case_of(None)
    # A row has 80 bytes of logits, and four times as many for what a piece of one row takes.
    for size, expected in ((1, 1), (500, 2), (800, 6), (10**6, N)):
        lengths.clear()
        with CHUNKED_TORCH.on(size):
            our_loss(case, "chunked")
        assert sum(lengths) == N
        assert max(lengths) == expected
    with pytest.raises(ValueError, match="at least 1 byte"), uncork.chunk_bytes(0):
        pass
    with pytest.raises(TypeError, match="number of bytes"), uncork.chunk_bytes(1.5):
        pass


@pytest.mark.parametrize(
    "device, dtype, words, width, padded",
    [
        ("cuda", torch.bfloat16, 33_278, 400, 33_280),
        ("cuda", torch.float16, 50_257, 768, 50_264),
        ("cuda", torch.float32, 33_278, 400, 33_280),
        ("cuda", torch.float32, 33_281, 400, 33_284),
        ("cuda", torch.bfloat16, 33_280, 400, 33_280),
        ("cuda", torch.float32, 33_284, 400, 33_284),
        ("cpu", torch.bfloat16, 33_278, 400, 33_278),
        # Slow whatever the words are; not worth a copy; a copy of more than what a chunk may take.
        ("cuda", torch.bfloat16, 33_278, 401, 33_278),
        ("cuda", torch.bfloat16, 507, 400, 507),
        ("cuda", torch.bfloat16, 128_257, 4096, 128_257),
    ],
)
def test_where_words_are_padded(device, dtype, words, width, padded):
    """To a multiple of 16 bytes."""
    weight = SimpleNamespace(
        shape=(words, width), dtype=dtype, device=torch.device(device), nbytes=words * width * dtype.itemsize
    )
    assert matmul.padded_words(weight, 256 * 2**20) == padded


@pytest.mark.parametrize("shape", [(5,), (5, 3)], ids=str)
def test_zeros_follow(shape):
    x = torch.randn(shape, dtype=torch.bfloat16)
    longer = matmul.with_zeros(x, 8)
    assert longer.dtype == x.dtype and longer.is_contiguous()
    assert torch.equal(longer[:5], x) and longer.shape == (8, *shape[1:]) and not longer[5:].any()
    assert matmul.with_zeros(x, 5) is x


def test_three_parts_in_low_precision_hold_all_of_a_float32():
    x = torch.randn(1000)
    assert torch.equal(matmul._parts(x, torch.bfloat16).double().sum(0), x.double())


@pytest.fixture
def operands(monkeypatch, tf32):
    """What the products of dL/dx and dL/dW are made of, while every device counts as one with TF32."""
    monkeypatch.setattr(matmul, "TF32_ON", {DEVICE.type})
    seen = {"weight": [], "rows": []}
    back, addmm = matmul.back, Tensor.addmm_
    monkeypatch.setattr(
        matmul, "back", lambda dz, weight, *rest: (seen["weight"].append(weight), back(dz, weight, *rest))
    )
    monkeypatch.setattr(
        Tensor, "addmm_", lambda total, dz, x, **how: (seen["rows"].append(x), addmm(total, dz, x, **how))[1]
    )
    return seen


@over_fused
@pytest.mark.parametrize("components", [None, 3])
@pytest.mark.parametrize("function", [None, "plif7"])
def test_in_tf32_operands_lie_along_what_is_summed(backend, components, function, operands):
    case = make_case((100,), 6, 11, components, function, dtype=torch.float32, reduction="none")
    assert_as_accurate_as_torch([case], backend, chunk=4000)
    assert len(operands["weight"]) > 1 and len(operands["rows"]) > 1
    assert all(weight.stride(0) == 1 and weight.shape == (11, 6) for weight in operands["weight"])
    # Columns begin at multiples of 16 bytes, whatever the number of rows.
    assert all(rows.stride(0) == 1 and rows.stride(1) % 4 == 0 for rows in operands["rows"])


@over_fused
@pytest.mark.parametrize("chunk", [5 * 11 * 4, 2**20], ids=["less than the weight", "all tokens"])
def test_in_tf32_the_weight_is_copied_only_where_large_chunks_share_it(backend, operands, chunk):
    case = make_case((30,), 6, 11, dtype=torch.float32)
    assert_as_accurate_as_torch([case], backend, chunk=chunk)
    assert operands["weight"] and all(weight.stride(1) == 1 for weight in operands["weight"])


@pytest.mark.parametrize("components, tile", [(1, 128), (15, 8), (200, 1)])
def test_chunks_have_about_a_multiple_of_a_tile_of_rows(components, tile):
    """Where one does not hold all tokens; a mixture has several rows to a token."""
    problem = SimpleNamespace(latent_NKD=torch.empty(1000, components, 2))
    chunk_pass = SimpleNamespace(bytes_per_logit=4, fixed_bytes=0)
    length = chunked._chunk_length(problem, chunk_pass, 301 * components * 7 * 4, False, 7)
    assert length % tile == 0 and 250 <= length <= 301
