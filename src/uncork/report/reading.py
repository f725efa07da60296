"""Sentences made from numbers: what each figure shows, and what becomes of the paper's claim."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from uncork.report.summary import LABELS, LMS, METRICS, Comparison, Panel, compare, steep_share
from uncork.results import ORIGIN


def share(part: int, whole: int) -> str:
    return f"{part} of {whole}"


def origin(provenance: dict[str, Any]) -> str:
    known = {name: provenance[name] or "unknown" for name in ORIGIN}
    if set(known.values()) == {"unknown"}:
        return "What made some of these is unknown: their provenance.json was lost."
    return (
        f"Made by uncork {known['uncork']} (commit {known['commit']}) with torch {known['torch']} on "
        f"{known['hardware']}."
    )


def verdict(found: Sequence[Comparison]) -> list[str]:
    """The paper's claim, head by head: LMS beats Linear-Softmax and MoS on both metrics in most cells."""
    lines = []
    for head in LMS:
        mine = [c for c in found if c.head == head]
        if not mine:
            continue
        both = sum(all(c.ahead.values()) for c in mine)
        holds = "holds" if 2 * both > len(mine) else "does not hold"
        count = lambda judged, metric, mine=mine: sum(getattr(c, judged)[metric] for c in mine)
        text = (
            f"{LABELS[head]} beats both Linear-Softmax and MoS on both metrics in {share(both, len(mine))} "
            f"combinations of vocabulary, concentration and width: the claim of “most cases” {holds} for it. "
            f"On the KL alone it is ahead in {count('ahead', 'kl')}, on mode matching alone in "
            f"{count('ahead', 'mode_matching')}"
        )
        judged = sum(c.seeds > 1 for c in mine)
        if judged:
            text += (
                f"; by more than two standard deviations over seeds in {count('clear', 'kl')} and "
                f"{count('clear', 'mode_matching')} of the {judged} with several seeds"
            )
        lines.append(text + ".")
        lines.append(_where(mine))
    return lines


def _where(mine: Sequence[Comparison]) -> str:
    """Whether the gain is largest at low width and large vocabulary, as claimed."""
    by_size = {
        m: mean(c.gain for c in mine if c.setting.vocabulary == m)
        for m in {c.setting.vocabulary for c in mine}
    }
    by_width = {w: mean(c.gain for c in mine if c.width == w) for w in {c.width for c in mine}}
    low, high = min(by_width), max(by_width)
    small, large = min(by_size), max(by_size)
    widest = max(by_width, key=by_width.__getitem__)
    text = (
        f"Against the better of the two its KL is lower by {percent(by_width[low])} on average at width "
        f"{low} and by {percent(by_width[high])} at width {high}"
    )
    if len(by_width) > 2:
        text += f", most at width {widest} ({percent(by_width[widest])})"
    if small != large:
        text += (
            f"; by {percent(by_size[small])} at M = {small:,} and {percent(by_size[large])} at M = {large:,}"
        )
    as_claimed = by_width[low] >= by_width[high] and by_size[large] >= by_size[small]
    ending = "so do these results" if as_claimed else "these results do not"
    if low == high or small == large:
        return text + "."
    return f"{text}. The paper finds the largest gains at low width and large vocabulary; {ending}."


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def figure_reading(panel: Panel, metric: str) -> str:
    """One figure in words: who leads at which widths, and by how much over Linear-Softmax."""
    heading, higher, unit = METRICS[metric]
    leaders: dict[str, list[int]] = {}
    for width in panel.widths:
        best = panel.best(width, metric)
        if best:
            leaders.setdefault(best, []).append(width)
    if not leaders:
        return "Every fit diverged: there is nothing to compare."
    parts = [f"{LABELS[head]} at D = {_list(widths)}" for head, widths in leaders.items()]
    text = f"{'Highest' if higher else 'Lowest'} {heading}: {'; '.join(parts)}."
    gap = _largest_gap(panel, metric)
    if gap:
        head, width, own, base = gap
        text += (
            f" The largest difference to Linear-Softmax is at D = {width}: "
            f"{own:.4g} {unit} for {LABELS[head]} against {base:.4g} {unit}."
        )
    return text


