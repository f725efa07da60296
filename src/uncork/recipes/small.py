"""Runs a processor can do in minutes: shrunken recipes, and runs on the embedded corpus."""

from dataclasses import replace

from uncork.lm.config import (
    Config,
    DataConfig,
    FunctionConfig,
    HeadConfig,
    ModelConfig,
    OptimConfig,
)
from uncork.recipes import heads


TINY_KNOTS = 1000
EMBEDDED_LR = 20.0


def tiny(config: Config) -> Config:
    """The same head on the same corpus, in a size for a processor: 60,000 words, two epochs."""
    mixture = config.model.head.kind == "mixture"
    model = ModelConfig(
        embedding=48,
        hidden=96,
        layers=2,
        last_hidden=64 if mixture else None,
        embedding_dropout=0.0,
        input_dropout=0.1,
        hidden_dropout=0.1,
        output_dropout=0.1,
        weight_dropout=0.1,
        head=_tiny_head(config.model.head),
    )
    return replace(
        config,
        name=f"{config.name}_tiny",
        precision="float32",
        epochs=2,
        log_every=20,
        model=model,
        data=replace(config.data, batch_size=20, bptt=35, test_batch_size=10, limit_tokens=60_000),
        optim=OptimConfig(lr=20.0, average="epoch", average_epoch=1),
    )


def embedded(name: str, head: HeadConfig) -> Config:
    """A head on the embedded corpus: the encoder is wide enough, the head is not (12 for 300 words)."""
    model = ModelConfig(
        embedding=64,
        layers=1,
        last_hidden=12,
        tied=False,
        embedding_dropout=0.0,
        input_dropout=0.0,
        hidden_dropout=0.0,
        output_dropout=0.0,
        weight_dropout=0.0,
        activation_penalty=0.0,
        slowness_penalty=0.0,
        head=_tiny_head(head),
    )
    return Config(
        name=name,
        seed=0,
        epochs=8,
        log_every=100,
        model=model,
        data=DataConfig(corpus="embedded", batch_size=20, bptt=20, test_batch_size=10),
        optim=OptimConfig(lr=EMBEDDED_LR, average="epoch", average_epoch=4),
    )


def embedded_softmax() -> Config:
    """Plain softmax on the embedded corpus; no published number exists for this text."""
    return embedded("embedded_softmax", heads.softmax())


def embedded_sigsoftmax() -> Config:
    """Sigsoftmax on the embedded corpus."""
    return embedded("embedded_sigsoftmax", heads.sigsoftmax())


def embedded_temperature() -> Config:
    """A learned temperature on the embedded corpus."""
    return embedded("embedded_temperature", heads.temperature())


def embedded_plif() -> Config:
    """PLIF from the identity on the embedded corpus."""
    return embedded("embedded_plif", heads.plif(EMBEDDED_LR))


def embedded_plif_authors() -> Config:
    """PLIF with the authors' start on the embedded corpus."""
    return embedded("embedded_plif_authors", heads.plif_authors())


def embedded_plif_frozen() -> Config:
    """A frozen random PLIF on the embedded corpus."""
    return embedded("embedded_plif_frozen", heads.plif_frozen())


def embedded_monotone() -> Config:
    """A monotone network on the embedded corpus."""
    return embedded("embedded_monotone", heads.monotone())


def embedded_mos() -> Config:
    """A mixture of 5 softmaxes on the embedded corpus."""
    return embedded("embedded_mos", heads.mos())


def embedded_mos_plif() -> Config:
    """A mixture of 5 softmaxes with PLIF on the embedded corpus."""
    return embedded("embedded_mos_plif", heads.mos_plif())


def _tiny_head(head: HeadConfig) -> HeadConfig:
    function = None if head.function is None else _tiny_function(head.function)
    components = 5 if head.kind == "mixture" else head.components
    return replace(head, function=function, components=components, latent_dropout=0.0)


def _tiny_function(function: FunctionConfig) -> FunctionConfig:
    if "knots" not in function.options:
        return function
    return replace(function, options=function.options | {"knots": TINY_KNOTS})
