"""What a run made of its function: the part of `result.json` called `learned_function`."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from uncork import ops
from uncork.functions import PLIF, AbstractMonotone, MonotoneNetwork, Tabulated
from uncork.functions.description import curve, quantiles, spread
from uncork.heads import AbstractHead, MixtureHead
from uncork.lm.awd_lstm import LanguageModel
from uncork.lm.build import build_model
from uncork.lm.checkpoint import load_model
from uncork.lm.config import Config
from uncork.lm.corpus import windows
from uncork.lm.evaluate import evaluation_mode
from uncork.ops.table import knots_of


POINTS = 201
SHARES = (0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0)
SAMPLED_LOGITS = 2**22


@torch.no_grad()
def learned_function(config: Config, model: LanguageModel, valid_TB: Tensor) -> dict[str, Any] | None:
    """The function where the logits of `valid_TB` fall; None where it has no parameters.

    The logits are those of contexts spread evenly over the text, about four million in all.
    """
    function = model.function
    if not isinstance(function, AbstractMonotone) or not list(function.parameters()):
        return None
    logits = sample_logits(model, valid_TB, config.data.bptt)
    levels = quantiles(logits, SHARES)
    # From end to end: of 10,000 words the ten likeliest lie beyond the quantile of 0.999.
    x = torch.linspace(levels[0], levels[-1], POINTS, device=logits.device)
    middles = middles_of_intervals(function, logits.device)
    return {
        **curve(function, x),
        "logits": {
            "sampled": logits.numel(),
            "quantiles": {f"{share:g}": level for share, level in zip(SHARES, levels, strict=True)},
            "outside_bound": _outside(logits, function),
        },
        "slopes": {
            "over_knots": None if middles is None else spread(function.derivative(middles)),
            "at_logits": spread(function.derivative(logits)),
        },
        "moved": _moved(function, start_of(config, model), x, middles, logits),
    }


def sample_logits(model: LanguageModel, stream_TB: Tensor, length: int) -> Tensor:
    """Logits, before the function, of contexts spread evenly over the stream read in windows of `length`."""
    contexts = (stream_TB.shape[0] - 1) * stream_TB.shape[1]
    head = model.head
    assert isinstance(head, AbstractHead)
    rows = head.components if isinstance(head, MixtureHead) else 1
    count = min(contexts, math.ceil(SAMPLED_LOGITS / (head.num_classes * rows)))
    chosen = torch.linspace(0, contexts - 1, count, dtype=torch.float64).round().long()
    kept, states, start = [], None, 0
    with evaluation_mode(model):
        for tokens_TB, _ in windows(stream_TB, length):
            features = model.encoder(tokens_TB, states)
            states, stop = features.states, start + tokens_TB.numel()
            here = chosen[(chosen >= start) & (chosen < stop)] - start
            kept.append(features.dropped_TBD.flatten(0, 1)[here.to(stream_TB.device)])
            start = stop
        hidden_ND = torch.cat(kept)
        if isinstance(head, MixtureHead):
            hidden_ND, _ = head.latents(hidden_ND)
        return ops.scores(hidden_ND, head.weight, head.bias, None).flatten()


def start_of(config: Config, model: LanguageModel) -> AbstractMonotone | None:
    """The function as the run began, drawn again; None where it began as that of a run that is gone."""
    origin = None if config.finetune is None else Path(config.finetune) / "model.safetensors"
    if origin is not None and not origin.exists():
        return None
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(config.seed)
    try:
        start = build_model(config, model.encoder.embedding.num_embeddings)
    finally:
        torch.set_rng_state(state)
    if origin is not None:
        load_model(origin, start)
    function = start.function
    assert isinstance(function, AbstractMonotone)  # as that of `model` is
    return function


def middles_of_intervals(function: nn.Module, device: torch.device) -> Tensor | None:
    """A point inside each piece of the function's table; None where it has no table."""
    if not isinstance(function, PLIF | MonotoneNetwork | Tabulated):
        return None
    knots = knots_of(function.knots, function.bound, device)
    return (knots[:-1] + knots[1:]) / 2


def _outside(logits: Tensor, function: nn.Module) -> float | None:
    if not isinstance(function, PLIF | MonotoneNetwork | Tabulated):
        return None
    return float((logits.abs() > function.bound).double().mean())


def _moved(
    function: AbstractMonotone,
    start: AbstractMonotone | None,
    x: Tensor,
    middles: Tensor | None,
    logits: Tensor,
) -> dict[str, float | None] | None:
    """Largest change of f - f(0) over `x`, and root mean square changes of slope."""
    if start is None:
        return None
    start = start.to(x.device)
    x = torch.cat([x.new_zeros(1), x]).double()
    change = function(x) - start(x)
    rms = lambda at: float((function.derivative(at) - start.derivative(at)).double().square().mean().sqrt())
    return {
        "f": float((change - change[0]).abs().max()),
        "slope_over_knots": None if middles is None else rms(middles),
        "slope_at_logits": rms(logits),
    }
