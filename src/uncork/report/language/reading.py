"""Sentences about language-model runs: what they say, and what they cannot."""

from collections.abc import Sequence
from statistics import mean

from uncork.recipes.bundle import FREE
from uncork.recipes.command import overrides
from uncork.recipes.published import NUMBERS, SOURCES
from uncork.report.language.compare import (
    CONTROLS,
    LEVEL,
    Difference,
    count,
    over_text_alone,
    to_controls,
    to_softmax,
    untested,
)
from uncork.report.language.runs import LABELS, Run
from uncork.report.language.tables import SCORES, p_value, published
from uncork.report.language.trials import Trial, budget_changes, short
from uncork.report.reading import share
from uncork.results import perplexity_text


def verdict(trial: Trial) -> list[str]:
    """Each learned function against its controls, in words."""
    tests, comparisons = to_controls(trial), count(trial)
    lines = []
    for arm in trial.arms:
        mine = [found for found in tests if found.arm is arm]
        if mine:
            lines.append(f"{arm.label}: {'; '.join(_outcome(found, comparisons) for found in mine)}.")
    others = [f for f in to_softmax(trial).values() if f.pair not in {found.pair for found in tests}]
    if others:
        texts = [f"{found.arm.label} {_outcome(found, comparisons)}" for found in others]
        lines.append(f"The other heads: {'; '.join(texts)}.")
    lines += [*_untested(trial), *_missing(trial)]
    if comparisons:
        lines.append(
            "In brackets: difference of mean test perplexity, its 95 % interval, p of Welch's t-test, and "
            f"the difference on valid, by which epochs and settings are chosen. {_level(comparisons)}"
        )
        lines += _kinds_of_doubt([*tests, *others])
    return lines


def _level(comparisons: int) -> str:
    if comparisons == 1:
        return f"1 comparison is made on these runs, and p below {LEVEL} is called clear."
    return (
        f"{comparisons} comparisons are made on these runs, so one p below {LEVEL} means little: only p "
        f"below {LEVEL}/{comparisons} = {LEVEL / comparisons:.2g} is called clear."
    )


def _kinds_of_doubt(found: Sequence[Difference]) -> list[str]:
    """What seeds tell, and what parts of the text tell where they are known."""
    lines = []
    if any(each.over_text is None for each in found):
        lines.append(
            "By seeds alone: runs that kept no losses on parts of the text do not tell how much texts vary, "
            "and a difference that seeds agree on may be one of this text only."
        )
    if any(each.over_text for each in found):
        lines.append(
            "Seeds tell how much training varies, not how much texts do. Over text: the 95 % interval of "
            "a paired t-test over equal parts of the test text, means over seeds, taken as independent. "
            "Where it is known, both must leave no doubt for a difference to be called clear."
        )
    return lines


def _untested(trial: Trial) -> list[str]:
    """Controls that stand beside a learned function with one seed."""
    texts = []
    for arm, control in untested(trial):
        gaps = [mean(arm.values(name)) - mean(control.values(name)) for name in SCORES]
        valid, test = (perplexity_text(gap, "+.2f") for gap in gaps)
        texts.append(f"{arm.label} against {control.label} {test} (valid {valid})")
    return [f"Not tested, for the control has one seed: {'; '.join(texts)}."] if texts else []


def _outcome(found: Difference, comparisons: int) -> str:
    better = "lower" if found.mean < 0 else "higher"
    p = f"p = {p_value(found.p)}".replace("= below", "below")
    numbers = f"{found.mean:+.2f}, {found.low:+.2f} to {found.high:+.2f}, {p}; valid {found.valid:+.2f}"
    if found.over_text:
        numbers += f"; over text {found.over_text.low:+.2f} to {found.over_text.high:+.2f}"
    name = found.control.label
    if found.worst_p >= LEVEL:
        return f"not told apart from {name} ({numbers})"
    if found.over_text is None:
        name += " by seeds alone"
    if found.valid * found.mean < 0:
        name += ", but not on valid"
    if found.worst_p < LEVEL / comparisons:
        return f"clearly {better} than {name} ({numbers})"
    return f"perhaps {better} than {name}, not clearly ({numbers})"


