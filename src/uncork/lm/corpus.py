"""A folder of text files as token streams, and the batches a recurrent model reads from them.

The rule is that of the reference implementations: words are split at white space, every line ends
in `<eos>` (so an empty line is one `<eos>`), and a word's number is its order of appearance over
train, valid and test. Shapes: T time steps, B parallel streams.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor


END_OF_LINE = "<eos>"
SPLITS = ("train", "valid", "test")
# The names under which the splits circulate: plain, Mikolov's Penn Treebank, WikiText.
FILE_NAMES = ("{split}.txt", "ptb.{split}.txt", "wiki.{split}.tokens")


@dataclass(frozen=True)
class Corpus:
    """Three token streams over one vocabulary; `words[i]` is the word numbered i."""

    words: tuple[str, ...]
    train: Tensor
    valid: Tensor
    test: Tensor

    @property
    def num_words(self) -> int:
        return len(self.words)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of words and streams: a resumed run must meet the corpus it was started on."""
        digest = hashlib.sha256("\n".join(self.words).encode())
        for stream in (self.train, self.valid, self.test):
            digest.update(stream.numpy().tobytes())
        return digest.hexdigest()

    @classmethod
    def from_folder(cls, folder: str | Path) -> "Corpus":
        """Read the three splits (`train.txt`, `ptb.train.txt` or `wiki.train.tokens`, ...)."""
        paths = [find_split(folder, split) for split in SPLITS]
        numbers: dict[str, int] = {}
        streams = []
        for path in paths:
            try:
                with open(path, encoding="utf-8-sig") as lines:  # a mark in front is no part of a word
                    streams.append(_number(lines, numbers))
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"`{path}` must be text in UTF-8, but line {_first_undecodable(path)} is not "
                    f"({error.reason}). Convert the file, for instance with iconv."
                ) from error
        return cls(tuple(numbers), *streams)

    @classmethod
    def from_lines(cls, train: Iterable[str], valid: Iterable[str], test: Iterable[str]) -> "Corpus":
        """The same rule over lines already in memory."""
        numbers: dict[str, int] = {}
        streams = [_number(lines, numbers) for lines in (train, valid, test)]
        return cls(tuple(numbers), *streams)


def find_split(folder: str | Path, split: str) -> Path:
    """The file of one split in `folder`, under any of its usual names."""
    names = [name.format(split=split) for name in FILE_NAMES]
    for name in names:
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    raise FileNotFoundError(
        f"`folder` must hold the {split} split under one of the names {', '.join(names)}, "
        f"but `{folder}` has none of them. Put the file there, or name another folder."
    )


def _first_undecodable(path: Path) -> int:
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    raise AssertionError("it has been found not to be UTF-8")


def encode(text: str, words: Sequence[str], unknown: str = "<unk>") -> list[int]:
    """Number the words of `text`; words it does not know become `unknown` where the vocabulary has it."""
    numbers = {word: number for number, word in enumerate(words)}
    encoded = [numbers.get(word, numbers.get(unknown)) for word in text.split()]
    if None in encoded:
        unheard = text.split()[encoded.index(None)]
        raise ValueError(
            f"`text` must use words of the vocabulary, which has no {unknown!r} for others; "
            f"got {unheard!r}. Use words of the corpus, separated by spaces."
        )
    return [number for number in encoded if number is not None]


def batchify(stream: Tensor, batch_size: int, name: str = "batch_size") -> Tensor:
    """Cut a stream into `batch_size` equal columns (T, B); the remainder is dropped.

    `name` is what an error calls the size.
    """
    steps = stream.numel() // batch_size if batch_size > 0 else 0
    if steps < 2:
        raise ValueError(
            f"`{name}` must leave at least 2 tokens per column; got {batch_size} for a stream "
            f"of {stream.numel()} tokens. Use a smaller batch or more text."
        )
    return stream[: steps * batch_size].view(batch_size, steps).t().contiguous()


def window(stream_TB: Tensor, start: int, length: int) -> tuple[Tensor, Tensor]:
    """Inputs and next-word targets for `length` steps from `start`, fewer at the end."""
    length = min(length, stream_TB.shape[0] - 1 - start)
    return stream_TB[start : start + length], stream_TB[start + 1 : start + 1 + length]


def windows(stream_TB: Tensor, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets of the whole stream, `length` steps at a time."""
    for start in range(0, stream_TB.shape[0] - 1, length):
        yield window(stream_TB, start, length)


def following(stream_TB: Tensor, start: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """`window` for a start that lies on the device and is not read back; all `length` steps must exist."""
    rows_T = start + torch.arange(length + 1, device=stream_TB.device)
    read_TB = stream_TB.index_select(0, rows_T)
    return read_TB[:-1], read_TB[1:]


def _number(lines: Iterable[str], numbers: dict[str, int]) -> Tensor:
    # A typed array, not a list: WikiText-103 has 103 million tokens.
    stream = array("q")
    for line in lines:
        for word in line.split():
            stream.append(numbers.setdefault(word, len(numbers)))
        stream.append(numbers.setdefault(END_OF_LINE, len(numbers)))
    if not stream:  # which frombuffer refuses
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(stream, dtype=torch.int64)
