"""What the pages say of speed and memory on a GPU is what was measured."""

import csv
import re
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from benchmarks import docs
from benchmarks.groups import CALLS, COMPONENTS, GRAPH, GRAPHED
from benchmarks.origins import origins
from benchmarks.page import floor_ms, tally
from benchmarks.roofline import fixed_order, roofline
from benchmarks.rows import Row, by_block, read
from benchmarks.targets import verdicts
from tests.documented import ROOT, assert_told, page


PLIF, SOFTMAX, MOS, MOS_PLIF = (f"uncork {name}" for name in ("PLIF", "softmax", "MoS", "MoS+PLIF"))
EAGER, EAGER_MOS = "torch eager", "torch eager MoS"
SPREADS = (0.3, 3.5)


def newest_benchmark(kind: str = docs.BENCHMARK) -> Path:
    newest = docs.newest(ROOT / "benchmarks" / "results", kind)
    assert newest is not None, "it is committed"
    return newest


def test_the_speed_page_states_the_newest_gpu_benchmark():
    newest = newest_benchmark()
    written = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert docs.stated(written) == docs.section(newest), "run `python -m benchmarks docs`"


def test_the_readme_states_the_newest_gpu_benchmark():
    newest = newest_benchmark()
    for name in ("docs/speed.md", "README.md"):
        written = (ROOT / name).read_text(encoding="utf-8")
        assert docs.stated(written, docs.HEADLINE) == docs.headline(newest), "run `python -m benchmarks docs`"
    with newest.open(newline="") as file:
        facts = next(csv.DictReader(file))
    assert f"Liger {facts['liger-kernel']} and CCE {facts['cut-cross-entropy']}" in written


class Times:
    """The newest benchmark, by what was measured."""

    def __init__(self) -> None:
        self.rows = read(newest_benchmark())

    def ms(self, group: str, contender: str, dtype: str, spread: float, **more: Any) -> float:
        (found,) = [
            row.ms
            for row in self.rows
            if (row.block.group, row.contender, row.block.dtype, row.block.spread)
            == (group, contender, dtype, spread)
            and all(getattr(row.block, name) == value for name, value in more.items())
        ]
        assert found is not None
        return found

    def ratio(self, group: str, one: str, other: str, dtype: str, spread: float, **more: Any) -> float:
        return self.ms(group, one, dtype, spread, **more) / self.ms(group, other, dtype, spread, **more)

    def penn(
        self, one: str, other: str, mode: str, dtypes: tuple[str, ...] = ("tf32", "bf16")
    ) -> list[float]:
        """In each dtype at both spreads."""
        return [self.ratio("penn", one, other, dtype, x, mode=mode) for dtype in dtypes for x in SPREADS]


@pytest.fixture(scope="module")
def times() -> Times:
    return Times()


def test_what_is_said_of_the_large_shapes(times: Times):
    both = [times.ratio("large", PLIF, SOFTMAX, "bf16", spread) for spread in SPREADS]
    assert [f"{x:.2f}" for x in both] == ["1.14", "1.16"]
    floors = [times.ms("large", f"three products{more}", "bf16", 3.5) for more in ("", ", as PLIF has them")]
    later = times.ms("deterministic", PLIF, "bf16", 3.5, words=128_256)
    peers = [[times.ms("wide", name, "bf16", x) for name in ("Liger", "CCE")] for x in SPREADS]
    wide = [times.ms("wide", PLIF, "bf16", x) for x in SPREADS]
    assert peers[0][1] < wide[0] and wide[1] < min(peers[1])
    told = (
        f"takes {both[1]:.2f} times our softmax at spread 3.5, not 1.15; at spread 0.3 it takes "
        f"{both[0]:.2f} times. (A later run at spread 3.5 has {later:.1f} ms for PLIF, not "
        f"{times.ms('large', PLIF, 'bf16', 3.5):.1f}, but no softmax was measured beside it.) "
        f"Its three products, by themselves and with the rows of dL/dz next to each other, take "
        f"{floors[1]:.1f} ms",
        f"which is {floors[1] / times.ms('large', SOFTMAX, 'bf16', 3.5):.2f} times all of our softmax",
        f"with logits of 16 bits, take {floors[0]:.1f} ms",
        "256,000 words Liger and CCE take {:.1f} and {:.1f} ms at spread 0.3".format(*peers[0]),
        "at spread 0.3, and {:.1f} and {:.1f} at 3.5".format(*peers[1]),
        "PLIF takes {:.1f} and {:.1f} there: CCE is faster at the first spread.".format(*wide),
    )
    assert_told(told, page("speed.md"))


