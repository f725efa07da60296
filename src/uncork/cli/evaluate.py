"""`uncork evaluate`: perplexity of a trained run, plain or adapting."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from uncork.lm import (
    Corpus,
    DataConfig,
    LanguageModel,
    batchify,
    build_corpus,
    cache_evaluation,
    dynamic_evaluation,
    load_run,
)
from uncork.lm.config_io import override
from uncork.lm.evaluate import Score, evaluate as score_plainly, reading_length
from uncork.results import perplexity_text, write_json


Method = Literal["plain", "dynamic", "cache"]


@dataclass(frozen=True)
class Dynamic:
    """Settings of dynamic evaluation; the defaults are those published for AWD-LSTM."""

    lr: float = 0.002
    decay: float = 0.02
    epsilon: float = 0.001


@dataclass(frozen=True)
class Cache:
    """Settings of the neural cache; the defaults are those published for Penn."""

    theta: float = 1.0
    share: float = 0.1
    size: int = 500


# The overrides that still have an effect once the model is trained, whatever is asked for.
OF_TEXT = ("data.corpus", "data.root", "data.limit_tokens")

DYNAMIC = Dynamic()
CACHE = Cache()


def evaluate(
    run: Path,
    overrides: tuple[str, ...] = (),
    /,
    split: Literal["train", "valid", "test"] = "test",
    method: Method = "plain",
    dynamic: Dynamic = DYNAMIC,
    cache: Cache = CACHE,
    device: str = "cpu",
) -> None:
    """Print the perplexity of a run's best model and write it to `evaluation-METHOD-SPLIT.json`.

    Args:
        run: Run folder.
        overrides: Changes to its configuration, such as `data.root=elsewhere`; only those of the text read.
        split: Text to read.
        method: `dynamic` lets the parameters follow the text, `cache` mixes in a neural cache.
        dynamic: Its rates.
        cache: Its sharpness, its share of the probability, and how many words it holds.
        device: Where to compute: cpu, cuda, cuda:0 or auto.
    """
    _check_acting(overrides, split, method)
    _check_settings(method, dynamic, cache)
    model, config, words = load_run(run, device)
    data = override(config, overrides).data
    corpus = build_corpus(data)
    if list(corpus.words) != words:
        raise ValueError(
            f"The corpus must have the vocabulary `{run}` was trained with, but it differs. "
            "Point data.root or data.corpus at the text of that run."
        )
    settings = {"plain": {}, "dynamic": asdict(dynamic), "cache": asdict(cache)}[method]
    score = _score(model, data, corpus, split, method, settings)
    found = perplexity_text(score.perplexity)
    print(f"{split} perplexity {found} over {score.predictions} predictions", flush=True)
    record = {
        "nll": score.nll, "perplexity": score.perplexity, "predictions": score.predictions,
        "split": split, "method": method, "settings": settings, "overrides": list(overrides),
    }  # fmt: skip
    _write(run / f"evaluation-{method}-{split}.json", record)


def _score(
    model: LanguageModel,
    data: DataConfig,
    corpus: Corpus,
    split: str,
    method: Method,
    settings: dict[str, Any],
) -> Score:
    place = next(model.parameters()).device
    columns = _columns(split, method)
    stream_TB = batchify(getattr(corpus, split), getattr(data, columns), f"data.{columns}").to(place)
    if method == "dynamic":
        # The published columns of the text whose gradients are read first, or as many as a short one fills.
        train_TB = batchify(corpus.train, min(100, len(corpus.train) // 2)).to(place)
        return dynamic_evaluation(model, train_TB, stream_TB, **settings)
    if method == "cache":
        return cache_evaluation(model, stream_TB, **settings)
    return score_plainly(model, stream_TB, reading_length(stream_TB, data.bptt))


def _check_settings(method: Method, dynamic: Dynamic, cache: Cache) -> None:
    """Refuse settings of a method that is not used."""
    for name, changed in (("dynamic", dynamic != DYNAMIC), ("cache", cache != CACHE)):
        if changed and name != method:
            raise ValueError(
                f"`--{name}.*` must come with the method they belong to, but `method` is {method!r}. "
                f"Add --method {name}, or leave them out."
            )


def _columns(split: str, method: Method) -> str:
    """The setting that says into how many columns the text is cut."""
    return "valid_batch_size" if split == "valid" and method == "plain" else "test_batch_size"


def _check_acting(overrides: tuple[str, ...], split: str, method: Method) -> None:
    """Refuse overrides that would be accepted and change nothing."""
    acting = (*OF_TEXT, f"data.{_columns(split, method)}", *(("data.bptt",) if method == "plain" else ()))
    idle = [change for change in overrides if change.partition("=")[0] not in acting]
    if idle:
        raise ValueError(
            f"`overrides` of this evaluation ({method}, {split}) must be among {', '.join(acting)}: the "
            f"model is as it was trained; got {idle[0]!r}. Leave it out, or train with it; the device is "
            "given as --device."
        )


def _write(path: Path, record: dict[str, Any]) -> None:
    """Write, if the run lies where that is possible; the result has been printed already."""
    try:
        write_json(path, record)
    except OSError as error:
        print(f"uncork: `{path}` could not be written ({error.strerror}).", file=sys.stderr)
