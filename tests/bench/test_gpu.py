"""The GPU benchmark at tiny sizes on CPU: rows, merging, targets, and contenders that fail."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import benchmarks.__main__ as command
from benchmarks import contenders as who, device, gpu, groups, losses, page, plots, table, targets
from benchmarks.rows import Block, Row, by_block, merged, parse, read, record


BLOCK = Block("large", "", 64, 8, 500, 100, 0, "bf16", 0.3, groups.CALLS)
ORIGIN = (("commit", "12e456789012"), ("hardware", "Card, 1"))


def row(contender: str, ms: float | None, block: Block = BLOCK, **fields) -> Row:
    return Row(block, contender, ms=ms, ms_25=ms, ms_75=ms, origin=ORIGIN, **fields)


def dry_run(out: Path, *arguments: str) -> list[Row]:
    assert (
        command.main(["gpu", "--device", "cpu", "--tiny", "--out", str(out), "--name", "x", *arguments]) == 0
    )
    return read(out / "x.csv")


@pytest.fixture
def few_contenders(monkeypatch):
    """Two groups of one block each, so that a dry run takes no time."""
    names = (who.COPY, who.PRODUCTS, who.EAGER, who.LIGER, who.SOFTMAX)
    make = lambda group: lambda: [groups.Section(replace(BLOCK, group=group), names, (0.3,))]
    monkeypatch.setattr(groups, "GROUPS", {name: make(name) for name in ("large", "wide")})


def test_dry_run_of_every_kind_of_row(tmp_path):
    """Mixtures, graphs, floors, both spreads; contenders of one loss agree on its value."""
    rows = dry_run(tmp_path, "--groups", "wikitext2", "--commit", "abc")
    blocks = by_block(rows)
    assert {(b.mode, b.spread) for b in blocks} == {
        (m, s) for m in (groups.CALLS, groups.GRAPH) for s in (0.3, 3.5)
    }
    for block, row_of in blocks.items():
        assert {
            who.EAGER,
            who.COMPILED,
            who.SOFTMAX,
            who.MOS,
            who.MOS_PLIF,
            who.PRODUCTS_MOS,
        } <= row_of.keys()
        ours = [r for name, r in row_of.items() if name.startswith("uncork")]
        assert all(r.ms and r.ms_25 <= r.ms <= r.ms_75 and not r.failure for r in ours)
        assert row_of[who.SOFTMAX].loss == pytest.approx(row_of[who.EAGER].loss, rel=1e-2)
        assert row_of[who.MOS].loss == pytest.approx(row_of[who.EAGER_MOS].loss, rel=1e-2)
        assert row_of[who.MOS].moved_bytes == 2 * 2 * block.tokens * block.components * block.words
        assert page.floor_ms(row_of[who.MOS], row_of) > row_of[who.PRODUCTS_MOS].ms
    text = (tmp_path / "x.md").read_text()
    assert "- commit: abc" in text and "| uncork MoS: at most 15x torch eager" in text


def test_a_graphed_loss_gets_each_batch_by_copy_and_weights_as_they_are(monkeypatch):
    """And gives the same loss and gradients; what torch does with graphs is for a GPU to show."""
    given = []

    def graphed(module, samples, allow_unused_input):
        assert allow_unused_input
        given.extend(samples)
        return module

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", graphed)
    problem = losses.make_problem((6, 4, 9), components=2)
    plain, loss = losses.Eager(who.Scale()), losses.Eager(who.Scale())
    wrapped = losses.Graphed(loss, problem)
    for (name, tensor), sample in zip(problem.items(), given, strict=True):
        assert torch.equal(sample, tensor) and sample.requires_grad == tensor.requires_grad
        assert (sample is tensor) == (name not in ("hidden", "target"))
    assert list(wrapped.parameters()) == list(loss.parameters())
    found, right = losses._outcome(wrapped, problem), losses._outcome(plain, problem)
    assert len(found) == len(right) == 4
    assert all(map(torch.equal, found.values(), right.values()))


def test_products_in_chunks_are_those_of_all_rows(monkeypatch):
    """As many as there are, the last chunk too; and of the gradient that is given to every chunk."""
    monkeypatch.setattr(who.chunked, "FEWEST_ROWS", 24)
    problem = losses.make_problem((64, 8, 50), dtype=torch.float32)
    calls = []
    for name in ("logits", "back", "add_outer"):
        keep = getattr(who.matmul, name)
        note = lambda *a, keep=keep, name=name, **k: (
            calls.append((name, len(a[0] if name != "add_outer" else a[1]))),
            keep(*a, **k),
        )
        monkeypatch.setattr(who.matmul, name, note)
    who.floor_step(who.PRODUCTS_PLIF, problem, 0)()
    assert calls == [(name, rows) for rows in (24, 24, 16) for name in ("logits", "back", "add_outer")]


def test_every_group_is_on_the_command_line_and_has_distinct_blocks():
    assert tuple(groups.GROUPS) == command.GROUPS
    assert groups.SPREADS == command.SPREADS and tuple(groups.MODES) == command.MODES
    for tiny in (False, True):
        blocks = [b for group in groups.GROUPS for s in groups.sections(group, tiny) for b in s.blocks()]
        assert len(blocks) == len(set(blocks))
    named = {name for group in groups.GROUPS for s in groups.sections(group, False) for name in s.contenders}
    for target in targets.TARGETS:
        assert {target.contender, *target.against} <= named


def test_a_part_of_a_group(tmp_path):
    """One spread, one mode, and without some contenders; the rest can be added later."""
    part = (
        "--groups",
        "wikitext2",
        "--modes",
        groups.CALLS,
        "--leave-out",
        who.LIGER,
        who.EAGER_MOS,
        "--spreads",
    )
    (block, row_of), *others = by_block(dry_run(tmp_path, *part, "3.5")).items()
    assert not others and (block.spread, block.mode) == (3.5, groups.CALLS)
    assert who.SOFTMAX in row_of and not {who.LIGER, who.EAGER_MOS} & row_of.keys()
    assert {b.spread for b in by_block(dry_run(tmp_path, *part, "0.3"))} == {0.3, 3.5}


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (("--leave-out", "CCE", "nobody"), "no contender 'nobody' to leave out. There are: CCE;"),
        (("--modes", groups.GRAPH), "large has no block of that spread and mode"),
    ],
)
def test_a_choice_of_nothing_is_refused(tmp_path, capsys, choice, said):
    arguments = ["gpu", "--device", "cpu", "--tiny", "--groups", "large", "--out", str(tmp_path), *choice]
    assert command.main(arguments) == 1
    assert said in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_a_second_run_adds_its_groups(few_contenders, tmp_path):
    first = dry_run(tmp_path, "--groups", "wide")
    both = dry_run(tmp_path, "--groups", "large")
    assert [r.block.group for r in both] == ["large"] * 5 + ["wide"] * 5
    assert both[5:] == first
    again = dry_run(tmp_path, "--groups", "wide")
    assert len(again) == 10 and again[:5] == both[:5] and again[5:] != first


def test_merging_replaces_whole_blocks_where_they_stand():
    old = [row("a", 1.0), row("b", 1.0), row("a", 5.0, replace(BLOCK, spread=3.5))]
    new = [row("a", 2.0)]
    assert merged(old, new, ("large",)) == [new[0], old[2]]


def test_a_page_of_several_runs_says_which_block_is_whose():
    late = replace(BLOCK, spread=3.5)
    rows = [
        replace(row("a", 1.0), origin=(("commit", "1f"), ("sampled", ""))),
        replace(row("a", 1.0, late), origin=(("commit", "2f"), ("sampled", "right after a call"))),
    ]
    text = page.text(rows)
    assert f"### {BLOCK}\n\nCommit 1f, sampled: not recorded.\n" in text
    assert f"### {late}\n\nCommit 2f, sampled: right after a call.\n" in text
    assert "Commit 1f" not in page.text(rows[:1])


def test_calls_and_replays_of_a_scaling_plot_have_tables_of_their_own():
    few, many = (replace(BLOCK, group="scaling", axis="k", knots=knots) for knots in (100, 1000))
    known = {"peak_bytes": 3 * 2**20, "gradient_bytes": 2**20}
    rows = [
        replace(row(who.PLIF_, 5.0, few, **known), origin=(("commit", "1f"),)),
        replace(row(who.PLIF_, 7.0, many, **known), origin=(("commit", "2f"),)),
        replace(row(who.PLIF_, 3.0, replace(few, mode=groups.GRAPH)), origin=(("commit", "1f"),)),
    ]
    calls, replays = page.text(rows).split("Against k")[1:]
    assert "spread 0.3, calls:\n\nCommit 1f" in calls and "spread 0.3, CUDA graph:\n\nCommit 1f" in replays
    assert "(k = 100). Commit 2f, sampled: not recorded (k = 1000).\n" in calls
    assert "| uncork PLIF | 5.000   | 7.000    |" in calls and "| uncork PLIF | 2.000   | 2.000    |" in calls
    assert "| uncork PLIF | 3.000   |" in replays and "extra MiB |" not in replays  # graphs tell none
    assert "Commit" not in page.text(rows[:1])


def test_a_fact_cannot_take_the_place_of_a_measurement():
    with pytest.raises(AssertionError, match="in the place of a measurement"):
        record(replace(row("a", 1.0), origin=(("samples", "many"),)))


def test_rows_survive_the_csv(tmp_path):
    rows = [row("a, b", 1.25, peak_bytes=7, loss=0.1), row("c", None, failure="no, it is not there")]
    table.write(tmp_path, "x", "", [record(r) for r in rows])
    assert read(tmp_path / "x.csv") == rows
    assert parse({k: "" if v is None else str(v) for k, v in record(rows[0]).items()}) == rows[0]


def test_old_rows_may_lack_a_column(tmp_path):
    old, new = row("a", 1.0), replace(row("b", 1.0), origin=(*ORIGIN, ("driver", "9")))
    table.write(tmp_path, "x", "", [record(r) for r in (old, new)])
    assert dict(read(tmp_path / "x.csv")[0].origin)["driver"] == ""
    assert "- driver: not recorded, 9" in page.text(read(tmp_path / "x.csv"))


def verdict_words(rows: list[Row]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Of the targets that there are rows for."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for v in targets.verdicts(rows):
        if v.block is None:
            continue
        key = (v.target.contender, v.target.what)
        found.setdefault(key, []).append((v.word, "" if v.found is None else f"{v.found:.2f}"))
    return found


def test_targets_are_met_missed_or_not_measured():
    mib = 2**20
    rows = [
        row(who.EAGER, 48.0),
        row(who.COMPILED, 40.0),
        row(who.LIGER, 50.0),
        row(who.CCE, None, failure="ImportError: no"),
        row(who.SOFTMAX, 44.0, peak_bytes=1366 * mib, gradient_bytes=1066 * mib),
        row(who.PLIF_, 48.0, peak_bytes=1369 * mib, gradient_bytes=1066 * mib),
        row(who.SCALE, None, failure="it broke"),
    ]
    found = verdict_words(rows)
    assert found[who.SOFTMAX, "time"] == [("missed", "1.10")]  # the fastest peer is torch.compile
    assert found[who.SOFTMAX, "memory"] == [("met", "300.00")]
    assert found[who.PLIF_, "time"] == [("met", "1.09"), ("met", "0.96")]
    assert found[who.PLIF_, "memory"] == [("missed", "303.00")]
    assert found[who.SCALE, "time"] == [("not measured: it broke", "")]
    assert found[who.SOFTCAP, "time"] == [("not measured: no row of uncork SoftCap", "")]
    text = page.text(rows)
    others = sum(target.group != "large" for target in targets.TARGETS)
    assert f"3 met, 2 missed, {3 + others} not measured." in text
    assert "- CCE: not measured, ImportError: no" in text
    slower = [replace(r, ms=60.0) if r.contender == who.PLIF_ else r for r in rows]
    assert verdict_words(slower)[who.PLIF_, "time"] == [("missed", "1.36"), ("missed", "1.20")]


def test_a_target_that_no_row_tells_of_is_not_measured():
    """Memory, which CUDA graphs do not tell, and all of a group without rows; each once, on the page too."""
    penn = replace(BLOCK, group="penn", mode=groups.GRAPH)
    rows = [row(who.MOS, 1.0, replace(penn, spread=spread)) for spread in (0.3, 3.5)]
    found = targets.verdicts(rows)
    assert {v.target for v in found} == set(targets.TARGETS)
    word = "not measured: no rows of calls, and CUDA graphs tell no memory"
    assert [v.word for v in found if (v.target.group, v.target.what) == ("penn", "memory")] == [word]
    assert {v.word for v in found if v.target.group == "wide"} == {"not measured: no rows of this shape"}
    lines = [[cell.strip() for cell in line.split("|")] for line in page.text(rows).splitlines()]
    limit = "uncork MoS: at most 150 MiB beyond the gradients"
    assert [line[1:-1] for line in lines if limit in line] == [["penn", limit, "", "", word]]


def test_a_target_compares_only_within_a_block():
    other = replace(BLOCK, spread=3.5)
    rows = [
        row(who.EAGER, 1.0, other),
        row(who.SOFTMAX, 1.5),
        row(who.EAGER, 2.0),
        row(who.SOFTMAX, 1.5, other),
    ]
    assert verdict_words(rows)[who.SOFTMAX, "time"] == [("missed", "1.50"), ("met", "0.75")]


def test_a_missing_or_failing_contender_is_a_row(few_contenders, monkeypatch, tmp_path):
    """One that cannot be made, and one that breaks in its backward pass; the others are not disturbed."""
    monkeypatch.setitem(sys.modules, "liger_kernel", None)

    def breaking(p):
        p["hidden"].grad = torch.ones_like(p["hidden"])
        raise RuntimeError("illegal\nand more")

    made = who.make_loss
    monkeypatch.setattr(
        who, "make_loss", lambda name, *a: breaking if name == who.EAGER and len(a) > 3 else made(name, *a)
    )
    row_of = {r.contender: r for r in dry_run(tmp_path, "--groups", "large")}
    assert row_of[who.LIGER].failure.startswith("ModuleNotFoundError") and row_of[who.LIGER].ms is None
    assert row_of[who.EAGER].failure == "RuntimeError: illegal" and row_of[who.EAGER].ms is None
    assert row_of[who.SOFTMAX].ms and row_of[who.SOFTMAX].failure == ""
    assert "- torch eager: not measured, RuntimeError: illegal" in (tmp_path / "x.md").read_text()


def test_a_step_that_breaks_leaves_no_gradient():
    problem = losses.make_problem((6, 4, 9))

    def breaking(p):
        p["hidden"].grad = torch.ones_like(p["hidden"])
        raise RuntimeError

    with pytest.raises(RuntimeError):
        losses.step_of(breaking, problem)()
    assert problem["hidden"].grad is None


def test_a_step_that_breaks_while_timed_leaves_the_rounds():
    calls = iter(range(100))

    def breaking():
        if next(calls) > 3:
            raise ValueError("late")

    samples = device.in_turn(device.Device("cpu"), {"good": lambda: None, "bad": breaking}, 0.0, 4)
    assert samples["bad"].failure == "ValueError: late"
    assert len(samples["good"].seconds) == 4 and not samples["good"].failure


def test_rounds_are_in_random_order_and_every_step_gets_its_share():
    order, clock = [], {"a": 1 / 64, "b": 1 / 32}
    fake = device.Device("cpu")

    def seconds(step, calls=1, warm=False):
        if warm:
            step()
        return clock[step()]

    fake.seconds = seconds
    steps = {name: lambda name=name: order.append(name) or name for name in clock}
    samples = device.in_turn(fake, steps, 40 / 64, 3)
    # Two steps, each called once before its sample, while both are in the rounds.
    timed = order[4 : 4 + 4 * 10]
    assert timed[::2] == timed[1::2]
    rounds = {tuple(timed[i : i + 4 : 2]) for i in range(0, 40, 4)}
    assert rounds == {("a", "b"), ("b", "a")}
    assert [len(samples[n].seconds) for n in "ab"] == [20, 10]


def test_no_row_where_time_is_up(few_contenders, tmp_path, capsys):
    assert dry_run(tmp_path, "--groups", "large", "--seconds", "0") == []
    assert "not measured, large had 0 s" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_says_so_without_a_gpu(tmp_path, capsys):
    assert command.main(["gpu", "--out", str(tmp_path)]) == 1
    assert "torch sees no GPU" in capsys.readouterr().out


def test_needs_nothing_but_torch():
    blocked = "for name in 'matplotlib rich tyro jinja2 scipy yaml'.split(): sys.modules[name] = None\n"
    code = f"import sys\n{blocked}import benchmarks.__main__, benchmarks.gpu"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(gpu.__file__).parents[1])


def test_logits_have_the_spread_asked_for():
    problem = losses.make_problem((200, 64, 300), components=3, spread=3.5)
    for rows in ("hidden", "latent"):
        logits = torch.nn.functional.linear(problem[rows], problem["weight"])
        assert logits.std().item() == pytest.approx(3.5, rel=0.05)
    share = (losses.make_problem((4000, 2, 1000))["target"] < 10).float().mean().item()
    assert 0.2 < share < 0.4  # ten words in a thousand: Zipf's law gives them 0.27


def test_figures(tmp_path):
    points = [replace(s.block, spread=3.5) for s in groups.sections("scaling", False)]
    fields = {"peak_bytes": 3 * 2**20, "gradient_bytes": 2**20}
    rows = [row(n, float(b.tokens), b, **fields) for b in points for n in (who.EAGER, who.PLIF_)]
    table.write(tmp_path, "x", page.text(rows), [record(r) for r in rows])
    assert command.main(["plots", str(tmp_path / "x.csv")]) == 0
    text = (tmp_path / "x.md").read_text()
    for axis in plots.AXES:
        picture = tmp_path / f"x_{axis}.png"
        assert picture.read_bytes().startswith(b"\x89PNG") and f"]({picture.name})" in text
    assert "| torch eager | 512.0" in text
    assert command.main(["plots", str(tmp_path / "absent.csv")]) == 1


def test_figures_take_times_of_replays_where_there_are_any():
    call, replay = row(who.PLIF_, 5.0), row(who.PLIF_, 3.0, replace(BLOCK, mode=groups.GRAPH))
    assert plots.best_known([call, replay]) == [replay]
    assert plots.best_known([call]) == [call]
