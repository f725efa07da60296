"""The second look at Penn as a picture: how far each head is from softmax, epoch by epoch.

python benchmarks/penn_heads.py results/penn-first/heads.jsonl results/penn-first-heads.svg
"""

import io
import math
import sys
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from uncork.report.language.figures import ROLE_STYLES
from uncork.report.language.runs import LABELS
from uncork.results import read_jsonl, write_atomic


SOFTMAX = "penn_softmax"
ROLES = ("temperature", "plif", "plif_frozen")
PANELS = (("valid_nll", "valid perplexity"), ("train_nll", "training perplexity, dropouts on"))
FIRST_EPOCH = 41  # where averages begin: before, iterates jump
RESTART = 80


def main(source: Path, out: Path) -> int:
    runs = {run["config"]["name"]: run["metrics"] for run in read_jsonl(source)}
    write_atomic(out, picture(runs))
    print("written:", out)
    return 0


def picture(runs: dict[str, list[dict]]) -> bytes:
    figure = Figure(figsize=(8.6, 3.4), layout="constrained")
    for panel, (name, label) in zip(figure.subplots(1, 2), PANELS, strict=True):
        panel.axhline(0.0, color="#000000", linewidth=1.0)
        panel.axvline(RESTART, color="#bbbbbb", linewidth=0.8)
        for role in ROLES:
            colour, _, line = ROLE_STYLES[role]
            gaps = behind(runs[f"penn_{role}"], runs[SOFTMAX], name)
            panel.plot(gaps.keys(), gaps.values(), color=colour, linestyle=line, label=LABELS[role])
        panel.set(xlabel="epoch", ylabel=f"{label},\nminus that of softmax")
        panel.spines[["top", "right"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "penn"}):  # the same bytes from the same numbers
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def behind(own: list[dict], softmax: list[dict], name: str) -> dict[int, float]:
    """By epoch, as far as both runs went."""
    pairs = zip(own, softmax, strict=False)
    return {m["epoch"]: math.exp(m[name]) - math.exp(s[name]) for m, s in pairs if m["epoch"] >= FIRST_EPOCH}


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