def test_what_is_said_of_mixtures(times: Times):
    with_plif = times.penn(MOS_PLIF, MOS, GRAPH)
    as_graphs, as_graphed = (times.penn(MOS, EAGER_MOS, mode, ("tf32",)) for mode in (GRAPH, GRAPHED))
    assert {f"{x:.2f}" for x in as_graphs + as_graphed} == {"0.44"}
    wiki = [times.ms("wikitext2", MOS, "bf16", x, mode=GRAPH) for x in (3.5, 0.3)]
    told = (
        f"takes {as_graphs[0]:.2f} of the eager one's time, not a third, as a graph and as graphed calls",
        f"The products alone are {times.penn('three products, MoS', EAGER_MOS, GRAPH)[0]:.2f} of it",
        f"In bfloat16 it is {times.penn(MOS, EAGER_MOS, GRAPH)[2]:.2f}",
        "**MoS+PLIF in bfloat16** is {:.1f} and {:.1f} times MoS, not 1.3".format(*with_plif[2:]),
        "it is {:.2f} times MoS at spread 0.3 and {:.2f} at 3.5, which misses".format(*with_plif[:2]),
        f"the whole of MoS takes {times.ms('penn', MOS, 'bf16', 0.3, mode=GRAPH):.1f} ms",
        "a mixture took {:.1f} ms at spread 3.5, in the older rows, and takes {:.1f} at 0.3".format(*wiki),
    )
    assert_told(told, page("speed.md"))


def test_what_is_said_of_ordinary_calls(times: Times):
    replayed, waiting = times.penn(PLIF, EAGER, GRAPH), times.penn(SOFTMAX, EAGER, CALLS)
    plif, mos, with_plif = (
        times.penn(one, other, CALLS) for one, other in ((PLIF, EAGER), (MOS, EAGER_MOS), (MOS_PLIF, MOS))
    )
    wiki = [times.ratio("wikitext2", PLIF, EAGER, "bf16", x, mode=CALLS) for x in SPREADS]
    wiki_graph = times.ratio("wikitext2", PLIF, EAGER, "bf16", 0.3, mode=GRAPH)
    small = [times.ms("scaling", name, "bf16", 3.5, axis="N", tokens=512) for name in (SOFTMAX, PLIF)]
    told = (
        f"Softmax, which has no target there, takes {min(waiting):.1f} to {max(waiting):.1f} times",
        f"PLIF takes {min(plif):.1f} to {max(plif):.1f} times torch's eager softmax, where its graph "
        f"takes {min(replayed):.1f} to {max(replayed):.1f} times",
        f"MoS takes {min(mos):.2f} to {max(mos):.2f} of the eager one's time, and with PLIF "
        f"{min(with_plif):.1f} to {max(with_plif):.1f} times that of MoS",
        f"ordinary calls of PLIF take {wiki[0]:.2f} times torch's eager softmax at spread 0.3, not 1.3, "
        f"where its graph takes {wiki_graph:.2f} times that; at spread 3.5 they take {wiki[1]:.2f}.",
        f"{small[0]:.1f} ms a call for softmax and {small[1]:.1f} ms for PLIF at 512 tokens",
    )
    assert_told(told, page("speed.md"))
    in_readme = (
        f"softmax takes {min(waiting):.1f} to {max(waiting):.1f} times torch's eager one, and PLIF "
        f"{min(plif):.1f} to {max(plif):.1f} times."
    )
    assert_told([in_readme], page("../README.md"))


