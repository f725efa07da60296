"""Targets that smoothing or class weights spread over words, in kernels: made distributions, chunk by chunk.

That losses and gradients are right is in the battery; here is what only this way could get wrong.
"""

import pytest
import torch

from tests.helpers import (
    DEVICE,
    REFERENCE,
    TRITON,
    assert_as_accurate_as_torch,
    assert_same,
    make_case,
    our_loss,
    ours,
)
from uncork.ops import triton


pytestmark = pytest.mark.skipif(
    bool(triton.obstacle(DEVICE)),
    reason="needs TRITON_INTERPRET=1, as in the run of its own in `make test`, or UNCORK_TEST_DEVICE=cuda",
)
over_components = pytest.mark.parametrize("components", [None, 3])
over_functions = pytest.mark.parametrize("function", [None, "scale", "sigsoftmax", "plif7", "plif1001"])


@over_components
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@over_functions
def test_an_ignored_token_may_hold_anything(function, smoothing, components):
    """Its loss is 0 and nothing comes of it, for z-loss too; the product of dL/dW is torch's own affair.

    But for rounding: the unit of sums in fixed point depends on what all logits could add.
    """
    options = {"label_smoothing": smoothing, "z_loss": 0.1, "reduction": "none", "dtype": torch.float32}
    case = make_case((6,), 5, 11, function=function, components=components, bias=False, **options)
    case.target[2] = case.target[5] = -100
    right = ours(case, TRITON)
    assert right["loss"][2] == right["loss"][5] == 0.0 and not right["input"][[2, 5]].any()
    with torch.no_grad():
        for each in (case.input, case.log_prior):
            if each is not None:
                each[2], each[5] = torch.nan, torch.inf
    found = ours(case, TRITON)
    for outcome in (found, right):
        del outcome["weight"]
    assert_same(found, right, rtol=1e-6, atol=1e-6)


@over_components
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("factors", [(1e6, 1e6), (-1.0, 1.0)], ids=["heavy", "negative"])
@over_functions
def test_unusual_class_weights(function, factors, dense, components):
    """Sums in fixed point must have room for heavy ones; a word may be pushed away, and its loss counts."""
    smoothing = {} if dense else {"label_smoothing": 0.1}
    case = make_case(
        (5,), 4, 9, function=function, dense=dense, components=components, weight=True, reduction="sum",
        dtype=torch.float32, **smoothing,
    )  # fmt: skip
    for start, factor in enumerate(factors):
        case.options["weight"][start::2] *= factor
    assert_as_accurate_as_torch(case, TRITON)


def test_sums_have_room_for_weights_that_cancel():
    case = make_case(
        (5,), 4, 8, function="plif7", dense=True, weight=True, reduction="sum", dtype=torch.float32
    )
    case.target = torch.full_like(case.target, 1 / 8)
    signs = torch.tensor([1.0, -1.0] * 4, device=DEVICE)
    case.options["weight"] = 1000.0 * signs + 0.01
    found, right = ours(case, TRITON), ours(case, REFERENCE)
    torch.testing.assert_close(found["function.v"], right["function.v"], rtol=1e-3, atol=1e-3)


@over_components
@pytest.mark.parametrize("dense", [False, True])
def test_the_budget_holds_the_distributions(dense, components, monkeypatch):
    from uncork.ops.triton import chunk_pass

    options = {"label_smoothing": 0.1, "weight": True, "dtype": torch.float32}
    case = make_case((12,), words=20, dense=dense, components=components, **options)
    chunks, run = [], chunk_pass.SpreadPass.run
    monkeypatch.setattr(
        chunk_pass.SpreadPass,
        "run",
        lambda self, part, *rest: chunks.append(len(part.target)) or run(self, part, *rest),
    )
    with TRITON.on(1300):
        our_loss(case, TRITON.name)
    # Logits, of mixtures two numbers more for each word; the distribution, twice where one was given.
    per_word = (4 if components is None else 3 * 4 + 8) + (8 if dense else 4)
    assert len(chunks) > 1 and max(chunks) * 20 * per_word <= 1300
