"""A corpus for machines with no data: seeded text from a process whose distributions are known.

The next word depends on the previous word and on the class of the word before it, through one
row per context of a table P (contexts C, words V). Rows are Dirichlet draws around a Zipf law, so
the matrix log P has full rank: a softmax over D < V dimensions cannot represent it, and because
P is known, a model's true cross-entropy, KL divergence and mode matching can be computed.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from uncork.lm.corpus import END_OF_LINE, Corpus, batchify, windows


class ScoresNextWord(Protocol):
    """What `compare` needs of a model: scores (T, B, V) for the next word, and its state."""

    def __call__(self, tokens_TB: Tensor, state: object = None) -> tuple[Tensor, object]: ...


@dataclass(frozen=True)
class Process:
    """Word 0 is `<eos>`; `context` numbers the rows of the table."""

    table_CV: np.ndarray
    classes: int

    @property
    def num_words(self) -> int:
        return self.table_CV.shape[1]

    def context(self, previous: Tensor, before: Tensor) -> Tensor:
        return previous * self.classes + before % self.classes

    def sample(self, length: int, seed: int) -> np.ndarray:
        """`length` word numbers, starting after an end of line."""
        # Inverse transform on uniform numbers drawn at once: one binary search per word.
        uniform = np.random.default_rng(seed).random(length)
        cumulative_CV = np.cumsum(self.table_CV, axis=1)
        cumulative_CV[:, -1] = 1.0
        words = np.empty(length, dtype=np.int64)
        previous, before = 0, 0
        for position in range(length):
            row = cumulative_CV[previous * self.classes + before % self.classes]
            words[position] = row.searchsorted(uniform[position], side="right")
            previous, before = int(words[position]), previous
        return words


def make_process(
    *,
    words: int = 300,
    classes: int = 2,
    concentration: float = 20.0,
    line_length: float = 12.0,
    seed: int = 0,
) -> Process:
    """Draw a process. A smaller `concentration` gives sharper rows, farther from one another."""
    if words < 3 or classes < 1 or concentration <= 0 or line_length <= 1:
        raise ValueError(
            "`words` must be at least 3, `classes` at least 1, `concentration` positive and "
            f"`line_length` above 1; got {words}, {classes}, {concentration}, {line_length}."
        )
    random = np.random.default_rng(seed)
    zipf = 1.0 / np.arange(2, words + 1)
    zipf /= zipf.sum()
    rows = random.dirichlet(concentration * zipf, size=words * classes)
    # A floor keeps every log-probability finite, so that a KL divergence is never infinite.
    rows = 0.95 * rows + 0.05 * zipf
    ends = np.full((words * classes, 1), 1.0 / line_length)
    return Process(np.concatenate([ends, (1.0 - ends) * rows], axis=1), classes)


def make_corpus(
    process: Process,
    *,
    train: int = 200_000,
    valid: int = 20_000,
    test: int = 20_000,
    seed: int = 0,
    limit: int | None = None,
) -> Corpus:
    """Text of the process as a corpus, whose word numbers are those of the process.

    With `limit` each part has at most that many words, the first of those it would have without.
    """
    names = (END_OF_LINE, *(f"w{number:03d}" for number in range(1, process.num_words)))
    streams = [
        torch.from_numpy(process.sample(length if limit is None else min(length, limit), seed * 3 + part + 1))
        for part, length in enumerate((train, valid, test))
    ]
    return Corpus(names, *streams)


@dataclass(frozen=True)
class Comparison:
    """A model against the process, in nats per word; `mode_matching` is a share of contexts."""

    true_cross_entropy: float
    model_cross_entropy: float
    kl: float
    mode_matching: float
    words: int


@torch.no_grad()
def compare(
    model: ScoresNextWord,
    process: Process,
    stream: Tensor,
    *,
    batch_size: int = 10,
    length: int = 70,
) -> Comparison:
    """How far the model's distributions are from the true ones, on average over a text of the process.

    `true_cross_entropy` is that of the process with itself over the same contexts, and
    `model_cross_entropy` is `true_cross_entropy + kl`: both are expectations, not samples.
    """
    table_CV = torch.from_numpy(process.table_CV)
    stream_TB = batchify(stream, batch_size)
    before_TB = torch.cat([torch.zeros_like(stream_TB[:1]), stream_TB[:-1]])
    entropy = kl = matches = 0.0
    state, start = None, 0
    for tokens_TB, _ in windows(stream_TB, length):
        scores_TBV, state = model(tokens_TB, state)
        steps = tokens_TB.shape[0]
        true_NV = table_CV[process.context(tokens_TB, before_TB[start : start + steps]).flatten().cpu()]
        log_NV = scores_TBV.flatten(0, 1).double().cpu().log_softmax(-1)
        # The word before a column's first one is unknown, except for the column that opens the stream.
        # So the first row is left out.
        keep = slice(batch_size if start == 0 else 0, None)
        log_true_NV = true_NV[keep].log()
        entropy -= (true_NV[keep] * log_true_NV).sum().item()
        kl += (true_NV[keep] * (log_true_NV - log_NV[keep])).sum().item()
        matches += (true_NV[keep].argmax(-1) == log_NV[keep].argmax(-1)).sum().item()
        start += steps
    total = (stream_TB.shape[0] - 2) * batch_size
    return Comparison(entropy / total, (entropy + kl) / total, kl / total, matches / total, total)