def test_what_is_said_of_graphed_calls(times: Times):
    recorded = times.penn(PLIF, EAGER, GRAPHED, ("tf32",))
    least, most = sorted(recorded)
    each = f"recorded in one line of torch, PLIF takes {least:.2f} to {most:.2f} times the eager softmax, in"
    in_milliseconds = [
        times.ms("penn", PLIF, "tf32", x, mode=mode) for mode in (GRAPHED, CALLS) for x in SPREADS
    ]
    bought = (
        "PLIF in TF32 takes {:.2f} ms so at spread 0.3 of the logits and {:.2f} at 3.5, {:.2f} and {:.2f} "
        "times torch's eager softmax recorded likewise; ordinary calls take {:.1f} and {:.1f}."
    ).format(*in_milliseconds[:2], *recorded, *in_milliseconds[2:])
    told = {
        "speed.md": [
            each,
            "PLIF takes {:.2f} and {:.2f} times torch's eager softmax, recorded".format(*recorded),
        ],
        "getting-started.md": [f"With each recorded, PLIF takes {least:.2f} to {most:.2f} times"],
        "howto/small-batches.md": [bought],
        "../README.md": [each],
    }
    for name, phrases in told.items():
        assert_told(phrases, page(name))


def test_what_is_said_of_many_knots_and_of_a_fixed_order(times: Times):
    knots = lambda number, spread, mode=CALLS: times.ms(
        "scaling", PLIF, "bf16", spread, axis="k", knots=number, mode=mode
    )
    few = [knots(10**digits, spread) for digits in (2, 3, 4, 5) for spread in SPREADS]
    slow = fixed_ratios(times.rows)
    told = (
        f"at spread 3.5 cost {knots(1_000_000, 3.5):.1f} ms, with [older kernels]",
        f"where 100 to 100,000 cost {min(few):.2f} to {max(few):.2f} at either spread",
        f"At spread 0.3, where the logits are in the window, it is {knots(1_000_000, 0.3, GRAPH):.1f} ms, as",
        "a factor of {:.1f} to {:.1f} at the largest shape".format(*slow["large"]),
        "and {:.2f} to {:.2f} at Penn's".format(*slow["penn"]),
    )
    assert_told(told, page("speed.md"))


def fixed_ratios(rows: list[Row]) -> dict[str, tuple[float, float]]:
    """The least and the most that a fixed order costs, at the largest shape and at Penn's."""
    found: dict[str, list[float]] = {}
    for block, row_of in by_block(rows).items():
        if block.group == "deterministic":
            free, fixed = (row_of["uncork PLIF" + more].ms for more in ("", ", deterministic"))
            assert free is not None and fixed is not None
            found.setdefault("penn" if block.tokens == 1400 else "large", []).append(fixed / free)
    return {shape: (min(ratios), max(ratios)) for shape, ratios in found.items()}


def test_the_speed_page_states_floor_and_fixed_order():
    newest = newest_benchmark()
    written = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    for kind, table in ((docs.ROOFLINE, roofline), (docs.FIXED, fixed_order)):
        assert docs.stated(written, kind) == table(read(newest)), "run `python -m benchmarks docs`"


