"""Losses of output layers on CPU, forward and backward, against torch's eager linear + cross_entropy."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import losses, measure, table
from benchmarks.losses import Eager, EagerMixture, Loss, NaivePLIF, OurMixture, Ours, Problem, Sizes
from uncork import ops
from uncork.functions import PLIF, MonotoneNetwork, Scale
from uncork.ops import cpu_pass, pointwise, torch_pass
from uncork.results import provenance


SIZES = [(1400, 400, 10_000), (512, 256, 50_000)]
QUICK_SIZES = [(48, 16, 500)]
COMPONENTS = 5
EAGER = "torch eager"
SHARES = ("products", "pass", "table", "rest")

TITLE = "# Losses on CPU, float32, forward + backward"
NOTES = (
    "Times are medians of rounds in which every contender runs once, in turn; ratios are to torch eager, "
    "which is linear + cross_entropy. torch linear_cross_entropy runs with its default "
    "LinearCrossEntropyOptions(); without options it is torch eager. Mixtures start from given latents and "
    "weights. Peak MiB is the rise of the resident size in a process of its own, gradients included."
)


def make_problem(sizes: Sizes, dtype: torch.dtype = torch.float32) -> Problem:
    """Logits of unit size, as at the start of training; every loss has a bias."""
    return losses.make_problem(sizes, COMPONENTS, bias=True, dtype=dtype)


def torch_fused(p: Problem) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    return F.linear_cross_entropy(
        p["hidden"], p["weight"], p["target"], linear_bias=p["bias"], options=options
    )


# Each is made when it is needed: a function's parameters belong to one contender.
CONTENDERS: dict[str, Callable[[], Loss]] = {
    EAGER: Eager,
    "torch linear_cross_entropy": lambda: torch_fused,
    "uncork softmax": Ours,
    "uncork Scale": lambda: Ours(Scale()),
    "uncork PLIF k=1e5": lambda: Ours(PLIF()),
    "uncork MonotoneNetwork(10)": lambda: Ours(MonotoneNetwork(10)),
    "torch eager MoS K=5": EagerMixture,
    "uncork MoS K=5": OurMixture,
}
# The functions in plain torch, by a part of the contender's name.
FUNCTIONS: dict[str, Callable[[], nn.Module]] = {
    "Scale": Scale,
    "PLIF": lambda: NaivePLIF(PLIF()),
    "Network": lambda: MonotoneNetwork(10),
}
# What this project aims at, as multiples of the time of torch eager.
TARGETS = {
    "uncork softmax": 1.05,
    "uncork PLIF k=1e5": 1.35,
    "uncork MonotoneNetwork(10)": 1.35,
    "uncork MoS K=5": 5.5,
}


def available() -> dict[str, Callable[[], Loss]]:
    """The contenders this torch has."""
    has_fused = hasattr(F, "linear_cross_entropy") and hasattr(torch.nn, "LinearCrossEntropyOptions")
    return {name: make for name, make in CONTENDERS.items() if has_fused or "linear_cross" not in name}


def step_of(name: str, problem: Problem) -> measure.Step:
    return losses.step_of(CONTENDERS[name](), problem)


def gate() -> list[str]:
    """Contenders whose loss or gradients are not torch's own in float64; empty when all is well."""
    problem, wide = make_problem((64, 16, 301)), make_problem((64, 16, 301), torch.float64)
    red = []
    for name, make in available().items():
        function = next((make() for part, make in FUNCTIONS.items() if part in name), None)
        truth = (EagerMixture if "MoS" in name else Eager)(function)
        red += losses.disagreement(name, make(), truth.double(), problem, wide)
    return red


def where_time_goes(name: str, problem: Problem, rounds: int = 3) -> dict[str, float]:
    """Shares of processor time: matrix products, the pass over the logits, making the table, the rest."""
    step = step_of(name, problem)
    places = [(owner, attribute, "products") for owner, attribute in measure.MATRIX_PRODUCTS]
    places += [(cpu_pass.CpuPass, "run", "pass"), (torch_pass.TorchPass, "run", "pass")]
    places += [(pointwise, "as_pointwise", "table"), (ops, "as_pointwise", "table")]
    step()
    with measure.stopwatch(places) as seconds:
        total = sum(measure.interleaved({name: step}, rounds, warm_up=0)[name].cpu)
    shares = {label: seconds.get(label, 0.0) / total for label in SHARES[:-1]}
    return shares | {"rest": 1.0 - sum(shares.values())}


