"""What the battery runs over, and the yardstick it measures with.

A new function or head joins every test by being listed here, a new backend in `backends.py`. The yardstick
is a naive loss in plain autograd, written without anything from `uncork.ops`; in float64 it is the truth, in
float32 or bfloat16 it is what torch itself would reach.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot, softplus

import uncork
from tests.backends import (
    ALL_BACKENDS as ALL_BACKENDS,
    CHUNKED as CHUNKED,
    CHUNKED_TORCH as CHUNKED_TORCH,
    DEVICE as DEVICE,
    ORDER as ORDER,
    REFERENCE as REFERENCE,
    TRITON as TRITON,
    Backend as Backend,
    over_backends as over_backends,
    over_fused as over_fused,
    reads_values as reads_values,
)
from uncork import functions, heads


# Functions ------------------------------------------------------------------------------------------


class Bend(nn.Module):
    """A user's own increasing module, `forward` alone: z + w tanh(z), w = softplus(raw) > 0."""

    def __init__(self, raw: float = 0.3) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.tensor(raw))

    def forward(self, z: Tensor) -> Tensor:
        return z + softplus(self.raw.to(z.dtype)) * torch.tanh(z)

    def curvature(self) -> float:
        """max |f''|: that of tanh is 4 / (3 sqrt 3)."""
        return softplus(self.raw.double()).item() * 4 / (3 * 3**0.5)


ALL_FUNCTIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": functions.Identity,
    "scale": lambda: functions.Scale(0.7),
    "sigsoftmax": functions.SigSoftmax,
    "generalized": lambda: functions.GeneralizedSigSoftmax(1.5, 0.4),
    "softcap": lambda: functions.SoftCap(3.0),
    # A bound of 2 leaves many logits outside; about 1e5 knots is the paper's. No knot is a multiple of 1/256.
    "plif7": lambda: functions.PLIF(7, 2.0, "random", seed=1),
    "plif1001": lambda: functions.PLIF(1001, 5.1, "random", seed=2),
    "plif1e5": lambda: functions.PLIF(99_999, 20.0, "random", seed=3),
    "network": lambda: functions.MonotoneNetwork(4, knots=5_000),
    "network_skip": lambda: functions.MonotoneNetwork(10, skip=True, knots=2_001, bound=8.0),
    "network_exact": lambda: functions.MonotoneNetwork(3, skip=True, tabulate=False),
    "tabulated": lambda: functions.Tabulated(Bend(), knots=301, bound=6.0),
    "users_own": Bend,
}
LEARNABLE = [name for name, make in ALL_FUNCTIONS.items() if any(True for _ in make().parameters())]
TABULATED = ["network", "network_skip", "tabulated"]
over_functions = pytest.mark.parametrize("function", ALL_FUNCTIONS)


def naive_table(x: Tensor, value: Tensor, slope: Tensor, bound: float) -> Tensor:
    """F_i + s_i (x - l_i) by two gathers: the formula of the paper. Less than float32 cannot count knots."""
    knots = slope.numel()
    x, value, slope = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (x, value, slope))
    step = 2 * bound / knots
    index = ((x + bound) / step).floor().clamp(0, knots - 1).nan_to_num(0).long()
    return value[index] + slope[index] * (x - (index.to(x.dtype) - knots / 2) * step)


def naive_plif(x: Tensor, v: Tensor, bound: float) -> Tensor:
    slope = softplus(v)
    value = -bound + (2 * bound / v.numel()) * (slope.cumsum(0) - slope)
    return naive_table(x, value, slope, bound)


def naive_interpolant(x: Tensor, f: Callable[[Tensor], Tensor], knots: int, bound: float) -> Tensor:
    """The piecewise-linear function through f at the knots."""
    at = torch.linspace(-bound, bound, knots + 1, dtype=torch.float64, device=x.device)
    value = f(at)
    slope = value.diff() * (knots / (2 * bound))
    dtype = torch.promote_types(x.dtype, torch.float32)
    return naive_table(x, value[:-1].to(dtype), slope.to(dtype), bound)


def naive_network(x: Tensor, net: functions.MonotoneNetwork) -> Tensor:
    u, v = softplus(net.raw_u).to(x.dtype), softplus(net.raw_v).to(x.dtype)
    f = (v * torch.sigmoid(u * x[..., None] + net.b.to(x.dtype))).sum(-1) + net.bias.to(x.dtype)
    return f if net.raw_a is None else f + softplus(net.raw_a).to(x.dtype) * x


