"""LSTM layers whose recurrence is one launch forward and one backward: see persistent.cu.

Products take bfloat16 operands and sum in float32; cells, gradients and results are float32, hidden states
float32 numbers rounded to bfloat16. All blocks of a launch wait for each other, so they are started
together or not at all. Biases, dropouts and padding have no passes of their own: see operand_kernels.
"""

import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from uncork.ops import triton
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


# Wide: every weight in registers, on 96 and 72 multiprocessors at 1150 units. Narrow: on 48 and 36, so that
# two forward and one backward fit on the 132 of an H200 beside each other. A run alone is faster wide, runs
# under MPS, which this variable tells of, narrow; the numbers are the same.
FORWARD = {"wide": Layout(12, 9, 3), "narrow": Layout(24, 11, 3)}
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
    if reason := triton.obstacle(device):
        return f"its operands are made by Triton: {reason}"
    if not nvrtc.can_compile(device.index):
        return "torch's run-time compiler must work"
    return None


class Layer(NamedTuple):
    """What one layer of a stack is given."""

    mask_BD: Tensor | None  # on what it reads, the same at all times
    hidden_BH: Tensor
    cell_BH: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor


class Kept(NamedTuple):
    """What a layer's forward leaves for its backward, bfloat16 but for the mask, the seed and the cells."""

    mask_BD: Tensor | None
    seed: Tensor | None  # of the entries left out of the recurrent matrix
    x: Tensor  # as an operand: see operand_kernels
    weight_ih: Tensor  # likewise
    weight_hh: Tensor  # without what was left out
    hidden: Tensor  # (T + 1, B, at least H)
    cell: Tensor  # (T + 1, B, H)
    gates: Tensor  # (T, B, 4H)


