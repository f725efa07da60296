"""Run-folder files: whole or absent after a kill or a full disk, and clear errors when damaged."""

import errno
import math
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from uncork import results
from uncork.results import (
    append_jsonl,
    perplexity_text,
    provenance,
    read_json,
    read_jsonl,
    spread_text,
    write_atomic,
    write_json,
)


def test_json_round_trip_creates_the_folder(tmp_path: Path):
    write_json(tmp_path / "run" / "result.json", {"loss": 1.5, "heads": ["a", "b"]})
    assert read_json(tmp_path / "run" / "result.json") == {"loss": 1.5, "heads": ["a", "b"]}
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["result.json"]


@pytest.mark.skipif(os.name != "posix", reason="permission bits are posix")
def test_file_mode_follows_the_umask(tmp_path: Path):
    previous = os.umask(0o022)
    try:
        write_atomic(tmp_path / "a", b"x")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch, failing: str):
    path = tmp_path / "result.json"
    write_json(path, {"old": True})

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, failing, refuse)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        write_json(path, {"old": False})
    assert read_json(path) == {"old": True}
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path):
    (tmp_path / "runs").mkdir()
    with pytest.raises(IsADirectoryError, match=f"Is a directory: '{tmp_path}/runs'$"):
        write_atomic(tmp_path / "runs", b"x")


@pytest.mark.skipif(os.name != "posix", reason="file size limits are posix")
def test_write_cut_short_by_the_system_keeps_the_old_file(tmp_path: Path):
    path = tmp_path / "result.json"
    write_json(path, {"old": True})
    # A limit on file size makes the kernel itself refuse the write half-way through.
    code = (
        "import resource, sys; from uncork.results import write_atomic;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "write_atomic(sys.argv[1], bytes(1_000_000))"
    )
    answer = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert answer.returncode == 1 and "OSError" in answer.stderr
    assert read_json(path) == {"old": True}
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is posix")
def test_kill_leaves_a_whole_file(tmp_path: Path):
    path = tmp_path / "state.json"
    code = (
        "import itertools, sys; from uncork.results import write_json\n"
        "for n in itertools.count(): write_json(sys.argv[1], [n] * 50_000)"
    )
    for _ in range(3):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen([sys.executable, "-c", code, path])
        try:
            deadline = time.monotonic() + 60
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.03)
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        values = read_json(path)
        assert len(values) == 50_000 and len(set(values)) == 1


@pytest.mark.parametrize(
    "value, pattern, text",
    [
        (58.271, ".2f", "58.27"),
        (58.271, ".1f", "58.3"),
        (1e6, ".1f", "1000000.0"),
        (1.1e6, ".2f", "over 1e6"),
        (math.inf, ".1f", "over 1e6"),
        (-1.25, "+.2f", "-1.25"),
        (1e304, "+.2f", "over +1e6"),
        (-1e304, "+.2f", "under -1e6"),
    ],
)
def test_a_perplexity_of_a_run_that_diverged_has_no_digits(value, pattern, text):
    assert perplexity_text(value, pattern) == text


def test_the_mean_of_perplexities_stands_with_its_deviation_where_that_tells_anything():
    assert spread_text(58.271, 0.126) == "58.27 ± 0.13" and spread_text(58.271, None) == "58.27"
    assert spread_text(1e304, 1e303) == "over 1e6"


@pytest.mark.parametrize("content", [b'{"a": 1', b"", b"\x00\x00\x00", b"\xff\xfe\x80"])
def test_damaged_json_names_the_file_and_the_remedy(tmp_path: Path, content: bytes):
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"result\.json` must be a JSON file.*run again"):
        read_json(path)


def test_jsonl_leaves_out_a_torn_last_line(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    append_jsonl(path, {"step": 1})
    append_jsonl(path, {"step": 2})
    path.write_bytes(path.read_bytes() + b'{"step": 3, "lo')
    assert list(read_jsonl(path)) == [{"step": 1}, {"step": 2}]


def test_jsonl_can_be_continued_after_a_torn_line(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    append_jsonl(path, {"step": 2})
    assert list(read_jsonl(path)) == [{"step": 1}, {"step": 2}]


def test_jsonl_keeps_a_whole_record_that_lost_only_its_newline(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}')
    assert list(read_jsonl(path)) == [{"step": 1}]
    append_jsonl(path, {"step": 2})
    assert list(read_jsonl(path)) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("damage", [b"{oops", b"\xff\xff"])
def test_jsonl_damaged_in_the_middle_names_file_and_line(tmp_path: Path, damage: bytes):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + damage + b'\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl` must hold .* line 2 cannot be read"):
        list(read_jsonl(path))


def test_missing_files_raise_the_usual_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError):
        list(read_jsonl(tmp_path / "none.jsonl"))


def test_provenance_says_versions_commit_hardware_and_time():
    record = provenance()
    assert set(record) == {"uncork", "commit", "torch", "python", "hardware", "started"}
    assert record["hardware"] and record["started"].endswith("+00:00")


def test_the_hardware_is_that_which_computes(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {torch.device(device).index}")
    assert provenance("cpu")["hardware"].endswith("threads")
    assert provenance(torch.device("cuda", 1))["hardware"] == "GPU 1"
    assert provenance()["hardware"] == "GPU None"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_that_of_the_file_and_says_if_it_was_changed(tmp_path: Path):
    file = tmp_path / "module.py"
    file.write_text("x = 1\n")
    assert results._commit(file) is None  # no repository
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    assert results._commit(file) is None  # in it, but not of it
    for command in (["add", "."], ["commit", "-q", "-m", "second"], ["tag", "v1"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    commit = results._commit(file)
    assert commit is not None and re.fullmatch("[0-9a-f]{12}", commit)
    file.write_text("x = 2\n")
    assert results._commit(file) == f"{commit}+changes"
