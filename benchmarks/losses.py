"""What is compared: one problem, and losses of it as modules. Shared by the CPU and the GPU benchmark."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import uncork
from benchmarks.measure import Step


Sizes = tuple[int, int, int]
Problem = dict[str, Tensor]
Loss = Callable[[Problem], Tensor]  # one with parameters of its own is an nn.Module

# Standard deviation of tanh of a standard normal number: latents are divided by it.
TANH_SPREAD = 0.6279


def make_problem(
    sizes: Sizes,
    components: int = 0,
    spread: float = 1.0,
    bias: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Problem:
    """Hidden states, weights and targets; logits are normal with standard deviation `spread`.

    Targets follow Zipf's law. With `components`, latents and log-priors of a mixture as well. Everything is
    drawn in float32 and then rounded: the same problem in every dtype.
    """
    tokens, width, words = sizes
    generator = torch.Generator(device).manual_seed(0)
    randn = lambda *shape: torch.randn(shape, generator=generator, device=device)
    frequency = 1.0 / (torch.arange(words, device=device) + 2.7)
    problem = {
        "hidden": randn(tokens, width),
        "weight": randn(words, width).mul_(spread * width**-0.5),
        "target": torch.multinomial(frequency, tokens, replacement=True, generator=generator),
    }
    if bias:
        problem["bias"] = 0.1 * randn(words)
    if components:
        problem["latent"] = randn(tokens, components, width).tanh_().div_(TANH_SPREAD)
        problem["log_prior"] = randn(tokens, components).log_softmax(-1)
    for name in problem.keys() - {"target"}:
        problem[name] = problem[name].to(dtype).requires_grad_()
    return problem


def on_grid(problem: Problem, dtype: torch.dtype) -> Problem:
    """Near the same in `dtype`, of numbers of bfloat16, with logits that are odd multiples of 1/128.

    These are exact in TF32 products. The slope of a table jumps at its knots, so a logit that rounding moves
    across one changes gradients by much: with 100,000 knots on [-20, 20], these are clear of them by more
    than float32 rounds.
    """
    found = {name: t.detach() for name, t in problem.items()}
    for name, first in (("hidden", 1 / 8), ("latent", 1 / 8), ("weight", 1 / 16)):
        if name in found:
            found[name] = found[name].float().mul(8).round().div(8)
            found[name][..., 0] = first
    return {
        name: t if name == "target" else t.bfloat16().to(dtype).requires_grad_() for name, t in found.items()
    }


def _logits(p: Problem, rows: str) -> Tensor:
    """All of them, float32 or better."""
    z = F.linear(p[rows], p["weight"], p.get("bias"))
    return z.to(torch.promote_types(z.dtype, torch.float32))


class Eager(nn.Module):
    """Plain torch: linear, the function if there is one, cross_entropy."""

    def __init__(self, function: nn.Module | None = None) -> None:
        super().__init__()
        self.function = function

    def forward(self, p: Problem) -> Tensor:
        z = _logits(p, "hidden")
        return F.cross_entropy(z if self.function is None else self.function(z), p["target"])


class EagerMixture(Eager):
    """Plain torch, from latents and log-priors."""

    def forward(self, p: Problem) -> Tensor:
        z = _logits(p, "latent")
        log_p = (z if self.function is None else self.function(z)).log_softmax(-1)
        return F.nll_loss((log_p + p["log_prior"].to(log_p.dtype)[..., None]).logsumexp(1), p["target"])


class NaivePLIF(nn.Module):
    """The formula as one would write it: value and slope looked up for every logit, the rest by autograd."""

    def __init__(self, function: uncork.functions.PLIF) -> None:
        super().__init__()
        self.v, self.bound = nn.Parameter(function.v.detach().clone()), function.bound

    def forward(self, z: Tensor) -> Tensor:
        slope = F.softplus(self.v)
        knots, step = len(slope), 2.0 * self.bound / len(slope)
        value = step * (slope.cumsum(0) - slope)
        index = ((z.detach() + self.bound) / step).clamp(0, knots - 1).long()
        return value[index] + slope[index] * (z - (index * step - self.bound))


class Ours(nn.Module):
    """`uncork.linear_cross_entropy`."""

    def __init__(self, function: nn.Module | None = None, backend: str = "auto") -> None:
        super().__init__()
        self.function, self.backend = function, backend

    def forward(self, p: Problem) -> Tensor:
        return uncork.linear_cross_entropy(
            p["hidden"],
            p["weight"],
            p["target"],
            linear_bias=p.get("bias"),
            function=self.function,
            backend=self.backend,
        )


class OurMixture(Ours):
    """`uncork.mixture_cross_entropy`."""

    def forward(self, p: Problem) -> Tensor:
        return uncork.mixture_cross_entropy(
            p["latent"],
            p["log_prior"],
            p["weight"],
            p["target"],
            linear_bias=p.get("bias"),
            function=self.function,
            backend=self.backend,
        )


class Graphed(nn.Module):
    """A loss whose ordinary calls replay CUDA graphs, one of each pass: `torch.cuda.make_graphed_callables`.

    Hidden states and targets, which come anew with each batch, are copied into the graphs' memory, as they
    would be in training. Latents and log-priors are not: a head makes them inside its graph.
    """

    def __init__(self, loss: Loss, problem: Problem) -> None:
        super().__init__()
        fresh = lambda t: t.detach().clone().requires_grad_(t.requires_grad)
        samples = tuple(fresh(t) if name in BATCH else t for name, t in problem.items())
        # A loss may leave some of the problem unread: a mixture has no use for hidden states.
        self.call: Any = torch.cuda.make_graphed_callables(
            _OfTensors(loss, tuple(problem)), samples, allow_unused_input=True
        )

    def forward(self, p: Problem) -> Tensor:
        return self.call(*p.values())


BATCH = ("hidden", "target")


class _OfTensors(nn.Module):
    """A loss that takes a problem's tensors one by one."""

    def __init__(self, loss: Loss, names: tuple[str, ...]) -> None:
        super().__init__()
        self.loss, self.names = loss, names

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.loss(dict(zip(self.names, tensors, strict=True)))


