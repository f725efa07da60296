"""What the language-model tests share: a run small enough for a fraction of a second."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lm.persistent_on_cpu import emulator
from uncork.lm import Config, DataConfig, HeadConfig, ModelConfig, OptimConfig


SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """A function of a size that gives the kernels of a persistent layer as functions of CPU tensors."""
    return emulator(tmp_path_factory)


@pytest.fixture
def penn() -> Path:
    return _folder("penn")


@pytest.fixture
def wikitext2() -> Path:
    return _folder("wikitext-2")


def _folder(name: str) -> Path:
    if not (SHARED_DATA / name / "train.txt").exists():
        pytest.skip(f"the corpus {name} is not in ../shared/data")
    return SHARED_DATA / name


@pytest.fixture
def make_config() -> Callable[..., Config]:
    """A configuration on 3,000 words of the embedded corpus; keywords replace its fields."""

    def make(head: HeadConfig | None = None, **changes: Any) -> Config:
        head = head or HeadConfig()
        mixture = head.kind == "mixture"
        model = ModelConfig(embedding=8, hidden=12, layers=2, last_hidden=10 if mixture else None, head=head)
        data = DataConfig(corpus="embedded", batch_size=8, bptt=20, test_batch_size=4, limit_tokens=3000)
        optim = OptimConfig(lr=5.0, average="epoch", average_epoch=2)
        base = Config(name="test", seed=3, epochs=3, log_every=1000, model=model, data=data, optim=optim)
        return replace(base, **changes)

    return make
