"""Sweeps: the runs are those the trainer makes alone, they stop and go on, and none is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from uncork.lm import train
from uncork.lm.checkpoint import load_state
from uncork.recipes import build, sweep as sweep_module
from uncork.recipes.children import log_size, reason, was_stopped
from uncork.recipes.sweep import main, sweep
from uncork.results import read_json, read_jsonl


TINY = ("data.limit_tokens=2000", "epochs=2", "data.batch_size=8", "log_every=1000")
ENDLESS = ("data.limit_tokens=2000", "epochs=100000", "data.batch_size=8", "log_every=1000")
SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.fixture(autouse=True)
def sources(monkeypatch):
    """What a test starts runs these sources; one thread everywhere, so that sums agree to the bit."""
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def measured(folder):
    result = read_json(folder / "result.json")
    return {name: value for name, value in result.items() if "seconds" not in name}


def epochs(folder):
    path = folder / "metrics.jsonl"
    return len(list(read_jsonl(path))) if path.exists() else 0


def wait_for(condition, seconds=120.0):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.1)


def test_a_sweep_makes_the_runs_that_training_makes(tmp_path, capsys, monkeypatch):
    out = tmp_path / "sweep"
    variants = ["embedded_softmax", "bad=embedded_plif:finetune=nowhere"]
    assert sweep(variants, out, seeds=[1], changes=TINY, parallel=2) == 1
    printed = capsys.readouterr()
    assert "bad-1               failed    uncork: `finetune` must be the folder of a run" in printed.err
    assert "| bad-1 | failed | 0 of 2 | - | uncork: `finetune` must be the folder of a run" in printed.out
    result = train(build("embedded_softmax", (*TINY, "seed=1")), tmp_path / "alone")
    assert measured(out / "embedded_softmax-1") == measured(tmp_path / "alone")
    assert result["seconds_per_epoch"] > 0 and result["peak_memory_bytes"] is None
    assert "valid" in (out / "embedded_softmax-1" / "log.txt").read_text()
    with pytest.raises(ValueError, match="must be a new folder, but it holds a run.*--resume"):
        sweep(variants[:1], out, seeds=[1], changes=TINY)
    with pytest.raises(ValueError, match=r"these differ: epochs \(was 2, now 5\)"):
        sweep(
            variants[:1],
            out,
            seeds=[1],
            changes=[*(change for change in TINY if change != "epochs=2"), "epochs=5"],
            resume=True,
        )
    monkeypatch.setattr(sweep_module, "start", lambda *_: pytest.fail("a finished run was started"))
    assert sweep(variants[:1], out, seeds=[1], changes=TINY, resume=True) == 0
    (row,) = read_json(out / "table.json")["rows"]
    assert row["finished"] == 1 and row["time_ratio_to_softmax"] == 1.0


def damage_result(folder):
    (folder / "result.json").write_text("{")
    return "result.json"


def damage_metrics(folder):
    path = folder / "metrics.jsonl"
    path.write_text("{bad\n" + path.read_text())
    return "metrics.jsonl"


def test_a_damaged_file_fails_its_run_alone(tmp_path, capsys):
    damaged = [tmp_path / f"embedded_softmax-{seed}" for seed in (1, 2)]
    for seed, folder in zip((1, 2), damaged, strict=True):
        train(build("embedded_softmax", (*TINY, f"seed={seed}")), folder)
    names = [damage(folder) for damage, folder in zip((damage_result, damage_metrics), damaged, strict=True)]
    capsys.readouterr()
    assert sweep(["embedded_softmax"], tmp_path, seeds=[1, 2, 3], changes=TINY, resume=True) == 1
    table = read_json(tmp_path / "table.json")
    assert table["rows"][0]["finished"] == 1 and (tmp_path / "embedded_softmax-3" / "result.json").exists()
    printed = capsys.readouterr()
    assert (
        "2 of 3 runs failed; --resume tries them again, those with a damaged file once it is " in printed.err
    )
    for run, folder, name in zip(table["failed"], damaged, names, strict=True):
        assert run["name"] == folder.name and run["status"] == "failed"
        assert run["message"].startswith(f"`{folder / name}` must") and "cannot be read" in run["message"]
        assert run["message"] in printed.err and run["message"] in printed.out


def test_a_damaged_run_that_never_had_its_turn_has_failed_too(tmp_path, capsys, monkeypatch):
    """As its table says: the counts at the end are those of the table."""
    train(build("embedded_softmax", (*TINY, "seed=1")), tmp_path / "embedded_softmax-1")
    damage_result(tmp_path / "embedded_softmax-1")
    capsys.readouterr()
    monkeypatch.setattr("uncork.recipes.sweep._deadline", lambda minutes: 0.0)
    assert sweep(["embedded_softmax"], tmp_path, seeds=[1, 2], changes=TINY, resume=True) == 1
    printed = capsys.readouterr().err
    assert "1 of 2 runs failed" in printed and "1 of 2 runs are not finished" in printed


def test_a_file_damaged_while_its_run_trains_ends_nothing(tmp_path, monkeypatch):
    def start(run, environment):
        code = "import sys; open(sys.argv[1], 'w').write('{')"
        run.folder.mkdir(parents=True)
        return subprocess.Popen([sys.executable, "-c", code, str(run.folder / "result.json")])

    monkeypatch.setattr(sweep_module, "start", start)
    assert sweep(["embedded_softmax"], tmp_path, seeds=[1, 2]) == 1
    assert [run["status"] for run in read_json(tmp_path / "table.json")["failed"]] == ["failed"] * 2


class Clock:
    """The time of a sweep: `seconds` go by in one step, as soon as something has happened."""

    sleep = staticmethod(time.sleep)

    def __init__(self, seconds, happened):
        self.seconds, self.happened, self.passed = seconds, happened, 0.0

    def monotonic(self):
        if not self.passed and self.happened():
            self.passed = self.seconds
        return time.monotonic() + self.passed


def test_time_stops_all_runs_and_they_go_on(tmp_path, capsys, monkeypatch):
    """Two runs side by side and one that waits; stopped by time, then resumed."""
    first, second, third = (tmp_path / f"embedded_softmax-{seed}" for seed in (1, 2, 3))
    clock = Clock(570.0, lambda: epochs(first) > 0 and epochs(second) > 0)
    monkeypatch.setattr(sweep_module, "time", clock)
    began = time.monotonic()
    assert (
        sweep(["embedded_softmax"], tmp_path, seeds=[1, 2, 3], changes=ENDLESS, parallel=2, minutes=10) == 0
    )
    assert clock.passed and time.monotonic() - began < 60
    assert "3 of 3 runs are not finished; go on with --resume" in capsys.readouterr().err
    runs = read_json(tmp_path / "table.json")["unfinished"]
    assert sorted(run["status"] for run in runs) == ["stopped", "stopped", "waiting"]
    state = load_state(first / "state")
    assert state is not None
    done, lines = state[1]["position"]["step"], epochs(first)
    assert done > 0 and not third.exists()
    for folder in (first, second):  # told to stop, not killed
        assert "continue" in (folder / "log.txt").read_text()
    monkeypatch.setattr(sweep_module, "time", Clock(570.0, lambda: epochs(first) > lines))
    assert sweep(["embedded_softmax"], tmp_path, seeds=[1], changes=ENDLESS, minutes=10, resume=True) == 0
    again = load_state(first / "state")
    assert again is not None and again[1]["position"]["step"] > done


@pytest.mark.parametrize(("minutes", "seconds"), [(0.4, 21.6), (5, 270.0), (10, 570.0)])
def test_runs_are_told_to_stop_before_the_time_is_up(minutes, seconds, monkeypatch):
    monkeypatch.setattr(sweep_module, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    assert sweep_module._deadline(minutes) == pytest.approx(1000.0 + seconds)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_every_run(tmp_path, number):
    process = started(tmp_path)
    folders = [tmp_path / f"embedded_softmax-{seed}" for seed in (1, 2)]
    wait_for(lambda: all(epochs(folder) > 0 for folder in folders))
    process.send_signal(number)
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number, errors
    assert "stopped" in printed and "Traceback" not in errors
    for folder in folders:
        assert "continue" in (folder / "log.txt").read_text()
        assert load_state(folder / "state") is not None


def started(folder):
    command = [sys.executable, "-m", "uncork.recipes.sweep", "embedded_softmax", "--seeds", "1", "2", "--set"]
    return subprocess.Popen(
        [*command, *ENDLESS, "--out", str(folder), "--parallel", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="finds the trainers in /proc")
def test_a_killed_sweep_leaves_no_trainer_behind(tmp_path):
    process = started(tmp_path)
    folders = [tmp_path / f"embedded_softmax-{seed}" for seed in (1, 2)]
    wait_for(lambda: all(epochs(folder) > 0 for folder in folders))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    process.kill()
    process.communicate()
    wait_for(lambda: not any(_is_alive(int(child)) for child in children))
    for folder in folders:  # they were told to stop, not killed
        assert "continue" in (folder / "log.txt").read_text()


def _is_alive(pid):
    """Whether a process runs; one that ended may stay listed until its new parent notices."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


