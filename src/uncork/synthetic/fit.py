"""Fit one head to one task: words shared, one free vector per context, Adam, until nothing improves.

A pass visits every context once, in `batches` batches. A step moves the shared parameters and the batch's own
context vectors; each batch keeps its own Adam state, so every context vector has seen as many steps as there
were passes. Progress is the average KL(P||Q) of a pass. At a plateau the learning rate falls; the plateau
after the last fall ends the fit. The learning rate is the best of `settings.rates` on a subset of the
contexts: the same search, with the same budget, for each head.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from uncork.heads import AbstractHead
from uncork.ops import chunk_bytes
from uncork.synthetic.config import Cell, Settings
from uncork.synthetic.heads import build_head
from uncork.synthetic.tasks import Task


Progress = Callable[[str], None]
# Small chunks stay in a CPU's cache; on a GPU a whole batch goes at once, or launches dominate.
CHUNK_BYTES = {"cpu": 16 * 2**20, "cuda": 16 * 2**30}


@dataclass
class Fit:
    """A fitted head, its context vectors, and how the fit ended."""

    head: AbstractHead
    contexts: list[Tensor]  # one (rows, D) leaf per batch, in order
    rate: float
    history: list[float]  # average KL of each pass
    stopped: str  # "converged", "max_passes" or "diverged"
    search: list[dict[str, float]]

    def hidden(self) -> Tensor:
        """All context vectors (N, D)."""
        return torch.cat([part.detach() for part in self.contexts])


def fit(cell: Cell, task: Task, settings: Settings, progress: Progress = lambda text: None) -> Fit:
    """Search the learning rate on a subset, then fit all contexts to convergence."""
    search = []
    contexts = min(settings.trial_contexts, cell.contexts)
    for rate in settings.rates:
        progress(f"{cell.name}: trying rate {rate:g}")
        trial = _Run(cell, task, settings, rate, contexts)
        trial.passes(settings.trial_passes)
        search.append({"rate": rate, "kl": trial.best()})
    rate = min(search, key=lambda entry: entry["kl"])["rate"]
    run = _Run(cell, task, settings, rate, cell.contexts)
    stopped = run.passes(settings.max_passes, lambda text: progress(f"{cell.name}: {text}"))
    return Fit(run.head, run.contexts, rate, run.history, stopped, search)


class _Run:
    """One optimisation from the cell's starting point at one learning rate."""

    def __init__(self, cell: Cell, task: Task, settings: Settings, rate: float, contexts: int) -> None:
        self.task, self.settings, self.total = task, settings, contexts
        torch.manual_seed(cell.seed)
        head = build_head(cell.head, cell.width, cell.vocabulary, settings)
        hidden = torch.randn(cell.contexts, cell.width)  # of all contexts: trials start where the fit does
        self.head = head.to(task.device)
        rows = -(-contexts // settings.batches)
        self.ranges = [(a, min(a + rows, contexts)) for a in range(0, contexts, rows)]
        hidden = hidden.to(task.device)
        self.contexts = [hidden[a:b].clone().requires_grad_() for a, b in self.ranges]
        self.shared_optimiser = _adam(list(self.head.parameters()), rate)
        self.context_optimisers = [_adam([part], rate) for part in self.contexts]
        self.order = torch.Generator().manual_seed(cell.seed)
        self.floor = task.entropy_floor()
        self.uniform = math.log(cell.vocabulary) - self.floor  # KL of the uniform distribution
        self.history: list[float] = []

    def passes(self, limit: int, progress: Progress = lambda text: None) -> str:
        """Run until converged or `limit` passes; say which."""
        decays, since = 0, 0
        with chunk_bytes(CHUNK_BYTES[self.task.device.type]):
            while len(self.history) < limit:
                self.history.append(self.one_pass() - self.floor)
                since += 1
                progress(f"pass {len(self.history)}, KL {self.history[-1]:.4f}")
                if not math.isfinite(self.history[-1]):
                    return "diverged"
                if since > self.settings.patience and self.plateau():
                    if decays == self.settings.decays:
                        return "converged"
                    decays, since = decays + 1, 0
                    self.slow_down()
        return "max_passes"

    def one_pass(self) -> float:
        """Visit every context once; the average cross-entropy met on the way."""
        total = torch.zeros((), device=self.task.device)
        for batch in torch.randperm(len(self.ranges), generator=self.order).tolist():
            start, stop = self.ranges[batch]
            loss = self.head(self.contexts[batch], self.task.rows(start, stop))
            optimisers = (self.shared_optimiser, self.context_optimisers[batch])
            for optimiser in optimisers:
                optimiser.zero_grad()
            loss.backward()
            for optimiser in optimisers:
                optimiser.step()
            total += loss.detach() * ((stop - start) / self.total)
        return float(total)

    def plateau(self) -> bool:
        """Whether the KL fell by less than `tolerance` per pass over the last `patience` passes.

        The fall is relative to the KL or to what was gained over the uniform distribution, whichever is less:
        with many words and a narrow head the gain is a small part of the KL, and the fit must not end before
        it is made.
        """
        window = self.settings.patience
        now = self.history[-1]
        scale = max(0.0, min(now, self.uniform - now))
        return self.history[-1 - window] - now < self.settings.tolerance * window * scale

    def slow_down(self) -> None:
        for optimiser in (self.shared_optimiser, *self.context_optimisers):
            optimiser.param_groups[0]["lr"] /= self.settings.decay

    def best(self) -> float:
        """The lowest KL of a pass; infinite for a run that diverged."""
        return min(self.history) if all(map(math.isfinite, self.history)) else math.inf


def _adam(parameters: list[Tensor], rate: float) -> torch.optim.Adam:
    # A context vector takes one step per pass: a second-moment memory of 1000 steps would outlast the fit.
    return torch.optim.Adam(parameters, lr=rate, betas=(0.9, 0.99), fused=True)
