"""What the page on the GPU kernels says is what stands in their code, and what was measured."""

import ast
import contextlib
from typing import Any

from benchmarks import docs
from benchmarks.groups import GRAPH
from benchmarks.rows import by_block, read
from tests.documented import ROOT, assert_told, page


def test_the_kernels_page_states_the_newest_counters():
    newest = docs.newest(ROOT / "benchmarks" / "results", docs.COUNTERS)
    assert newest is not None, "it is committed"
    written = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    assert docs.stated(written, docs.COUNTERS) == docs.counters_section(newest), (
        "run `python -m benchmarks docs`"
    )


def constants(path: str) -> dict[str, Any]:
    """The literal constants of a module, read and not run: Triton need not be installed."""
    found: dict[str, Any] = {}
    for node in ast.parse((ROOT / "src" / "uncork" / "ops" / path).read_text()).body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=True))
            for name, expression in pairs:
                with contextlib.suppress(ValueError):  # not a literal
                    found[ast.unparse(name)] = ast.literal_eval(expression)
    return found


def test_the_kernels_page_states_the_limits_in_the_code():
    text = page("kernels.md")
    sums, rows = constants("triton/window_sums.py"), constants("triton/kernel_pass.py")
    chunks = constants("chunked.py")
    part, whole = sums["SUMS_SHARE"]
    source = (ROOT / "src" / "uncork" / "ops" / "triton" / "window_sums.py").read_text()
    for limit in ("< 2**22", "intervals <= 2**21", "abs(problem.ignore_index) < 2**31"):
        assert limit in source, limit
    for phrase in (
        f"with more than {rows['SHORT_ROW']:,} words",
        f"rows of {sums['LONG_ROW']:,} words or more",
        f"intervals no wider than {sums['NARROW'] * 1e3:g}e-3",
        "fewer than 2²² words, at most 2²¹ intervals and an `ignore_index` below 2³¹ in size",
        f"in a window of {sums['THREADS'] * sums['OWN']:,} knots",
        f"with a window of {sums['WINDOW']:,} knots",
        f"{(227 * 1024 - 1024) // 4 * part // whole:,} knots on an H200",
        f"up to {32 * sums['BASES']:,} intervals, the bases",
        f"{(4 * sums['WORDS'] + 2048) // 1024} KiB of shared memory",
        f"or {chunks['FEWEST_ROWS']} rows where those take more",
        f"or {chunks['ENOUGH_WIDTHS']} D rows, whichever is larger",
    ):
        assert phrase in text, phrase


def test_what_products_in_tf32_are_said_to_take():
    newest = docs.newest(ROOT / "benchmarks" / "results")
    assert newest is not None, "it is committed"
    (penn,) = [
        row_of
        for block, row_of in by_block(read(newest)).items()
        if (block.group, block.dtype, block.mode, block.spread) == ("penn", "tf32", GRAPH, 3.5)
    ]
    assert_told(
        [f"A mixture at Penn's shape gains by it: {penn['uncork MoS'].ms:.2f} ms as a graph."],
        page("kernels.md"),
    )
