"""Runs that may be compared: one corpus and budget each, in arms of one configuration over seeds."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePath
from statistics import mean
from typing import Any

from uncork.recipes.bundle import FREE, deciding
from uncork.report.language.runs import LABELS, Run
from uncork.report.summary import Spread, spread


CORPORA = {
    "penn": "Penn Treebank",
    "wikitext-2": "WikiText-2",
    "wikitext-103": "WikiText-103",
    "embedded": "Embedded corpus",
}
# What every arm of a comparison must share; the published mixtures have other widths and batches.
BUDGET = (
    "data.corpus", "data.limit_tokens", "epochs", "max_steps", "finetune", "precision",
    "optim.average", "optim.average_epoch", "optim.patience", "optim.decay_epoch", "model.head.products",
)  # fmt: skip
# What is tuned for each head by itself: a control is the one that did best on valid, whatever these are.
TUNED = (
    "model.embedding_dropout", "model.input_dropout", "model.hidden_dropout", "model.output_dropout",
    "model.weight_dropout", "model.activation_penalty", "model.slowness_penalty",
    "optim.lr", "optim.weight_decay", "optim.clip",
)  # fmt: skip


@dataclass
class Arm:
    """One configuration; its finished runs differ by seed alone."""

    label: str
    role: str
    setting: str  # all of the configuration but its head, name, seed and what is tuned
    runs: list[Run]

    @property
    def recipe(self) -> str:
        return self.runs[0].name

    def has_configuration_of(self, run: Run) -> bool:
        """Not told by the label, which two arms may share until one is lengthened."""
        return configuration_of(self.runs[0]) == configuration_of(run)

    @property
    def changes(self) -> tuple[str, ...]:
        return recipe_changes(self.runs[0])

    def values(self, name: str) -> list[float]:
        return [run.result[name] for run in self.runs if run.result]

    @property
    def parts(self) -> list[float] | None:
        """The mean perplexity as a mean over parts of the test text; None if a run has no losses on parts."""
        found = [parts for run in self.runs if (parts := _perplexity_parts(run.result or {}))]
        if len(found) != len(self.runs) or len({len(parts) for parts in found}) != 1:
            return None
        return [mean(values) for values in zip(*found, strict=True)]

    def spread(self, name: str) -> Spread:
        return spread(self.values(name))


@dataclass
class Trial:
    """Arms that had the same corpus and the same budget, and the runs that are in no mean."""

    title: str  # corpus and epochs; all of the budget where two trials would be named alike
    anchor: str
    budget: dict[str, Any]
    details: str = ""  # the rest of the budget, in words
    arms: list[Arm] = field(default_factory=list)
    unfinished: list[Run] = field(default_factory=list)
    repeated: list[Run] = field(default_factory=list)  # of a seed that a later run has too
    all_runs: list[Run] = field(default_factory=list)  # of this trial and of every other

    @property
    def runs(self) -> list[Run]:
        return [run for arm in self.arms for run in arm.runs]

    @property
    def changed_controls(self) -> list[tuple[Arm, Arm]]:
        """Heads whose softmax to compare with has settings of its own, and that one."""
        pairs = [(arm, self.softmax_of(arm)) for arm in self.arms]
        return [(arm, softmax) for arm, softmax in pairs if softmax and softmax.changes]

    @property
    def tuned(self) -> dict[str, list[Arm]]:
        """Roles that were tried at several settings, with their arms, the best on valid first."""
        by_role: dict[str, list[Arm]] = defaultdict(list)
        for arm in sorted(self.arms, key=_mean_valid):
            by_role[arm.role].append(arm)
        return {role: by_role[role] for role in LABELS if len(by_role[role]) > 1}

    def compared(self, role: str) -> Arm | None:
        """The arm of a role that did best on valid."""
        return min((arm for arm in self.arms if arm.role == role), key=_mean_valid, default=None)

    def softmax_of(self, arm: Arm) -> Arm | None:
        """The softmax that a head is compared with; a softmax is compared with none."""
        return None if arm.role == "softmax" else self.control(arm, "softmax")

    def control(self, arm: Arm, role: str) -> Arm | None:
        """That of a role to compare with: the best on valid of the same size and batch, else the plainest."""
        others = [other for other in self.arms if other.role == role and other is not arm]
        alike = [other for other in others if other.setting == arm.setting]
        if alike:
            return min(alike, key=_mean_valid)
        return min(others, key=lambda other: (len(other.changes), _mean_valid(other)), default=None)


def _perplexity_parts(result: dict[str, Any]) -> list[float] | None:
    """What each part of the test text makes of a run's perplexity: a nat there is worth as much of it."""
    nats = result.get("test_nll_parts")
    return nats and [result["test_perplexity"] * (1.0 + part - mean(nats)) for part in nats]


def _mean_valid(arm: Arm) -> float:
    return arm.spread("valid_perplexity").mean


def trials(runs: Iterable[Run]) -> list[Trial]:
    """Runs by corpus and budget, in the order of the corpora above."""
    groups: dict[str, list[Run]] = defaultdict(list)
    everyone = list(runs)
    for run in everyone:
        groups[json.dumps(_budget(run), sort_keys=True)].append(run)
    found = [_trial(json.loads(key), group) for key, group in groups.items()]
    for trial in found:
        trial.all_runs = everyone
    order = list(CORPORA)
    place = lambda corpus: order.index(corpus) if corpus in order else len(order)
    found.sort(key=lambda trial: (place(trial.budget["data.corpus"]), trial.title, trial.details))
    named = Counter(trial.title for trial in found)
    for trial in found:
        if named[trial.title] > 1:
            trial.title = f"{trial.title}, {trial.details}"
    seen: Counter[str] = Counter()
    for trial in found:
        seen[trial.anchor] += 1
        if seen[trial.anchor] > 1:
            trial.anchor += f"-{seen[trial.anchor]}"
    return found


