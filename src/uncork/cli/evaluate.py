"""`uncork evaluate`: perplexity of a trained run, plain or adapting."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from uncork.lm import batchify, build_corpus, cache_evaluation, dynamic_evaluation, load_run
from uncork.lm.config_io import override
from uncork.lm.evaluate import Score, evaluate as score_plainly, reading_length
from uncork.results import write_json


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


# What of a configuration still acts once the model is trained. The rest would be taken and change nothing.
ACTING = (
    "data.corpus", "data.root", "data.limit_tokens", "data.bptt", "data.valid_batch_size",
    "data.test_batch_size",
)  # fmt: skip

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
    _check_acting(overrides)
    for name, idle in (("dynamic", dynamic != DYNAMIC), ("cache", cache != CACHE)):
        if idle and name != method:
            raise ValueError(
                f"`--{name}.*` must come with the method they belong to, but `method` is {method!r}. "
                f"Add --method {name}, or leave them out."
            )
    model, config, words = load_run(run, device)
    config = override(config, overrides)
    corpus = build_corpus(config.data)
    if list(corpus.words) != words:
        raise ValueError(
            f"The corpus must have the vocabulary `{run}` was trained with, but it differs. "
            "Point data.root or data.corpus at the text of that run."
        )
    plain = method == "plain"
    columns = config.data.valid_batch_size if split == "valid" and plain else config.data.test_batch_size
    place = next(model.parameters()).device
    stream_TB = batchify(getattr(corpus, split), columns).to(place)
    score: Score
    if method == "dynamic":
        train_TB = batchify(corpus.train, 100).to(place)
        score = dynamic_evaluation(model, train_TB, stream_TB, **asdict(dynamic))
    elif method == "cache":
        score = cache_evaluation(model, stream_TB, **asdict(cache))
    else:
        score = score_plainly(model, stream_TB, reading_length(stream_TB, config.data.bptt))
    print(f"{split} perplexity {score.perplexity:.2f} over {score.predictions} predictions", flush=True)
    settings = {"plain": {}, "dynamic": asdict(dynamic), "cache": asdict(cache)}[method]
    said = {"split": split, "method": method, "settings": settings, "overrides": list(overrides)}
    _write(run / f"evaluation-{method}-{split}.json", _numbers(score) | said)


def _check_acting(overrides: tuple[str, ...]) -> None:
    idle = [change for change in overrides if change.partition("=")[0] not in ACTING]
    if idle:
        raise ValueError(
            f"`overrides` of an evaluation must be among {', '.join(ACTING)}: the model is as it was "
            f"trained; got {idle[0]!r}. Leave it out, or train with it; the device is given as --device."
        )


def _numbers(score: Score) -> dict[str, Any]:
    return {"nll": score.nll, "perplexity": score.perplexity, "predictions": score.predictions}


def _write(path: Path, record: dict[str, Any]) -> None:
    """Runs are read from places where nothing can be written; what was asked for is printed by then."""
    try:
        write_json(path, record)
    except OSError as error:
        print(f"uncork: `{path}` could not be written ({error.strerror}).", file=sys.stderr)
