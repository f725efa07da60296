"""Perplexity of a trained model: plain, with dynamic evaluation, and with a neural cache.

All three divide by the number of predictions made, which is one less per column than its tokens.
The reference divides by the tokens, so it reads about 0.03 perplexity points lower on Penn's valid.
Shapes: T time, B streams, D width, W cache entries.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from uncork.lm.awd_lstm import LanguageModel, States, detach
from uncork.lm.corpus import windows
from uncork.results import perplexity


@dataclass(frozen=True)
class Score:
    """Mean negative log-likelihood in nats over `predictions` words."""

    nll: float
    predictions: int

    @property
    def perplexity(self) -> float:
        return perplexity(self.nll)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Dropouts off inside, the former mode back afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


# Windows of fewer predictions than this leave a GPU waiting for the host.
BUSY = 4096


def reading_length(stream_TB: Tensor, bptt: int) -> int:
    """Time steps to read at once. A score depends on it by rounding alone, since states are carried over."""
    return max(bptt, BUSY // stream_TB.shape[1]) if stream_TB.is_cuda else bptt


@torch.no_grad()
def evaluate(model: LanguageModel, stream_TB: Tensor, length: int = 70) -> Score:
    """Read the stream in windows of `length`, carrying the state over them."""
    total = torch.zeros((), dtype=torch.float64, device=stream_TB.device)
    for nll in _losses(model, stream_TB, length, "sum"):
        total += nll
    return _score(total, stream_TB)


# Parts of a text whose scores a result keeps, so that models can be compared over text, not over seeds alone.
PARTS = 100


@torch.no_grad()
def nll_by_part(model: LanguageModel, stream_TB: Tensor, length: int = 70, parts: int = PARTS) -> list[float]:
    """Mean negative log-likelihood of equal parts of the text in its order, about so many."""
    nll_TB = torch.cat(list(_losses(model, stream_TB, length, "none")))
    of_each_stream = min(max(1, parts // nll_TB.shape[1]), len(nll_TB))
    means_PB = torch.stack([part.mean(0) for part in nll_TB.tensor_split(of_each_stream)])
    return means_PB.T.flatten().tolist()


def _losses(model: LanguageModel, stream_TB: Tensor, length: int, reduction: str) -> Iterator[Tensor]:
    """The loss of one window after another, in float64."""
    states: States | None = None
    with evaluation_mode(model):
        for tokens_TB, target_TB in windows(stream_TB, length):
            features = model.encoder(tokens_TB, states)
            states = features.states
            yield model.nll(features, target_TB, reduction).double()


def dynamic_evaluation(
    model: LanguageModel,
    train_TB: Tensor,
    stream_TB: Tensor,
    *,
    lr: float = 0.002,
    decay: float = 0.02,
    epsilon: float = 0.001,
    length: int = 5,
) -> Score:
    """Krause et al.'s RMS rule: after each window is scored, the parameters follow its gradient.

    theta += decay * min(1 / decay, R / mean R) * (theta_0 - theta) - lr * gradient / (R + epsilon)

    R is the root mean square of the gradient over windows of the training text. `model` itself is
    left as it was. Streams in `stream_TB` adapt one shared copy; one stream is the published use.
    A `decay` of 0 pulls nothing back.
    """
    _check_dynamic(lr, decay, epsilon, length)
    adapted = copy.deepcopy(model)
    parameters = [p for p in adapted.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in parameters]
    rms = _gradient_rms(adapted, parameters, train_TB, length)
    mean = sum(r.mean() for r in rms) / len(rms)
    most = 1.0 / decay if decay else math.inf
    pull = [(r / mean).clamp(max=most) * decay for r in rms]
    total = torch.zeros((), dtype=torch.float64, device=stream_TB.device)
    states: States | None = None
    adapted.eval()
    for tokens_TB, target_TB in windows(stream_TB, length):
        loss, states = _backward(adapted, parameters, tokens_TB, target_TB, states)
        total += loss.double() * target_TB.numel()
        with torch.no_grad():
            for p, p_0, r, towards in zip(parameters, start, rms, pull, strict=True):
                p += towards * (p_0 - p) - lr * _gradient(p) / (r + epsilon)
    return _score(total, stream_TB)


def _check_dynamic(lr: float, decay: float, epsilon: float, length: int) -> None:
    for name, value in (("lr", lr), ("decay", decay)):
        if not 0.0 <= value < math.inf:
            raise ValueError(f"`{name}` must be finite and at least 0; got {value}. Give 0 or more.")
    # Not 0: it is added to R, which is 0 for a parameter without a gradient.
    if not 0.0 < epsilon < math.inf:
        raise ValueError(
            f"`epsilon` must be finite and above 0; got {epsilon}. Give a small number such as 0.001."
        )
    if length < 1:
        raise ValueError(f"`length` must be at least 1; got {length}. Give a number of words such as 5.")


@torch.no_grad()
def cache_evaluation(
    model: LanguageModel,
    stream_TB: Tensor,
    *,
    theta: float = 1.0,
    share: float = 0.1,
    size: int = 500,
    length: int = 200,
) -> Score:
    """Grave et al.'s neural cache: p = (1 - share) p_model + share p_cache.

    p_cache puts softmax(theta h_t . h_i) on the word that followed h_i, over the last `size` steps
    before t. The first word of the text has no cache and keeps p_model.
    """
    if not math.isfinite(theta):
        raise ValueError(f"`theta` must be finite; got {theta}. Give a number such as 1.")
    if not 0.0 <= share < 1.0 or size < 1:
        raise ValueError(
            f"`share` must be in [0, 1) and `size` at least 1; got {share} and {size}. Give numbers such as "
            "0.1 and 500."
        )
    total = torch.zeros((), dtype=torch.float64, device=stream_TB.device)
    log_share = math.log(share) if share else -math.inf
    states: States | None = None
    history_WBD, followers_WB = None, None
    with evaluation_mode(model):
        for tokens_TB, target_TB in windows(stream_TB, length):
            features = model.encoder(tokens_TB, states)
            states = features.states
            nll_TB = model.nll(features, target_TB, "none").double()
            history_WBD = _extend(history_WBD, features.raw_TBD, size)
            followers_WB = _extend(followers_WB, target_TB, size)
            cached_TB = _cache_log_prob(history_WBD, followers_WB, tokens_TB.shape[0], size, theta)
            mixed_TB = torch.logaddexp(math.log1p(-share) - nll_TB, log_share + cached_TB)
            # NaN marks an empty cache: the model alone predicts.
            total -= torch.where(cached_TB.isnan(), -nll_TB, mixed_TB).sum()
    return _score(total, stream_TB)


def _extend(past: Tensor | None, new: Tensor, size: int) -> Tensor:
    return new if past is None else torch.cat([past[-size:], new])


def _cache_log_prob(history_WBD: Tensor, followers_WB: Tensor, steps: int, size: int, theta: float) -> Tensor:
    """log p_cache(target) for the last `steps` entries, each over the `size` entries before it."""
    query_TBD = history_WBD[-steps:]
    logits_BTW = theta * torch.einsum("tbd,wbd->btw", query_TBD, history_WBD).double()
    entries = history_WBD.shape[0]
    position_T1 = torch.arange(entries - steps, entries, device=query_TBD.device)[:, None]
    position_W = torch.arange(entries, device=query_TBD.device)
    seen_TW = (position_W < position_T1) & (position_W >= position_T1 - size)
    logits_BTW = logits_BTW.masked_fill(~seen_TW, -math.inf)
    same_BTW = followers_WB.t()[:, None, :] == followers_WB[-steps:].t()[:, :, None]
    hit_BT = logits_BTW.masked_fill(~same_BTW, -math.inf).logsumexp(-1)
    all_BT = logits_BTW.logsumexp(-1)
    # -inf - -inf is NaN exactly where nothing came before; a miss is -inf.
    return (hit_BT - all_BT).t()


def _gradient_rms(
    model: LanguageModel, parameters: list[nn.Parameter], train_TB: Tensor, length: int
) -> list[Tensor]:
    squares = [torch.zeros_like(p) for p in parameters]
    states: States | None = None
    count = 0
    model.eval()
    for tokens_TB, target_TB in windows(train_TB, length):
        _, states = _backward(model, parameters, tokens_TB, target_TB, states)
        for square, p in zip(squares, parameters, strict=True):
            square += _gradient(p).square()
        count += 1
    return [(square / count).sqrt() for square in squares]


def _backward(
    model: LanguageModel,
    parameters: list[nn.Parameter],
    tokens_TB: Tensor,
    target_TB: Tensor,
    states: States | None,
) -> tuple[Tensor, States]:
    for p in parameters:
        p.grad = None
    with torch.enable_grad():
        features = model.encoder(tokens_TB, states)
        loss = model.nll(features, target_TB)
        loss.backward()
    return loss.detach(), detach(features.states)


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _score(total: Tensor, stream_TB: Tensor) -> Score:
    predictions = (stream_TB.shape[0] - 1) * stream_TB.shape[1]
    return Score(total.item() / predictions, predictions)
