"""`uncork evaluate`: perplexity of a trained run, plain or adapting."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

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
        overrides: Changes to its configuration, such as `data.root=elsewhere`.
        split: Text to read.
        method: `dynamic` lets the parameters follow the text, `cache` mixes in a neural cache.
        dynamic: Its rates.
        cache: Its sharpness, its share of the probability, and how many words it holds.
        device: Where to compute.
    """
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
    stream_TB = batchify(getattr(corpus, split), columns).to(device)
    score: Score
    if method == "dynamic":
        train_TB = batchify(corpus.train, 100).to(device)
        score = dynamic_evaluation(model, train_TB, stream_TB, **asdict(dynamic))
    elif method == "cache":
        score = cache_evaluation(model, stream_TB, **asdict(cache))
    else:
        score = score_plainly(model, stream_TB, reading_length(stream_TB, config.data.bptt))
    record = {"nll": score.nll, "perplexity": score.perplexity, "predictions": score.predictions}
    write_json(run / f"evaluation-{method}-{split}.json", record | {"split": split, "method": method})
    print(f"{split} perplexity {score.perplexity:.2f} over {score.predictions} predictions")
