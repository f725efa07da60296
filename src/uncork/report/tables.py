"""Tables of the page as plain rows of text, with the spread over seeds."""

from dataclasses import dataclass
from statistics import mean
from typing import Any

from uncork.report.summary import LABELS, METRICS, Panel, Spread, steep_share


Row = list[tuple[str, bool]]  # text, and whether it is marked as the best of its column


@dataclass(frozen=True)
class Table:
    """A caption, column heads and rows; `words` are the columns of text besides the first."""

    caption: str
    columns: list[str]
    rows: list[Row]
    words: tuple[str, ...] = ()


def unmarked(*texts: str) -> Row:
    """A row in which nothing is marked as best."""
    return [(text, False) for text in texts]


def metric_table(panel: Panel, metric: str) -> Table:
    """One metric, heads by widths; the best of each width is marked."""
    heading, _, unit = METRICS[metric]
    best = {width: panel.best(width, metric) for width in panel.widths}
    rows = []
    for head in panel.heads:
        row = unmarked(LABELS[head])
        for width in panel.widths:
            row.append((_cell(panel.spread(head, width, metric), metric), best[width] == head))
        rows.append(row)
    return Table(
        f"{heading} ({unit}), {panel.setting.title}",
        ["head", *(f"D = {width}" for width in panel.widths)],
        rows,
    )


def _cell(spread: Spread | None, metric: str) -> str:
    if spread is None:
        return "–"
    digits = 4 if metric == "kl" else 1
    text = f"{spread.mean:.{digits}f}"
    return text if spread.std is None else f"{text} ± {spread.std:.{digits}f}"


def budget_table(panels: list[Panel]) -> Table:
    """What each head was given: parameters beside the words, rate found, passes, seconds."""
    rows = []
    for head in LABELS:
        records = [r for p in panels for width in p.widths for r in p.fits(head, width)]
        if not records:
            continue
        extra = sorted({r["parameters"]["beside_words"] for r in records})
        rates = sorted({r["rate"] for r in records})
        converged = sum(r["stopped"] == "converged" for r in records)
        rows.append(
            unmarked(
                LABELS[head],
                str(len(records)),
                f"{extra[0]:,}" if len(extra) == 1 else f"{extra[0]:,} to {extra[-1]:,}",
                ", ".join(f"{rate:g}" for rate in rates),
                f"{mean(r['passes'] for r in records):.0f}",
                f"{converged} of {len(records)}",
                f"{mean(r['fit_seconds'] for r in records):.1f}",
            )
        )
    columns = ["head", "fits", "parameters beside words", "rates chosen", "passes", "converged", "seconds"]
    return Table("Budget of each head (means over its fits)", columns, rows)


def certificate_table(panels: list[Panel]) -> Table | None:
    """Linear-Softmax: the KL reached beside the certified optimum over context vectors."""
    rows = []
    for panel in panels:
        for width in panel.widths:
            found = [r["certified"] for r in panel.fits("softmax", width) if r["certified"]]
            if not found:
                continue
            rows.append(
                unmarked(
                    f"{panel.setting.title}, D = {width}",
                    f"{mean(r['kl_reached'] for r in found):.5f}",
                    f"{mean(r['kl_optimum'] for r in found):.5f}",
                    f"{max(r['largest_gap'] for r in found):.1e}",
                    str(found[0]["contexts"]),
                )
            )
    columns = ["setting", "KL reached", "KL, best context vectors", "largest duality gap", "contexts"]
    return Table("Linear-Softmax: optimisation error told from bottleneck", columns, rows) if rows else None


def slope_table(panels: list[Panel]) -> Table | None:
    """Slopes of the learned functions at the logits, first seed."""
    rows = []
    for panel in panels:
        for head in ("monotone", "plif"):
            for width in panel.outer_widths:
                records = panel.fits(head, width)
                if not records or not records[0]["function"]:
                    continue
                function = records[0]["function"]
                statistics = function["slope_statistics"]
                rows.append(
                    unmarked(
                        f"{LABELS[head]}, {panel.setting.title}, D = {width}",
                        *(f"{statistics[key]:.3g}" for key in ("mean", "std", "min", "max")),
                        f"{100 * steep_share(function):.0f} %",
                    )
                )
    columns = ["function", "mean slope", "std", "least", "greatest", "rise in the steepest tenth"]
    caption = (
        "Slopes of the learned functions: mean and std over the logits, least and greatest over their range"
    )
    return Table(caption, columns, rows) if rows else None


def rank_table(panels: list[Panel]) -> Table:
    """Ranks of the models' log-probability matrices, by head, at the smallest and largest width."""
    rows = []
    for panel in panels:
        for width in panel.outer_widths:
            ranks = (_ranks(panel.fits(head, width)) for head in LABELS)
            rows.append(unmarked(f"{panel.setting.title}, D = {width}", *ranks))
    columns = ["setting", *LABELS.values()]
    return Table("Press rank / effective rank at 1e-5 of log Q on up to 256 contexts", columns, rows)


def _ranks(records: list[dict[str, Any]]) -> str:
    """Those of the first seed that has them."""
    found = next((record["rank"] for record in records if record["rank"]), None)
    return f"{found['press']} / {found['effective']['1e-05']}" if found else "–"


def theory_table(theory: dict[str, Any]) -> Table:
    """The demonstrations of `uncork theory`."""
    rows = []
    for row in theory["rows"]:
        holds = "yes" if row["holds"] else "no, misprint" if row["as_printed_false"] else "no"
        left, right = f"{row['left']:.6g}", f"{row['right']:.6g}"
        rows.append(unmarked(row["statement"], row["computed"], left, row["relation"], right, holds))
    return Table("Statements, checked", ["statement", "computed", "left", "", "right", "holds?"], rows)