def recipe_changes(run: Run) -> tuple[str, ...]:
    """What a run changes in its recipe. Without seed and budget, which are shown elsewhere."""
    known = ("seed", *BUDGET, *FREE)
    return tuple(change for change in run.overrides or () if change.partition("=")[0] not in known)


def _values(run: Run) -> dict[str, Any]:
    """The configuration, but for whose weights a finetuned run began with: each seed has its own."""
    values = deciding(run.config)
    return values | {"finetune": bool(values.get("finetune"))}


def configuration_of(run: Run) -> str:
    """What the runs of an arm share: everything but the seed."""
    return json.dumps({name: value for name, value in _values(run).items() if name != "seed"}, sort_keys=True)


def _budget(run: Run) -> dict[str, Any]:
    values = _values(run)
    budget = {name: values.get(name) for name in BUDGET}
    budget["model.head.products"] = budget["model.head.products"] or "float32"  # as older runs have it
    # Only the trigger in use counts.
    if budget["optim.average"] not in ("epoch", "doubling"):
        budget["optim.average_epoch"] = None
    if budget["optim.average"] != "non-monotone":
        budget["optim.patience"] = None
    return budget


def _trial(budget: dict[str, Any], runs: list[Run]) -> Trial:
    corpus = PurePath(budget["data.corpus"]).name
    # Also a part of file names and links.
    place = re.sub(r"[^a-z0-9]+", "-", corpus.lower()).strip("-") or "corpus"
    trial = Trial(_title(budget), f"{place}-{budget['epochs']}", budget, _details(budget))
    arms: dict[str, dict[int, Run]] = defaultdict(dict)
    for run in sorted(runs, key=lambda run: run.started):
        if run.result is None:
            trial.unfinished.append(run)
            continue
        by_seed = arms[configuration_of(run)]
        if run.seed in by_seed:
            trial.repeated.append(by_seed[run.seed])
        by_seed[run.seed] = run
    trial.arms = [_arm([by_seed[seed] for seed in sorted(by_seed)]) for by_seed in arms.values()]
    _tell_apart(trial.arms)
    trial.arms.sort(key=lambda arm: (list(LABELS).index(arm.role), len(arm.changes), arm.label))
    return trial


def _arm(runs: list[Run]) -> Arm:
    first = runs[0]
    head_free = {
        name: value
        for name, value in _values(first).items()
        if name not in ("name", "seed", *TUNED) and not name.startswith("model.head")
    }
    return Arm(label_of(first), first.role, json.dumps(head_free, sort_keys=True), runs)


def label_of(run: Run) -> str:
    """The head, and in brackets what the run changes in its recipe."""
    changes = ", ".join(map(_short, recipe_changes(run)))
    return f"{run.label} ({changes})" if changes else run.label


def _short(change: str) -> str:
    """Without the parts of a path that say nothing here."""
    return change.removeprefix("model.").removeprefix("head.").removeprefix("function.options.")


def _tell_apart(arms: list[Arm]) -> None:
    """Arms named alike, of recipes that have changed or are somebody's own, get what differs in brackets."""
    alike: dict[str, list[Arm]] = defaultdict(list)
    for arm in arms:
        alike[arm.label].append(arm)
    for group in alike.values():
        values = [deciding(arm.runs[0].config) for arm in group]
        names = sorted({name for each in values for name in each if name != "seed"})
        differing = [name for name in names if len({repr(each.get(name)) for each in values}) > 1]
        for arm, each in zip(group, values, strict=True):
            texts = [_short(f"{name}={each.get(name)}") for name in differing]
            arm.label += f" ({', '.join(texts)})" if texts else ""


def _epochs(number: int) -> str:
    return "1 epoch" if number == 1 else f"{number} epochs"


def _title(budget: dict[str, Any]) -> str:
    corpus = budget["data.corpus"]
    # Of a folder of one's own only its name: where it lies is nobody's business.
    parts = [CORPORA.get(corpus, PurePath(corpus).name), _epochs(budget["epochs"])]
    if budget["data.limit_tokens"]:
        parts.append(f"{budget['data.limit_tokens']:,} words of each text")
    if budget["max_steps"]:
        parts.append(f"at most {budget['max_steps']:,} steps")
    if budget["finetune"]:
        parts.append("finetuned")
    return ", ".join(parts)


def _details(budget: dict[str, Any]) -> str:
    """Averaging, rates and precision, which all runs of a trial share."""
    parts = [{"never": "no averaging"}.get(budget["optim.average"], "non-monotone averaging")]
    if budget["optim.average"] in ("epoch", "doubling"):
        anew = ", anew at every doubling" if budget["optim.average"] == "doubling" else ""
        parts = [f"averaging after epoch {budget['optim.average_epoch']}{anew}"]
    if budget["optim.decay_epoch"] is not None:
        parts.append(f"rates falling after epoch {budget['optim.decay_epoch']}")
    parts.append(budget["precision"] or "float32")
    if budget["model.head.products"] != "float32":
        parts.append(f"the head's products too in {budget['model.head.products']}")
    return ", ".join(parts)
