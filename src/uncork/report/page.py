"""Results to one self-contained HTML page, and the figures as files beside it."""

import base64
from functools import partial
from pathlib import Path
from typing import Any

from uncork.report import figures, reading, tables
from uncork.report.figures import Figure
from uncork.report.language.sections import language_sections
from uncork.report.load import Results, load
from uncork.report.markdown import write_markdown
from uncork.report.section import Drawing, Section
from uncork.report.summary import LABELS, METRICS, Panel, comparisons, panels
from uncork.report.target import check_markdown, check_page
from uncork.results import check_outside, write_atomic


TEMPLATE = Path(__file__).with_name("page.html")
SAMPLED = 5  # concentrations that one picture of samples tells apart by colour


def write_report(
    runs: list[Path], output: Path, figure_folder: Path | None = None, markdown: Path | None = None
) -> list[Path]:
    """Read `runs`, write the page and every figure as SVG and PNG; the paths written, the page first.

    With `markdown`, sentences and tables are written there too, and the pictures it shows beside it.
    """
    output = Path(output)
    folder = figure_folder or output.with_name(output.stem + "_figures")
    check_page("output", output)
    check_outside("figures", folder)
    if markdown:
        check_markdown("markdown", markdown)
        if markdown.resolve() == output.resolve():
            raise ValueError(
                f"`markdown` must be another file than `output`, got `{markdown}` for both. Give one of them "
                "another name."
            )
    results = load(runs)
    sections = build(results)
    drawn = [section.drawn for section in sections]
    write_atomic(output, render(sections, drawn, results).encode())
    written = [output]
    for figure in (figure for group in drawn for figure in group):
        for suffix, data in ((".svg", figure.svg), (".png", figure.png)):
            path = folder / (figure.name + suffix)
            write_atomic(path, data)
            written.append(path)
    if markdown:
        write_markdown(sections, markdown)
    return written


def build(results: Results) -> list[Section]:
    """The sections of the page, in reading order."""
    sections = []
    if results.cells:
        grouped = panels(results.cells)
        sections += [_claim(results, grouped), _illustrations(grouped)]
        sections += [_concentration(a, grouped) for a in sorted({p.setting.concentration for p in grouped})]
        sections += [_functions(grouped), _bottleneck(grouped), _budget(results, grouped)]
    sections += language_sections(results.runs)
    if results.theory:
        sections.append(_theory(results.theory, results.unused_theory))
    return sections


def _claim(results: Results, grouped: list[Panel]) -> Section:
    found = comparisons(grouped)
    paragraphs = reading.verdict(found)
    if not paragraphs:
        paragraphs = ["The claim needs an LMS head, Linear-Softmax and MoS on the same distributions."]
    temperature = reading.temperature_reading(grouped)
    paragraphs += [temperature] if temperature else []
    paragraphs.append(reading.convergence_reading(results.cells))
    if results.repeated:
        paragraphs.append(reading.repeated_reading(results.repeated))
    intro = (
        "The paper's claim: an increasing function on the logits (LMS) beats Linear-Softmax and a mixture of "
        "softmaxes (MoS) on the KL divergence and on mode matching in most cases, most at low width and "
        "large vocabulary."
    )
    return Section("claim", "The claim and what became of it", [intro, *paragraphs])


def _illustrations(grouped: list[Panel]) -> Section:
    vocabularies = sorted({p.setting.vocabulary for p in grouped})
    concentrations = sorted({p.setting.concentration for p in grouped})
    contexts = ", ".join(f"{n:,}" for n in sorted({p.setting.contexts for p in grouped}))
    text = (
        f"Each of {contexts} contexts has its own true distribution over M words, drawn from Dir(α). "
        "Word vectors are shared, each context has a free vector, and every head is fitted to the same "
        "distributions by cross-entropy."
    )
    drawn = concentrations[:SAMPLED]
    if len(drawn) < len(concentrations):
        text += f" Samples are drawn for the {SAMPLED} smallest of {len(concentrations)} concentrations."
    pictures: list[Drawing] = [partial(figures.dirichlet_figure, m, drawn) for m in vocabularies]
    return Section("setting", "The setting", [text], figures=[*pictures, figures.plif_figure])


