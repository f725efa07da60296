"""The chunk pass as GPU kernels. Importing this package does not import Triton: see `obstacle`."""

import importlib.util
import os

import torch


# Asked once: inside a function, torch.compile could not trace the question.
INSTALLED = importlib.util.find_spec("triton") is not None


def obstacle(device: torch.device) -> str:
    """What keeps the kernels from running on `device`; empty if nothing does."""
    if not INSTALLED:
        return "Triton is not installed"
    if device.type == "cuda":
        return ""
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":  # as numpy code, for tests
        return ""
    return f"the input is on {device.type}, and Triton kernels need CUDA"
