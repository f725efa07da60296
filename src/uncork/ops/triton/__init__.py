"""The chunk pass as GPU kernels. Importing this package does not import Triton: see `available`."""

import importlib.util
import os

import torch


def available(device: torch.device) -> str:
    """Empty if the kernels can run on `device`, else the reason they cannot."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type == "cuda":
        return ""
    if os.environ.get("TRITON_INTERPRET") == "1":  # kernels run as numpy code, for tests
        return ""
    return f"the input is on {device.type}, and Triton kernels need CUDA"
