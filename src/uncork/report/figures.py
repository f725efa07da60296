"""Figures as SVG and PNG bytes with their text alternative. Nothing here runs a model."""

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from uncork.report.reading import figure_reading
from uncork.report.summary import LABELS, METRICS, Panel


if TYPE_CHECKING:  # matplotlib is imported when a figure is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


# Okabe and Ito's palette: told apart by readers who do not see all colours; markers differ as well.
STYLES = {
    "softmax": ("#000000", "o", "-"),
    "temperature": ("#7f7f7f", "x", ":"),
    "sigsoftmax": ("#CC79A7", "v", "-."),
    "mos": ("#0072B2", "s", "-"),
    "monotone": ("#009E73", "^", "-"),
    "plif": ("#D55E00", "D", "-"),
}
SIZE = (4.6, 3.9)


@dataclass(frozen=True)
class Figure:
    """One picture: a name for its files, what it shows in words, and its reading."""

    name: str
    title: str
    alt: str
    reading: str
    svg: bytes
    png: bytes


def metric_figure(panel: Panel, metric: str) -> Figure:
    """The paper's figure: a metric against the width for one vocabulary and concentration."""
    heading, _, unit = METRICS[metric]
    setting = panel.setting
    figure, axes = new_axes()
    described = []
    for head in panel.heads:
        points = [(w, s) for w in panel.widths if (s := panel.spread(head, w, metric))]
        widths, means = [w for w, _ in points], [s.mean for _, s in points]
        errors = [s.std or 0.0 for _, s in points]
        colour, marker, line = STYLES[head]
        axes.errorbar(
            widths,
            means,
            errors,
            color=colour,
            marker=marker,
            linestyle=line,
            label=LABELS[head],
            markersize=5,
            linewidth=1.5,
            capsize=2,
        )
        values = ", ".join(f"{m:.4g} at D={w}" for w, m in zip(widths, means, strict=True))
        described.append(f"{LABELS[head]}: {values}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(panel.widths, [str(w) for w in panel.widths])
    axes.minorticks_off()
    axes.set_xlabel("width D")
    axes.set_ylabel(f"{heading} ({unit})")
    axes.set_title(setting.title)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    title = f"{heading} against width, {setting.title}"
    name = f"{metric}-M{setting.vocabulary}-N{setting.contexts}-a{setting.concentration:g}"
    alt = f"Line chart of {title}. {'; '.join(described)}."
    return finish(figure, name, title, alt, figure_reading(panel, metric))


def dirichlet_figure(vocabulary: int, concentrations: list[float], seed: int = 0) -> Figure:
    """Sorted probabilities of a few samples for each concentration: the paper's illustration."""
    figure, axes = new_axes()
    generator = np.random.default_rng(seed)
    colours = ["#D55E00", "#009E73", "#0072B2", "#CC79A7", "#000000"]
    tops = []
    for concentration, colour in zip(sorted(concentrations), colours, strict=False):
        samples = np.sort(_dirichlet(generator, 5, vocabulary, concentration), axis=1)[:, ::-1]
        tops.append((concentration, float(samples[:, 0].mean())))
        for i, sample in enumerate(samples):
            label = f"α = {concentration:g}" if i == 0 else None
            axes.plot(np.arange(1, vocabulary + 1), sample, color=colour, alpha=0.7, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(1e-8, 1.5)
    axes.set_xlabel("word, by rank")
    axes.set_ylabel("probability")
    axes.set_title(f"Samples of Dir(α) over {vocabulary:,} words")
    axes.legend(fontsize=8, frameon=False)
    text = "; ".join(f"alpha = {a:g}: {100 * top:.3g} %" for a, top in tops)
    reading = (
        f"Average probability of the most likely word in five samples: {text}. "
        "Small concentrations give sparse distributions with long tails, large ones nearly uniform ones."
    )
    alt = f"Sorted probabilities of samples of a Dirichlet prior over {vocabulary:,} words. {reading}"
    return finish(figure, f"dirichlet-M{vocabulary}", "The Dirichlet concentration", alt, reading)


def _dirichlet(generator: np.random.Generator, rows: int, size: int, concentration: float) -> np.ndarray:
    """In log space, as the experiment draws them: Gamma(a) underflows for small a."""
    logs = np.log(generator.gamma(concentration + 1, size=(rows, size)))
    logs -= generator.exponential(size=(rows, size)) / concentration
    weights = np.exp(logs - logs.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def plif_figure(knots: int = 8, bound: float = 4.0, seed: int = 2) -> Figure:
    """An example of an increasing continuous piecewise-linear function."""
    figure, axes = new_axes()
    slopes = np.logaddexp(0, np.random.default_rng(seed).normal(size=knots) * 1.5 + np.log(np.e - 1))
    positions = np.linspace(-bound, bound, knots + 1)
    values = np.concatenate([[-bound], -bound + np.cumsum(slopes) * 2 * bound / knots])
    ends = np.array([positions[0] - 1, positions[-1] + 1])
    outside = np.array([values[0] - slopes[0], values[-1] + slopes[-1]])
    x = np.concatenate([ends[:1], positions, ends[1:]])
    axes.plot(x, np.concatenate([outside[:1], values, outside[1:]]), color="#D55E00")
    axes.plot(positions, values, "o", color="#000000", markersize=4)
    axes.set_xlabel("x")
    axes.set_ylabel("f(x)")
    axes.set_title(f"A PLIF with {knots} pieces on [-{bound:g}, {bound:g}]")
    reading = (
        f"Equally spaced knots, one positive slope per piece (here {slopes.min():.2f} to "
        f"{slopes.max():.2f}); the end pieces continue, so the function is a bijection of the real line."
    )
    alt = f"An increasing continuous piecewise-linear curve with {knots} pieces. {reading}"
    return finish(figure, "example-plif", "A piecewise-linear increasing function (PLIF)", alt, reading)


def function_figure(
    name: str, title: str, curves: list[tuple[str, str, dict[str, Any]]], reading: str
) -> Figure:
    """Learned functions: (head, label, record of f) drawn with their scale removed, beside the line."""
    figure, axes = new_axes()
    lines = ["-", "--", ":", "-."]
    for i, (head, label, record) in enumerate(curves):
        x, f = np.array(record["x"]), np.array(record["f"])
        # Words and contexts can absorb any linear rescaling: only the shape of f means anything.
        x = (x - x[0]) / (x[-1] - x[0])
        f = (f - f[0]) / max(f[-1] - f[0], 1e-12)
        axes.plot(x, f, color=STYLES[head][0], linestyle=lines[i % 4], label=label)
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8)
    axes.set_xlabel("logit, scaled to the range in use")
    axes.set_ylabel("f, scaled")
    axes.set_title(title)
    axes.legend(fontsize=8, frameon=False)
    alt = f"Learned increasing functions on the range of the logits, {title}. {reading}"
    return finish(figure, name, f"Learned functions, {title}", alt, reading)


def new_axes(size: tuple[float, float] = SIZE) -> "tuple[Canvas, Axes]":
    """An empty picture and its axes."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=size, layout="constrained")
    axes = canvas.subplots()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return canvas, axes


def finish(figure: "Canvas", name: str, title: str, alt: str, reading: str) -> Figure:
    """The picture as files, with its words."""
    import matplotlib

    svg, png = io.BytesIO(), io.BytesIO()
    # Without a date and with a fixed salt the same results give the same file.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(svg, format="svg", metadata={"Date": None})
    figure.savefig(png, format="png", dpi=160)
    return Figure(name, title, alt, reading, svg.getvalue(), png.getvalue())
