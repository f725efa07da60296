"""Pictures of language-model runs: validation curves and learned functions."""

from collections.abc import Callable
from statistics import mean, stdev
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.report.figures import STYLES, Figure, finish, new_axes
from uncork.report.language.reading import curve_reading
from uncork.report.language.trials import Arm, Trial
from uncork.results import DIVERGED, perplexity_text


if TYPE_CHECKING:  # matplotlib is imported when a figure is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


# The rest of Okabe and Ito's palette for heads the synthetic experiment does not have.
ROLE_STYLES = STYLES | {
    "plif_authors": ("#E69F00", "d", "--"),
    "plif_frozen": ("#009E73", "P", ":"),
    "mos_plif": ("#56B4E9", "*", "--"),
    "other": ("#F0E442", "p", "-"),
}
LINES = ("-", "--", ":", "-.")
MARKERS = tuple(dict.fromkeys(marker for _, marker, _ in ROLE_STYLES.values()))
SIZE = (5.2, 4.8)


def styles(trial: Trial) -> dict[str, tuple[str, str, str]]:
    """Colour, marker and line of each arm; several of one role differ by line, then by marker."""
    found, used = {}, dict.fromkeys(ROLE_STYLES, 0)
    for arm in trial.arms:
        colour, marker, line = ROLE_STYLES[arm.role]
        number, used[arm.role] = used[arm.role], used[arm.role] + 1
        rounds, place = divmod(number, len(LINES))
        marker = MARKERS[(MARKERS.index(marker) + rounds) % len(MARKERS)]
        found[arm.label] = (colour, marker, LINES[(LINES.index(line) + place) % len(LINES)])
    return found


