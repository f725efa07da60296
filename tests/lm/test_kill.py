"""SIGKILL at random moments, saves included: the run that is resumed is the run that was not killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from uncork.lm.checkpoint import load_state
from uncork.results import read_json, read_jsonl


OVERRIDES = (
    "data.limit_tokens=12000", "epochs=10", "save_every=4", "optim.average_epoch=2",
    "model.weight_dropout=0.3", "model.input_dropout=0.3",
)  # fmt: skip
SOURCE = str(Path(__file__).parents[2] / "src")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCE}


def measured(folder):
    return [
        {name: value for name, value in record.items() if "seconds" not in name}
        for record in read_jsonl(folder / "metrics.jsonl")
    ]


def outcome(folder):
    stored = read_json(folder / "result.json")
    return {name: value for name, value in stored.items() if "seconds" not in name}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_run_continues_bit_for_bit(tmp_path):
    runner = Path(__file__).with_name("kill_runner.py")
    done = subprocess.run(
        [sys.executable, str(runner), str(tmp_path), *OVERRIDES],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    killed = int(done.stdout.split()[1])
    assert killed >= 6, done.stdout  # or the test has tested little
    assert measured(tmp_path / "parts") == measured(tmp_path / "whole")
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    name = "model.safetensors"
    assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_ctrl_c_and_sigterm_save_and_exit_without_a_traceback(tmp_path):
    command = [sys.executable, "-m", "uncork", "train", "embedded_softmax", "log_every=1", "--out"]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        folder = tmp_path / str(number)
        process = subprocess.Popen(
            [*command, str(folder)], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        for line in process.stderr:  # wait until it trains
            if "step 3 " in line:
                break
        time.sleep(0.05)
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait(timeout=300) == code
        process.stderr.close()
        assert "Traceback" not in rest and "--resume" in rest
        state = load_state(folder / "state")
        assert state is not None and state[1]["position"]["step"] >= 3
