"""What is left open in a configuration, on machines that are here and on ones that are not."""

from dataclasses import replace

import pytest
import torch

from uncork import results
from uncork.lm import HeadConfig, train, way
from uncork.lm.config_io import override
from uncork.lm.way import Way
from uncork.recipes import PUBLISHED


CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch):
    """A GPU on which layers of up to 1,152 units can be persistent, and Triton's kernels run."""

    def unsuited(size, streams, device):
        return "too wide" if size > 1152 else None if device.type == "cuda" else "no GPU"

    monkeypatch.setattr(way, "unsuited", unsuited)
    monkeypatch.setattr(way, "resolve", lambda backend, device: "triton" if backend == "auto" else backend)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("recipe", PUBLISHED.values())
def test_a_gpu_is_used_in_the_fastest_way_unasked(recipe):
    config = replace(recipe(), precision="bfloat16")
    assert (config.graphs, config.recurrence) == ("auto", "auto")
    assert Way.of(config, CUDA) == Way(graphs=True, recurrence="persistent")
    assert Way.of(config, CUDA, processes=2) == Way(graphs=False, recurrence="persistent")
    assert Way.of(replace(config, precision="tf32"), CUDA) == Way(graphs=True, recurrence="library")


@pytest.mark.parametrize("recipe", PUBLISHED.values())
def test_a_cpu_gets_plain_calls(recipe):
    config = replace(recipe(), precision="bfloat16")
    assert Way.of(config, CPU) == Way(graphs=False, recurrence="library")


@pytest.mark.usefixtures("gpu")
def test_what_is_asked_for_is_done_or_refused(make_config):
    config = replace(make_config(), precision="bfloat16")
    assert Way.of(override(config, ["graphs=false", "recurrence=library"]), CUDA) == Way(False, "library")
    assert Way.of(override(config, ["graphs=true", "recurrence=persistent"]), CUDA) == Way(True, "persistent")
    assert Way.of(override(config, ["graphs=auto", "recurrence=auto"]), CPU) == Way(False, "library")
    with pytest.raises(ValueError, match="`graphs` must be false .* got 2 processes"):
        Way.of(replace(config, graphs=True), CUDA, processes=2)
    wide = replace(config, model=replace(config.model, hidden=1200))
    assert Way.of(wide, CUDA).recurrence == "mixed"
    assert Way.of(replace(wide, model=replace(wide.model, layers=1)), CUDA).recurrence == "persistent"
    with pytest.raises(ValueError, match="`recurrence` must be 'library' or 'auto' here, .* too wide"):
        Way.of(replace(wide, recurrence="persistent"), CUDA)
    with pytest.raises(ValueError, match="`graphs` must be bool or .*; got 'perhaps'"):
        override(config, ["graphs=perhaps"])


@pytest.mark.usefixtures("gpu")
def test_a_loss_that_may_wait_for_the_host_is_not_recorded_unasked(make_config):
    config = make_config(HeadConfig(backend="reference"))
    assert not Way.of(config, CUDA).graphs
    assert Way.of(replace(config, graphs=True), CUDA).graphs


def test_a_run_keeps_what_was_asked_for_and_records_what_came_of_it(make_config, tmp_path):
    result = train(make_config(max_steps=2), tmp_path)
    stored = results.read_json(tmp_path / "config.json")
    assert (stored["graphs"], stored["recurrence"]) == ("auto", "auto")
    assert (result["graphs"], result["recurrence"]) == (False, "library")


def test_a_run_of_an_earlier_version_goes_on_under_the_new_defaults(make_config, tmp_path):
    config = make_config(max_steps=2)
    train(config, tmp_path)
    (tmp_path / "result.json").unlink()
    path = tmp_path / "config.json"
    stored = results.read_json(path) | {"graphs": False, "recurrence": "library", "pieces": 1}
    for name in ("rule", "beta2", "decay_epoch"):  # which are newer
        del stored["optim"][name]
    del stored["model"]["head"]["products"]
    results.write_json(path, stored)
    assert train(config, tmp_path, resume=True)["steps"] == 2
    (tmp_path / "result.json").unlink()
    results.write_json(path, stored | {"pieces": 4})
    with pytest.raises(ValueError, match=r"these differ: pieces \(was 4, now None\)"):
        train(config, tmp_path, resume=True)
