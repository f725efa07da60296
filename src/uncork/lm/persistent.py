"""An LSTM layer whose recurrence is one launch forward and one backward: see persistent.cu.

Products take bfloat16 operands and sum in float32; cells, gradients and results are float32, hidden states
float32 numbers rounded to bfloat16. All blocks of a launch wait for each other, so they are started
together or not at all.
"""

import functools
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from uncork.ops.triton import nvrtc


SOURCE = Path(__file__).with_suffix(".cu")
# As in the source.
WARPS, COLUMNS, FLAG_PITCH = 12, 24, 32
THREADS = 32 * WARPS
# More would not stay on the chip.
MOST_HIDDEN = 32 * WARPS * 3
MOST_STREAMS = 4 * COLUMNS
# Numbers of bfloat16 in 16 bytes. cuBLAS multiplies matrices whose rows are not whole multiples of that at a
# fraction of its speed.
ALIGNED = 8


class Layout(NamedTuple):
    """How a kernel spreads the matrix over the chip."""

    units: int  # of a block
    held: int  # at most that many fragment pairs (8 registers) of a thread; the rest is in shared memory
    ahead: int  # blocks of 32 of the other operand a warp reads at once


# Wide: every weight in registers, on 96 and 72 multiprocessors at 1150 units. Narrow: on 58 and 36, so that
# kernels of two or three training runs fit on an H200 beside each other. A run alone is faster wide, and runs
# under MPS, which this variable tells of, narrow; the numbers are the same.
FORWARD = {"wide": Layout(12, 9, 3), "narrow": Layout(20, 12, 3)}
BACKWARD = {"wide": Layout(16, 12, 4), "narrow": Layout(32, 9, 2)}
FORWARD_LAYOUT = BACKWARD_LAYOUT = "narrow" if "CUDA_MPS_PIPE_DIRECTORY" in os.environ else "wide"


def unsuited(hidden_size: int, streams: int, device: torch.device) -> str | None:
    """Why a layer cannot run this way, or None if it can."""
    if device.type != "cuda":
        return f"it needs a CUDA device, not {device.type}"
    if hidden_size % 2 or hidden_size > MOST_HIDDEN:
        return f"its width must be even and at most {MOST_HIDDEN}, not {hidden_size}"
    if streams > MOST_STREAMS:
        return f"it takes at most {MOST_STREAMS} streams, not {streams}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "it needs bfloat16 products, of compute capability 8.0 on"
    chip = torch.cuda.get_device_properties(device)
    most = max(blocks(hidden_size))
    if most > chip.multi_processor_count:
        return f"its {most} blocks must fit on {chip.multi_processor_count} multiprocessors at once"
    needed = max(shared_bytes(macros(hidden_size, streams)))
    if needed > chip.shared_memory_per_block_optin:
        return f"its blocks need {needed} bytes of shared memory, of {chip.shared_memory_per_block_optin}"
    if not nvrtc.can_compile(device.index):
        return "torch's run-time compiler must work"
    return None


