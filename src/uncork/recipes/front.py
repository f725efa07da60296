"""What the commands share, with the command-line extra and without: how they end, and what they say."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from uncork.lm import Config, Interrupted, train
from uncork.results import perplexity_text


def exit_code(action: Callable[[], int]) -> int:
    """That of `action`, or 2 for bad input, with what was wrong on stderr."""
    try:
        return action()
    except BrokenPipeError:  # the reader of a pipe has had enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as if SIGPIPE had ended it
    except (ValueError, TypeError, OSError) as error:
        print(f"uncork: {error}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not _ran_out_of_memory(error):
            raise
        print("uncork: memory ran out. Choose a smaller model, batch or table.", file=sys.stderr)
        return 2


def _ran_out_of_memory(error: BaseException) -> bool:
    """Torch says it of a GPU by a class of its own, of a CPU in words."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def report_training(config: Config, folder: str | Path, resume: bool) -> int:
    """Train, and say what came out, or that it was stopped."""
    try:
        result = train(config, folder, resume=resume)
    except Interrupted as interruption:
        print(f"uncork: {interruption}", file=sys.stderr)
        return interruption.exit_code
    valid, test = (perplexity_text(result[f"{split}_perplexity"]) for split in ("valid", "test"))
    print(f"{folder}: valid {valid}  test {test}")
    return 0
