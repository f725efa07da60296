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
from uncork.report.language.corpora import CORPORA, by_text
from uncork.report.language.runs import LABELS, WIDTHS, Run, Size
from uncork.report.summary import Spread, spread
from uncork.results import DIVERGED


# What every arm of a comparison must share; the published mixtures have other widths and batches.
# `_title` and `_details` say all of it in words.
BUDGET = (
    "data.corpus", "text", "data.limit_tokens", "epochs", "max_steps", "finetune", "precision",
    "optim.rule", "optim.average", "optim.average_epoch", "optim.patience", "optim.decay_epoch",
    "model.head.products",
)  # fmt: skip
# Of these, what makes it another task.
START = ("data.corpus", "data.limit_tokens", "finetune")
# What is tuned for each head by itself: a control is the one that did best on valid, whatever these are.
TUNED = (
    "model.embedding_dropout", "model.input_dropout", "model.hidden_dropout", "model.output_dropout",
    "model.weight_dropout", "model.activation_penalty", "model.slowness_penalty",
    "optim.lr", "optim.weight_decay", "optim.beta2", "optim.clip",
)  # fmt: skip


@dataclass
class Arm:
    """One configuration; its finished runs differ by seed alone, so the first says what all of them are."""

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

    @property
    def size(self) -> Size:
        return self.runs[0].size

    def values(self, name: str) -> list[float]:
        return [run.result[name] for run in self.runs if run.result]

    @property
    def diverged(self) -> bool:
        """Whether its means tell nothing."""
        names = ("valid_perplexity", "test_perplexity")
        return any(value > DIVERGED for name in names for value in self.values(name))

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
    shared: tuple[str, ...] = ()  # what all runs change in their recipes, which names of arms leave out
    arms: list[Arm] = field(default_factory=list)
    begun: list[Arm] = field(default_factory=list)  # configurations of which no run has ended
    unfinished: list[Run] = field(default_factory=list)
    repeated: list[Run] = field(default_factory=list)  # of a seed that a later run has too
    forked: list[Run] = field(default_factory=list)  # that went on elsewhere too, and otherwise
    all_runs: list[Run] = field(default_factory=list)  # of this trial and of every other

    @property
    def runs(self) -> list[Run]:
        return [run for arm in self.arms for run in arm.runs]

    @property
    def changed_controls(self) -> list[tuple[Arm, Arm]]:
        """Heads whose softmax to compare with has settings of its own, and that one."""
        pairs = [(arm, self.softmax_of(arm)) for arm in self.arms]
        return [(arm, softmax) for arm, softmax in pairs if softmax and self._own_changes(softmax, arm)]

    def _own_changes(self, control: Arm, arm: Arm) -> list[str]:
        """Without those that all runs share, and widths that both have."""
        known = WIDTHS if control.size == arm.size else ()
        own = [change for change in control.changes if change not in self.shared]
        return [change for change in own if change.partition("=")[0] not in known]

    @property
    def tuned(self) -> list[list[Arm]]:
        """Heads of one size that were tried at several settings, the best on valid first."""
        return [arms for role in LABELS for arms in self._by_size(role) if len(arms) > 1]

    def best_by_size(self, role: str) -> list[Arm]:
        """Of each size the arm of a role that did best on valid."""
        return [arms[0] for arms in self._by_size(role)]

    def _by_size(self, role: str) -> list[list[Arm]]:
        found: dict[Size, list[Arm]] = defaultdict(list)
        for arm in sorted(self.arms, key=_mean_valid):
            if arm.role == role:
                found[arm.size].append(arm)
        return [_best_first(found[size]) for size in sorted(found)]

    def name_of(self, run: Run) -> str:
        """What its head is called in the tables, whether it has ended or not."""
        return next(arm.label for arm in (*self.arms, *self.begun) if arm.has_configuration_of(run))

    def size_name(self, arm: Arm) -> str:
        """Its size by what differs between heads, such as "width 8"; nothing where they have one size.

        Mixtures are apart: they are published at widths of their own, and sections say so.
        """
        mixture = arm.runs[0].is_mixture
        return arm.size.beside([other.size for other in self.arms if other.runs[0].is_mixture == mixture])

    def comparable(self, run: Run, role: str) -> list[Arm]:
        """Arms of a role that a run may be compared with: those of its size.

        Only a mixture may be with a plain head of another size, where there is none of its own.
        """
        arms = [arm for arm in self.arms if arm.role == role]
        alike = [arm for arm in arms if arm.size == run.size]
        return alike or [arm for arm in arms if run.is_mixture and not arm.runs[0].is_mixture]

    def best_beside(self, run: Run, role: str) -> Arm | None:
        """Of these the one that did best on valid."""
        arms = self.comparable(run, role)
        return _best_first(arms)[0] if arms else None

    def softmax_of(self, arm: Arm) -> Arm | None:
        """The softmax that a head is compared with; a softmax is compared with none."""
        return None if arm.role == "softmax" else self.control(arm, "softmax")

    def control(self, arm: Arm, role: str) -> Arm | None:
        """That of a role to compare with: the best on valid of the same batch too, else the plainest."""
        others = [other for other in self.comparable(arm.runs[0], role) if other is not arm]
        alike = [other for other in others if other.setting == arm.setting]
        if alike:
            return _best_first(alike)[0]
        plainest = lambda arm: (arm.runs[0].changes_unknown, len(arm.changes), _mean_valid(arm))
        return min(others, key=plainest, default=None)


