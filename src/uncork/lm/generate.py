"""Text from a trained model."""

from collections.abc import Sequence

import torch

from uncork.lm.awd_lstm import LanguageModel
from uncork.lm.config import check_seed
from uncork.lm.corpus import END_OF_LINE, encode
from uncork.lm.evaluate import evaluation_mode


@torch.no_grad()
def generate(
    model: LanguageModel,
    words: Sequence[str],
    prompt: str = "",
    *,
    length: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> str:
    """Continue `prompt` by `length` words; a line ends where the model says `<eos>`.

    Words are drawn by the head itself, so a mixture samples from its mixture, not from a softmax.
    """
    if length < 0:
        raise ValueError(f"`length` must be zero or more; got {length}. Give a number of words such as 100.")
    check_seed(seed)
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    # Text starts after an end of line, as every line of the training text does.
    start = [words.index(END_OF_LINE)] if END_OF_LINE in words else [0]
    numbers = start + encode(prompt, words)
    drawn: list[int] = []
    with evaluation_mode(model):
        tokens_TB = torch.tensor(numbers, device=device)[:, None]
        states = None
        for _ in range(length):
            features = model.encoder(tokens_TB, states)
            states = features.states
            sampled_B = model.head.sample(  # pyright: ignore[reportCallIssue]
                features.dropped_TBD[-1],
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                generator=generator,
            )
            drawn.append(int(sampled_B.item()))
            tokens_TB = sampled_B[None]
    return join([*prompt.split(), *(words[number] for number in drawn)])


def join(words: Sequence[str]) -> str:
    """Words with spaces between, lines where `<eos>` stands."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word == END_OF_LINE:
            lines.append([])
        else:
            lines[-1].append(word)
    return "\n".join(" ".join(line) for line in lines)