def step_of(
    loss: Loss,
    problem: Problem,
    around: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> Step:
    """One training step of the output layer: loss, backward, gradients thrown away."""
    leaves = _leaves(loss, problem)

    def step() -> Tensor:
        with around(), _without_gradients(leaves):
            value = loss(problem)
            value.backward()
        return value.detach()

    return step


def gradient_bytes(loss: Loss, problem: Problem) -> int:
    """What the gradients of the problem's own tensors take; those of a function's parameters do not count."""
    with _without_gradients(_leaves(loss, problem)):
        loss(problem).backward()
        return sum(t.grad.nbytes for t in problem.values() if t.grad is not None)


@contextlib.contextmanager
def _without_gradients(leaves: list[Tensor]) -> Iterator[None]:
    """None are left, whatever happens: the next contender must not add to them."""
    try:
        yield
    finally:
        for tensor in leaves:
            tensor.grad = None


def _leaves(loss: Loss, problem: Problem) -> list[Tensor]:
    return [*problem.values(), *(loss.parameters() if isinstance(loss, nn.Module) else ())]


def disagreement(
    name: str,
    loss: Loss,
    truth: Loss,
    problem: Problem,
    wide: Problem,
    tolerance: float = 1e-4,
    plain: tuple[Loss, Problem] | None = None,
) -> list[str]:
    """What of the loss and its gradients is not that of `truth` on the same problem in float64.

    Of every leaf that `truth` has. An error is relative to the size of what is right, and may be
    `tolerance`, a tenth of it in the loss, and twice that of `plain`: torch's own in the same arithmetic.
    """
    found, right = _outcome(loss, problem), _outcome(truth, wide)
    torchs = right if plain is None else _outcome(*plain)
    red = []
    for leaf, exact in right.items():
        # A constant in f changes nothing: what is right may be 0, and its rounding has no size of its own.
        size = max(exact.norm().item(), LEAST)
        error = lambda got, leaf=leaf, exact=exact, size=size: (got[leaf] - exact).norm().item() / size
        allowed = 2.0 * error(torchs) + tolerance * (0.1 if leaf == LOSS else 1.0)
        if leaf not in found:
            red.append(f"{name}: no gradient of {leaf}")
        elif not error(found) <= allowed:  # a NaN is not
            red.append(f"{name}: relative error {error(found):.1e} in {leaf}, at most {allowed:.1e} is right")
    return red


LOSS, LEAST = "the loss", 1e-3


def _outcome(loss: Loss, problem: Problem) -> dict[str, Tensor]:
    """The loss and the gradient of every leaf that it depends on, by name."""
    leaves = {leaf: tensor for leaf, tensor in problem.items() if tensor.requires_grad}
    leaves |= dict(loss.named_parameters()) if isinstance(loss, nn.Module) else {}
    value = loss(problem)
    gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    known = {leaf: grad for leaf, grad in zip(leaves, gradients, strict=True) if grad is not None}
    return {LOSS: value.detach(), **known}
