import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from uncork.results import read_json, write_json
from uncork.synthetic import Grid, Settings, bundle, full_grid, run_grid, unbundle
from uncork.synthetic.__main__ import main
from uncork.synthetic.grid import _Clock


TINY = Grid(
    vocabularies=(8,),
    widths=(2, 3),
    concentrations=(0.1,),
    contexts=30,
    heads=("softmax", "plif"),
    seeds=(0,),
)
QUICK = Settings(rates=(0.1,), trial_passes=1, max_passes=2, batches=2, table=200, certified_contexts=5)


def names(folder):
    return sorted(path.name for path in (folder / "cells").glob("*.json"))


def metrics(outcome):
    return {str(sorted(r["cell"].items())): r["metrics"] for r in outcome.records}


def test_all_cells_of_the_first_seed_come_first():
    grid = Grid(seeds=(0, 1), vocabularies=(300, 100))
    cells = list(grid.cells())
    assert len(cells) == len(set(cells)) == 2 * 2 * 3 * 3 * 6
    assert [c.seed for c in cells] == sorted(c.seed for c in cells)
    assert cells[0].vocabulary == 300


def test_the_full_grid_is_the_papers():
    cells = list(full_grid().cells())
    assert {c.contexts for c in cells} == {100_000}
    assert {c.vocabulary for c in cells} == {100, 1000, 10_000} and cells[0].vocabulary == 10_000
    assert {c.concentration for c in cells} == {0.01, 0.1, 1.0}
    assert {c.width for c in cells} >= {2, 4, 8, 16, 32}


@pytest.mark.parametrize("name, value", [("widths", ()), ("heads", ("mos", "mos")), ("seeds", ())])
def test_bad_grids(name, value):
    with pytest.raises(ValueError, match=f"`{name}`"):
        Grid(**{name: value})


def test_a_stopped_grid_goes_on_where_it_was(tmp_path):
    def stop(done, total, text):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(TINY, tmp_path / "a", QUICK, report=stop)
    assert len(names(tmp_path / "a")) == 2
    before = {name: (tmp_path / "a" / "cells" / name).read_bytes() for name in names(tmp_path / "a")}
    resumed = run_grid(TINY, tmp_path / "a", QUICK)
    assert (resumed.found, resumed.made, resumed.left) == (2, 2, 0)
    for name, content in before.items():
        assert (tmp_path / "a" / "cells" / name).read_bytes() == content
    assert metrics(resumed) == metrics(run_grid(TINY, tmp_path / "b", QUICK))