def persistent_lstm(
    x_TBD: Tensor, hidden_BH: Tensor, cell_BH: Tensor, weights: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """All outputs (T, B, H), the last of them and the last cell; `weights` in torch's order."""
    return PersistentLSTM.apply(x_TBD, hidden_BH, cell_BH, *weights)


class PersistentLSTM(torch.autograd.Function):
    """`persistent_lstm` with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x_TBD: Tensor,
        hidden_BH: Tensor,
        cell_BH: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias_ih: Tensor,
        bias_hh: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps, streams, _ = x_TBD.shape
        size = hidden_BH.shape[1]
        pitch = macros(size, streams)["PITCH"]
        ctx.width = x_TBD.shape[2]
        ctx.set_materialize_grads(False)  # of the last states, which training cuts off
        x, weight_ih = _aligned(x_TBD), _aligned(weight_ih)
        weight_hh = weight_hh.to(torch.bfloat16).contiguous()  # as the kernels read it
        input_TBG = _product(x.flatten(0, 1), weight_ih.t()).add_(bias_ih + bias_hh)
        hidden = torch.zeros(steps + 1, streams, pitch, dtype=torch.bfloat16, device=x.device)
        hidden[0, :, :size] = hidden_BH
        cell = torch.empty(steps + 1, streams, size, device=x.device)
        cell[0] = cell_BH
        gates = torch.empty(steps, streams, 4 * size, dtype=torch.bfloat16, device=x.device)
        run = _kernels(size, streams, x.device.index)
        run.forward(input_TBG, weight_hh, hidden, cell, gates, steps)
        ctx.save_for_backward(x, weight_ih, weight_hh, hidden, cell, gates)
        y_TBH = hidden[1:, :, :size].float()
        return y_TBH, y_TBH[-1].clone(), cell[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        dy_TBH, dhidden_BH, dcell_BH = grads
        x, weight_ih, weight_hh, hidden, cell, gates = ctx.saved_tensors
        steps, streams, width = gates.shape
        size = width // 4
        dhidden_TBH = cell.new_zeros(steps, streams, size) if dy_TBH is None else dy_TBH.float().contiguous()
        if dhidden_BH is not None:
            dhidden_TBH = dhidden_TBH.clone()
            dhidden_TBH[-1] += dhidden_BH
        dcell = cell.new_zeros(streams, size)  # the kernel writes into it
        if dcell_BH is not None:
            dcell += dcell_BH
        dgates = torch.empty_like(gates)
        run = _kernels(size, streams, x.device.index)
        run.backward(dhidden_TBH, weight_hh, gates, cell, dcell, dgates, steps)
        flat = dgates.flatten(0, 1)
        dx = _product(flat, weight_ih).view(x.shape)[..., : ctx.width] if ctx.needs_input_grad[0] else None
        dhidden = _product(dgates[0], weight_hh) if ctx.needs_input_grad[1] else None
        dweight_ih = _product(flat.t(), x.flatten(0, 1))[:, : ctx.width]
        dweight_hh = _product(flat.t(), hidden[:-1].flatten(0, 1)[:, : _padded(size)])[:, :size]
        dbias = flat.sum(0, dtype=torch.float32)
        return dx, dhidden, dcell, dweight_ih, dweight_hh, dbias, dbias


def macros(size: int, streams: int) -> dict[str, int]:
    """What the source is compiled with for a layer of `size` units over `streams`."""
    forward, backward = (-(-length // (32 * WARPS)) for length in (size, 4 * size))
    given = {"HIDDEN": size, "STREAMS": streams, "PITCH": 32 * WARPS * forward}
    for name, layout, rows, pairs in (
        ("FORWARD", FORWARD[FORWARD_LAYOUT], 4, forward),
        ("BACKWARD", BACKWARD[BACKWARD_LAYOUT], 1, backward),
    ):
        given |= {
            f"{name}_UNITS": layout.units, f"{name}_PAIRS": pairs, f"{name}_AHEAD": min(layout.ahead, pairs),
            f"{name}_HELD": min(layout.held, _tiles(rows * layout.units) * pairs),
        }  # fmt: skip
    return given


def blocks(size: int) -> tuple[int, int]:
    """How many the two launches have."""
    return -(-size // FORWARD[FORWARD_LAYOUT].units), -(-size // BACKWARD[BACKWARD_LAYOUT].units)


def shared_bytes(given: dict[str, int]) -> tuple[int, int]:
    """What a block of each launch needs: weights that are not in registers, and the sums of every warp."""

    def needed(name: str, rows: int) -> int:
        tiles = _tiles(rows * given[f"{name}_UNITS"])
        stored = tiles * given[f"{name}_PAIRS"] - given[f"{name}_HELD"]
        return 2 * stored * THREADS * 16 + WARPS * 16 * tiles * COLUMNS * 4

    return needed("FORWARD", 4), needed("BACKWARD", 1)


def _tiles(rows: int) -> int:
    return -(-rows // 16)


class _Kernels:
    """The two launches for one size."""

    def __init__(self, size: int, streams: int, device: int) -> None:
        given = macros(size, streams)
        self.blocks = blocks(size)
        self.shared = shared_bytes(given)
        self.kernels = tuple(
            nvrtc.compiled(SOURCE, name, given, shared, device)
            for name, shared in zip(("lstm_forward", "lstm_backward"), self.shared, strict=True)
        )

    def forward(self, *arguments: Any) -> None:
        self._launch(0, arguments)

    def backward(self, *arguments: Any) -> None:
        self._launch(1, arguments)

    def _launch(self, which: int, arguments: tuple[Any, ...]) -> None:
        *tensors, steps = arguments
        flags = torch.zeros(self.blocks[which] * FLAG_PITCH, dtype=torch.int32, device=tensors[0].device)
        nvrtc.launch_together(
            self.kernels[which], self.blocks[which], THREADS, [*tensors, flags, steps], self.shared[which]
        )


@functools.cache
def _kernels(size: int, streams: int, device: int) -> _Kernels:
    return _Kernels(size, streams, device)


def _padded(width: int) -> int:
    return -(-width // ALIGNED) * ALIGNED


def _aligned(given: Tensor) -> Tensor:
    """In bfloat16, rows padded with zeros to a multiple of 16 bytes."""
    width = given.shape[-1]
    if width == _padded(width):
        return given.to(torch.bfloat16).contiguous()
    copy = given.new_empty(*given.shape[:-1], _padded(width), dtype=torch.bfloat16)
    copy[..., :width] = given
    copy[..., width:] = 0.0
    return copy


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a b of bfloat16 matrices in float32."""
    return torch.mm(a, b, out_dtype=torch.float32)
