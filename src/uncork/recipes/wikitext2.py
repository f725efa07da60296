"""WikiText-2 runs. Perplexities are valid/test, published, without finetuning or cache.

Settings and sources as in `uncork.recipes.penn`; here the authors' lr is 30 and the batch 80.
"""

from uncork.lm.config import Config, DataConfig, HeadConfig, ModelConfig, OptimConfig
from uncork.recipes import heads


LR = 30.0


def wikitext2_softmax() -> Config:
    """LMS 68.11/65.22; AAAI 67.57/64.63±0.08; AWD 68.7/65.6 (67.4/64.7 finetuned). 33.6M."""
    return _pointwise("wikitext2_softmax", heads.softmax())


def wikitext2_sigsoftmax() -> Config:
    """AAAI 67.28/64.35±0.17."""
    return _pointwise("wikitext2_sigsoftmax", heads.sigsoftmax())


def wikitext2_temperature() -> Config:
    """Not published: the control for PLIF, one learned scale."""
    return _pointwise("wikitext2_temperature", heads.temperature())


def wikitext2_plif() -> Config:
    """Not published: identity start, slope lr 3."""
    return _pointwise("wikitext2_plif", heads.plif(LR))


def wikitext2_plif_authors() -> Config:
    """LMS 67.87/64.86; AAAI 67.15/64.16±0.17."""
    return _pointwise("wikitext2_plif_authors", heads.plif_authors())


def wikitext2_plif_frozen() -> Config:
    """AAAI test 64.28±0.17, against 64.16±0.17 learned (p = 0.064)."""
    return _pointwise("wikitext2_plif_frozen", heads.plif_frozen())


def wikitext2_monotone() -> Config:
    """Not published: a monotone network of 20 sigmoids and a line in place of PLIF."""
    return _pointwise("wikitext2_monotone", heads.monotone())


def wikitext2_mos() -> Config:
    """MoS 66.01/63.33 (63.88/61.45 finetuned, 42.41/40.68 dynamic); AAAI 64.54/61.96±0.40. 35M."""
    return _mixture("wikitext2_mos", heads.mos())


def wikitext2_mos_plif() -> Config:
    """Not published: the paper's table has this model on Penn only."""
    return _mixture("wikitext2_mos_plif", heads.mos_plif())


def _pointwise(name: str, head: HeadConfig) -> Config:
    return Config(
        name=name,
        precision="bfloat16",
        seed=1882,
        epochs=1000,
        model=ModelConfig(input_dropout=0.65, hidden_dropout=0.2, head=head),
        data=DataConfig(corpus="wikitext-2", batch_size=80),
        optim=OptimConfig(lr=LR, average="epoch", average_epoch=200),
    )


def _mixture(name: str, head: HeadConfig) -> Config:
    model = ModelConfig(
        embedding=300,
        hidden=1150,
        last_hidden=650,
        input_dropout=0.55,
        hidden_dropout=0.2,
        head=head,
    )
    return Config(
        name=name,
        precision="bfloat16",
        seed=1882,
        epochs=1000,
        model=model,
        data=DataConfig(corpus="wikitext-2", batch_size=15, bptt_excess=20),
        optim=OptimConfig(lr=15.0, average="epoch", average_epoch=200),
    )