def memory_text(peak: float, eager: float) -> str:
    """MiB, and the ratio to eager where that took enough to be told from nothing."""
    ratio = f" ({peak / eager:.2f}x)" if eager >= 2**20 else ""
    return f"{peak / 2**20:.0f}{ratio}"


def print_peak_memory(name: str, sizes: Sizes) -> int:
    """As JSON on standard output: run in a process of its own, by `measure.in_process`."""
    small = make_problem((64, *sizes[1:2], 500))
    warm_up = step_of(name, small)
    problem = make_problem(sizes)
    print(json.dumps({"bytes": measure.peak_rise(warm_up, step_of(name, problem))}))
    return 0


def run(quick: bool, rounds: int | None, out: Path) -> int:
    """Gate, measure, print, write. 1 if the gate is red."""
    if red := gate():
        print("no measurement: these are not right\n" + "\n".join(red))
        return 1
    rounds = rounds or (2 if quick else 15)
    origin = provenance("cpu") | {"threads": torch.get_num_threads(), "CPU pass": cpu_pass.status()}
    sections, records = [], []
    for sizes in QUICK_SIZES if quick else SIZES:
        section, more = _measure(sizes, rounds, origin)
        sections.append(section)
        records += more
        print(section, flush=True)
    facts = table.facts(origin | {"load average at the end": f"{os.getloadavg()[0]:.1f}"})
    text = "\n\n".join([TITLE, facts, *sections, NOTES]) + "\n"
    paths = table.write(out, table.dated_name("cpu", origin["hardware"]), text, records)
    print("written:", *paths)
    return 0


def _measure(sizes: Sizes, rounds: int, origin: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    problem = make_problem(sizes)
    steps = {name: step_of(name, problem) for name in available()}
    times = measure.interleaved(steps, rounds)
    memory = {name: measure.in_process("memory", name, *map(str, sizes))["bytes"] for name in steps}
    base = {kind: measure.Spread.of(getattr(times[EAGER], kind)).median for kind in ("wall", "cpu")}
    rows, records = [], []
    for name in steps:
        wall, cpu = measure.Spread.of(times[name].wall), measure.Spread.of(times[name].cpu)
        shares = where_time_goes(name, problem) if name.startswith("uncork") else {}
        ratio, cpu_ratio = wall.median / base["wall"], cpu.median / base["cpu"]
        rows.append(
            [
                name,
                f"{wall.median * 1e3:.1f} ({wall.low * 1e3:.1f}-{wall.high * 1e3:.1f})",
                f"{ratio:.2f}x",
                f"{cpu_ratio:.2f}x",
                f"{TARGETS[name]:.2f}x" if name in TARGETS else "",
                memory_text(memory[name], memory[EAGER]),
                ", ".join(f"{label} {share:.0%}" for label, share in shares.items() if share > 0.004),
            ]
        )
        records.append(
            {
                "contender": name, "tokens": sizes[0], "width": sizes[1], "words": sizes[2],
                "wall_ms_50": wall.median * 1e3, "wall_ms_20": wall.low * 1e3, "wall_ms_80": wall.high * 1e3,
                "cpu_ms_50": cpu.median * 1e3, "wall_ratio": ratio, "cpu_ratio": cpu_ratio,
                "target_ratio": TARGETS.get(name, ""), "peak_bytes": memory[name], "rounds": rounds,
                **shares_columns(shares), **origin,
            }
        )  # fmt: skip
    headings = ["", "ms (20-80 %)", "time", "CPU time", "target", "peak MiB", "where the CPU time goes"]
    title = "## {} tokens, width {}, {} words".format(*sizes)
    return f"{title}\n\n{table.markdown(headings, rows)}", records


def shares_columns(shares: dict[str, float]) -> dict[str, float | str]:
    return {f"share_{label}": shares.get(label, "") for label in SHARES}
