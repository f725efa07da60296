"""Starting a CUDA kernel, with the driver replaced: what it is handed."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

from uncork.ops.triton import nvrtc


@pytest.fixture
def driver(monkeypatch):
    """Takes the place of libcuda and keeps the arguments of the launch."""
    fake = SimpleNamespace(error=0)

    def launch(function, *rest):
        *fake.numbers, fake.stream, fake.places = (function, *rest)
        fake.values = [
            ctypes.cast(place, ctypes.POINTER(ctypes.c_int64)).contents.value for place in fake.places
        ]
        return fake.error

    fake.cuLaunchCooperativeKernel = launch
    monkeypatch.setattr(nvrtc.ctypes, "CDLL", lambda name: fake)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    return fake


def test_pointers_numbers_and_sizes_reach_the_driver(driver):
    tensor = torch.zeros(3)
    nvrtc.launch_together(SimpleNamespace(func=5), 96, 384, [tensor, 41], 1000)
    assert driver.numbers == [5, 96, 1, 1, 384, 1, 1, 1000] and driver.stream.value == 77
    assert driver.values[0] == tensor.data_ptr() and driver.values[1] & 0xFFFFFFFF == 41


def test_a_launch_that_does_not_fit_raises(driver):
    driver.error = 720
    with pytest.raises(RuntimeError, match=r"96 blocks of 384 threads could not be .* CUDA error 720"):
        nvrtc.launch_together(SimpleNamespace(func=5), 96, 384, [], 0)