FAKE = """#!/bin/sh
if [ "$1" = "-d" ]; then echo "start $CUDA_MPS_PIPE_DIRECTORY" >> {log}; exit {code}; fi
read word; echo "$word $CUDA_MPS_PIPE_DIRECTORY" >> {log}
"""


@pytest.fixture
def fake_mps(tmp_path, monkeypatch):
    def make(code=0):
        program = tmp_path / "bin" / "nvidia-cuda-mps-control"
        program.parent.mkdir()
        program.write_text(FAKE.format(log=tmp_path / "mps.log", code=code))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        return tmp_path / "mps.log"

    return make


def test_the_shared_gpu_service_lasts_as_long_as_the_sweep(tmp_path, monkeypatch, fake_mps):
    log = fake_mps()
    seen = []

    def start(run, environment):
        seen.append((environment["CUDA_MPS_PIPE_DIRECTORY"], log.read_text()))
        assert Path(seen[0][0]).is_dir()
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(143)"])

    monkeypatch.setattr(sweep_module, "start", start)
    assert sweep(["embedded_softmax"], tmp_path / "out", mps=True) == 1  # nobody asked it to stop
    folder = seen[0][0]
    assert seen[0][1] == f"start {folder}\n" and log.read_text() == f"start {folder}\nquit {folder}\n"
    assert not Path(folder).exists()


