from pathlib import Path

import pytest
import torch


SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_root() -> Path:
    if not (SHARED_DATA / "penn" / "train.txt").exists():
        pytest.skip("the corpus penn is not in ../shared/data")
    return SHARED_DATA