def _perplexity_parts(result: dict[str, Any]) -> list[float] | None:
    """What each part of the test text makes of a run's perplexity: a nat there is worth as much of it."""
    nats = result.get("test_nll_parts")
    return nats and [result["test_perplexity"] * (1.0 + part - mean(nats)) for part in nats]


def _mean_valid(arm: Arm) -> float:
    return arm.spread("valid_perplexity").mean


def _best_first(arms: list[Arm]) -> list[Arm]:
    """The best on valid before the others, which keep their order.

    Two settings are compared on the seeds both have: one that was tried with a single seed must not be
    called the best because that seed does well with every setting. Those with most seeds come first.
    """
    best, *others = sorted(arms, key=lambda arm: (-len(arm.runs), _mean_valid(arm)))
    for other in others:
        if _valid_beside(other, best) < _valid_beside(best, other):
            best = other
    return [best, *(arm for arm in arms if arm is not best)]


def _valid_beside(arm: Arm, other: Arm) -> float:
    """The mean on valid over the seeds that the other has too; over all, where they share none."""
    seeds = {run.seed for run in other.runs}
    shared = [run.result["valid_perplexity"] for run in arm.runs if run.result and run.seed in seeds]
    return mean(shared) if shared else _mean_valid(arm)


def trials(runs: Iterable[Run]) -> list[Trial]:
    """Runs by corpus and budget, in the order of the corpora above."""
    groups: dict[str, list[Run]] = defaultdict(list)
    everyone = by_text(list(runs))
    for run in everyone:
        groups[json.dumps(_budget(run), sort_keys=True)].append(run)
    found = [_trial(json.loads(key), group) for key, group in groups.items()]
    for trial in found:
        trial.all_runs = everyone
    order = list(CORPORA)
    place = lambda corpus: order.index(corpus) if corpus in order else len(order)
    found.sort(key=lambda trial: (place(trial.budget["data.corpus"]), trial.title, trial.details))
    _tell_texts_apart(found)
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


def _tell_texts_apart(found: list[Trial]) -> None:
    """Where one name stood for several texts, the beginning of a fingerprint says which one is meant."""
    texts: dict[str, set[str | None]] = defaultdict(set)
    for trial in found:
        texts[trial.title].add(trial.budget["text"])
    for trial in found:
        if len(texts[trial.title]) > 1:
            text = trial.budget["text"]
            trial.title += f", text {text[:8]}" if text else ", text unknown"


def recipe_changes(run: Run) -> tuple[str, ...]:
    """What a run changes in its recipe. Without seed and budget, which are shown elsewhere."""
    known = ("seed", *BUDGET, *FREE)
    return tuple(change for change in run.overrides or () if change.partition("=")[0] not in known)


def budget_changes(run: Run) -> tuple[str, ...]:
    """What a run changes in the budget of its recipe, but for the text and the weights it begins with."""
    known = [name for name in BUDGET if name not in START]
    return tuple(change for change in run.overrides or () if change.partition("=")[0] in known)


def begins_elsewhere(run: Run) -> bool:
    """Whether it has another text than its recipe, or the weights of another run."""
    return any(change.partition("=")[0] in START for change in run.overrides or ())


def _values(run: Run) -> dict[str, Any]:
    """The configuration, but for whose weights a finetuned run began with: each seed has its own.

    The corpus is named as for every other run on its text.
    """
    values = deciding(run.config) | {"data.corpus": run.corpus, "text": run.text}
    return values | {"finetune": bool(values.get("finetune"))}


def configuration_of(run: Run) -> str:
    """What the runs of an arm share: everything but the seed."""
    return json.dumps({name: value for name, value in _values(run).items() if name != "seed"}, sort_keys=True)


def _budget(run: Run) -> dict[str, Any]:
    values = _values(run)
    budget = {name: values.get(name) for name in BUDGET}
    # Only the trigger in use counts. A finetuned run averages throughout and ends by the other one.
    if budget["finetune"]:
        budget["optim.average"] = None
    elif budget["optim.average"] != "non-monotone":
        budget["optim.patience"] = None
    if budget["optim.average"] not in ("epoch", "doubling"):
        budget["optim.average_epoch"] = None
    return budget