def curve_figure(trial: Trial) -> Figure:
    """Valid perplexity by epoch: mean over seeds, one standard deviation as a band."""
    figure, axes = new_axes(SIZE)
    look, rows = styles(trial), []
    for arm in trial.arms:
        epochs, means, deviations = curve(arm)
        if not epochs:  # a result whose epochs were lost
            continue
        _line(axes, epochs, means, look[arm.label], arm.label)
        low, high = np.subtract(means, deviations), np.add(means, deviations)
        axes.fill_between(epochs, low, high, color=look[arm.label][0], alpha=0.15, linewidth=0)
        best = int(np.argmin(means))
        rows.append((arm.label, means[best], epochs[best]))
    early = max(2, trial.budget["epochs"] // 10)
    _fit_height(axes, early)
    _averaging_marks(axes, trial, look)
    axes.set_ylabel("valid perplexity")
    _title(axes, trial)
    axes.set_xlabel("epoch")
    _legend(figure)
    title = f"Valid perplexity by epoch, {trial.title}"
    reading = (
        f"{curve_reading(rows)} The band is one standard deviation; vertical lines are where averages "
        f"begin. The height is that of epoch {early} on."
    )
    return finish(figure, f"lm-{trial.anchor}-curves", title, f"Line chart of {title}. {reading}", reading)


def has_gaps(trial: Trial) -> bool:
    """Whether some head can be drawn beside softmax."""
    return any(trial.softmax_of(arm) for arm in trial.arms)


def gap_figure(trial: Trial) -> Figure:
    """Valid perplexity minus that of softmax at the same epoch, where small differences can be seen."""
    figure, axes = new_axes(SIZE)
    look, texts = styles(trial), []
    for arm in trial.arms:
        control = trial.softmax_of(arm)
        if control is None:
            continue
        epochs, means, _ = curve(arm)
        base = dict(zip(*curve(control)[:2], strict=True))
        shared = [
            (epoch, value - base[epoch]) for epoch, value in zip(epochs, means, strict=True) if epoch in base
        ]
        if not shared:
            continue
        _line(axes, [epoch for epoch, _ in shared], [gap for _, gap in shared], look[arm.label], arm.label)
        texts.append(f"{arm.label} {perplexity_text(shared[-1][1], '+.2f')}")
    late = _late(trial)
    axes.set_xlim(left=late - 0.5)
    axes.locator_params(axis="x", integer=True)
    axes.axhline(0.0, color="#000000", linewidth=1.0)
    _fit_height(axes, late)
    axes.set_ylabel("valid perplexity minus softmax's")
    axes.set_xlabel("epoch")
    _title(axes, trial)
    _legend(figure)
    title = f"Difference to softmax by epoch, {trial.title}"
    reading = (
        f"Means over seeds from epoch {late} on, below zero better than softmax. In the last epoch: "
        f"{'; '.join(texts)}."
    )
    return finish(figure, f"lm-{trial.anchor}-gaps", title, f"Line chart of {title}. {reading}", reading)


def curve(arm: Arm) -> tuple[list[int], list[float], list[float]]:
    """Epochs that every run of the arm reached, with mean and standard deviation of valid perplexity."""
    by_run = [{line["epoch"]: line["valid_perplexity"] for line in run.metrics} for run in arm.runs]
    epochs = sorted(set.intersection(*(set(values) for values in by_run)))
    values = [[run[epoch] for run in by_run] for epoch in epochs]
    deviations = [stdev(each) if len(each) > 1 else 0.0 for each in values]
    return epochs, [mean(each) for each in values], deviations


# What is drawn of a learned function: (label, values, where softmax lies).
VIEWS: dict[str, tuple[str, Callable[[dict[str, Any]], np.ndarray], float]] = {
    "deviation": ("f(x) - f(0) - x", lambda f: np.array(f["f"]) - np.array(f["x"]), 0.0),
    "slope": ("slope of f", lambda f: np.array(f["slope"]), 1.0),
}


# Letters of a legend that fit beside each other, lines there is room for, and inches that one more takes.
LEGEND_WIDTH, LEGEND_LINES, LEGEND_LINE = 64, 4, 0.17
# Slopes of random starts jump from knot to knot as they were drawn: means over many show what was learned.
MEAN_OVER = 21


def _running_mean(values: np.ndarray) -> np.ndarray:
    width = min(MEAN_OVER, len(values))
    return np.convolve(values, np.full(width, 1.0 / width), mode="valid")


def function_figure(trial: Trial, view: str) -> Figure:
    """One view of each learned function against the logit, of the first seed that has it."""
    label, values, plain = VIEWS[view]
    figure, axes = new_axes(SIZE)
    look, texts, means = styles(trial), [], ""
    for arm in trial.arms:
        function = _learned(arm)
        if function and arm.role != "plif_frozen":  # which learned nothing
            colour, _, line = look[arm.label]
            x, y = np.array(function["x"]), values(function)
            if view == "slope" and arm.runs[0].random_start:
                means = f" Random starts are drawn as running means of {MEAN_OVER} points."
                x, y = _running_mean(x), _running_mean(y)
            axes.plot(x, y, color=colour, linestyle=line, label=arm.label)
            texts.append(f"{arm.label}: {_range(function)}")
    axes.axhline(plain, color="#999999", linewidth=0.8)
    axes.set_xlabel("logit x")
    axes.set_ylabel(label)
    _title(axes, trial)
    _legend(figure)
    title = f"Learned functions, {label}, {trial.title}"
    reading = (
        f"Over the range the logits occupy, first seed; the grey line is softmax.{means} {'; '.join(texts)}."
    )
    return finish(figure, f"lm-{trial.anchor}-{view}", title, f"Line chart: {title}. {reading}", reading)


def _learned(arm: Arm) -> dict[str, Any] | None:
    """x, f and slope, where the logits are, of the first run that has them."""
    return next((f for run in arm.runs if (f := (run.result or {}).get("learned_function"))), None)


def _range(function: dict[str, Any]) -> str:
    x, slope = function["x"], function["slope"]
    return f"slopes {min(slope):.2f} to {max(slope):.2f} for logits from {x[0]:.1f} to {x[-1]:.1f}"


def _line(
    axes: "Axes", epochs: list[int], values: list[float], style: tuple[str, str, str], label: str
) -> None:
    colour, marker, line = style
    every = max(1, len(epochs) // 10)
    axes.plot(
        epochs, values, color=colour, marker=marker, linestyle=line, label=label,
        markersize=4.5, markevery=every, linewidth=1.4,
    )  # fmt: skip


def _averaging_marks(axes: "Axes", trial: Trial, look: dict[str, tuple[str, str, str]]) -> None:
    """Grey lines for all arms where they agree, else some in the colour of each."""
    began = [(arm.label, starts) for arm in trial.arms if (starts := _began(arm))]
    agree = len({tuple(starts) for _, starts in began}) == 1
    for label, starts in began[:1] if agree else began:
        for start in starts:
            colour, alpha = ("#999999", 1.0) if agree else (look[label][0], 0.6)
            axes.axvline(start, color=colour, linewidth=0.8, linestyle="--", alpha=alpha)


def _began(arm: Arm) -> list[float]:
    """Halfway between the last evaluation before each average and the first of it, the mean over seeds."""
    starts = [run.averaging_starts for run in arm.runs if run.averaging_starts]
    return [mean(each) - 0.5 for each in zip(*starts, strict=False)]


def _late(trial: Trial) -> int:
    """The epoch from which small differences are worth a look: averaging has begun, or half is over."""
    starts = [run.averaging_starts[0] for run in trial.runs if run.averaging_starts]
    return max(starts) if starts else max(1, trial.budget["epochs"] // 2)


def _fit_height(axes: "Axes", first: int) -> None:
    """Let the lines fill the picture from epoch `first` on; what came before, or diverged, may leave it."""
    points = [point for line in axes.lines for point in np.asarray(line.get_xydata())]
    values = [y for x, y in points if x >= first and abs(y) <= DIVERGED]
    if values:
        margin = 0.06 * (max(values) - min(values)) or 1.0
        axes.set_ylim(min(values) - margin, max(values) + margin)


def _title(axes: "Axes", trial: Trial) -> None:
    axes.set_title(fill(trial.title, 70), fontsize=9)


def _legend(figure: "Canvas") -> None:
    """In two columns where the names are short enough for the width; longer ones take several lines."""
    (axes,) = figure.axes
    handles, names = axes.get_legend_handles_labels()
    columns = 2 if max(map(len, names), default=0) <= 28 else 1
    names = [fill(name, LEGEND_WIDTH) for name in names]
    figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    # Many names must not squeeze the lines they are of.
    lines = sum(name.count("\n") + 1 for name in names) // columns
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * max(0, lines - LEGEND_LINES))
