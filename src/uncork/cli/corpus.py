"""`uncork corpus`: fetch a public corpus, or count the words of a folder."""

from pathlib import Path

from uncork.lm import DataConfig, build_corpus
from uncork.lm.download import REMOTES, unpublished
from uncork.lm.progress import Progress


def corpus(name: str, /, root: Path = Path("data")) -> None:
    """Download a corpus if it is missing, print its sizes, and say whether it is the published text.

    Args:
        name: penn, wikitext-2, wikitext-103, embedded, or the path of a folder with your own text.
        root: Folder that holds named corpora.
    """
    progress = Progress(name)
    try:
        loaded = build_corpus(DataConfig(corpus=name, root=str(root)), progress.download)
    finally:
        progress.close()
    print(f"{loaded.num_words} words in the vocabulary")
    for split in ("train", "valid", "test"):
        print(f"{getattr(loaded, split).numel():>12} tokens in {split}")
    if name in REMOTES:
        unlike = unpublished(name, root / name)
        print(f"not the published text: {', '.join(unlike)}" if unlike else "the published text")