def persistent_stack(
    x_TBD: Tensor, layers: list[Layer], drops: list[float]
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """All outputs (T, B, H) of the last layer, and the last hidden state and cell of every one.

    Of each recurrent matrix a share, that in `drops`, is left out.
    """
    given = (tensor for layer in layers for tensor in layer)
    y_TBH, *ends = PersistentStack.apply(x_TBD, tuple(drops), *given)
    return y_TBH, list(zip(ends[::2], ends[1::2], strict=True))


class PersistentStack(torch.autograd.Function):
    """`persistent_stack` with its gradient; a layer reads the states of the one below as that wrote them."""

    @staticmethod
    def forward(ctx: Any, x_TBD: Tensor, drops: tuple[float, ...], *given: Any) -> tuple[Tensor, ...]:
        layers = [Layer(*some) for some in _chunks(given, len(Layer._fields))]
        ctx.width, ctx.drops = x_TBD.shape[2], drops
        ctx.set_materialize_grads(False)  # of the last states, which training cuts off
        seeds = _seeds(len(layers), x_TBD.device) if any(drops) else None
        kept, ends, last = [], [], x_TBD
        for number, (layer, p) in enumerate(zip(layers, drops, strict=True)):
            seed = seeds[number] if seeds is not None and p else None
            one = _layer_forward(last.flatten(0, 1), layer, p, seed)
            kept.append(one)
            last = one.hidden[1:, :, : layer.hidden_BH.shape[1]]
            ends += [last[-1].float(), one.cell[-1].clone()]
        ctx.save_for_backward(*(tensor for one in kept for tensor in one))
        return last.float(), *ends

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        kept = [Kept(*some) for some in _chunks(ctx.saved_tensors, len(Kept._fields))]
        dhidden, dends = grads[0], list(_chunks(grads[1:], 2))
        if dhidden is None:
            dhidden = kept[-1].cell.new_zeros(kept[-1].cell[1:].shape)
        dhidden, mask_BH = dhidden.float().contiguous(), None
        needed = list(_chunks(ctx.needs_input_grad[2:], len(Layer._fields)))
        widths = [ctx.width, *(below.cell.shape[2] for below in kept)]
        gradients: list[Tensor | None] = []
        for number in reversed(range(len(kept))):
            one = kept[number]
            dgates, dcell = _recurrence_backward(one, dhidden, mask_BH, *dends[number])
            flat = dgates.flatten(0, 1)
            weights = _weight_gradients(one, flat, widths[number], ctx.drops[number])
            first = _product(dgates[0], one.weight_hh) if needed[number][1] else None
            gradients = [None, first, dcell, *weights, *gradients]
            if number > 0 or ctx.needs_input_grad[0]:
                columns = one.weight_ih[:, : padded(widths[number])]
                dhidden = _product(flat, columns).unflatten(0, dgates.shape[:2])
                mask_BH = one.mask_BD
        if not ctx.needs_input_grad[0]:
            return None, None, *gradients
        dx = dhidden[..., : ctx.width]
        return dx if mask_BH is None else dx * mask_BH, None, *gradients


def _layer_forward(rows: Tensor, layer: Layer, p: float, seed: Tensor | None) -> Kept:
    """Over rows (T B, D) of any pitch."""
    operands, device = _operands(), rows.device
    streams, size = layer.hidden_BH.shape
    steps = rows.shape[0] // streams
    mask_BD = None if layer.mask_BD is None else layer.mask_BD.float().contiguous()  # as the kernels read it
    x = operands.input_operand(rows, mask_BD)
    weight_ih = operands.weight_operand(layer.weight_ih, layer.bias_ih, layer.bias_hh)
    weight_hh = operands.dropped(layer.weight_hh, p, seed)
    pitch = macros(size, streams)["PITCH"]
    hidden = torch.empty(steps + 1, streams, pitch, dtype=torch.bfloat16, device=device)
    hidden[:, :, size:].zero_()  # read, with weights of 0
    hidden[0, :, :size] = layer.hidden_BH
    cell = torch.empty(steps + 1, streams, size, device=device)
    cell[0] = layer.cell_BH
    gates = torch.empty(steps, streams, 4 * size, dtype=torch.bfloat16, device=device)
    run = _kernels(size, streams, device.index)
    run.forward(_product(x, weight_ih.t()), weight_hh, hidden, cell, gates, steps)
    return Kept(mask_BD, seed, x, weight_ih, weight_hh, hidden, cell, gates)


def _recurrence_backward(
    kept: Kept, dhidden: Tensor, mask_BH: Tensor | None, dlast_BH: Tensor | None, dcell_BH: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradient of the gates and of the first cell; `mask_BH` belongs to `dhidden` (T, B, at least H)."""
    steps, streams, size = kept.cell[1:].shape
    if dlast_BH is not None:  # of the state itself, which has no mask
        dhidden = dhidden[..., :size] * (1.0 if mask_BH is None else mask_BH)
        dhidden[-1] += dlast_BH
        dhidden, mask_BH = dhidden.contiguous(), None
    dcell = kept.cell.new_zeros(streams, size)  # the kernel writes into it
    if dcell_BH is not None:
        dcell += dcell_BH
    dgates = torch.empty_like(kept.gates)
    run = _kernels(size, streams, dhidden.device.index)
    run.backward(
        dhidden, mask_BH, kept.weight_hh, kept.gates, kept.cell, dcell, dgates, dhidden.shape[2], steps
    )
    return dgates, dcell


def _weight_gradients(kept: Kept, dgates_NG: Tensor, width: int, p: float) -> tuple[Tensor, ...]:
    """Those of both weights and both biases, contiguous, no two in the same memory."""
    operands, size = _operands(), kept.cell.shape[2]
    dgates_GN = dgates_NG.t()
    dweight_ih, dbias_ih, dbias_hh = operands.weight_gradients(_product(dgates_GN, kept.x), width)
    before = kept.hidden[:-1].flatten(0, 1)[:, : padded(size)]
    dweight_hh = operands.dropped_gradient(_product(dgates_GN, before), size, p, kept.seed)
    return dweight_ih, dweight_hh, dbias_ih, dbias_hh


def _seeds(layers: int, device: torch.device) -> Tensor:
    """From torch's generator on the device, which a checkpoint restores and a replayed graph moves on."""
    return torch.empty(layers, dtype=torch.int64, device=device).random_()


def _operands() -> Any:
    """Imported late: Triton need not be there."""
    from uncork.lm import operand_kernels

    return operand_kernels


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
    """The two launches for one size, each compiled when first needed: scoring a text needs no backward."""

    NAMES = ("lstm_forward", "lstm_backward")

    def __init__(self, size: int, streams: int, device: int) -> None:
        self.given, self.device = macros(size, streams), device
        self.blocks = blocks(size)
        self.shared = shared_bytes(self.given)
        self.compiled: dict[int, Any] = {}

    def forward(self, *arguments: Any) -> None:
        """As the kernel takes them but for the flags: tensors or None, then numbers."""
        self._launch(0, arguments)

    def backward(self, *arguments: Any) -> None:
        self._launch(1, arguments)

    def _launch(self, which: int, arguments: tuple[Any, ...]) -> None:
        shared = self.shared[which]
        if which not in self.compiled:
            self.compiled[which] = nvrtc.compiled(SOURCE, self.NAMES[which], self.given, shared, self.device)
        numbers = [a for a in arguments if isinstance(a, int)]
        pointers = arguments[: -len(numbers)]
        flags = torch.zeros(self.blocks[which] * FLAG_PITCH, dtype=torch.int32, device=pointers[0].device)
        kernel = self.compiled[which]
        with torch.cuda.device_of(flags):  # the device of the model need not be the current one
            nvrtc.launch_together(kernel, self.blocks[which], THREADS, [*pointers, flags, *numbers], shared)


@functools.cache
def _kernels(size: int, streams: int, device: int) -> _Kernels:
    return _Kernels(size, streams, device)


def padded(width: int) -> int:
    """The next multiple of 16 bytes of bfloat16."""
    return -(-width // ALIGNED) * ALIGNED


def _chunks(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a b of bfloat16 matrices in float32."""
    return torch.mm(a, b, out_dtype=torch.float32)