def _trial(budget: dict[str, Any], runs: list[Run]) -> Trial:
    corpus = PurePath(budget["data.corpus"]).name
    # Also a part of file names and links.
    place = re.sub(r"[^a-z0-9]+", "-", corpus.lower()).strip("-") or "corpus"
    trial = Trial(_title(budget), f"{place}-{budget['epochs']}", budget, _details(budget))
    trial.shared = _shared_changes(runs)
    arms: dict[str, dict[int, Run]] = defaultdict(dict)
    for run in sorted(runs, key=lambda run: run.started):
        if run.result is None:
            trial.unfinished.append(run)
            continue
        by_seed = arms[configuration_of(run)]
        former = by_seed.setdefault(run.seed, run)
        if former is run:
            continue
        if run.started and run.started == former.started:
            other, by_seed[run.seed] = sorted((former, run), key=_exactness)
            trial.forked.append(other)
        else:
            trial.repeated.append(former)
            by_seed[run.seed] = run
    by_arm = [[by_seed[seed] for seed in sorted(by_seed)] for by_seed in arms.values()]
    trial.arms = [_arm(group, trial.shared) for group in by_arm]
    begun = {key: run for run in trial.unfinished if (key := configuration_of(run)) not in arms}
    trial.begun = [_arm([run], trial.shared) for run in begun.values()]
    _tell_apart([*trial.arms, *trial.begun])
    trial.arms.sort(key=lambda arm: (list(LABELS).index(arm.role), len(arm.changes), arm.label))
    return trial


def _exactness(run: Run) -> tuple[bool, str]:
    """Of two ways from one start the last in this order counts, in whatever order they were read."""
    return not run.is_carried, json.dumps([run.metrics, run.result], sort_keys=True)


def _shared_changes(runs: list[Run]) -> tuple[str, ...]:
    """What every run changes in its recipe, which tells none from another."""
    if len({configuration_of(run) for run in runs}) == 1:  # nothing needs to be told apart
        return ()
    first, *others = [recipe_changes(run) for run in runs]
    return tuple(change for change in first if all(change in each for each in others))


def _arm(runs: list[Run], shared: tuple[str, ...]) -> Arm:
    first = runs[0]
    head_free = {
        name: value
        for name, value in _values(first).items()
        if name not in ("name", "seed", *TUNED) and not name.startswith("model.head")
    }
    return Arm(_label(first, shared), first.role, json.dumps(head_free, sort_keys=True), runs)


def _label(run: Run, shared: tuple[str, ...]) -> str:
    """The head, and in brackets what the run changes in its recipe, unless all do."""
    if run.changes_unknown:
        return f"{run.label} (changes unknown)"
    changes = ", ".join(short(change) for change in recipe_changes(run) if change not in shared)
    return f"{run.label} ({changes})" if changes else run.label


def short(change: str) -> str:
    """Without the parts of a path that say nothing here."""
    return change.removeprefix("model.").removeprefix("head.").removeprefix("function.options.")


def _tell_apart(arms: list[Arm]) -> None:
    """Arms named alike, of recipes that have changed or are somebody's own, get what differs in brackets."""
    alike: dict[str, list[Arm]] = defaultdict(list)
    for arm in arms:
        alike[arm.label].append(arm)
    for group in alike.values():
        values = [_values(arm.runs[0]) for arm in group]
        names = sorted({name for each in values for name in each if name != "seed"})
        differing = [name for name in names if len({repr(each.get(name)) for each in values}) > 1]
        for arm, each in zip(group, values, strict=True):
            texts = [short(f"{name}={each.get(name)}") for name in differing]
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


def _averaging(budget: dict[str, Any]) -> str:
    """When averages begin; of finetuned runs also when they end."""
    patience = f" (patience {budget['optim.patience']})"
    if budget["finetune"]:
        return f"averaging from the first step, until valid stops improving{patience}"
    after = f"averaging after epoch {budget['optim.average_epoch']}"
    return {
        "never": "no averaging",
        "epoch": after,
        "doubling": f"{after}, anew at every doubling",
    }.get(budget["optim.average"], f"non-monotone averaging{patience}")


def _details(budget: dict[str, Any]) -> str:
    """Averaging, rates and precision, which all runs of a trial share."""
    parts = [_averaging(budget)]
    if budget["optim.rule"] == "adam":
        parts.insert(0, "Adam without momentum")
    if budget["optim.decay_epoch"] is not None:
        parts.append(f"rates falling after epoch {budget['optim.decay_epoch']}")
    parts.append(budget["precision"] or "float32")
    if budget["model.head.products"] != "float32":
        parts.append(f"the head's products too in {budget['model.head.products']}")
    return ", ".join(parts)
