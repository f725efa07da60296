"""What the pages say of the kernels is what was measured, and what stands in their code."""

import ast
import contextlib
import csv
import re
from typing import Any

import pytest

from benchmarks import docs
from benchmarks.groups import CALLS, GRAPH
from benchmarks.page import floor_ms, tally
from benchmarks.roofline import fixed_order, roofline
from benchmarks.rows import by_block, read
from benchmarks.targets import verdicts
from tests.documented import ROOT, assert_told, page


def test_the_kernels_page_states_the_newest_gpu_benchmark():
    newest = docs.newest(ROOT / "benchmarks" / "results")
    if newest is None:
        pytest.skip("no GPU benchmark in benchmarks/results")
    written = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    assert docs.stated(written) == docs.section(newest), "run `python -m benchmarks docs`"


def test_the_readme_states_the_newest_gpu_benchmark():
    newest = docs.newest(ROOT / "benchmarks" / "results")
    if newest is None:
        pytest.skip("no GPU benchmark in benchmarks/results")
    written = (ROOT / "README.md").read_text(encoding="utf-8")
    assert docs.stated(written, docs.HEADLINE) == docs.headline(newest), "run `python -m benchmarks docs`"
    with newest.open(newline="") as file:
        facts = next(csv.DictReader(file))
    assert f"Liger {facts['liger-kernel']} and CCE {facts['cut-cross-entropy']}" in written


def test_what_the_kernels_page_says_of_misses():
    newest = docs.newest(ROOT / "benchmarks" / "results")
    if newest is None:
        pytest.skip("no GPU benchmark in benchmarks/results")
    rows = read(newest)

    def ms(group: str, contender: str, dtype: str, spread: float, **more: Any) -> float:
        (found,) = [
            row.ms
            for row in rows
            if (row.block.group, row.contender, row.block.dtype, row.block.spread)
            == (group, contender, dtype, spread)
            and all(getattr(row.block, name) == value for name, value in more.items())
        ]
        assert found is not None
        return found

    def ratio(group: str, one: str, other: str, dtype: str, spread: float, **more: Any) -> float:
        return ms(group, one, dtype, spread, **more) / ms(group, other, dtype, spread, **more)

    def penn(one: str, other: str, mode: str) -> list[float]:
        """In TF32 and in bfloat16, each at both spreads."""
        return [ratio("penn", one, other, t, x, mode=mode) for t in ("tf32", "bf16") for x in (0.3, 3.5)]

    plif, softmax, mos, eager = "uncork PLIF", "uncork softmax", "uncork MoS", "torch eager MoS"
    both = [ratio("large", plif, softmax, "bf16", spread) for spread in (0.3, 3.5)]
    assert {f"{x:.2f}" for x in both} == {"1.16"}
    floors = [ms("large", f"three products{more}", "bf16", 3.5) for more in ("", ", as PLIF has them")]
    mixture, replayed = penn("uncork MoS+PLIF", mos, GRAPH), penn(plif, "torch eager", GRAPH)
    waiting = penn(softmax, "torch eager", CALLS)
    calls = [
        penn(one, other, CALLS)
        for one, other in ((plif, "torch eager"), (mos, eager), ("uncork MoS+PLIF", mos))
    ]
    fixed = [ms("deterministic", plif + more, "bf16", 3.5, words=128_256) for more in ("", ", deterministic")]
    small = [ms("scaling", name, "bf16", 3.5, axis="N", tokens=512) for name in (softmax, plif)]
    knots = lambda number, spread: ms("scaling", plif, "bf16", spread, axis="k", knots=number, mode="calls")
    many = [knots(1_000_000, spread) for spread in (0.3, 3.5)]
    said = [
        f"takes {both[0]:.2f} times our softmax, not 1.15",
        f"At spread 3.5 it takes {ms('large', plif, 'bf16', 3.5):.1f} ms, and its three products, by "
        f"themselves and with the rows of dL/dz next to each other, {floors[1]:.1f} ms",
        f"which is {floors[1] / ms('large', softmax, 'bf16', 3.5):.2f} times all of our softmax",
        f"with logits of 16 bits, take {floors[0]:.1f} ms",
        f"takes {penn(mos, eager, GRAPH)[0]:.2f} of the eager one's time, not a third",
        f"The products alone are {penn('three products, MoS', eager, GRAPH)[0]:.2f} of it",
        f"In bfloat16 it is {penn(mos, eager, GRAPH)[2]:.2f}",
        "**MoS+PLIF in bfloat16** is {:.1f} and {:.1f} times MoS, not 1.3".format(*mixture[2:]),
        "it is {:.2f} and {:.2f} times MoS.".format(*mixture[:2]),
        f"the whole of MoS takes {ms('penn', mos, 'bf16', 0.3, mode=GRAPH):.1f} ms",
        f"to {ms('penn', mos, 'tf32', 3.5, mode=GRAPH):.2f} ms, with chunks that fill",
        f"Softmax, which has no target there, takes {min(waiting):.1f} to {max(waiting):.1f} times",
        f"PLIF takes {min(calls[0]):.1f} to {max(calls[0]):.1f} times torch's eager softmax, where its graph "
        f"takes {min(replayed):.1f} to {max(replayed):.1f} times",
        f"MoS takes {min(calls[1]):.2f} to {max(calls[1]):.2f} of the eager one's time, and with PLIF "
        f"{min(calls[2]):.1f} to {max(calls[2]):.1f} times that of MoS",
        f"at spread 3.5 cost {many[1]:.1f} ms where 100,000 cost {knots(100_000, 3.5):.1f}",
        f"At spread 0.3, where the logits are in the window, it is {many[0]:.1f} ms",
        f"a factor of {fixed[1] / fixed[0]:.1f} at the largest shape",
        f"{small[0]:.1f} ms a call for softmax and {small[1]:.1f} ms for PLIF at 512 tokens",
    ]
    assert_told(said, page("kernels.md"))
    told = (
        f"softmax takes {min(waiting):.1f} to {max(waiting):.1f} times torch's eager one, and PLIF "
        f"{min(calls[0]):.1f} to {max(calls[0]):.1f} times.",
    )
    assert_told(told, page("../README.md"))


