"""`uncork demo`: every head on a small problem that a plain softmax cannot represent."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from uncork.functions import PLIF, MonotoneNetwork, Scale, SigSoftmax
from uncork.heads import AbstractHead, MixtureHead, MonotonicHead, SoftmaxHead


@dataclass(frozen=True)
class Row:
    """What one trained head reached."""

    cross_entropy: float
    mode_matching: float
    parameters: int


def demo(contexts: int = 500, words: int = 200, width: int = 8, steps: int = 400, seed: int = 0) -> None:
    """Fit each head to distributions drawn from Dirichlet(0.1), and print how close it comes.

    Args:
        contexts: number of distributions to fit, each with its own embedding.
        words: size of the vocabulary.
        width: width of the embeddings; the bottleneck is tight when it is far below `words`.
        steps: optimiser steps for each head.
        seed: seed of the problem and of every initialisation.
    """
    from rich.console import Console
    from rich.progress import Progress

    sizes = {"contexts": contexts, "words": words, "width": width, "steps": steps}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"`{name}` must be at least 1, got {size}.")
    # Work this small gains nothing from threads, and on a busy machine loses minutes waiting for them.
    torch.set_num_threads(1)
    target = _draw(contexts, words, seed)
    floor = -torch.special.xlogy(target, target).sum(-1).mean().item()
    heads = _heads(width, words)
    rows: dict[str, Row] = {}
    console = Console()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(heads) * steps)
        for name, build in heads.items():
            progress.update(task, description=f"{name:<16}")
            torch.manual_seed(seed)
            head = build()
            hidden = nn.Parameter(torch.randn(contexts, width) / width**0.5)
            for _ in _fit(head, hidden, target, steps):
                progress.advance(task)
            rows[name] = _measure(head, hidden, target)
    console.print(_table(rows, floor, contexts, words, width))


def _draw(contexts: int, words: int, seed: int) -> Tensor:
    draws = np.random.default_rng(seed).dirichlet(np.full(words, 0.1), size=contexts)
    return torch.from_numpy(draws).float()


def _heads(width: int, words: int) -> dict[str, Callable[[], AbstractHead]]:
    def monotonic(function: nn.Module) -> AbstractHead:
        return MonotonicHead(width, words, function)

    return {
        "softmax": lambda: SoftmaxHead(width, words),
        "temperature": lambda: monotonic(Scale()),
        "sigsoftmax": lambda: monotonic(SigSoftmax()),
        "PLIF": lambda: monotonic(PLIF(knots=1000, bound=20.0)),
        "monotone network": lambda: monotonic(MonotoneNetwork(10, skip=True)),
        "mixture, K = 4": lambda: MixtureHead(width, words, components=4),
    }


def _fit(head: AbstractHead, hidden: Tensor, target: Tensor, steps: int) -> Iterator[int]:
    optimizer = torch.optim.Adam([hidden, *head.parameters()], lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        optimizer.zero_grad()
        head(hidden, target).backward()
        optimizer.step()
        schedule.step()
        yield step


@torch.no_grad()
def _measure(head: AbstractHead, hidden: Tensor, target: Tensor) -> Row:
    match = head.predict(hidden) == target.argmax(-1)
    return Row(
        cross_entropy=head(hidden, target).item(),
        mode_matching=100 * match.float().mean().item(),
        parameters=sum(parameter.numel() for parameter in head.parameters()),
    )


def _table(rows: dict[str, Row], floor: float, contexts: int, words: int, width: int):
    from rich.table import Table

    table = Table(
        title=f"{contexts} distributions over {words} words, embeddings of width {width}",
        caption=f"KL is cross-entropy minus the entropy of the distributions, {floor:.4f} nats.",
    )
    table.add_column("head")
    for column in ("cross-entropy", "KL", "modes matched", "head parameters"):
        table.add_column(column, justify="right")
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row.cross_entropy:.4f}",
            f"{row.cross_entropy - floor:.4f}",
            f"{row.mode_matching:.1f} %",
            f"{row.parameters:,}",
        )
    return table