def as_read(function: nn.Module | None, backend: Backend) -> nn.Module | None:
    """The function this backend evaluates: of a smooth one it may read a table."""
    network = isinstance(function, functions.MonotoneNetwork)
    if network and function.tabulate and not backend.exact:
        return functions.Tabulated(function, function.knots, function.bound)
    strange = function is not None and (network or not isinstance(function, functions.AbstractMonotone))
    # Of a module that did not ask for a table it is the default one.
    return functions.Tabulated(function) if strange and backend.tabulates else function


def naive_function(function: nn.Module | None, z: Tensor, backend: Backend = REFERENCE) -> Tensor:
    """f(z) in plain torch, of the function this backend evaluates."""
    match as_read(function, backend):
        case None | functions.Identity():
            return z
        case functions.Scale() as f:
            return z * softplus(f.v)
        case functions.SigSoftmax():
            return 2 * z - torch.logaddexp(z, torch.zeros_like(z))
        case functions.GeneralizedSigSoftmax(shift=c, steepness=k):
            return k * (z - c) + c - (k - 1) * torch.logaddexp(z - c, torch.zeros_like(z))
        case functions.SoftCap(cap=cap):
            return cap * torch.tanh(z / cap)
        case functions.PLIF() as f:
            return naive_plif(z, f.v.to(torch.promote_types(z.dtype, torch.float32)), f.bound)
        case functions.MonotoneNetwork() as f:
            return naive_network(z, f)
        case functions.Tabulated(function=smooth, knots=knots, bound=bound):
            return naive_interpolant(z, lambda x: naive_function(smooth, x), knots, bound)
        case f:
            return f(z)


# Losses ---------------------------------------------------------------------------------------------


@dataclass
class Case:
    """One loss: its tensors, its function, its options. `log_prior` makes it a mixture."""

    input: Tensor  # (..., D), or (..., K, D) for a mixture
    weight: Tensor
    target: Tensor
    bias: Tensor | None = None
    log_prior: Tensor | None = None
    function: Any = None  # a module, or None
    options: dict[str, Any] = field(default_factory=dict)
    upstream: Tensor | None = None  # gradient of the loss handed to backward; None is 1

    def leaves(self) -> dict[str, Tensor]:
        """Every tensor a gradient is asked for, by name."""
        named = {"input": self.input, "log_prior": self.log_prior, "weight": self.weight, "bias": self.bias}
        found = {name: t for name, t in named.items() if t is not None and t.requires_grad}
        if self.function is not None:
            found |= {f"function.{n}": p for n, p in self.function.named_parameters() if p.requires_grad}
        return found

    def to(self, dtype: torch.dtype, function_dtype: torch.dtype | None = None) -> "Case":
        """A copy with leaves of its own in `dtype`, on the device under test."""
        cast = lambda t: None if t is None else t.detach().to(DEVICE, dtype).requires_grad_(t.requires_grad)
        return Case(
            input=cast(self.input),
            weight=cast(self.weight),
            target=self.target.to(DEVICE, dtype if self.target.is_floating_point() else None),
            bias=cast(self.bias),
            log_prior=cast(self.log_prior),
            function=self.function and copy.deepcopy(self.function).to(DEVICE, function_dtype or dtype),
            options={k: v.to(DEVICE, dtype) if isinstance(v, Tensor) else v for k, v in self.options.items()},
            upstream=None if self.upstream is None else self.upstream.to(DEVICE),
        )


