"""Starting a CUDA kernel, with the driver replaced: what it is handed."""

import ctypes
import struct
from types import SimpleNamespace

import pytest
import torch

from uncork.ops.triton import nvrtc


@pytest.fixture
def driver(monkeypatch):
    """Takes the place of libcuda and keeps the arguments of the launch."""
    fake = SimpleNamespace(error=0)

    def launch(function, *rest):
        *fake.numbers, fake.stream, fake.places = (function, *rest[:9])
        read = lambda kind, place: ctypes.cast(place, ctypes.POINTER(kind)).contents.value
        fake.values = [read(ctypes.c_int64, place) for place in fake.places]
        fake.short_values = [read(ctypes.c_int32, place) for place in fake.places]
        return fake.error

    def name(error, place):
        place._obj.value = b"an illegal address"

    fake.cuLaunchKernel, fake.cuLaunchCooperativeKernel, fake.cuGetErrorString = launch, launch, name
    monkeypatch.setattr(nvrtc.ctypes, "CDLL", lambda name: fake)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=77))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 70 + device, raising=False)
    nvrtc.driver.cache_clear()
    yield fake
    nvrtc.driver.cache_clear()


def test_pointers_numbers_and_sizes_reach_the_driver(driver):
    tensor = torch.zeros(3)
    nvrtc.launch_together(SimpleNamespace(func=5), 96, 384, [tensor, 41, None], 1000)
    assert driver.numbers == [5, 96, 1, 1, 384, 1, 1, 1000] and driver.stream == 77
    assert driver.values == [tensor.data_ptr(), 41, 0]


def test_a_launch_that_does_not_fit_raises(driver):
    driver.error = 720
    with pytest.raises(RuntimeError, match=r"96 blocks of 384 threads could not be .* CUDA error 720"):
        nvrtc.launch_together(SimpleNamespace(func=5), 96, 384, [], 0)


def test_a_compiled_kernel_gets_pointers_integers_and_floats(driver):
    tensor, kernel = torch.zeros(3), nvrtc.Kernel(SimpleNamespace(func=5), 3)
    kernel((132, 1, 1), (1024, 1, 1), [tensor, -100, True, -1.5], shared_mem=1000)
    assert driver.numbers == [5, 132, 1, 1, 1024, 1, 1, 1000] and driver.stream == 73
    pointer, *whole, real = driver.values
    assert pointer == tensor.data_ptr() and whole == [-100, 1]
    assert struct.unpack("d", struct.pack("q", real)) == (-1.5,)
    assert driver.short_values[1:3] == [-100, 1]  # as a kernel reads its 32-bit integers


def test_an_error_of_the_driver_is_named(driver):
    driver.error = 700
    with pytest.raises(RuntimeError, match="CUDA error: an illegal address"):
        nvrtc.Kernel(SimpleNamespace(func=5), 0)((1, 1, 1), (32, 1, 1), [], shared_mem=0)


def test_the_driver_is_the_one_torch_compiles_for(monkeypatch, driver):
    """By its name on this system: Triton can be had on Windows too."""
    names = []
    monkeypatch.setattr(nvrtc.ctypes, "CDLL", lambda name: names.append(name) or driver)
    for system in ("linux", "win32"):
        monkeypatch.setattr(nvrtc.sys, "platform", system)
        nvrtc.driver.cache_clear()
        nvrtc.driver()
    assert names == ["libcuda.so.1", "nvcuda.dll"]