def _largest_gap(panel: Panel, metric: str) -> tuple[str, int, float, float] | None:
    sign = 1 if METRICS[metric][1] else -1
    candidates = []
    for width in panel.widths:
        base = panel.spread("softmax", width, metric)
        for head in panel.heads:
            own = panel.spread(head, width, metric)
            if head != "softmax" and own and base:
                candidates.append((sign * (own.mean - base.mean), head, width, own.mean, base.mean))
    if not candidates or max(candidates)[0] <= 0:
        return None
    return max(candidates)[1:]


def function_reading(curves: Sequence[tuple[str, int, dict[str, Any]]]) -> str:
    """Learned functions in words: (head, width, record of f)."""
    parts = []
    for head, width, record in curves:
        steep = steep_share(record)
        kind = "nearly a line" if steep < 0.15 else "bent" if steep < 0.5 else "close to a staircase"
        parts.append(f"{LABELS[head]} at D = {width}: {percent(steep, 0)}, {kind}")
    return (
        "Share of the rise in the steepest tenth of the range (a line has 10 %, a step 100 %): "
        f"{'; '.join(parts)}."
    )


def certificate_reading(panels: Sequence[Panel]) -> str | None:
    """How much of Linear-Softmax's KL is the width's, and how much the optimiser's."""
    records = [r for p in panels for width in p.widths for r in p.fits("softmax", width)]
    rows = [r["certified"] for r in records if r["certified"]]
    if not rows:
        return None
    excess = [(r["kl_reached"] - r["kl_optimum"]) / max(r["kl_reached"], 1e-9) for r in rows]
    return (
        f"With the learned words, better context vectors could lower Linear-Softmax's KL by at most "
        f"{percent(max(excess))} (average {percent(mean(excess))}) over {len(rows)} fits, certified on up to "
        f"{max(r['contexts'] for r in rows)} contexts each, with duality gaps up to "
        f"{max(r['largest_gap'] for r in rows):.1e} nats: the rest is the price of width and words, "
        "not of the context vectors."
    )


def convergence_reading(cells: Sequence[dict]) -> str:
    """How the fits ended."""
    ends = [record["stopped"] for record in cells]
    text = f"{share(ends.count('converged'), len(ends))} fits stopped because the KL no longer fell"
    if ends.count("max_passes"):
        text += f"; {ends.count('max_passes')} reached the safety limit of passes"
    if ends.count("diverged"):
        text += f"; {ends.count('diverged')} diverged"
    return text + "."


def repeated_reading(cells: Sequence[dict]) -> str:
    """Fits that are in no mean."""
    names = [
        f"{LABELS.get(cell['head'], cell['head'])}, M = {cell['vocabulary']:,}, N = {cell['contexts']:,}, "
        f"α = {cell['concentration']:g}, D = {cell['width']}, seed {cell['seed']} "
        f"of {record['provenance'].get('started')}"
        for record in cells
        for cell in [record["cell"]]
    ]
    return f"Fitted again later, which counts instead: {'; '.join(names)}."


def temperature_reading(all_panels: Sequence[Panel]) -> str | None:
    """Whether a mere temperature would do: it cannot change what a Linear-Softmax can represent."""
    found = [compare(p, "temperature", w, ("softmax",)) for p in all_panels for w in p.widths]
    gains = [abs(c.gain) for c in found if c]
    if not gains:
        return None
    return (
        f"A learned temperature changes Linear-Softmax's KL by {percent(mean(gains))} on average "
        f"(at most {percent(max(gains))}): it can represent nothing new, so this is noise of optimisation, "
        "and gains of that size elsewhere mean little."
    )


def _list(widths: Sequence[int]) -> str:
    return ", ".join(map(str, widths))
