"""Tables of the page as plain rows of text, with the spread over seeds."""

from dataclasses import dataclass
from statistics import mean

from uncork.report.summary import LABELS, METRICS, Panel, Spread, steep_share


@dataclass(frozen=True)
class Table:
    """A caption, column heads, and rows of (text, is best); `words` are columns of text beside the first."""

    caption: str
    columns: list[str]
    rows: list[list[tuple[str, bool]]]
    words: tuple[str, ...] = ()


def metric_table(panel: Panel, metric: str) -> Table:
    """One metric, heads by widths; the best of each width is marked."""
    heading, _, unit = METRICS[metric]
    best = {width: panel.best(width, metric) for width in panel.widths}
    rows = []
    for head in panel.heads:
        row = [(LABELS[head], False)]
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
        records = [r for p in panels for by in [p.records.get(head, {})] for rs in by.values() for r in rs]
        if not records:
            continue
        extra = sorted({r["parameters"]["beside_words"] for r in records})
        rates = sorted({r["rate"] for r in records})
        converged = sum(r["stopped"] == "converged" for r in records)
        rows.append(
            [
                (LABELS[head], False),
                (str(len(records)), False),
                (f"{extra[0]:,}" if len(extra) == 1 else f"{extra[0]:,} to {extra[-1]:,}", False),
                (", ".join(f"{rate:g}" for rate in rates), False),
                (f"{mean(r['passes'] for r in records):.0f}", False),
                (f"{converged} of {len(records)}", False),
                (f"{mean(r['fit_seconds'] for r in records):.1f}", False),
            ]
        )
    columns = ["head", "fits", "parameters beside words", "rates chosen", "passes", "converged", "seconds"]
    return Table("Budget of each head (means over its fits)", columns, rows)


def certificate_table(panels: list[Panel]) -> Table | None:
    """Linear-Softmax: the KL reached beside the certified optimum over context vectors."""
    rows = []
    for panel in panels:
        for width in panel.widths:
            found = [
                r["certified"] for r in panel.records.get("softmax", {}).get(width, []) if r["certified"]
            ]
            if not found:
                continue
            setting = panel.setting
            rows.append(
                [
                    (f"{setting.title}, D = {width}", False),
                    (f"{mean(r['kl_reached'] for r in found):.5f}", False),
                    (f"{mean(r['kl_optimum'] for r in found):.5f}", False),
                    (f"{max(r['largest_gap'] for r in found):.1e}", False),
                    (str(found[0]["contexts"]), False),
                ]
            )
    columns = ["setting", "KL reached", "KL, best context vectors", "largest duality gap", "contexts"]
    return Table("Linear-Softmax: optimisation error told from bottleneck", columns, rows) if rows else None


def slope_table(panels: list[Panel]) -> Table | None:
    """Slopes of the learned functions at the logits, first seed."""
    rows = []
    for panel in panels:
        for head in ("monotone", "plif"):
            for width in sorted({panel.widths[0], panel.widths[-1]}):
                records = panel.records.get(head, {}).get(width, [])
                if not records or not records[0]["function"]:
                    continue
                function = records[0]["function"]
                statistics = function["slope_statistics"]
                values = [f"{statistics[key]:.3g}" for key in ("mean", "std", "min", "max")]
                texts = [f"{LABELS[head]}, {panel.setting.title}, D = {width}", *values]
                rows.append([(text, False) for text in (*texts, f"{100 * steep_share(function):.0f} %")])
    columns = ["function", "mean slope", "std", "least", "greatest", "rise in the steepest tenth"]
    caption = (
        "Slopes of the learned functions: mean and std over the logits, least and greatest over their range"
    )
    return Table(caption, columns, rows) if rows else None


def rank_table(panels: list[Panel]) -> Table:
    """Ranks of the models' log-probability matrices, by head, at the smallest and largest width."""
    rows = []
    for panel in panels:
        for width in sorted({panel.widths[0], panel.widths[-1]}):
            row = [(f"{panel.setting.title}, D = {width}", False)]
            for head in LABELS:
                records = panel.records.get(head, {}).get(width, [])
                ranks = [(r["rank"]["press"], r["rank"]["effective"]["1e-05"]) for r in records if r["rank"]]
                row.append((f"{ranks[0][0]} / {ranks[0][1]}" if ranks else "–", False))
            rows.append(row)
    columns = ["setting", *LABELS.values()]
    return Table("Press rank / effective rank at 1e-5 of log Q on up to 256 contexts", columns, rows)


def theory_table(theory: dict) -> Table:
    """The demonstrations of `uncork theory`."""
    rows = []
    for row in theory["rows"]:
        holds = "yes" if row["holds"] else "no, misprint" if row["as_printed_false"] else "no"
        values = (
            row["statement"],
            row["computed"],
            f"{row['left']:.6g}",
            row["relation"],
            f"{row['right']:.6g}",
        )
        rows.append([(text, False) for text in (*values, holds)])
    return Table("Statements, checked", ["statement", "computed", "left", "", "right", "holds?"], rows)