def test_what_the_speed_page_says_in_short():
    newest, counted = newest_benchmark(), newest_benchmark(docs.COUNTERS)
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
    at_penn = lambda name, mode: [
        r[name].ms for b, r in blocks.items() if (b.group, b.mode) == ("penn", mode)
    ]
    span = lambda name, mode: " to ".join(
        dict.fromkeys(f"{end(at_penn(name, mode)):.1f}" for end in (min, max))
    )
    verdict_of = verdicts(read(newest))
    calls = [v for v in verdict_of if v.block and (v.block.group, v.block.mode) == ("penn", CALLS)]
    numbers = {3: "three", 4: "four", 9: "nine", 10: "ten", 11: "eleven"}
    waiting = sum(verdict.met is False for verdict in calls)
    others = {
        (
            v.block.group,
            v.target.contender.removeprefix("uncork "),
            v.block.dtype,
            v.block.mode,
            v.block.spread,
        )
        for v in verdict_of
        if v.block and v.met is False and v not in calls
    }
    assert others == {
        ("wikitext2", "PLIF", "bf16", CALLS, 0.3),
        ("large", "PLIF", "bf16", CALLS, 3.5),
        *(("penn", "MoS", "tf32", mode, spread) for mode in (GRAPH, GRAPHED) for spread in (0.3, 3.5)),
        *(("penn", "MoS+PLIF", "bf16", GRAPH, spread) for spread in (0.3, 3.5)),
        ("penn", "MoS+PLIF", "tf32", GRAPH, 3.5),
    }, "the page lists them"
    of_mixtures = [sum(head == name for _, head, *_ in others) for name in ("MoS", "MoS+PLIF")]
    met, missed, absent = map(int, re.findall(r"\d+", tally(verdict_of)))
    said = [
        "softmax needs {} MiB beyond the gradients and PLIF {}, where torch's eager loss needs {}.".format(
            *extra
        ),
        f"takes {min(to_compiled):.2f} to {max(to_compiled):.2f} times what torch.compile takes there, and "
        f"{of(large[1], softmax):.2f} times [the floor]",
        f"**{missed} of {met + missed + absent} targets are missed**: {numbers[waiting]} by ordinary calls "
        "at Penn's shape and one by those of PLIF on WikiText-2, one by PLIF at the largest shape (by a "
        "hundredth, at one spread of the logits), {} by a mixture in TF32 and {} by a mixture with "
        "PLIF.".format(*(numbers[number] for number in of_mixtures)),
        f"the host takes {span(softmax, CALLS)} ms to launch a softmax and {span(plif, CALLS)} ms to launch "
        f"a PLIF that the GPU runs in {span(softmax, GRAPH)} and {span(plif, GRAPH)} ms",
        f"Torch's eager softmax takes {span(eager, CALLS)} ms there",
        f"{100 * products:.0f} % of the floor at width 4,096",
        f"far from the floor, up to {furthest:.1f} times in bfloat16",
        "Softmax is {} to {} % above it there. PLIF is {} to {} % above".format(*above),
        f"{moved[softmax]:.1f} GB a call for softmax and {moved[plif]:.1f} GB for PLIF at the largest shape",
        f"where the floor counts {large[1][softmax].moved_bytes / 1e9:.1f} GB",
    ]
    assert_told(said, page("speed.md"))


def test_the_pages_state_plif_against_softmax():
    newest = newest_benchmark()
    for name in ("docs/speed.md", "README.md"):
        written = (ROOT / name).read_text(encoding="utf-8")
        stated = docs.stated(written, docs.RATIOS)
        assert stated == docs.ratios(read(newest)), "run `python -m benchmarks docs`"
        assert stated.splitlines()[-1].startswith("| 2,800 tokens"), "the page says of which run it is"


