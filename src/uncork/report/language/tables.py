"""Tables of language-model runs: perplexities beside the published ones, costs, tests, slopes, runs."""

from statistics import mean
from typing import Any

from uncork.recipes.published import COSTS, LEARNED_SLOPES, NUMBERS, Published
from uncork.report.language.compare import LEVEL, Difference, mean_difference, to_controls, to_softmax
from uncork.report.language.runs import Run
from uncork.report.language.trials import Arm, Trial, begins_elsewhere, recipe_changes
from uncork.report.tables import Table, unmarked
from uncork.results import perplexity, perplexity_text, spread_text


NONE = "–"
SCORES = ("valid_perplexity", "test_perplexity")
SLOPES = {"mean": "mean", "std": "std", "min": "least", "max": "greatest"}


def perplexity_table(trial: Trial) -> Table:
    """Training, valid and test of each arm, its difference to softmax, and what others published."""
    printed = {arm.label: published(arm.runs[0]) for arm in trial.arms}
    sources = list(dict.fromkeys(source for numbers in printed.values() for source in numbers))
    best = {name: min(arm.spread(name).mean for arm in trial.arms) for name in SCORES}
    rows = []
    for arm in trial.arms:
        row = unmarked(arm.label, str(len(arm.runs)), _training(arm))
        for name in SCORES:
            found = arm.spread(name)
            row.append((spread_text(found.mean, found.std), found.mean == best[name]))
        gap = mean_difference(trial, arm)
        row += unmarked(NONE if gap is None else perplexity_text(gap, "+.2f"))
        row += unmarked(*(str(printed[arm.label].get(source, NONE)) for source in sources))
        rows.append(row)
    columns = ["head", "seeds", "training", "valid", "test", "test minus softmax"]
    columns += [f"{source}, valid/test" for source in sources]
    return Table(
        "Perplexity, mean ± standard deviation over seeds; that of training with dropout on", columns, rows
    )


def published(run: Run) -> dict[str, Published]:
    """By source; neither a changed head, other text nor a finetuned run is what was published.

    Nor is one of which it is not known what it changes.
    """
    if run.overrides is None or recipe_changes(run) or begins_elsewhere(run):
        return {}
    return {number.source: number for number in NUMBERS.get(run.name, ())}


def _training(arm: Arm) -> str:
    """With dropout on, in the epoch whose weights are the result."""
    lines = [run.best for run in arm.runs]
    known = [perplexity(line["train_nll"]) for line in lines if line and line.get("train_nll") is not None]
    return perplexity_text(mean(known), ".1f") if known else NONE


def _difference(found: Difference) -> list[str]:
    return [f"{found.mean:+.2f}", f"{found.low:+.2f} to {found.high:+.2f}", p_value(found.p)]


def _over_text(found: Difference) -> list[str]:
    text = found.over_text
    return [NONE, NONE] if text is None else [f"{text.low:+.2f} to {text.high:+.2f}", p_value(text.p)]


def p_value(p: float) -> str:
    return f"{p:.2g}" if p >= 0.0001 else "below 0.0001"


def cost_table(trial: Trial) -> Table:
    """Parameters, seconds and memory; ratios are to softmax on the same hardware."""
    rows = []
    for arm in trial.arms:
        ratios = [ratio for run in arm.runs if (ratio := _against_softmax(trial, arm, run))]
        peaks = [peak for run in arm.runs if (peak := (run.result or {}).get("peak_memory_bytes"))]
        rows.append(
            unmarked(
                arm.label,
                f"{arm.values('parameters')[0]:,}",
                _training_seconds(trial, arm),
                f"{mean(ratios):.2f}x" if ratios else NONE,
                f"{max(peaks) / 2**20:,.0f}" if peaks else NONE,
            )
        )
    columns = ["head", "parameters", "training seconds per epoch", "against softmax", "peak memory, MiB"]
    printed = [_printed_cost(arm) for arm in trial.arms]
    if any(printed):
        columns += ["LMS, parameters", "LMS, seconds per epoch", "LMS, against softmax"]
        for row, cost in zip(rows, printed, strict=True):
            row += unmarked(*(cost or (NONE,) * 3))
    return Table("Cost; ratios are to softmax runs under the same load", columns, rows)


