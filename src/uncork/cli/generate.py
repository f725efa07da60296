"""`uncork generate`: text from a trained run."""

from pathlib import Path

from uncork.lm import generate as continue_text, load_run


def generate(
    run: Path,
    /,
    prompt: str = "",
    length: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> None:
    """Print text sampled from a run's best model.

    Args:
        run: Run folder.
        prompt: Words to continue, separated by spaces.
        length: Words to draw.
        temperature: Below 1 is safer, above 1 is wilder.
        top_k: Draw among so many likeliest words.
        top_p: Draw among the likeliest words with this much probability together.
        seed: The same seed draws the same text.
        device: Where to compute: cpu, cuda, cuda:0 or auto.
    """
    model, _, words = load_run(run, device)
    text = continue_text(
        model,
        words,
        prompt,
        length=length,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    print(text)