def make_case(
    leading: tuple[int, ...] = (9,),
    width: int = 5,
    words: int = 11,
    components: int | None = None,
    function: str | nn.Module | None = None,
    dense: bool = False,
    bias: bool = True,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    spread: float = 2.0,
    **options: Any,
) -> Case:
    """A random problem; logits spread over about +- 2 `spread`, the bias as large as the rest.

    The slope of a PLIF jumps at its knots, so a logit that rounding moves across one changes a gradient by
    much. There all numbers are multiples of 1/16: logits are exact in every dtype and on every machine.
    """
    generator = torch.Generator().manual_seed(seed)
    randn = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)
    jumps = isinstance(function, str) and function.startswith("plif")
    grid = lambda t: (t * 16).round() / 16 if jumps else t
    rows = leading if components is None else (*leading, components)
    if dense:
        target = (2 * randn(*leading, words)).softmax(-1)
    else:
        target = torch.randint(0, words, leading, generator=generator)
    if options.get("weight") is True:
        options["weight"] = randn(words).exp()
    if isinstance(function, str):
        function = ALL_FUNCTIONS[function]()
    case = Case(
        input=grid(randn(*rows, width)).requires_grad_(),
        weight=grid(randn(words, width) * spread / width**0.5).requires_grad_(),
        target=target,
        bias=grid(randn(words) * spread / 2).requires_grad_() if bias else None,
        log_prior=None if components is None else randn(*rows).log_softmax(-1).requires_grad_(),
        function=function,
        options=options,
        upstream=randn(*leading) if options.get("reduction") == "none" else randn(),
    )
    return case.to(dtype, torch.float32 if dtype.itemsize < 4 else dtype)


def naive_scores(case: Case, backend: Backend = REFERENCE) -> Tensor:
    """f(W h + b), in float32 at least: F.cross_entropy widens inside too."""
    scores = naive_function(case.function, linear(case.input, case.weight, case.bias), backend)
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def naive_loss(case: Case, scores: Tensor) -> Tensor:
    """The loss of these scores in plain autograd: log_softmax, mixture, targets, reduction."""
    opts = case.options
    words = len(case.weight)
    log_p, lse = scores.log_softmax(-1), scores.logsumexp(-1)
    if case.log_prior is not None:
        log_p = (log_p + case.log_prior[..., None]).logsumexp(-2)
        lse_square = lse.square().mean(-1)
    else:
        lse_square = lse.square()
    if case.target.is_floating_point():
        valid, q, normaliser = torch.ones_like(lse_square), case.target, case.target.shape[:-1].numel()
    else:
        valid = (case.target != opts.get("ignore_index", -100)).to(log_p.dtype)
        word = case.target.where(valid > 0, 0).long()
        q = one_hot(word, words).to(log_p.dtype)
        weights = opts["weight"][word] if opts.get("weight") is not None else torch.ones_like(valid)
        normaliser = (weights * valid).sum()
    smoothing = opts.get("label_smoothing", 0.0)
    q = q * (1 - smoothing) + smoothing / words
    if opts.get("weight") is not None:
        q = q * opts["weight"]
    loss = valid * (-(q * log_p).sum(-1) + opts.get("z_loss", 0.0) * lse_square)
    match opts.get("reduction", "mean"):
        case "none":
            return loss
        case "sum":
            return loss.sum()
    return loss.sum() / normaliser


def our_loss(case: Case, backend: str) -> Tensor:
    keywords = {"linear_bias": case.bias, "function": case.function, "backend": backend, **case.options}
    if case.log_prior is None:
        return uncork.linear_cross_entropy(case.input, case.weight, case.target, **keywords)
    return uncork.mixture_cross_entropy(case.input, case.log_prior, case.weight, case.target, **keywords)


def gradients(loss: Tensor, case: Case) -> dict[str, Tensor]:
    """The loss and the gradient of every leaf, by name."""
    leaves = case.leaves()
    upstream = torch.ones_like(loss) if case.upstream is None else case.upstream.to(loss.dtype)
    grads = torch.autograd.grad(loss, list(leaves.values()), upstream) if leaves else ()
    return {"loss": loss.detach()} | dict(zip(leaves, grads, strict=True))


def truth(case: Case, backend: Backend = REFERENCE) -> dict[str, Tensor]:
    """Loss and gradients of the same numbers in float64, by the naive formula."""
    return naive(case.to(torch.float64), backend)


def naive(case: Case, backend: Backend = REFERENCE) -> dict[str, Tensor]:
    """Loss and gradients as torch reaches them in the case's own dtype."""
    return gradients(naive_loss(case, naive_scores(case, backend)), case)


def gradient_mass(case: Case, backend: Backend) -> float:
    """sum |dL/df(z)| max(1, |f(z)|): what the terms of a function's gradient add up to before they cancel."""
    wide = case.to(torch.float64)
    scores = naive_scores(wide, backend).detach().requires_grad_()
    loss = naive_loss(wide, scores)
    upstream = torch.ones_like(loss) if case.upstream is None else case.upstream.to(loss.dtype)
    (g,) = torch.autograd.grad(loss, scores, upstream)
    return (g.abs() * scores.abs().clamp(min=1)).sum().item()


