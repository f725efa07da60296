"""What holds the project together: one version, a light core, complete documentation."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import uncork
from tests.helpers import ALL_FUNCTIONS, ALL_HEADS
from tests.test_api import PUBLIC


ROOT = Path(__file__).parent.parent
TEXT = {".py", ".c", ".md", ".toml", ".txt", ".yml", ".yaml", ".cff", ".css", ".html", ".json", ""}


WITHOUT_A_PAGE = {"uncork.__version__", "uncork.functions", "uncork.heads"}


def tracked_files() -> list[Path]:
    """The files that are or will be committed; a source archive has no git and gives them all."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        answer = None
    if answer is None or answer.returncode:
        folders = ("src", "tests", "docs", "benchmarks")
        return [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [ROOT / line for line in answer.stdout.splitlines() if (ROOT / line).is_file()]


def settings() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def run_python(code: str) -> str:
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_version_stands_in_one_place():
    version = settings()["project"]["version"]
    assert uncork.__version__ in (version, "0+source")
    literal = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.])")
    sources = [path for path in tracked_files() if path.suffix == ".py" and "src" in path.parts]
    assert sources
    assert not [path for path in sources if literal.search(path.read_text(encoding="utf-8"))]


def test_changelog_speaks_of_this_version():
    version = settings()["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{version}]" in changelog or "## [Unreleased]" in changelog


def test_core_needs_only_torch_numpy_and_safetensors():
    names = {re.split(r"[^\w-]", need)[0] for need in settings()["project"]["dependencies"]}
    assert names == {"torch", "numpy", "safetensors"}


def test_import_brings_in_no_optional_package():
    optional = ["scipy", "matplotlib", "tyro", "rich", "transformers", "jinja2", "triton", "yaml"]
    # torch itself may import some of them where they are installed: only what uncork adds counts.
    loaded = run_python(
        "import sys, torch; before = set(sys.modules)\n"
        "import uncork, uncork.functions, uncork.heads\n"
        f"print(sorted(set({optional}) & (set(sys.modules) - before)))"
    )
    assert loaded.strip() == "[]"


def test_import_works_without_any_optional_package():
    run_python(
        "import sys\n"
        "for name in 'scipy matplotlib tyro rich transformers jinja2'.split():\n"
        "    sys.modules[name] = None\n"
        "import torch, uncork\n"
        "head = uncork.heads.SoftmaxHead(4, 8)\n"
        "head(torch.randn(3, 4), torch.tensor([0, 1, 7])).backward()"
    )


def test_constraints_pin_every_requirement_exactly():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    pinned = {pin.split("==")[0].lower().replace("_", "-") for pin in pins}
    project = settings()["project"]
    needs = project["dependencies"] + sum(project["optional-dependencies"].values(), [])
    names = {re.split(r"[^\w-]", need)[0].lower() for need in needs} - {"uncork"}
    assert names <= pinned


def nav_pages(entries: list) -> list[str]:
    """The files a mkdocs navigation names, at any depth."""
    pages = []
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        pages += nav_pages(value) if isinstance(value, list) else [value]
    return pages


def test_every_page_is_in_the_navigation():
    nav = nav_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(nav) == sorted(pages)


def test_the_site_loads_nothing_from_another_host():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert settings["theme"]["font"] is False
    assets = settings.get("extra_javascript", []) + settings.get("extra_css", [])
    assert not [asset for asset in assets if "//" in str(asset)]


def test_every_public_name_is_documented():
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    names = [f"{module.__name__}.{name}" for module in PUBLIC for name in PUBLIC[module]]
    names = [name for name in names if name not in WITHOUT_A_PAGE]
    assert not [name for name in names if f"::: {name}\n" not in text]


@pytest.mark.parametrize(
    ("package", "made"),
    [
        (uncork.functions, [make() for make in ALL_FUNCTIONS.values()]),
        (uncork.heads, [make(4, 8) for make in ALL_HEADS.values()]),
    ],
    ids=["functions", "heads"],
)
def test_the_battery_runs_over_every_function_and_head(package, made):
    public = [getattr(package, name) for name in package.__all__]
    missing = [kind for kind in public if not inspect.isabstract(kind) and kind not in map(type, made)]
    assert not missing


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_one_test_file_alone():
    command = lambda given: ["make", "-n", "test", f"PYTEST_ARGS={given}"]
    said = lambda given: subprocess.check_output(command(given), cwd=ROOT, text=True)
    assert "TRITON_INTERPRET=1" in said("")
    alone = said("tests/test_layers.py")
    assert "tests/test_layers.py" in alone and "TRITON_INTERPRET=1" not in alone


def test_the_gate_can_be_run_and_calls_the_targets_people_use():
    gate = ROOT / ".ci" / "run"
    assert os.access(gate, os.X_OK)
    assert re.findall(r"^make (\w+)$", gate.read_text(), re.MULTILINE) == ["test", "lint", "docs"]


def test_no_file_names_a_path_of_one_machine():
    path_of_a_machine = re.compile(r"(?<![\w.:/*])/(?:root|home|work|Users)/")
    files = [path for path in tracked_files() if path.suffix in TEXT]
    assert len(files) > 20
    text = {path: path.read_text(encoding="utf-8") for path in files if path != Path(__file__)}
    assert not [path for path, content in text.items() if path_of_a_machine.search(content)]


def test_source_files_are_short_enough_to_read_in_one_sitting():
    files = [path for folder in ("src", "tests", "benchmarks") for path in ROOT.glob(f"{folder}/**/*.py")]
    lengths = {path: len(path.read_text().splitlines()) for path in files}
    assert lengths and not {path: length for path, length in lengths.items() if length > 400}
