"""Bad input: the message names the argument, the rule, what came and the remedy, before any work is done."""

import pytest
import torch
from torch import nn

import uncork
from tests.helpers import ALL_BACKENDS, DEVICE, TRITON, over_backends, over_fused, reads_values
from uncork import functions
from uncork.ops.dispatch import BACKENDS


N, D, V, K = 4, 3, 5, 2


def valid(**changes):
    arguments = {
        "input": torch.randn(N, D),
        "linear_weight": torch.randn(V, D),
        "target": torch.tensor([0, 1, 2, 3]),
        "linear_bias": torch.randn(V),
    }
    return on_device(arguments | changes)


def on_device(arguments):
    """What is on CPU by default goes to the device under test; what is elsewhere on purpose stays."""
    here = lambda t: isinstance(t, torch.Tensor) and t.device.type == "cpu"
    return {
        k: v.detach().to(DEVICE).requires_grad_(v.requires_grad) if here(v) else v
        for k, v in arguments.items()
    }


def dense(**changes):
    return torch.full((N, V), 1 / V).index_put(
        (torch.tensor([1]), torch.tensor([2])), torch.tensor(changes["at"])
    )


class Doubling(nn.Module):
    def forward(self, z):
        return torch.cat([z, z], -1)


class Shifted(nn.Module):
    """A stranger's function with a buffer."""

    def __init__(self, shift: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("shift", shift)

    def forward(self, z):
        return z + self.shift


class Exponential(nn.Module):
    """Increasing, and infinite from 710 on."""

    def forward(self, z):
        return z.exp()


def broken(function):
    """The function after a training that diverged."""
    with torch.no_grad():
        next(function.parameters()).view(-1)[0] = torch.nan
    return function.to(DEVICE)


NOT_FINITE = "`function`.*finite parameters and values, got NaN or infinity.*Load an earlier state"
# What is wrong: changed arguments, the kind of error, and the parts of its message in order.
WRONG = {
    "input is a list": ({"input": [[1.0]]}, TypeError, "`input` must be a torch.Tensor, got list"),
    "input is integer": ({"input": torch.ones(N, D).long()}, TypeError, "`input`.*floating.*int64.*float()"),
    "input of 8 bits": (
        {"input": torch.ones(N, D).to(torch.float8_e4m3fn)},
        TypeError,
        "`input`.*16 bits.*floating.*float8_e4m3fn.*float()",
    ),
    "input is too wide": (
        {"input": torch.randn(N, D + 1)},
        ValueError,
        r"`input`.*width of `linear_weight`, 3,.*\(4, 4\).*Project",
    ),
    "input is a scalar": ({"input": torch.tensor(1.0)}, ValueError, r"`input` must end in.*got shape \(\)"),
    "input of another dtype": (
        {"input": torch.randn(N, D).double()},
        TypeError,
        "`input` and `linear_weight`.*one dtype.*autocast",
    ),
    "input on another device": (
        {"input": torch.randn(N, D, device="meta")},
        ValueError,
        "`input` and `linear_weight`.*one device.*meta",
    ),
    "weight is a vector": (
        {"linear_weight": torch.randn(V)},
        ValueError,
        r"`linear_weight`.*\(words, width\).*\(5,\)",
    ),
    "weight of 8 bits": (
        {"linear_weight": torch.ones(V, D).to(torch.float8_e5m2)},
        TypeError,
        "`linear_weight`.*16 bits.*floating.*float8_e5m2.*float()",
    ),
    "weight is None": (
        {"linear_weight": None},
        TypeError,
        "`linear_weight` must be a torch.Tensor, got NoneType",
    ),
    "weight is empty": (
        {"linear_weight": torch.randn(0, D)},
        ValueError,
        r"`linear_weight`.*at least one.*\(0, 3\)",
    ),
    "bias of another length": (
        {"linear_bias": torch.randn(V + 1)},
        ValueError,
        r"`linear_bias`.*\(5,\).*\(6,\)",
    ),
    "bias is a number": ({"linear_bias": 1.0}, TypeError, "`linear_bias` must be a torch.Tensor, got float"),
    "bias on another device": (
        {"linear_bias": torch.randn(V, device="meta")},
        ValueError,
        "`linear_bias`.*on (cpu|cuda.*).*meta.*to_empty",
    ),
    "target is a list": ({"target": [0, 1]}, TypeError, "`target` must be a torch.Tensor, got list"),
    "target of another shape": (
        {"target": torch.zeros(N + 1).long()},
        ValueError,
        r"`target` of word indices.*\(4,\).*\(5,\).*leading",
    ),
    "words as floating numbers": (
        {"target": torch.zeros(N)},
        ValueError,
        r"`target` of distributions.*\(4, .*\).*\(4,\).*target\.long\(\)",
    ),
    "distributions of whole numbers": (
        {"target": torch.eye(V)[:N].long()},
        ValueError,
        r"`target` of word indices.*\(4,\).*\(4, .*\).*target\.float\(\)",
    ),
    "target is boolean": (
        {"target": torch.zeros(N).bool()},
        TypeError,
        "`target`.*indices.*distributions.*bool.*Convert",
    ),
    "target is complex": (
        {"target": torch.zeros(N, dtype=torch.complex64)},
        TypeError,
        "`target`.*indices.*distributions.*complex64.*Convert",
    ),
    "target of 8 bits": (
        {"target": dense(at=0.2).to(torch.float8_e4m3fn)},
        TypeError,
        "`target`.*16 bits.*floating.*float8_e4m3fn.*float()",
    ),
    "target is floating by mistake": (
        {"target": torch.zeros(N)},
        ValueError,
        r"`target` of distributions over words.*\(4, 5\).*\(4,\)",
    ),
    "target beyond the words": (
        {"target": torch.tensor([0, 1, V, 3])},
        ValueError,
        r"`target`.*\[0, 5\) or equal ignore_index=-100, got 5 for token 2.*ignore_index",
    ),
    "target below 0": ({"target": torch.tensor([0, -1, 2, 3])}, ValueError, r"`target`.*got -1 for token 1"),
    "target requires gradients": (
        {"target": torch.full((N, V), 1 / V, requires_grad=True)},
        ValueError,
        "`target`.*gradients.*detach",
    ),
    "target on another device": (
        {"target": torch.zeros(N, device="meta").long()},
        ValueError,
        "`target`.*on (cpu|cuda.*).*meta.*to_empty",
    ),
    "distribution is negative": ({"target": dense(at=-0.2)}, ValueError, "`target`.*negative.*-0.2.*softmax"),
    "distribution is NaN": ({"target": dense(at=float("nan"))}, ValueError, "`target`.*NaN.*softmax"),
    "distribution does not sum to 1": (
        {"target": dense(at=0.7)},
        ValueError,
        "`target`.*sum to 1.*1.5.*Divide",
    ),
    "distribution with ignore_index": (
        {"target": dense(at=0.2), "ignore_index": 0},
        ValueError,
        "`ignore_index`.*distributions, got 0.*Leave",
    ),
    "class weights of another length": (
        {"weight": torch.ones(V - 1)},
        ValueError,
        r"`weight` \(class weights\).*\(5,\).*\(4,\).*`linear_weight`",
    ),
    "class weights require gradients": (
        {"weight": torch.ones(V, requires_grad=True)},
        ValueError,
        "`weight`.*gradients.*detach",
    ),
    "class weights are integers": ({"weight": torch.ones(V).long()}, TypeError, "`weight`.*floating.*int64"),
    "class weights on another device": (
        {"weight": torch.ones(V, device="meta")},
        ValueError,
        "`weight`.*on (cpu|cuda.*).*meta",
    ),
    "unknown reduction": (
        {"reduction": "avg"},
        ValueError,
        "`reduction`.*one of mean, sum, none, got 'avg'.*none",
    ),
    "ignore_index is a float": ({"ignore_index": 1.0}, TypeError, "`ignore_index`.*an int, got 1.0. To"),
    "ignore_index is None": (
        {"ignore_index": None},
        TypeError,
        "`ignore_index`.*an int, got None. To ignore",
    ),
    "ignore_index is too large": ({"ignore_index": 2**70}, ValueError, "`ignore_index`.*64-bit.*Choose"),
    "too much smoothing": ({"label_smoothing": 1.5}, ValueError, r"`label_smoothing`.*\[0, 1\], got 1.5. It"),
    "smoothing is NaN": (
        {"label_smoothing": float("nan")},
        ValueError,
        r"`label_smoothing`.*\[0, 1\], got nan",
    ),
    "smoothing is text": (
        {"label_smoothing": "0.1"},
        TypeError,
        r"`label_smoothing` must be a number, got '0.1'. Convert it with float\(\)",
    ),
    "negative z-loss": ({"z_loss": -1e-4}, ValueError, "`z_loss`.*at least 0, got -0.0001. 0 leaves"),
    "infinite z-loss": ({"z_loss": float("inf")}, ValueError, "`z_loss`.*finite.*inf"),
    "z-loss is a bool": ({"z_loss": True}, TypeError, "`z_loss` must be a number, got True"),
    "function is a class": (
        {"function": functions.PLIF},
        TypeError,
        "`function`.*nn.Module.*got the class PLIF. Make an instance",
    ),
    "function is a lambda": (
        {"function": lambda z: z},
        TypeError,
        "`function`.*nn.Module.*got function.*forward",
    ),
    "function on another device": (
        {"function": functions.Scale(device="meta")},
        ValueError,
        "`function`.*on (cpu|cuda.*).*its v is on meta.*to_empty",
    ),
    "function with a buffer on another device": (
        {"function": Shifted(torch.zeros((), device="meta"))},
        ValueError,
        "`function`.*on (cpu|cuda.*).*its shift is on meta.*to_empty",
    ),
    "scale is not finite": ({"function": broken(functions.Scale())}, ValueError, NOT_FINITE),
    "slopes are not finite": ({"function": broken(functions.PLIF(10))}, ValueError, NOT_FINITE),
    "network is not finite": ({"function": broken(functions.MonotoneNetwork(3))}, ValueError, NOT_FINITE),
    "exact network is not finite": (
        {"function": broken(functions.MonotoneNetwork(3, tabulate=False))},
        ValueError,
        NOT_FINITE,
    ),
    "table of what is not finite": (
        {"function": broken(functions.Tabulated(functions.Scale(), knots=10))},
        ValueError,
        NOT_FINITE,
    ),
    "unknown backend": ({"backend": "magic"}, ValueError, "`backend` must be one of auto, .*got 'magic'"),
}


@pytest.fixture
def no_work(monkeypatch):
    """Any matrix product before the check is too early."""

    def refuse(*_, **__):
        raise AssertionError("a matrix product ran before the arguments were checked")

    for owner, name in [(torch, "mm"), (torch, "addmm"), (nn.functional, "linear")]:
        monkeypatch.setattr(owner, name, refuse)
    monkeypatch.setattr("uncork.ops.reference.linear", refuse)


READ_ON_CPU_ONLY = {
    "target beyond the words",
    "target below 0",
    "distribution is negative",
    "distribution is NaN",
    "distribution does not sum to 1",
    *(name for name, (_, _, message) in WRONG.items() if message == NOT_FINITE),
}
over_wrong = lambda names: pytest.mark.parametrize(
    "wrong", [pytest.param(w, marks=reads_values) if w in READ_ON_CPU_ONLY else w for w in names]
)


@over_wrong(WRONG)
@over_backends
def test_linear(backend, wrong, no_work):
    changes, kind, message = WRONG[wrong]
    with backend.on(), pytest.raises(kind, match=message):
        uncork.linear_cross_entropy(**valid(**({"backend": backend.name} | changes)))


@over_wrong(w for w in WRONG if not w.startswith("input"))
@over_backends
def test_mixture(backend, wrong, no_work):
    changes, kind, message = WRONG[wrong]
    arguments = valid(latent=torch.randn(N, K, D), log_prior=torch.zeros(N, K), backend=backend.name)
    arguments.pop("input")
    with backend.on(), pytest.raises(kind, match=message):
        uncork.mixture_cross_entropy(**(arguments | on_device(changes)))


WRONG_MIXTURE = {
    "latent without components": (
        {"latent": torch.randn(D), "log_prior": torch.zeros(())},
        ValueError,
        r"`latent`.*\(..., components, width\).*\(3,\).*linear_cross_entropy",
    ),
    "no components": (
        {"latent": torch.randn(N, 0, D), "log_prior": torch.zeros(N, 0)},
        ValueError,
        "`latent`.*at least one.*0",
    ),
    "latent of another width": (
        {"latent": torch.randn(N, K, D + 1)},
        ValueError,
        r"`latent`.*width.*\(4, 2, 4\)",
    ),
    "prior of another shape": (
        {"log_prior": torch.zeros(N, K + 1)},
        ValueError,
        r"`log_prior`.*\(4, 2\).*\(4, 3\).*log_softmax",
    ),
    "prior is integer": ({"log_prior": torch.zeros(N, K).long()}, TypeError, "`log_prior`.*floating"),
    "prior is missing": ({"log_prior": None}, TypeError, "`log_prior` must be a torch.Tensor, got NoneType"),
    "prior on another device": (
        {"log_prior": torch.zeros(N, K, device="meta")},
        ValueError,
        "`log_prior`.*on (cpu|cuda.*).*meta",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_MIXTURE)
def test_mixture_arguments(wrong, no_work):
    changes, kind, message = WRONG_MIXTURE[wrong]
    arguments = valid(latent=torch.randn(N, K, D), log_prior=torch.zeros(N, K))
    arguments.pop("input")
    with pytest.raises(kind, match=message):
        uncork.mixture_cross_entropy(**(arguments | on_device(changes)))


def test_misspelt_keywords_are_not_swallowed():
    with pytest.raises(TypeError, match="unexpected keyword argument 'label_smothing'"):
        uncork.linear_cross_entropy(**valid(label_smothing=0.1))
    with pytest.raises(TypeError, match="positional"):
        uncork.linear_cross_entropy(*valid().values())


@over_backends
def test_a_function_that_is_not_elementwise(backend):
    # It is called on logits, or on the 100,001 knots of a table.
    double = 2 * 100_001 if backend.tabulates else 2 * V
    message = rf"`function` must be elementwise.*returned \(.*\b{double}\b.*Let its forward"
    with backend.on(), pytest.raises(ValueError, match=message):
        uncork.linear_cross_entropy(**valid(function=Doubling(), backend=backend.name))


class Rounded(nn.Module):
    def forward(self, z):
        return z.long()


@over_backends
def test_a_function_that_returns_integers(backend):
    given = "float64" if backend.tabulates else "float32"
    message = rf"`function` must return a floating dtype, got torch.int64 for logits of torch.{given}. Comp"
    with backend.on(), pytest.raises(TypeError, match=message):
        uncork.linear_cross_entropy(**valid(function=Rounded(), backend=backend.name))


@reads_values
@over_fused
def test_a_table_of_what_overflows(backend, no_work):
    function = functions.Tabulated(Exponential(), knots=10, bound=1e3)
    with backend.on(), pytest.raises(ValueError, match=NOT_FINITE + ".*smaller bound"):
        uncork.linear_cross_entropy(**valid(function=function, backend=backend.name))


def test_triton_where_it_cannot_run(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x, target = torch.randn(N, D), torch.zeros(N, dtype=torch.int64)
    with pytest.raises(ValueError, match='`backend` must be able to run: .*Use "auto"'):
        uncork.linear_cross_entropy(x, torch.randn(V, D), target, backend="triton")


def test_every_backend_is_listed():
    """A backend that exists is tested: it is in the helpers' list."""
    assert set(BACKENDS) == {b.name for b in (*ALL_BACKENDS, TRITON)}