def _concentration(concentration: float, grouped: list[Panel]) -> Section:
    mine = [p for p in grouped if p.setting.concentration == concentration]
    pictures: list[Drawing] = [
        partial(figures.metric_figure, p, metric)
        for metric in reversed(METRICS)
        for p in mine
        if len(p.widths) > 1  # a point by itself tells no more than the table
    ]
    grids = [tables.metric_table(p, metric) for p in mine for metric in METRICS]
    seeds = max(len(p.fits(head, width)) for p in mine for head in p.heads for width in p.widths)
    note = "Bars and ± are standard deviations over seeds." if seeds > 1 else "One seed: no spread is known."
    return Section(
        f"alpha-{concentration:g}",
        f"Results at α = {concentration:g}",
        [note],
        figures=pictures,
        tables=grids,
        columns=max(2, min(3, len(mine))),
    )


def _functions(grouped: list[Panel]) -> Section:
    pictures = [picture for panel in grouped if (picture := _panel_functions(panel))]
    text = (
        "The functions of the LMS heads after training, first seed. Both axes are scaled to the range in "
        "use, since word and context vectors can absorb any linear rescaling: a straight diagonal is "
        "Linear-Softmax."
    )
    slopes = tables.slope_table(grouped)
    shown = [slopes] if slopes else []
    return Section("functions", "The learned functions", [text], figures=pictures, tables=shown)


def _panel_functions(panel: Panel) -> Drawing | None:
    """The learned functions of one setting, at its smallest and largest width."""
    curves = []
    for head in ("monotone", "plif"):
        for width in panel.outer_widths:
            records = panel.fits(head, width)
            if records and records[0]["function"]:
                curves.append((head, width, records[0]["function"]))
    if not curves:
        return None
    setting = panel.setting
    name = f"functions-M{setting.vocabulary}-N{setting.contexts}-a{setting.concentration:g}"
    labelled = [(head, f"{LABELS[head]}, D = {width}", record) for head, width, record in curves]
    text = reading.function_reading(curves)
    return partial(figures.function_figure, name, setting.title, labelled, text)


def _bottleneck(grouped: list[Panel]) -> Section:
    text = reading.certificate_reading(grouped)
    certified = tables.certificate_table(grouped)
    found = [certified] if certified else []
    ranks = (
        "Linear-Softmax has rank D + 1 at most. A head can pass this bound and still be no better: rank "
        "counts directions, not what they are worth."
    )
    shown = [*found, tables.rank_table(grouped)]
    return Section("bottleneck", "Bottleneck and rank", [text, ranks] if text else [ranks], tables=shown)


def _budget(results: Results, grouped: list[Panel]) -> Section:
    settings = results.cells[0]["settings"]
    text = (
        f"Each head had the same optimiser (Adam), the same search over the learning rates "
        f"{', '.join(f'{r:g}' for r in settings['rates'])} on at most "
        f"{settings['trial_contexts']:,} contexts, and the same rule to stop: a fall of the KL per pass "
        f"below {settings['tolerance']:g} of the KL or of the gain over uniform, whichever is less, over "
        f"{settings['patience']} passes, after {settings['decays']} reductions of the rate; at most "
        f"{settings['max_passes']} passes. MoS has {settings['components']} components, the monotone network "
        f"{settings['units']} units, PLIF {settings['knots']} pieces."
    )
    origins = sorted({reading.origin(r["provenance"]) for r in results.cells})
    return Section("budget", "Budget and origin", [text, *origins], tables=[tables.budget_table(grouped)])


def _theory(theory: dict[str, Any], unused: list[Path]) -> Section:
    wrong = [row["statement"] for row in theory["rows"] if not row["as_expected"]]
    false = [row["statement"] for row in theory["rows"] if row["as_printed_false"]]
    text = f"{len(theory['rows'])} statements of sections 3 and 4 were put to a number. "
    text += f"Not as expected: {', '.join(wrong)}." if wrong else "All came out as documented."
    if false:
        text += f" False as printed, shown by counterexample: {', '.join(false)}."
    paragraphs = [text]
    if unused:
        # Where a machine keeps them is no part of the page.
        names = ", ".join("/".join(path.parts[-2:]) for path in unused)
        paragraphs.append(f"One table is shown, the latest; left out: {names}.")
    return Section("theory", "The theory, checked", paragraphs, tables=[tables.theory_table(theory)])


def render(sections: list[Section], drawn: list[list[Figure]], results: Results) -> str:
    """The page as one string; pictures are embedded, nothing is fetched."""
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["embedded"] = lambda svg: (
        "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        sections=list(zip(sections, drawn, strict=True)),
        other=results.other,
        cells=len(results.cells),
        runs=len(results.runs),
    )