def ours(case: Case, backend: Backend) -> dict[str, Tensor]:
    with backend.on():
        return gradients(our_loss(case, backend.name), case)


# Heads ----------------------------------------------------------------------------------------------


ALL_HEADS: dict[str, Callable[..., Any]] = {
    "softmax": heads.SoftmaxHead,
    "softmax_no_bias": lambda d, v, **to: heads.SoftmaxHead(d, v, bias=False, **to),
    "scale": lambda d, v, **to: heads.MonotonicHead(d, v, functions.Scale(1.3), **to),
    "sigsoftmax": lambda d, v, **to: heads.MonotonicHead(d, v, functions.SigSoftmax(), bias=False, **to),
    "softcap": lambda d, v, **to: heads.MonotonicHead(d, v, functions.SoftCap(2.0), **to),
    "plif": lambda d, v, **to: heads.MonotonicHead(d, v, functions.PLIF(501, 4.0, "random", seed=0), **to),
    "network": lambda d, v, **to: heads.MonotonicHead(d, v, functions.MonotoneNetwork(5), **to),
    "users_own": lambda d, v, **to: heads.MonotonicHead(d, v, Bend(), **to),
    "mos1": lambda d, v, **to: heads.MixtureHead(d, v, components=1, **to),
    "mos": lambda d, v, **to: heads.MixtureHead(d, v, components=4, embedding_features=d + 2, **to),
    "mos_plif": lambda d, v, **to: heads.MixtureHead(
        d, v, components=3, function=functions.PLIF(101, 3.0, "random", seed=0), bias=False, **to
    ),
}
over_heads = pytest.mark.parametrize("name", ALL_HEADS)


# Yardstick ------------------------------------------------------------------------------------------


def rms(x: Tensor) -> float:
    return x.detach().double().square().mean().sqrt().item() if x.numel() else 0.0


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor], rtol: float, atol: float) -> None:
    """Every entry close, relative to its own largest value: gradients of all sizes are judged alike."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        size = value.abs().max().item() if value.numel() else 0.0
        torch.testing.assert_close(
            got[name].to(value.dtype), value, rtol=0.0, atol=rtol * size + atol, equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip


def assert_as_accurate_as_torch(
    case: Case | Sequence[Case], backend: Backend, factor: float = 2.0, steps: float = 2.0, chunk: int = 300
) -> None:
    """err(ours, float64) <= factor * err(torch in the same dtype, float64) + two rounding steps.

    Errors are root mean squares, for the loss and for every gradient; over all cases, if there are several.
    """
    cases = [case] if isinstance(case, Case) else case
    results = []
    for one in cases:
        with backend.on(chunk):
            found = gradients(our_loss(one, backend.name), one)
        mass = gradient_mass(one, backend)
        results.append(Judged(found, naive(one, backend), truth(one, backend), mass))
    assert_no_worse(results, factor, steps)


@dataclass
class Judged:
    """What we found, what torch found in the same dtype, and what is right, by name."""

    found: dict[str, Tensor]
    torchs: dict[str, Tensor]
    right: dict[str, Tensor]
    mass: float  # see `gradient_mass`


def assert_no_worse(results: Sequence[Judged], factor: float = 2.0, steps: float = 2.0) -> None:
    """Our error is at most `factor` times torch's own plus `steps` rounding steps.

    The last term is there because torch may hit a number exactly by luck. A rounding step is eps of the
    result's dtype times its size; the gradient of a function's parameter is a sum over all logits that may
    cancel to nothing, so there the size of the terms counts.
    """
    mean = lambda squares: (sum(x * x for x in squares) / len(results)) ** 0.5
    for name in results[0].right:
        assert all(torch.isfinite(r.found[name]).all() for r in results), name
        error = mean([rms(r.found[name] - r.right[name]) for r in results])
        allowed = mean([rms(r.torchs[name] - r.right[name]) for r in results])
        spread = lambda r, name=name: r.mass / r.right[name].numel() if name.startswith("function.") else 0.0
        size = mean([rms(r.right[name]) + spread(r) for r in results])
        step = torch.finfo(results[0].found[name].dtype).eps * size
        assert error <= factor * allowed + steps * step, (
            f"{name}: error {error:.3g}, torch's own {allowed:.3g}, one rounding step {step:.3g}"
        )
