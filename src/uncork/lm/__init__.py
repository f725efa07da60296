"""Language modelling: AWD-LSTM under any head, trained, evaluated and sampled from."""

from uncork.lm.awd_lstm import AWDLSTM as AWDLSTM, LanguageModel as LanguageModel
from uncork.lm.build import build_corpus as build_corpus, build_model as build_model
from uncork.lm.config import (
    Config as Config,
    DataConfig as DataConfig,
    FunctionConfig as FunctionConfig,
    HeadConfig as HeadConfig,
    ModelConfig as ModelConfig,
    OptimConfig as OptimConfig,
)
from uncork.lm.corpus import Corpus as Corpus, batchify as batchify
from uncork.lm.evaluate import (
    cache_evaluation as cache_evaluation,
    dynamic_evaluation as dynamic_evaluation,
    evaluate as evaluate,
)
from uncork.lm.generate import generate as generate
from uncork.lm.interrupt import Interrupted as Interrupted
from uncork.lm.optim import (
    AtEpoch as AtEpoch,
    AveragedSGD as AveragedSGD,
    Never as Never,
    NonMonotone as NonMonotone,
)
from uncork.lm.run_folder import load_run as load_run
from uncork.lm.trainer import train as train


__all__ = [
    "AWDLSTM",
    "AtEpoch",
    "AveragedSGD",
    "Config",
    "Corpus",
    "DataConfig",
    "FunctionConfig",
    "HeadConfig",
    "Interrupted",
    "LanguageModel",
    "ModelConfig",
    "Never",
    "NonMonotone",
    "OptimConfig",
    "batchify",
    "build_corpus",
    "build_model",
    "cache_evaluation",
    "dynamic_evaluation",
    "evaluate",
    "generate",
    "load_run",
    "train",
]
