"""Fixtures of the whole suite."""

import os
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor


def pytest_configure(config):
    config.addinivalue_line("markers", "traced: torch must see its own allocation functions, unpoisoned")
    if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None:
        from tests import interpreter

        interpreter.speed_up()


@pytest.fixture(autouse=True)
def seeded():
    """What a test draws does not depend on the tests before it in its process."""
    torch.manual_seed(0)


@pytest.fixture
def poisoned_allocations(monkeypatch):
    """Fill fresh memory with NaN (or a huge integer): code that leaves some unwritten fails."""

    def poisoned(allocate):
        def call(*args, **kwargs):
            tensor = allocate(*args, **kwargs)
            with torch.no_grad():
                if tensor.is_floating_point():
                    tensor.fill_(float("nan"))
                elif tensor.dtype in (torch.int32, torch.int64):
                    tensor.fill_(torch.iinfo(tensor.dtype).max)
            return tensor

        return call

    # A default device remembers at its first use which functions make tensors: not these in their place.
    with torch.device("cpu"):
        torch.empty(0)
    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    monkeypatch.setattr(Tensor, "new_empty", poisoned(Tensor.new_empty))
