"""Two processes under torchrun against one with the same global batch."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from uncork.lm import train
from uncork.lm.checkpoint import load_tensors
from uncork.recipes import build
from uncork.results import read_jsonl


SOURCE = str(Path(__file__).parents[2] / "src")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCE}
NO_DROPOUT = tuple(f"model.{n}_dropout=0" for n in ("embedding", "input", "hidden", "output", "weight"))
SMALL = ("data.limit_tokens=6000", "data.batch_size=12", "epochs=3", "optim.average_epoch=1", "optim.lr=5")
pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")


def start(processes, recipe, folder, *arguments):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += [f"--nproc_per_node={processes}", "-m"]
    given = {argument.partition("=")[0] for argument in arguments}
    small = [change for change in SMALL if change.partition("=")[0] not in given]
    command = [*launch, "uncork.recipes", recipe, *small, *arguments, "--out", str(folder)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def finish(process):
    _, errors = process.communicate(timeout=600)
    return process.returncode, errors


def losses(folder):
    records = list(read_jsonl(folder / "metrics.jsonl"))
    return torch.tensor([[r["train_nll"], r["valid_nll"]] for r in records], dtype=torch.float64)


@pytest.mark.parametrize("recipe", ["embedded_plif", "embedded_mos"])
def test_two_processes_train_as_one(tmp_path, recipe):
    penalties = ("model.activation_penalty=2", "model.slowness_penalty=1")
    code, errors = finish(start(2, recipe, tmp_path / "2", *NO_DROPOUT, *penalties))
    assert code == 0, errors
    train(build(recipe, (*SMALL, *NO_DROPOUT, *penalties)), tmp_path / "1")
    torch.testing.assert_close(losses(tmp_path / "1"), losses(tmp_path / "2"), rtol=1e-5, atol=0.0)
    one, two = (load_tensors(tmp_path / n / "model.safetensors")[0] for n in ("1", "2"))
    torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


def test_two_processes_stop_together_and_resume_exactly(tmp_path):
    """With dropout on: the masks of both processes are part of the state."""
    dropout = ("model.input_dropout=0.3", "model.weight_dropout=0.3", "log_every=1")
    code, errors = finish(start(2, "embedded_softmax", tmp_path / "whole", *dropout))
    assert code == 0, errors
    process = start(2, "embedded_softmax", tmp_path / "parts", *dropout)
    assert process.stderr is not None
    for line in process.stderr:
        if "step 12 " in line:
            break
    time.sleep(0.05)
    process.send_signal(signal.SIGTERM)  # torchrun passes it on to its processes
    finish(process)
    states = list((tmp_path / "parts" / "state").iterdir())
    assert states and not (tmp_path / "parts" / "result.json").exists()
    code, errors = finish(start(2, "embedded_softmax", tmp_path / "parts", *dropout, "--resume"))
    assert code == 0, errors
    assert torch.equal(losses(tmp_path / "whole"), losses(tmp_path / "parts"))


def test_a_batch_that_does_not_divide_is_refused(tmp_path):
    code, errors = finish(start(2, "embedded_softmax", tmp_path, "data.batch_size=11"))
    assert code != 0
    assert "`batch_size` must be a multiple of the number of processes; got 11 for 2" in errors