def _printed_cost(arm: Arm) -> tuple[str, str, str] | None:
    """Parameters, seconds and their ratio to softmax in the paper's table."""
    if not published(arm.runs[0]) or arm.recipe not in COSTS:
        return None
    parameters, seconds = COSTS[arm.recipe]
    _, softmax = COSTS[f"{arm.recipe.partition('_')[0]}_softmax"]
    return parameters, f"about {seconds}", f"{seconds / softmax:.1f}x"


def _training_seconds(trial: Trial, arm: Arm) -> str:
    """Per epoch: the mean of runs made under one load by the same code, the range of others."""
    timed = [run for run in arm.runs if run.seconds_per_epoch]
    seconds = [run.seconds_per_epoch or 0.0 for run in timed]
    if not seconds:
        return NONE
    made = {(run.provenance.get("hardware"), _commits(run), _load(trial, run)) for run in timed}
    if len(made) == 1:
        return f"{mean(seconds):.3g}"
    low, high = (f"{value:.1f}" if value < 10.0 else f"{value:.0f}" for value in (min(seconds), max(seconds)))
    return low if low == high else f"{low} to {high}"


def _commits(run: Run) -> str:
    """Short, those it went on under too."""
    known = [origin.get("commit") or NONE for origin in run.origins]
    short = [commit[:7] + "+changes" * commit.endswith("+changes") for commit in known]
    return ", ".join(dict.fromkeys(short))


def _against_softmax(trial: Trial, arm: Arm, run: Run) -> float | None:
    """Seconds over those of softmax; under the same load, since runs side by side slow each other."""
    softmax = [other for other in trial.arms if other.role == "softmax"]
    alike = [other for other in softmax if other.setting == arm.setting] or [trial.softmax_of(arm)]
    timed = [other for each in alike if each for other in each.runs if other.seconds_per_epoch]
    timed = [other for other in timed if other.provenance.get("hardware") == run.provenance.get("hardware")]
    beside = [other for other in timed if run.seconds_beside(other) > 0.0]
    fair = beside or [other for other in timed if _load(trial, other) == _load(trial, run)]
    if not fair or not run.seconds_per_epoch:
        return None
    return run.seconds_per_epoch / mean(other.seconds_per_epoch or 0.0 for other in fair)


def _load(trial: Trial, run: Run) -> tuple[tuple[str, int], ...]:
    """The load it ran under: how many other runs it had beside it on average, by corpus.

    By corpus, since steps on another one may take more or less of the machine.
    """
    hardware = run.provenance.get("hardware")
    beside: dict[str, float] = {}
    for other in trial.all_runs:
        if other is not run and run.seconds and other.provenance.get("hardware") == hardware:
            beside[other.corpus] = beside.get(other.corpus, 0.0) + run.seconds_beside(other) / run.seconds
    return tuple(sorted((corpus, round(number)) for corpus, number in beside.items() if round(number)))


def comparison_table(trial: Trial, comparisons: int) -> Table | None:
    """Learned functions against their controls, other heads against softmax; what is clear is marked."""
    tests = to_controls(trial)
    tests += [f for f in to_softmax(trial).values() if f.pair not in {found.pair for found in tests}]
    if not tests:
        return None
    level = LEVEL / comparisons
    rows = []
    over_text = any(found.over_text for found in tests)
    for found in tests:
        names = f"{found.arm.label} against {found.control.label}"
        row = [names, f"{found.valid:+.2f}", *_difference(found), *(_over_text(found) if over_text else [])]
        clear = ("yes", True) if found.worst_p < level else ("no", False)
        rows.append([*unmarked(*row), clear])
    columns = ["perplexity of", "on valid", "on test", "95 % interval", "p"]
    columns += [*(["over text, 95 % interval", "p over text"] if over_text else []), f"p below {level:.2g}"]
    return Table("Tests of differences (Welch's t-test)", columns, rows, (columns[0],))


