"""What stands in for a GPU under persistent layers: their launches as C++, their operands by torch."""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from uncork.lm import persistent
from uncork.lm.persistent import FLAG_PITCH, SOURCE, blocks, macros, padded, shared_bytes


COMPILER = shutil.which("c++")
SHIM = Path(__file__).parent / "cuda" / "persistent.cpp"


class Emulated:
    """Stands in for the launches on a GPU."""

    held_back = -1

    def __init__(self, library, size, streams):
        self.library, self.size = library, size
        self.blocks, self.shared = blocks(size), shared_bytes(macros(size, streams))

    def forward(self, *arguments):
        _, _, hidden, cell, gates, _ = arguments
        # What is read before it is written shows.
        for part in (hidden[1:, :, : self.size], cell[1:], gates):
            part.fill_(torch.nan)
        self._run(0, arguments)

    def backward(self, *arguments):
        arguments[6].fill_(torch.nan)
        self._run(1, arguments)

    def _run(self, which, arguments):
        numbers = [a for a in arguments if isinstance(a, int)]
        pitch, steps = (0, *numbers)[-2:]
        flags = torch.zeros(self.blocks[which], FLAG_PITCH, dtype=torch.int32)
        given = (*arguments[: -len(numbers)], flags)
        pointers = (ctypes.c_void_p * 8)(*(None if t is None else t.data_ptr() for t in given))
        shared = self.shared[which]
        self.library.run(which, self.blocks[which], shared, self.held_back, pitch, steps, pointers)
        assert (flags[:, 0] == steps).all() and not flags[:, 1:].any()


def take_the_place_of_a_gpu(monkeypatch, emulated):
    """Launches by the emulator, products exact."""
    monkeypatch.setattr(persistent, "_kernels", lambda size, streams, device: emulated(size, streams))
    monkeypatch.setattr(persistent, "_product", exact_product)


def emulator(tmp_path_factory):
    """A function of a size that gives the two kernels as functions of CPU tensors."""
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # what one worker has compiled serves the others
        shared = shared.parent

    @functools.cache
    def build(source: str, options: tuple[str, ...]):
        folder = tmp_path_factory.mktemp("persistent")
        name = hashlib.sha256(repr((source, SHIM.read_text(), options)).encode()).hexdigest()
        library = shared / f"persistent-{name}.so"
        if not library.exists():
            (folder / "kernel.cu").write_text(source)
            subprocess.run(
                [COMPILER, "-O1", "-std=c++17", "-Wno-unknown-pragmas", "-shared", "-fPIC", f"-I{folder}",
                 "-o", folder / "kernel.so", SHIM, *options],
                check=True, capture_output=True,
            )  # fmt: skip
            (folder / "kernel.so").replace(library)
        return ctypes.CDLL(str(library))

    def kernels(size: int, streams: int, source: str | None = None):
        options = tuple(f"-D{name}={value}" for name, value in macros(size, streams).items())
        return Emulated(build(source or SOURCE.read_text(), options), size, streams)

    return kernels


def exact_product(a, b):
    """Of a product in float32 the last rounding alone."""
    return (a.double() @ b.double()).float()


class PlainOperands:
    """The functions of operand_kernels by torch's operations; other entries are left out."""

    narrow = staticmethod(torch.Tensor.bfloat16)

    @classmethod
    def input_operand(cls, source_ND, mask_BD):
        x_ND = source_ND.float()
        if mask_BD is not None:
            x_ND = (x_ND.unflatten(0, (-1, len(mask_BD))) * mask_BD).flatten(0, 1)
        one_N1 = torch.ones_like(x_ND[:, :1])
        return cls.narrow(with_columns(x_ND, one_N1, one_N1))

    @classmethod
    def weight_operand(cls, weight_GD, bias_ih, bias_hh):
        bias_G1 = (bias_ih.float() + bias_hh.float())[:, None]
        high_G1 = cls.narrow(bias_G1).float()
        return cls.narrow(with_columns(weight_GD.float(), high_G1, bias_G1 - high_G1))

    @classmethod
    def dropped(cls, weight_GH, p, seed):
        return cls.narrow(weight_GH.float() * factors(weight_GH.shape, p, seed))

    @staticmethod
    def dropped_gradient(product_GP, width, p, seed):
        return product_GP[:, :width] * factors((product_GP.shape[0], width), p, seed)

    @staticmethod
    def weight_gradients(product_GP, width):
        dbias_G = product_GP[:, width]
        return product_GP[:, :width].contiguous(), dbias_G.clone(), dbias_G.clone()


def with_columns(x_ND, *columns):
    """More columns after the last, and zeros to a multiple of 16 bytes of bfloat16."""
    whole = torch.cat([x_ND, *columns], 1)
    return torch.nn.functional.pad(whole, (0, padded(whole.shape[1]) - whole.shape[1]))


def factors(shape, p, seed):
    """0 or 1 / (1 - p)."""
    if seed is None:
        return torch.ones(shape)
    generator = torch.Generator().manual_seed(seed.item())
    return (torch.rand(shape, generator=generator) >= p) * (1.0 / (1.0 - p))
