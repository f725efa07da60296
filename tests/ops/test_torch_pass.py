"""The torch pass goes through a chunk in pieces on a CPU: nothing of a loss depends on where they end."""

import pytest

from tests.helpers import CHUNKED_TORCH, DEVICE, assert_same, gradients, make_case, our_loss, truth
from uncork.ops import torch_pass


pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="pieces are for a CPU: a GPU takes chunks whole")
CLOSED = ["identity", "scale", "sigsoftmax", "generalized", "softcap"]
TOKENS, WORDS = 7, 11


@pytest.fixture
def pieces(monkeypatch):
    """Lengths of the pieces, in order."""
    lengths = []
    original = torch_pass.TorchPass._of_piece

    def spy(self, problem, logits_NKV, row_scale_N):
        lengths.append(len(logits_NKV))
        return original(self, problem, logits_NKV, row_scale_N)

    monkeypatch.setattr(torch_pass.TorchPass, "_of_piece", spy)
    return lengths


def ours(case, budget=10**6):
    with CHUNKED_TORCH.on(budget):
        return gradients(our_loss(case, "chunked"), case)


def set_piece(monkeypatch, tokens, components):
    monkeypatch.setattr(torch_pass, "PIECE", tokens * (components or 1) * WORDS)
    monkeypatch.setattr(torch_pass.torch, "get_num_threads", lambda: 1)


@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.2, "z_loss": 0.1}, {"reduction": "none"}], ids=str
)
@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
@pytest.mark.parametrize("components", [None, 3])
@pytest.mark.parametrize("function", CLOSED)
def test_pieces_change_nothing(function, components, dense, options, pieces, monkeypatch):
    case = make_case((TOKENS,), 5, WORDS, function=function, components=components, dense=dense, **options)
    set_piece(monkeypatch, 3, components)
    found = ours(case)
    # With "none" the loss is one call, and the gradients are another.
    assert pieces == [3, 3, 1] * (2 if "reduction" in options else 1)
    assert_same(found, truth(case), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("function", ["plif1001", "network_exact", "users_own"])
def test_what_costs_as_much_for_a_piece_as_for_a_chunk_goes_whole(function, pieces, monkeypatch):
    set_piece(monkeypatch, 3, None)
    ours(make_case((TOKENS,), 5, WORDS, function=function))
    assert pieces == [TOKENS]


def test_a_budget_holds_a_chunk_and_what_its_pieces_take(pieces, monkeypatch):
    set_piece(monkeypatch, 10**6, None)
    budget = 4 * WORDS * 100
    case = make_case((64,), 5, WORDS, label_smoothing=0.1)
    ours(case, budget)
    copies = torch_pass.LIVE_COPIES["identity"] + 3
    assert 1 <= len(pieces) < 64 and max(pieces) * WORDS * 8 * copies <= budget // 2
    assert sum(pieces) == 64