def test_the_kernels_page_states_floor_and_fixed_order():
    newest = docs.newest(ROOT / "benchmarks" / "results")
    if newest is None:
        pytest.skip("no GPU benchmark in benchmarks/results")
    written = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    for kind, table in ((docs.ROOFLINE, roofline), (docs.FIXED, fixed_order)):
        assert docs.stated(written, kind) == table(read(newest)), "run `python -m benchmarks docs`"


def test_what_the_kernels_page_says_in_short():
    results = ROOT / "benchmarks" / "results"
    newest, counted = docs.newest(results), docs.newest(results, docs.COUNTERS)
    if newest is None or counted is None:
        pytest.skip("no GPU benchmark in benchmarks/results")
    blocks = by_block(read(newest))
    large, wide = ([r for b, r in blocks.items() if b.group == group] for group in ("large", "wide"))
    softmax, plif, eager, compiled = "uncork softmax", "uncork PLIF", "torch eager", "torch.compile"
    of = lambda rows, name: rows[name].ms / floor_ms(rows[name], rows)
    above = [f"{100 * (of(part[1], name) - 1):.0f}" for name in (softmax, plif) for part in (large, wide)]
    extra = [f"{large[0][name].beyond_mib:,.0f}" for name in (softmax, plif, eager)]
    to_compiled = [rows[softmax].ms / rows[compiled].ms for rows in large]
    products = large[1]["three products"].ms / floor_ms(large[1][softmax], large[1])
    with counted.open(newline="") as file:
        kernels = [row for row in csv.DictReader(file) if row["shape"] == "large"]
    moved = {
        name: sum(
            (float(row["read_mb"]) + float(row["written_mb"])) * 8192 / int(row["tokens"]) / 1e3
            for row in kernels
            if row["contender"] == name
        )
        for name in (softmax, plif)
    }
    penn = {(b.dtype, b.mode): r for b, r in blocks.items() if b.group == "penn" and b.spread == 3.5}
    in_graph = penn["bf16", GRAPH]
    furthest = max(of(in_graph, name) for name in (plif, "uncork MoS+PLIF"))
    mine = lambda mode: [penn["bf16", mode][name].ms for name in (softmax, plif)]
    verdict_of = verdicts(read(newest))
    calls = [v for v in verdict_of if v.block and (v.block.group, v.block.mode) == ("penn", CALLS)]
    numbers = {9: "Nine", 10: "Ten", 11: "Eleven", 12: "Twelve"}
    waiting = sum(verdict.met is False for verdict in calls)
    met, missed, absent = map(int, re.findall(r"\d+", tally(verdict_of)))
    said = [
        "softmax needs {} MiB beyond the gradients and PLIF {}, where torch's eager loss needs {}.".format(
            *extra
        ),
        f"takes {min(to_compiled):.2f} to {max(to_compiled):.2f} times what torch.compile takes there, and "
        f"{of(large[1], softmax):.2f} times [the floor]",
        f"**{missed} of {met + missed + absent} targets are missed.** {numbers[waiting]} of "
        "them are ordinary calls at Penn's shape.",
        "the host takes {:.1f} ms to launch a softmax and {:.1f} ms to launch a PLIF".format(*mine(CALLS)),
        "that the GPU runs in {:.1f} and {:.1f} ms".format(*mine(GRAPH)),
        f"Torch's eager softmax takes {penn['bf16', CALLS][eager].ms:.1f} ms there",
        f"{100 * products:.0f} % of the floor at width 4,096",
        f"far from the floor, up to {furthest:.1f} times in bfloat16",
        "Softmax is {} to {} % above it there. PLIF is {} to {} % above".format(*above),
        f"{moved[softmax]:.1f} GB a call for softmax and {moved[plif]:.1f} GB for PLIF at the largest shape",
        f"where the floor counts {large[1][softmax].moved_bytes / 1e9:.1f} GB",
    ]
    assert_told(said, page("kernels.md"))