def test_a_killed_process_loses_only_its_current_cell(tmp_path):
    command = [
        sys.executable, "-m", "uncork.synthetic", "--out", str(tmp_path), "--vocabularies", "30",
        "--widths", "2", "--contexts", "200", "--heads", "softmax", "sigsoftmax", "--seeds", "0", "1",
        "--concentrations", "0.1",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not names(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = names(tmp_path)
    assert 1 <= len(finished) < 4
    for name in finished:
        read_json(tmp_path / "cells" / name)  # whole
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"{len(finished)} cells found, {4 - len(finished)} made, 0 left" in output


def children(process):
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_workers_end_with_a_process_that_was_terminated(tmp_path):
    command = [
        sys.executable, "-m", "uncork.synthetic", "--out", str(tmp_path), "--vocabularies", "30",
        "--widths", "2", "--contexts", "200", "--heads", "softmax", "sigsoftmax", "--workers", "2",
        "--concentrations", "0.1", "0.2", "0.3", "0.4",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not names(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.terminate()
    process.wait()
    deadline = time.monotonic() + 30
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = [worker for worker in workers if alive(worker)]
    for worker in left:
        os.kill(worker, signal.SIGKILL)
    assert not left


def test_two_processes_give_the_same_results(tmp_path):
    one = run_grid(TINY, tmp_path / "one", QUICK)
    two = run_grid(TINY, tmp_path / "two", QUICK, workers=2)
    assert two.made == 4
    for key, values in metrics(one).items():
        assert metrics(two)[key] == pytest.approx(values, rel=1e-4)


def test_results_of_other_settings_are_not_mixed_in(tmp_path):
    run_grid(TINY, tmp_path, QUICK)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ValueError, match="other settings"):
        run_grid(TINY, tmp_path, Settings(rates=(0.2,), trial_passes=1, max_passes=2))
    assert (tmp_path / "config.json").read_bytes() == before


def test_concentrations_that_look_alike_are_two_cells(tmp_path):
    one = replace(TINY, widths=(2,), heads=("softmax",))
    near = replace(one, concentrations=(0.1, 0.10000001))
    run_grid(one, tmp_path, QUICK)
    outcome = run_grid(near, tmp_path, QUICK)
    assert (outcome.found, outcome.made) == (1, 1)
    assert names(tmp_path) == ["M8-D2-a0.1-N30-softmax-s0.json", "M8-D2-a0.10000001-N30-softmax-s0.json"]


def test_a_file_of_another_cell_is_not_taken_for_it(tmp_path):
    run_grid(TINY, tmp_path, QUICK)
    first, second = (tmp_path / "cells" / name for name in names(tmp_path)[:2])
    first.write_bytes(second.read_bytes())
    with pytest.raises(ValueError, match=f"{first.name}` must hold the cell it is named for; found .*Remove"):
        run_grid(TINY, tmp_path, QUICK)


@pytest.mark.parametrize("text", ["{}", "[1]"])
def test_a_cell_that_is_not_whole_is_named(text, tmp_path):
    run_grid(TINY, tmp_path, QUICK)
    path = tmp_path / "cells" / names(tmp_path)[0]
    path.write_text(text)
    with pytest.raises(ValueError, match=f"{path.name}` must hold the whole record.*Remove"):
        run_grid(TINY, tmp_path, QUICK)


@pytest.mark.parametrize("device", ["gpu", "mps", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device, tmp_path):
    with pytest.raises(ValueError, match=f"`device` must be .*got '{device}'. Use"):
        run_grid(TINY, tmp_path / "a", QUICK, device=device)
    assert not (tmp_path / "a").exists()


def test_a_time_limit_leaves_cells_for_later(tmp_path):
    none = run_grid(TINY, tmp_path, QUICK, time_limit=0.0)
    assert (none.made, none.left) == (0, 4)
    assert run_grid(TINY, tmp_path, QUICK, time_limit=600.0).left == 0


def test_the_clock_expects_a_cell_to_last_as_long_as_its_kind_did():
    cells = list(TINY.cells())
    clock = _Clock(limit=10.0)
    assert clock.allows(cells[0])
    clock.learn({"cell": vars(cells[0]), "seconds": 20.0})
    assert not clock.allows(cells[0]) and clock.allows(cells[1])


def test_bundles_go_there_and_back(tmp_path):
    made = run_grid(TINY, tmp_path / "a", QUICK)
    assert bundle(tmp_path / "a", tmp_path / "all.jsonl") == 4
    assert unbundle(tmp_path / "all.jsonl", tmp_path / "b") == 4
    assert names(tmp_path / "a") == names(tmp_path / "b")
    again = run_grid(TINY, tmp_path / "b", QUICK)
    assert again.made == 0 and metrics(again) == metrics(made)


@pytest.mark.parametrize(
    "text, rule",
    [
        ('{"kind": "theory"}', "must hold synthetic cells"),
        ("[1]", "must hold synthetic cells"),
        ('{"kind": "synthetic-cell"}', "must hold whole records"),
        ('{"kind": "synthetic-cell", "cell": {"width": 2}}', "must hold whole records"),
    ],
)
def test_a_foreign_bundle_is_refused(text, rule, tmp_path):
    (tmp_path / "x.jsonl").write_text(text + "\n")
    with pytest.raises(ValueError, match=rule):
        unbundle(tmp_path / "x.jsonl", tmp_path / "b")


def test_a_damaged_cell_is_named(tmp_path):
    run_grid(TINY, tmp_path, QUICK)
    path = tmp_path / "cells" / names(tmp_path)[0]
    path.write_text("{")
    with pytest.raises(ValueError, match=path.name):
        run_grid(TINY, tmp_path, QUICK)


ARGUMENTS = ["--vocabularies", "8", "--widths", "2", "--concentrations", "1", "--contexts", "20",
             "--seeds", "0", "--heads", "softmax", "--max-passes", "2", "--trial-passes", "1"]  # fmt: skip


def test_the_plain_entry_resumes_from_a_bundle(tmp_path, capsys):
    assert main([*ARGUMENTS, "--out", str(tmp_path / "a"), "--bundle", str(tmp_path / "all.jsonl")]) == 0
    assert main([*ARGUMENTS, "--out", str(tmp_path / "b"), "--resume", str(tmp_path / "all.jsonl")]) == 0
    assert "1 cells found, 0 made, 0 left" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes, rule",
    [
        (["--vocabularies", "1"], "`vocabulary` must be an integer of at least 2; got 1."),
        (["--workers", "0"], "`workers` must be an integer of at least 1; got 0."),
        (["--seeds", str(2**64)], "`seed` must be below 4096"),
        (["--out", __file__], "`folder` (--out) must be a folder"),
    ],
)
def test_the_plain_entry_answers_bad_input_in_one_line(changes, rule, tmp_path, capsys):
    assert main([*ARGUMENTS, "--out", str(tmp_path), *changes]) == 2
    error = capsys.readouterr().err
    assert error.startswith("uncork: ") and rule in error and error.count("\n") == 1


def test_the_plain_entry_needs_torch_and_numpy_only(tmp_path):
    missing = "tyro rich scipy matplotlib jinja2"
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing.split()!r}))\n"
        "from uncork.synthetic.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *ARGUMENTS, "--out", str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert len(names(tmp_path)) == 1


def test_config_is_written(tmp_path):
    run_grid(TINY, tmp_path, QUICK)
    assert read_json(tmp_path / "config.json")["settings"]["batches"] == 2
    write_json(tmp_path / "cells" / "note.json", {})  # a foreign file does no harm
    assert run_grid(TINY, tmp_path, QUICK).found == 4
