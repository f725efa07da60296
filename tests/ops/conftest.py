"""Every op is tested on poisoned memory."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _poison(request):
    # Tracers must see torch's own allocation functions.
    if "traced" not in request.keywords:
        request.getfixturevalue("poisoned_allocations")


@pytest.fixture
def tf32():
    """Products of float32 may be rounded to TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)