def test_runs_with_persistent_layers_share_a_gpu(tmp_path, monkeypatch, fake_mps):
    fake_mps()
    started = []

    def start(run, environment):
        started.append((run.config.recurrence, "CUDA_MPS_PIPE_DIRECTORY" in environment))
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr(sweep_module, "start", start)
    changes = ["precision=bfloat16", "recurrence=persistent"]
    assert sweep(["embedded_softmax"], tmp_path / "out", changes=changes, mps=True) == 0
    assert started == [("persistent", True)]


def test_without_the_service_the_error_says_what_to_do(tmp_path, monkeypatch, fake_mps):
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(ValueError, match="`mps` must be off where .* Leave --mps out"):
            sweep(["embedded_softmax"], tmp_path / "out", mps=True)
    fake_mps(code=3)
    with pytest.raises(OSError, match="failed with code 3"):
        sweep(["embedded_softmax"], tmp_path / "out", mps=True)
    assert not (tmp_path / "out").exists()


def test_why_a_run_ended(tmp_path):
    assert reason(2, tmp_path) == "it wrote nothing"
    (tmp_path / "log.txt").write_text("epoch 1\nuncork: the run has diverged.\n\n")
    assert reason(2, tmp_path) == "uncork: the run has diverged."
    assert reason(-9, tmp_path).startswith("killed by signal 9; last words: uncork")
    since = log_size(tmp_path)
    assert reason(2, tmp_path, since) == "it wrote nothing"  # what an earlier attempt wrote is no reason
    with open(tmp_path / "log.txt", "a") as log:
        log.write("uncork: another trainer is here.\nepoch 2\n")
    assert reason(2, tmp_path, since) == "uncork: another trainer is here."
    assert reason(1, tmp_path, since) == "epoch 2"
    assert was_stopped(143) and was_stopped(-2) and not was_stopped(1) and not was_stopped(-9)


def test_a_reason_is_of_this_attempt(tmp_path, monkeypatch):
    def start(run, environment):
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])

    monkeypatch.setattr(sweep_module, "start", start)
    folder = tmp_path / "embedded_softmax-1"
    folder.mkdir()
    (folder / "log.txt").write_text("the reason of last week\n")
    assert sweep(["embedded_softmax"], tmp_path, seeds=[1]) == 1
    assert read_json(tmp_path / "table.json")["failed"][0]["message"] == "it wrote nothing"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "`recipe` must be a name"),
        (["embedded_mos", "--parallel", "0"], "`parallel` must be positive; got 0"),
        (["embedded_mos", "--minutes", "-1"], "`minutes` must be positive"),
    ],
)
def test_mistakes_end_in_one_line(tmp_path, capsys, arguments, message):
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_sweeps_and_packs_need_nothing_but_torch_numpy_and_safetensors():
    code = (
        "import sys\n"
        "for name in 'tyro rich tensorboard scipy matplotlib jinja2 transformers'.split():\n"
        "    sys.modules[name] = None\n"
        "import uncork.recipes.pack, uncork.recipes.unpack\n"
        "from uncork.recipes.sweep import main\n"
        "raise SystemExit(main(['nothing', '--out', 'nowhere']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("uncork: `recipe` must be")