def slope_table(trial: Trial) -> Table | None:
    """Slopes of the learned functions over their table and at the logits, beside the paper's table 2."""
    rows = []
    for arm in trial.arms:
        found = [f for run in arm.runs if (f := (run.result or {}).get("learned_function"))]
        if not found:
            continue
        for key, where in (("over_knots", "over the table"), ("at_logits", "at the logits")):
            known = [f["slopes"][key] for f in found if f["slopes"][key]]
            if known:
                values = [f"{mean(each[name] for each in known):.3g}" for name in SLOPES]
                rows.append(unmarked(arm.label, where, str(len(known)), *values, _moved(found, key)))
    if not rows:
        return None
    paper = [f"{LEARNED_SLOPES[name]:.2f}" for name in SLOPES]
    rows.append(unmarked("PLIF in table 2 of the paper, WikiText-2", "as printed", NONE, *paper, NONE))
    columns = ["function", "slopes", "seeds", *SLOPES.values(), "moved since the start"]
    return Table("Slopes of the learned functions, means over seeds", columns, rows, ("slopes",))


def _moved(found: list[dict[str, Any]], key: str) -> str:
    """Root mean square change of the slopes, mean over the runs whose start is known."""
    known = [m for f in found if f["moved"] and (m := f["moved"][f"slope_{key}"]) is not None]
    return f"{mean(known):.2g}" if known else NONE


def unfinished_table(trial: Trial) -> Table | None:
    """Runs that have not ended, at their lowest, beside what they would be compared with after that epoch."""
    rows = []
    for run in sorted(trial.unfinished, key=lambda run: (trial.name_of(run), run.seed)):
        best = run.best
        if best is None:
            continue
        control = trial.best_beside(run, "mos" if run.role == "mos_plif" else "softmax")
        train = best.get("train_nll")
        rows.append(
            unmarked(
                trial.name_of(run),
                str(run.seed),
                f"{run.metrics[-1]['epoch']} of {run.config['epochs']}",
                NONE if train is None else perplexity_text(perplexity(train), ".1f"),
                perplexity_text(best["valid_perplexity"]),
                NONE if control is None else _compared(run, best["epoch"], control, trial),
                ", ".join(f"{source} {number}" for source, number in published(run).items()) or NONE,
            )
        )
    columns = ["head", "seed", "epochs", "training", "lowest valid", "another head then", "published"]
    words = ("head", *columns[-2:])
    return Table("Not finished, and in no mean: perplexity so far", columns, rows, words) if rows else None


def _compared(run: Run, epoch: int, control: Arm, trial: Trial) -> str:
    """Valid perplexity of a control after an epoch: of the same seed, ended or not, else the mean of all."""
    if control.has_configuration_of(run):
        return NONE
    begun = [other for other in trial.unfinished if control.has_configuration_of(other)]
    of_seed = [_valid(other, epoch) for other in [*control.runs, *begun] if other.seed == run.seed]
    known = [value for value in of_seed if value is not None]
    if known:
        return f"{control.label}, same seed {perplexity_text(known[0])}"
    of_all = [_valid(other, epoch) for other in control.runs]
    return NONE if None in of_all else f"{control.label} {perplexity_text(mean(filter(None, of_all)))}"


def _valid(run: Run, epoch: int) -> float | None:
    return next((line["valid_perplexity"] for line in run.metrics if line["epoch"] == epoch), None)


def run_table(trial: Trial) -> Table:
    """Every run by itself, with the command that makes it at its commit."""
    rows = []
    for arm in trial.arms:
        for run in arm.runs:
            result = run.result or {}
            rows.append(
                unmarked(
                    arm.label,
                    str(run.seed),
                    perplexity_text(result["valid_perplexity"]),
                    perplexity_text(result["test_perplexity"]),
                    f"{run.best_epoch or NONE} of {result['epochs']}",
                    str(run.averaged_from or NONE),
                    f"{run.seconds:,.0f}",
                    _commits(run),
                    run.command,
                )
            )
    columns = ["head", "seed", "valid", "test", "best epoch", "averaged from", "seconds", "commit", "command"]
    return Table("Runs", columns, rows)
