"""Theorem 3's function, made in exact arithmetic, at work in a head of the library."""

import torch

from uncork.heads import MonotonicHead
from uncork.theory import distinct_entries, increasing_function, press_rank


def test_a_constructed_function_makes_a_narrow_head_full_rank():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-40, 41, (5, 2), generator=generator).double()
    hidden = torch.randint(-40, 41, (8, 2), generator=generator).double()
    logits = weight @ hidden.T
    choice = distinct_entries(logits)
    assert choice is not None
    function = increasing_function(logits, choice.function()).function.module()
    head = MonotonicHead(2, 5, function, bias=False, dtype=torch.float64)
    head.weight = torch.nn.Parameter(weight)
    assert press_rank(logits) == 2
    assert press_rank(head(hidden).detach()) == 5
    torch.testing.assert_close(head(hidden), function(logits).T)
    loss = head(hidden, torch.arange(8) % 5)
    loss.backward()
    assert head.weight.grad is not None and torch.isfinite(head.weight.grad).all()
    expected = torch.nn.functional.cross_entropy(function(logits).T, torch.arange(8) % 5)
    torch.testing.assert_close(loss.detach(), expected)
