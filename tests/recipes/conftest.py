from pathlib import Path

import pytest


SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def data_root() -> Path:
    if not (SHARED_DATA / "penn" / "train.txt").exists():
        pytest.skip("the corpus penn is not in ../shared/data")
    return SHARED_DATA
