"""The README and the documentation pages run: every Python block, every command they name."""

import re
from pathlib import Path

import pytest
import torch

from uncork.cli import COMMANDS


ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(path: Path, language: str) -> list[str]:
    found = BLOCK.findall(path.read_text(encoding="utf-8"))
    return [body for name, body in found if name == language]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_readme_opens_with_a_short_before_and_after():
    body = blocks(README, "python")[0]
    lines = [line for line in body.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(lines) <= 10 and "# before" in body and "# after" in body


@pytest.mark.parametrize("path", [p for p in PAGES if blocks(p, "python")], ids=name)
def test_python_blocks_run(path: Path, tmp_path: Path, monkeypatch):
    """Blocks of one page share their names, as a reader who types them in order would."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": "page"}
    for body in blocks(path, "python"):
        exec(compile(body, name(path), "exec"), namespace)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_exist(path: Path):
    text = path.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = "\n".join(blocks(path, "bash") + re.findall(r"`([^`\n]+)`", text))
    assert set(re.findall(r"(?:^|\s)make ([a-z]+)", code, re.MULTILINE)) <= targets
    asked = set(re.findall(r"^(?:\S*python3? -m )?uncork ([a-z]+)", code, re.MULTILINE))
    assert asked <= set(COMMANDS)


@pytest.mark.parametrize("path", [README, ROOT / "CONTRIBUTING.md"], ids=name)
def test_local_links_lead_somewhere(path: Path):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert not [link for link in local if not (path.parent / link).exists()]
