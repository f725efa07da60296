"""The sections of a page for each trial: results, learned functions, runs."""

from collections.abc import Sequence
from functools import partial

from uncork.report.language import figures, reading, tables
from uncork.report.language.compare import count
from uncork.report.language.explanations import explanation_table
from uncork.report.language.runs import Run
from uncork.report.language.trials import Trial, trials
from uncork.report.reading import origin
from uncork.report.section import Section


def language_sections(runs: Sequence[Run]) -> list[Section]:
    """Five sections for each corpus and budget, fewer where there is nothing to show."""
    sections = []
    for trial in trials(runs):
        if trial.arms:
            sections += [_results(trial), _differences(trial), _curves(trial), *_functions(trial)]
        sections.append(_origins(trial))
    return sections


def _results(trial: Trial) -> Section:
    """The table, beside what was published, before all that is said of it."""
    unfinished = tables.unfinished_table(trial)
    shown = [tables.perplexity_table(trial), *([unfinished] if unfinished else []), tables.cost_table(trial)]
    return Section(trial.anchor, trial.title, reading.conditions(trial), tables=shown)


def _differences(trial: Trial) -> Section:
    """What the table shows and what it does not."""
    comparisons = count(trial)
    found = (explanation_table(trial, comparisons), tables.comparison_table(trial, comparisons))
    shown = [table for table in found if table]
    title = f"Differences: {trial.title}"
    paragraphs = [*reading.verdict(trial), *reading.limits(trial)]
    return Section(f"{trial.anchor}-differences", title, paragraphs, tables=shown)


def _curves(trial: Trial) -> Section:
    pictures = [partial(figures.curve_figure, trial)]
    if figures.has_gaps(trial):
        pictures.append(partial(figures.gap_figure, trial))
    title = f"Curves: {trial.title}"
    return Section(f"{trial.anchor}-curves", title, figures=pictures, columns=2, pictured=True)


def _functions(trial: Trial) -> list[Section]:
    slopes = tables.slope_table(trial)
    if slopes is None:
        return []
    text = (
        "f is drawn over the range the logits occupy. A constant in f changes nothing, and words and "
        "contexts can absorb a scale: softmax is the line f(x) = x, a temperature a line of another slope."
    )
    moved = reading.movement(trial)
    paragraphs = [text, *([moved] if moved else [])]
    pictures = [partial(figures.function_figure, trial, view) for view in figures.VIEWS]
    return [
        Section(
            f"{trial.anchor}-functions",
            f"Learned functions: {trial.title}",
            paragraphs,
            figures=pictures,
            tables=[slopes],
            columns=2,
            pictured=True,
        )
    ]


def _origins(trial: Trial) -> Section:
    paragraphs = [*reading.left_out(trial), *reading.carried(trial), *reading.commands(trial)]
    shown = [tables.run_table(trial)] if trial.arms else []
    if shown:
        paragraphs.append("Seconds are by the clock: runs that share a machine slow each other.")
    everyone = [*trial.runs, *trial.unfinished]
    paragraphs += sorted({origin(each) for run in everyone for each in run.origins})
    return Section(f"{trial.anchor}-runs", f"Runs: {trial.title}", paragraphs, tables=shown)
