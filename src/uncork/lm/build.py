"""From a configuration to objects: corpus, function, head, model, optimizer."""

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import nn

from uncork import functions
from uncork.heads import MixtureHead, MonotonicHead, SoftmaxHead
from uncork.lm import download, embedded
from uncork.lm.awd_lstm import AWDLSTM, LanguageModel
from uncork.lm.config import Config, DataConfig, FunctionConfig, ModelConfig, did_you_mean
from uncork.lm.corpus import Corpus
from uncork.lm.dropout import LockedDropout
from uncork.lm.optim import AtEpoch, AveragedSGD, Doubling, Never, NonMonotone, Trigger
from uncork.lm.refine import check_refine
from uncork.lm.slope_unit import check_smoothness, interval_ratio
from uncork.lm.world import find_device


# The process behind `corpus="embedded"` never changes, so that numbers on it can be compared.
EMBEDDED_SEED = 0


def build_corpus(config: DataConfig, progress: download.Progress | None = None) -> Corpus:
    """The corpus a configuration names: generated, local, or downloaded into `root`."""
    check_corpus(config)
    limit = config.limit_tokens
    if config.corpus == "embedded":
        corpus = embedded.make_corpus(embedded.make_process(seed=EMBEDDED_SEED), limit=limit)
    elif config.corpus in download.REMOTES:
        folder = Path(config.root) / config.corpus
        corpus = Corpus.from_folder(download.ensure(config.corpus, folder, progress=progress))
    else:
        corpus = Corpus.from_folder(config.corpus)
    return Corpus(corpus.words, corpus.train[:limit], corpus.valid[:limit], corpus.test[:limit])


def check(config: Config) -> None:
    """Refuse what can be seen to fail without reading data: corpus, function and device."""
    check_corpus(config.data)
    if config.model.head.function is not None:
        _function_settings(config, build_function(config.model.head.function))
    if config.device != "auto":  # that is always there, and looking for GPUs takes time
        find_device(config.device)


def check_corpus(config: DataConfig) -> None:
    """The corpus must be one that is known, or a folder that is there."""
    known = ("embedded", *download.REMOTES)
    if config.corpus not in known and not Path(config.corpus).is_dir():
        raise ValueError(
            f"`data.corpus` must be one of {', '.join(known)} or an existing folder with your own text; "
            f"got {config.corpus!r}.{did_you_mean(config.corpus, known)}"
        )


def build_function(config: FunctionConfig) -> nn.Module:
    """An increasing function by its public name; only names of `uncork.functions` are looked up."""
    known = [name for name in functions.__all__ if not inspect.isabstract(getattr(functions, name))]
    if config.name not in known:
        raise ValueError(
            f"`function.name` must be one of {', '.join(known)}; got {config.name!r}."
            f"{did_you_mean(config.name, known)}"
        )
    cls = getattr(functions, config.name)
    allowed = inspect.signature(cls).parameters
    for option in config.options:
        if option not in allowed:
            raise ValueError(
                f"`function.options` of {config.name} must be among "
                f"{', '.join(allowed) or 'none'}; got {option!r}.{did_you_mean(option, allowed)}"
            )
    options: dict[str, Any] = dict(config.options)
    function = cls(**options).requires_grad_(not config.frozen)
    check_refine(config, function)
    return function


def build_head(config: ModelConfig, num_words: int) -> nn.Module:
    """The head of a configuration; its weight starts as the embedding does, its bias at zero."""
    head_config = config.head
    function = None if head_config.function is None else build_function(head_config.function)
    if head_config.kind == "softmax":
        head = SoftmaxHead(config.width, num_words)
    elif head_config.kind == "monotonic":
        assert function is not None  # HeadConfig sees to it
        head = MonotonicHead(config.width, num_words, function)
    else:
        head = MixtureHead(
            config.width,
            num_words,
            components=head_config.components,
            # A tied weight has the embedding's width; an own one takes the hidden width.
            embedding_features=config.embedding if config.tied else config.width,
            function=function,
        )
        # The latent vectors get the same mask at every time step, as the rest of the model does.
        head.dropout = LockedDropout(head_config.latent_dropout)
    nn.init.uniform_(head.weight, -0.1, 0.1)
    if head.bias is not None:
        nn.init.zeros_(head.bias)
    return head


def build_model(config: Config, num_words: int) -> LanguageModel:
    """The whole model, drawn from torch's default generator."""
    inner = torch.bfloat16 if config.precision == "bfloat16" else None
    encoder = AWDLSTM(num_words, config.model, inner, config.may_persist)
    return LanguageModel(encoder, build_head(config.model, num_words), config.model)


def build_optimizer(config: Config, model: LanguageModel) -> AveragedSGD:
    """One optimizer over everything trained; the function's parameters are a group of their own."""
    function = model.function
    own = [] if function is None else [p for p in function.parameters() if p.requires_grad]
    known = {id(parameter) for parameter in own}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.requires_grad and id(p) not in known]}
    ]
    if function is not None and own:
        groups.append({"params": own} | _function_settings(config, function))
    optim = config.optim
    beta2 = optim.beta2 if optim.rule == "adam" else None
    optimizer = AveragedSGD(groups, optim.lr, optim.weight_decay, build_trigger(config), beta2)
    if config.finetune is not None:
        optimizer.averaging = True
    return optimizer


def _function_settings(config: Config, function: nn.Module) -> dict[str, Any]:
    """Rate and decay of the function's parameters, from the unit of function to that of its table.

    At a rate of its own it takes plain steps: divided by their usual size, the gradients of a hundred
    thousand slopes, each of few logits, would be little but noise.
    """
    function_config = config.model.head.function
    assert function_config is not None  # the function was built from it
    ratio = interval_ratio(function)
    lr = (config.optim.lr if function_config.lr is None else function_config.lr) / ratio
    check_smoothness(function_config.smoothness, lr, function)
    # The step of the decay is the product of both, and it is that which must not depend on the table.
    settings: dict[str, Any] = {"lr": lr, "weight_decay": function_config.weight_decay * ratio}
    return settings if function_config.lr is None else settings | {"beta2": None}


def build_trigger(config: Config) -> Trigger:
    if config.optim.average == "non-monotone" or config.finetune is not None:
        return NonMonotone(config.optim.patience)
    if config.optim.average == "doubling":
        return Doubling(config.optim.average_epoch)
    return AtEpoch(config.optim.average_epoch) if config.optim.average == "epoch" else Never()


def count_parameters(model: nn.Module) -> int:
    """Parameters, a tied one counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