def test_what_the_kernels_page_says_of_an_earlier_run():
    found = {
        (row.block.group, row.contender): row
        for row in read(ROOT / "benchmarks" / "results" / "gpu_nvidia-h200_2026-11-15.csv")
        if row.block.spread == 0.3
    }
    peers = [found["wide", name].ms for name in ("Liger", "CCE")]
    assert dict(found["wide", "Liger"].origin)["commit"] == "e371eca"
    assert "commit e371eca), they took {:.1f} and {:.1f} ms".format(*peers) in page("kernels.md")


def test_what_the_pages_say_of_the_cost_of_plif():
    """Against the softmax of the same block; of width 1,024 all numbers of tokens and words."""
    newest = docs.newest(ROOT / "benchmarks" / "results")
    if newest is None:
        pytest.skip("no GPU benchmark in benchmarks/results")
    found: dict[tuple[str, str], list[float]] = {}
    words: dict[float, int] = {}
    closed: list[float] = []
    for block, row_of in by_block(read(newest)).items():
        plif, softmax = row_of.get("uncork PLIF"), row_of.get("uncork softmax")
        host_bound = block.group == "penn" and block.mode == CALLS
        if plif and softmax and plif.ms and softmax.ms and block.axis != "k" and not host_bound:
            ratio = plif.ms / softmax.ms
            found.setdefault((block.group, block.dtype), []).append(ratio)
            words[ratio] = block.words
            closed += [
                row.ms / softmax.ms
                for name in ("uncork SigSoftmax", "uncork SoftCap", "uncork Scale")
                if (row := row_of.get(name)) and row.ms and block.group == "large"
            ]
    said = lambda key: sorted({f"{ratio:.1f}" for ratio in found[key]})
    assert {f"{ratio:.2f}" for ratio in found["large", "bf16"]} == {"1.16"}
    assert said(("penn", "tf32")) == ["1.4", "1.5"] and said(("penn", "bf16")) == ["2.1", "2.2"]
    readme = page("../README.md")
    for text in (readme, page("getting-started.md")):
        assert "1.4 to 1.5 times in TF32 and 2.1 to 2.2 times in bfloat16" in text
        assert "1.16 times" in text
    assert f"closed forms up to {max(closed):.2f} times and PLIF 1.16 times" in readme
    scaling = found["scaling", "bf16"]
    most = (
        f"it was {min(scaling):.1f} to {max(scaling):.1f} times, the most with {words[max(scaling)]:,} words"
    )
    assert most in readme


def test_the_kernels_page_says_of_which_commit_each_part_is():
    newest = docs.newest(ROOT / "benchmarks" / "results")
    if newest is None:
        pytest.skip("no GPU benchmark in benchmarks/results")
    commits: dict[str, set[str]] = {}
    for row in csv.DictReader(newest.read_text().splitlines()):
        part = row["group"] + row["axis"]
        if part == "penn":  # measured in two runs
            later = f"{float(row['spread']):g}{row['mode']}"
            part += "tf32" if row["dtype"] == "tf32" else later if later == "0.3calls" else ""
        commits.setdefault(part, set()).add(row["commit"])
    of = {part: "".join(sorted(found)) for part, found in commits.items()}
    assert (
        of["large"] == of["wide"]
        and of["wikitext2"] == of["scalingN"] == of["scalingV"] == of["deterministic"]
    )
    text = page("kernels.md")
    for phrase in (
        f"The two shapes of 8,192 tokens are of {of['large']}",
        f"that of Penn Treebank (1,400 tokens) is of {of['penntf32']} in TF32 and of {of['penn']} in "
        f"bfloat16, whose calls at spread 0.3 are of {of['penn0.3calls']} too",
        "That of WikiText-2 (2,800 tokens), the figures",
        f"the figures against N and V and the sums in fixed order are of {of['wikitext2']}",
        f"the figure against k is of {of['scalingk']}",
    ):
        assert phrase in text, phrase


def test_the_kernels_page_states_the_newest_counters():
    newest = docs.newest(ROOT / "benchmarks" / "results", docs.COUNTERS)
    if newest is None:
        pytest.skip("no counters in benchmarks/results")
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