def test_what_the_pages_say_of_the_cost_of_heads():
    """Against the softmax of the same block; as graphs where the host would have a part in it."""
    newest = newest_benchmark()
    found: dict[tuple[str, str], list[float]] = {}
    words: dict[float, int] = {}
    older: dict[float, bool] = {}
    notes = docs.notes(newest)
    for block, row_of in by_block(read(newest)).items():
        softmax = row_of.get("uncork softmax")
        host_bound = block.group in ("penn", "wikitext2") and block.mode != GRAPH
        if softmax is None or softmax.ms is None or block.axis == "k" or host_bound:
            continue
        group = f"width {block.width}" if block.width == 400 else block.group
        for name, row in row_of.items():
            if row.ms:
                ratio = row.ms / softmax.ms
                found.setdefault((group, name.removeprefix("uncork ")), []).append(ratio)
                words[ratio] = block.words
                older[ratio] = notes.get(dict(row.origin)["commit"], "").startswith("older kernels")
    span = lambda group, name, digits: " to ".join(
        f"{end(found[group, name]):.{digits}f}" for end in (min, max)
    )
    closed = max(max(found["large", name]) for name in ("SigSoftmax", "SoftCap", "Scale"))
    large, narrow = span("large", "PLIF", 2), span("width 400", "PLIF", 1)
    mos, with_plif = span("width 400", "MoS", 1), span("width 400", "MoS+PLIF", 0)
    assert (large, narrow, mos, with_plif) == ("1.14 to 1.16", "1.3 to 2.2", "11.7 to 15.5", "17 to 27")
    furthest = max(found["width 400", "MoS+PLIF"])
    assert older[furthest] and not any(older[x] for x in found["width 400", "MoS+PLIF"] if x != furthest)
    scaling = found["scaling", "PLIF"]
    assert all(older[ratio] for ratio in scaling)
    targets = [ratio for group in ("large", "wide", "width 400") for ratio in found[group, "PLIF"]]
    assert 1.5 < max(found["width 400", "MoS+PLIF"]) / COMPONENTS < 2.0
    most = f"{span('scaling', 'PLIF', 1)} times softmax, the most with {words[max(scaling)]:,} words"
    step = training_ms()
    grows = (
        f"from {step['penn_softmax']:.2f} to {step['penn_plif']:.2f} ms, "
        f"{100 * (step['penn_plif'] / step['penn_softmax'] - 1):.0f} %."
    )
    told = {
        "../README.md": (
            f"at width 4,096 closed forms up to {closed:.2f} times and PLIF {large} times; at width 400, in "
            f"a CUDA graph, PLIF {narrow} times",
            f"without f: {mos} for K = 15, in CUDA graphs at width 400; with PLIF {with_plif} |",
            grows,
        ),
        "speed.md": (
            f"**PLIF** takes {large} times our softmax there",
            f"At width 400, in a CUDA graph, it takes {narrow} times our softmax",
            f"At width 400 that is {mos} times our softmax, and {with_plif} times with PLIF",
            f"in CUDA graphs, they take {mos} times softmax, and with PLIF {with_plif} times, "
            f"{furthest:.0f} with older kernels too",
            most,
            grows,
        ),
        "getting-started.md": (
            f"MonotonicHead with [PLIF](api/plif.md) | {min(targets):.1f} to {max(targets):.1f} |",
            f"[Scale](api/scale.md) | {mean(found['large', 'Scale']):.1f} |",
            "about K; with PLIF up to twice that |",
        ),
        "../CHANGELOG.md": (f"PLIF takes {min(targets):.1f} to {max(targets):.1f} times our softmax",),
    }
    for name, phrases in told.items():
        assert_told(phrases, page(name))


def training_ms() -> dict[str, float]:
    """Of a whole step by recipe; the way measured last has all options."""
    with newest_benchmark("training").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[-1]["way"].startswith("graphs")
    return {row["recipe"]: float(row["ms"]) for row in rows}


def test_the_speed_page_says_of_which_commit_the_rows_are():
    """In a table made of the rows, and nowhere else."""
    newest = newest_benchmark()
    rows = read(newest)
    written = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    table = docs.stated(written, docs.ORIGINS)
    notes = docs.notes(newest)
    assert table == origins(rows, notes), "run `python -m benchmarks docs`"
    commits = {dict(row.origin)["commit"] for row in rows}
    assert notes and notes.keys() <= commits, "a note of rows that are gone"
    others = written.replace(table, "")
    assert commits and not [word for word in re.findall(r"\b[0-9a-f]{7,12}\b", others) if not word.isdigit()]
    # What the page calls older is of another commit than what it is set against.
    commit_of = {
        (b.group, b.mode, b.spread, b.words, b.knots): dict(next(iter(row_of.values())).origin)["commit"]
        for b, row_of in by_block(rows).items()
    }
    of = lambda group, mode, spread, words, knots=100_000: commit_of[group, mode, spread, words, knots]
    million = of("scaling", CALLS, 3.5, 32_768, 1_000_000)
    mixtures = [of("wikitext2", GRAPH, spread, 33_278) for spread in (3.5, 0.3)]
    fixed = [of("deterministic", CALLS, spread, 10_000) for spread in (3.5, 0.3)]
    largest = [of(group, CALLS, 3.5, 128_256) for group in ("large", "deterministic")]
    assert all(one != other for one, other in (mixtures, fixed, largest))
    for old in (million, mixtures[0], fixed[0]):
        assert notes[old].startswith("older kernels of tables")
