"""What a fit is worth: KL, mode matching, cross-entropy over its floor, and how much of it is the
bottleneck's.

For Linear-Softmax the cross-entropy is convex in h, so for the learned words W the best possible KL over h is
computed with a duality-gap certificate (`uncork.theory.cross_entropy`). What the fit has above it is
optimisation error; what remains is the price of the width.
"""

from typing import Any

import torch
from torch import Tensor

from uncork.functions.description import curve, quantiles, spread
from uncork.synthetic.fit import Fit
from uncork.synthetic.tasks import Task
from uncork.theory.cross_entropy import entropy, minimum_cross_entropy
from uncork.theory.rank import rank_report


# Numbers live at once in an evaluation: rows x words x components.
CHUNK_NUMBERS = {"cpu": 2**22, "cuda": 2**27}


@torch.no_grad()
def evaluate(fit: Fit, task: Task, components: int = 1) -> dict[str, float]:
    """Averages over all contexts: KL(P||Q), share of matched modes in percent, cross-entropy, its floor."""
    hidden = fit.hidden()
    cross_entropy = matched = 0.0
    rows = _rows(task, components)
    for start, stop in task.parts(rows):
        target = task.rows(start, stop)
        log_q = fit.head.log_prob(hidden[start:stop])
        cross_entropy -= float(_expected(target, log_q).sum())
        matched += int((log_q.argmax(-1) == target.argmax(-1)).sum())
    floor = task.entropy_floor()
    return {
        "kl": cross_entropy / task.contexts - floor,
        "mode_matching": 100 * matched / task.contexts,
        "cross_entropy": cross_entropy / task.contexts,
        "entropy_floor": floor,
    }


def _expected(target: Tensor, log_q: Tensor) -> Tensor:
    """sum_i P_i log Q_i in float64, with 0 log 0 = 0."""
    return torch.where(target > 0, target.double() * log_q.double(), 0).sum(-1)


def _rows(task: Task, components: int) -> int:
    return max(1, CHUNK_NUMBERS[task.device.type] // (task.vocabulary * components))


@torch.no_grad()
def certify(fit: Fit, task: Task, contexts: int) -> dict[str, float]:
    """The best KL over h for the learned words, beside the KL reached, on the first `contexts` contexts."""
    contexts = min(contexts, task.contexts)
    weight = fit.head.weight.detach().double()
    hidden = fit.hidden()[:contexts]
    # The Newton step holds rows x words in float64 a few times.
    rows = max(1, min(contexts, CHUNK_NUMBERS[task.device.type] // (8 * task.vocabulary)))
    reached = upper = lower = worst = 0.0
    for start in range(0, contexts, rows):
        stop = min(start + rows, contexts)
        target = task.rows(start, stop).double()
        target /= target.sum(-1, keepdim=True)
        optimum = minimum_cross_entropy(
            target, weight, start=hidden[start:stop], tolerance=1e-6, max_iterations=40
        )
        floor = entropy(target)
        log_q = (hidden[start:stop].double() @ weight.T).log_softmax(-1)
        reached += float((-_expected(target, log_q) - floor).sum())
        upper += float((optimum.value - floor).sum())
        lower += float((optimum.lower - floor).sum())
        worst = max(worst, float(optimum.gap.max()))
    return {
        "contexts": contexts,
        "kl_reached": reached / contexts,
        "kl_optimum": upper / contexts,
        "kl_lower_bound": lower / contexts,
        "largest_gap": worst,
    }


@torch.no_grad()
def learned_function(fit: Fit, task: Task, points: int = 101) -> dict[str, Any] | None:
    """f and its slope where the logits are, with slope statistics there; None for heads without f."""
    function = getattr(fit.head, "function", None)
    if function is None:
        return None
    rows = min(task.contexts, max(1, 2**20 // task.vocabulary))
    logits = (fit.hidden()[:rows] @ fit.head.weight.T).flatten()
    low, high = quantiles(logits, (0.001, 0.999))
    x = torch.linspace(low, high, points, device=task.device)
    at_logits, over_range = spread(function.derivative(logits)), spread(function.derivative(x))
    extremes = {name: over_range[name] for name in ("min", "max")}
    return {**curve(function, x), "slope_statistics": at_logits | extremes}


@torch.no_grad()
def model_rank(fit: Fit, task: Task, contexts: int = 256) -> dict[str, Any]:
    """Ranks of the model's log-probability matrix on the first contexts, in float64."""
    hidden = fit.hidden()[: min(contexts, task.contexts)]
    report = rank_report(fit.head.double().log_prob(hidden.double()).cpu())
    fit.head.float()
    return {
        "shape": list(report.shape),
        "press": report.press_rank,
        "effective": {f"{epsilon:g}": rank for epsilon, rank in report.effective_ranks.items()},
    }
