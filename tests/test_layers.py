"""Imports point down the list of layers, and peers do not import each other."""

import ast
from pathlib import Path

import pytest

import uncork


# Lowest first. A new package takes its place here, or the tests below fail.
LAYERS = (
    {"results"},
    {"theory", "ops"},
    {"functions"},
    {"heads"},
    {"synthetic", "lm"},
    {"recipes"},
    {"report"},
    {"cli"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# What stands outside the layers: the package's own front, and `python -m uncork`.
FRONT = {
    "__init__": {"ops", "functions", "heads"},
    "__main__": {"cli"},
}

ROOT = Path(uncork.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def owner_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(source: str, path: Path) -> set[str]:
    """The parts of uncork that a file imports; `__version__` is free to all and left out."""
    package = ["uncork", *path.relative_to(ROOT).parent.parts]
    modules = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            modules += [f"{stem}.{alias.name}" for alias in node.names]
    parts = [module.split(".") for module in modules]
    found = {part[1] if len(part) > 1 else "__init__" for part in parts if part[0] == "uncork"}
    return found - {"__version__"}


def allowed(owner: str) -> set[str]:
    if owner in FRONT:
        return FRONT[owner]
    if owner == "report":  # results, and what recipes say of published numbers and of their own defaults
        return {"results", "recipes", "report"}
    return {owner, *(name for name, level in LEVEL.items() if level < LEVEL[owner])}


def test_every_part_has_its_layer():
    parts = {owner_of(path) for path in FILES}
    unlisted = parts - set(LEVEL) - set(FRONT)
    assert not unlisted, f"{sorted(unlisted)} stand in no layer: add them to LAYERS"
    gone = set(LEVEL) - parts
    assert not gone, f"{sorted(gone)} do not exist: take them out of LAYERS"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path):
    wrong = imported(path.read_text(encoding="utf-8"), path) - allowed(owner_of(path))
    assert not wrong, f"`{owner_of(path)}` must not import {sorted(wrong)}"


@pytest.mark.parametrize(
    "file, line, found",
    [
        ("ops/a.py", "import uncork.heads.b", "heads"),
        ("ops/a.py", "from uncork import functions", "functions"),
        ("ops/a.py", "from uncork.theory.rank import x", "theory"),
        ("ops/a.py", "from ..heads import x", "heads"),
        ("ops/deep/a.py", "from ...heads import x", "heads"),
        ("ops/a.py", "def f():\n    from uncork.lm import x", "lm"),
        ("ops/a.py", "import uncork", "__init__"),
        ("lm/a.py", "from uncork.synthetic import x", "synthetic"),
        ("report/a.py", "from uncork.heads import x", "heads"),
        ("report/a.py", "from uncork.lm import x", "lm"),
        ("recipes.py", "from .report import x", "report"),
    ],
)
def test_the_check_sees_every_form_of_import(file: str, line: str, found: str):
    assert imported(line, ROOT / file) == {found}
    assert found not in allowed(owner_of(ROOT / file))


def test_the_check_lets_downward_and_own_imports_pass():
    source = "from uncork import __version__\nfrom . import b\nfrom uncork.ops import x\nimport torch"
    assert imported(source, ROOT / "heads/a.py") <= allowed("heads")