def _missing(trial: Trial) -> list[str]:
    """Controls without which a learned function shows nothing."""
    lines = []
    for arm in [arm for role in CONTROLS for arm in trial.best_by_size(role)]:
        absent = [LABELS[role] for role in CONTROLS[arm.role] if trial.control(arm, role) is None]
        size = trial.size_name(arm)
        if absent:
            lines.append(
                f"{LABELS[arm.role]}{f' at {size}' if size else ''} has no finished run of "
                f"{' or '.join(absent)} to be compared with: without these controls it cannot be said what "
                "a gain is due to."
            )
    return lines


def conditions(trial: Trial) -> list[str]:
    """How the runs were made, and what the published numbers beside them are."""
    lines = [f"All runs: {trial.details}.", _shared(trial)]
    lines += [_diverged(trial), _convergence(trial), sources(trial)]
    changes = sorted({change for run in trial.runs for change in budget_changes(run)})
    if changes and any(published(arm.runs[0]) for arm in trial.arms):
        lines.append(
            f"The published numbers are those of the recipes as they stand; these runs change "
            f"{', '.join(changes)}."
        )
    mixtures = [arm for arm in trial.arms if arm.role in ("mos", "mos_plif") and arm.recipe in NUMBERS]
    if any(arm.setting != trial.arms[0].setting for arm in mixtures):
        lines.append("Mixtures have the widths, batches and rates of their own publication.")
    return [line for line in lines if line]


def _shared(trial: Trial) -> str | None:
    if not trial.shared:
        return None
    return f"All change in their recipes, and are named without it: {', '.join(map(short, trial.shared))}."


def limits(trial: Trial) -> list[str]:
    """Seeds and settings: what the means leave open."""
    return [line for line in (_seeds(trial), _text_alone(trial), *_settings(trial)) if line]


def _settings(trial: Trial) -> list[str]:
    """What was tried at several settings, and where the softmax compared with has some of its own."""
    lines = []
    best = [f"{arms[0].label} of {len(arms)}" for arms in trial.tuned]
    if best:
        lines.append(
            f"Tried at several settings; lowest on valid over the seeds they share: {'; '.join(best)}. As a "
            "control, a head stands at the setting with the lowest. The others were tried at one."
        )
    pairs = [f"{arm.label} with {control.label}" for arm, control in trial.changed_controls]
    if pairs:
        lines.append(f"Compared with softmax at settings of its own: {'; '.join(pairs)}.")
    return lines


def _seeds(trial: Trial) -> str:
    counts = sorted({len(arm.runs) for arm in trial.arms})
    if counts == [1]:
        return "One seed for each head: no spread is known, and no difference can be judged."
    text = f"{counts[0]} seeds" if len(counts) == 1 else f"Between {counts[0]} and {counts[-1]} seeds"
    tests = [*to_controls(trial), *to_softmax(trial).values()]
    if not tests:
        return f"{text} for each head."
    widths = sorted({round((found.high - found.low) / 2, 2) for found in tests})
    known = f"±{widths[0]:.2f}" if len(widths) == 1 else f"between ±{widths[0]:.2f} and ±{widths[-1]:.2f}"
    return (
        f"{text} for each head: differences between heads of several seeds are known to {known}. "
        "Effects smaller than that cannot be seen here, and an interval around zero is no proof of equality."
    )


def _text_alone(trial: Trial) -> str | None:
    """What one seed still tells."""
    texts = [
        f"{arm.label} against {softmax.label} {found.low:+.2f} to {found.high:+.2f}"
        for arm, softmax, found in over_text_alone(trial)
    ]
    if not texts:
        return None
    return (
        f"With the seeds at hand, by text alone: {'; '.join(texts)}. These are 95 % intervals of a paired "
        "t-test over equal parts of the test text, taken as independent; other seeds would move them."
    )


def _diverged(trial: Trial) -> str | None:
    texts = [_one(trial, run) for run in trial.runs if run.diverged]
    if not texts:
        return None
    return f"Diverged, to a perplexity over 1e6 in the end: {'; '.join(texts)}."


def _convergence(trial: Trial) -> str | None:
    """Of the runs that did not diverge, whether they had come to an end."""
    ends = [run for run in trial.runs if run.metrics and not run.diverged]
    last = [run for run in ends if run.best_epoch == run.metrics[-1]["epoch"]]
    other = "other " if any(run.diverged for run in trial.runs) else ""
    if not ends:
        return None
    if not last:
        return f"Every {other}run had its lowest valid perplexity before its last epoch."
    text = f"{share(len(last), len(ends))} {other}runs had their lowest valid perplexity in the last epoch: "
    if trial.budget["optim.decay_epoch"] is None:
        return f"{text}they were still improving, so heads are compared at this budget, not converged."
    return (
        f"{text}their rates fell to the end, which makes the last epoch the best whether or not a run has "
        "converged, so heads are compared at this budget."
    )


