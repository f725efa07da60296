"""Who takes part on a GPU: torch, other libraries, uncork, and the least any of them could take."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.deterministic
from torch import Tensor, nn

from benchmarks.losses import Eager, EagerMixture, Loss, NaivePLIF, OurMixture, Ours, Problem
from benchmarks.measure import Step
from benchmarks.rows import Block
from uncork.functions import PLIF, Scale, SigSoftmax, SoftCap
from uncork.ops import chunked, matmul


BOUND, NOISE, CAP = 20.0, 0.3, 30.0
EAGER, COMPILED, LIGER, CCE, CCE_EXACT = "torch eager", "torch.compile", "Liger", "CCE", "CCE exact"
SOFTMAX, PLIF_, MOS = "uncork softmax", "uncork PLIF", "uncork MoS"
SIGSOFTMAX, SOFTCAP, SCALE = "uncork SigSoftmax", "uncork SoftCap", "uncork Scale"
MOS_PLIF, EAGER_MOS = "uncork MoS+PLIF", "torch eager MoS"
NAIVE, NAIVE_COMPILED = "naive PLIF", "naive PLIF, torch.compile"
DETERMINISTIC = "uncork PLIF, deterministic"
UNFILLED = "uncork PLIF, deterministic, new memory not filled"
PRODUCTS, PRODUCTS_MOS, COPY = "three products", "three products, MoS", "copy"
PRODUCTS_PLIF = "three products, as PLIF has them"
PEERS = (EAGER, COMPILED, LIGER, CCE, CCE_EXACT)

COPY_BYTES = 2**30


def learned_plif(block: Block, device: str) -> PLIF:
    """The identity with noise in its slopes: what a trained function looks like."""
    function = PLIF(block.knots, BOUND)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        function.v.add_(NOISE * torch.randn(block.knots, generator=generator))
    return function.to(device)


class Compiled(nn.Module):
    """torch.compile in its default mode, of a loss of plain tensors: no dict to guard at each call."""

    def __init__(self, inner: nn.Module, backend: str) -> None:
        super().__init__()
        self.inner = inner
        whole = lambda hidden, weight, target: inner({"hidden": hidden, "weight": weight, "target": target})
        self.call = torch.compile(whole, dynamic=False, backend=backend)

    def forward(self, p: Problem) -> Tensor:
        return self.call(p["hidden"], p["weight"], p["target"])


def liger() -> Loss:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss  # type: ignore[import-not-found]

    loss = LigerFusedLinearCrossEntropyLoss()
    return lambda p: loss(p["weight"], p["hidden"], p["target"])


def cce(**options: None) -> Loss:
    from cut_cross_entropy import linear_cross_entropy  # type: ignore[import-not-found]

    return lambda p: linear_cross_entropy(p["hidden"], p["weight"], p["target"], **options)


def make_loss(name: str, block: Block, device: str, backend: str, compiler: str = "inductor") -> Loss:
    """The loss of that name; raises if a library is missing. `backend` is uncork's."""
    plif = lambda: learned_plif(block, device)
    makers: dict[str, Callable[[], Loss]] = {
        EAGER: Eager,
        COMPILED: lambda: Compiled(Eager(), compiler),
        LIGER: liger,
        CCE: cce,
        CCE_EXACT: lambda: cce(filter_eps=None),
        NAIVE: lambda: Eager(NaivePLIF(plif())),
        NAIVE_COMPILED: lambda: Compiled(Eager(NaivePLIF(plif())), compiler),
        EAGER_MOS: EagerMixture,
        SOFTMAX: lambda: Ours(None, backend),
        PLIF_: lambda: Ours(plif(), backend),
        DETERMINISTIC: lambda: Ours(plif(), backend),
        UNFILLED: lambda: Ours(plif(), backend),
        SIGSOFTMAX: lambda: Ours(SigSoftmax(), backend),
        SOFTCAP: lambda: Ours(SoftCap(CAP), backend),
        SCALE: lambda: Ours(Scale().to(device), backend),
        MOS: lambda: OurMixture(None, backend),
        MOS_PLIF: lambda: OurMixture(plif(), backend),
    }
    return makers[name]()


def truth(name: str, block: Block, device: str) -> Eager:
    """The same loss in plain torch, for float64."""
    function = {
        PLIF_: lambda: NaivePLIF(learned_plif(block, device)),
        MOS_PLIF: lambda: NaivePLIF(learned_plif(block, device)),
        SIGSOFTMAX: SigSoftmax,
        SOFTCAP: lambda: SoftCap(CAP),
        SCALE: lambda: Scale().to(device),
    }.get(name, lambda: None)()
    return (EagerMixture if name in (MOS, MOS_PLIF) else Eager)(function).double()


@contextlib.contextmanager
def deterministic(fill: bool = True) -> Iterator[None]:
    """torch's switch, for one step; with `fill` torch also writes NaN into all new memory, its default."""
    settings: Any = torch.utils.deterministic
    filled = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = fill
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        settings.fill_uninitialized_memory = filled


AROUND: dict[str, Callable[[], contextlib.AbstractContextManager]] = {
    DETERMINISTIC: deterministic,
    UNFILLED: lambda: deterministic(fill=False),
}


def products(problem: Problem, rows: str) -> Step:
    """The three matrix products of a loss at full size, on numbers of realistic size.

    Each has its operands as it is fastest with.
    """
    x = problem[rows].detach().flatten(0, -2)
    weight = problem["weight"].detach()
    x_columns, weight_columns = matmul.by_columns(x), matmul.by_columns(weight)
    logits, dx, dweight = x.new_empty(len(x), len(weight)), torch.empty_like(x), torch.empty_like(weight)

    def step() -> None:
        torch.mm(x, weight.T, out=logits)
        torch.mm(logits, weight_columns, out=dx)
        torch.mm(logits.T, x_columns, out=dweight)

    return step


def chunk_products(problem: Problem) -> Step:
    """The three in chunks of the fewest rows, logits in float32: what is left if a table cost nothing."""
    x, weight = problem["hidden"].detach(), problem["weight"].detach()
    chunks = x.split(chunked.FEWEST_ROWS)
    logits = x.new_empty(len(chunks[0]), len(weight), dtype=torch.float32)
    # On the memory of float32 logits, and as small as it would be: what products take depends on both.
    gradient = x.new_empty(len(chunks[0]), 2 * len(weight))[:, : len(weight)]
    gradient.copy_((chunks[0] @ weight.T).softmax(1))
    dx, dweight = torch.empty_like(x).split(chunked.FEWEST_ROWS), torch.empty_like(weight)

    def step() -> None:
        for number, rows in enumerate(chunks):
            own = slice(len(rows))
            matmul.logits(rows, weight, None, logits[own])
            matmul.back(gradient[own], weight, None, dx[number])
            matmul.add_outer(dweight, gradient[own], rows, first=number == 0)

    return step


def copy(problem: Problem, size: int) -> Step:
    source = torch.empty(size, dtype=torch.uint8, device=problem["weight"].device).fill_(1)
    target = torch.empty_like(source)

    def step() -> None:
        target.copy_(source)

    return step


def floor_step(name: str, problem: Problem, copy_bytes: int) -> Step:
    """A step that is no loss: part of the least that a loss could take."""
    if name == COPY:
        return copy(problem, copy_bytes)
    if name == PRODUCTS_PLIF:
        return chunk_products(problem)
    return products(problem, "latent" if name == PRODUCTS_MOS else "hidden")


FLOORS = (PRODUCTS, PRODUCTS_MOS, PRODUCTS_PLIF, COPY)
