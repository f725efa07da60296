"""A process that trains in children it kills: started by test_kill.py, not collected by pytest.

Importing torch once and forking makes a try cost a tenth of a second, so many moments are tried.
The process uses one thread, so that forking is safe.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from uncork import results
from uncork.lm import train, trainer
from uncork.recipes import build


KILLS = 12


def attempt(config, folder: Path, *, kill_at_rename: int | None) -> int:
    """Fork a child that trains; returns its pid. It may kill itself in the middle of a save."""
    child = os.fork()
    if child:
        return child
    if kill_at_rename is not None:
        original, left = os.replace, [kill_at_rename]

        def replace(source, target):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)  # written but not yet renamed
            original(source, target)

        results.os.replace = replace
    code = 1
    try:
        train(config, folder, resume=True)
        code = 0
    finally:
        os._exit(code)


def main(folder: Path, arguments: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    config = build("embedded_plif", arguments)
    # Built once, so that the moments of killing lie in training and not in preparing its text.
    corpus = trainer.build_corpus(config.data)
    trainer.build_corpus = lambda *_: corpus
    chance = random.Random(0)
    assert os.waitpid(attempt(config, folder / "whole", kill_at_rename=None), 0)[1] == 0
    began = time.monotonic()
    killed = finished = 0
    while killed < KILLS:
        in_save = killed % 3 == 0
        child = attempt(config, folder / "parts", kill_at_rename=chance.randint(3, 9) if in_save else None)
        if not in_save:
            time.sleep(chance.uniform(0.05, 0.4))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        killed += os.WIFSIGNALED(status)
        finished += status == 0
        if finished:
            break
    while os.waitpid(attempt(config, folder / "parts", kill_at_rename=None), 0)[1] != 0:
        raise SystemExit("a resumed run failed")
    print(f"killed {killed} finished_early {finished} seconds {time.monotonic() - began:.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(sys.argv[2:]))