def movement(trial: Trial) -> str | None:
    """How far the slopes went from where they were drawn, by how far they are spread."""
    texts = []
    for arm in trial.arms:
        found = [f for run in arm.runs if (f := (run.result or {}).get("learned_function")) and f["moved"]]
        known = [(f["moved"]["slope_over_knots"], f["slopes"]["over_knots"]) for f in found]
        shares = [moved / table["std"] for moved, table in known if moved is not None and table]
        if shares and arm.runs[0].random_start:
            texts.append(f"{arm.label} by {100.0 * mean(shares):.2g} %")
    if not texts:
        return None
    return (
        "Random starts have slopes with a spread before any learning. They moved, as a share of that spread: "
        f"{'; '.join(texts)}."
    )


def left_out(trial: Trial) -> list[str]:
    """Runs that are in no mean."""
    lines = []
    if trial.unfinished:
        texts = [_unfinished(trial, run) for run in trial.unfinished]
        lines.append(f"Not finished, and in no mean: {'; '.join(texts)}.")
    if trial.repeated:
        texts = [f"{_one(trial, run)} of {run.started or 'an unknown time'}" for run in trial.repeated]
        lines.append(f"Run again later with the same seed, which counts instead: {'; '.join(texts)}.")
    if trial.forked:
        texts = [_forked(trial, run) for run in trial.forked]
        lines.append(f"Went on in two ways from one start, and the other counts: {'; '.join(texts)}.")
    return lines


def _forked(trial: Trial, run: Run) -> str:
    result, carried = run.result or {}, "carried in a file that loses digits, " if run.is_carried else ""
    valid, test = (perplexity_text(result[f"{split}_perplexity"]) for split in ("valid", "test"))
    scores = f"valid {valid}, test {test}"
    return f"{_one(trial, run)} of {run.started} ({carried}{scores})"


def commands(trial: Trial) -> list[str]:
    """Of what time the commands are, where a recipe has changed since."""
    changed: dict[str, set[str]] = {}
    for run in trial.runs:
        today = overrides(run.config)
        if today is not None and run.overrides is not None:
            names = {each.partition("=")[0] for each in {*today} ^ {*run.overrides}} - {*FREE}
            if names:
                changed.setdefault(run.name, set()).update(names)
    if not changed:
        return []
    texts = [f"{recipe} ({', '.join(sorted(names))})" for recipe, names in sorted(changed.items())]
    return [
        "Heads are named, and commands written, by the recipes at the commit of each run. Changed since: "
        f"{'; '.join(texts)}."
    ]


def carried(trial: Trial) -> list[str]:
    """Runs that went on elsewhere, and not exactly."""
    texts = [_one(trial, run) for run in trial.runs if run.is_carried]
    return [f"Carried between machines in a file that loses digits: {'; '.join(texts)}."] if texts else []


def _one(trial: Trial, run: Run) -> str:
    """A run as the tables call it: its recipe may have other runs, with other settings."""
    return f"{trial.name_of(run)} seed {run.seed}"


def _unfinished(trial: Trial, run: Run) -> str:
    text = f"{_one(trial, run)}, {share(len(run.metrics), run.config['epochs'])} epochs"
    if not run.metrics:
        return text
    lowest = min(line["valid_perplexity"] for line in run.metrics)
    return f"{text}, lowest valid perplexity {perplexity_text(lowest)}"


def sources(trial: Trial) -> str | None:
    """Where the published columns come from."""
    used = {source for arm in trial.arms for source in published(arm.runs[0])}
    if not used:
        return None
    names = "; ".join(f"{source}: {text}" for source, text in SOURCES.items() if source in used)
    return f"Published, without finetuning, cache or dynamic evaluation. {names}."


def curve_reading(rows: Sequence[tuple[str, float, int]]) -> str:
    """Lowest mean of each line: (label, perplexity, epoch)."""
    texts = [f"{label} {perplexity_text(value)} (epoch {epoch})" for label, value, epoch in rows]
    return f"Lowest mean over seeds: {'; '.join(texts)}."
