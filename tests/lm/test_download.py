"""Downloads against a server of our own, which fails in every way a real one does."""

import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from uncork.lm import download
from uncork.lm.download import REMOTES, Remote, ensure, fetch


TEXT = b"a b\nc\n" * 100


@pytest.fixture
def server():
    """Answers by path; `failures` counts down the errors before an answer."""

    class Handler(BaseHTTPRequestHandler):
        bodies: dict[str, bytes] = {}
        failures = 0
        asked: list[str] = []
        cut = False
        in_pieces = False
        url = ""

        def do_GET(self):
            cls = type(self)
            cls.asked.append(self.headers["User-Agent"])
            if cls.failures > 0:
                cls.failures -= 1
                self.send_error(503)
                return
            if self.path not in cls.bodies:
                self.send_error(404)
                return
            body = cls.bodies[self.path]
            self.send_response(200)
            if cls.in_pieces:
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if cls.in_pieces:
                self.wfile.write(f"{len(body):x}\r\n".encode())
            self.wfile.write(body[: len(body) // 2] if cls.cut else body)

        def log_message(self, format, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.02,))
        thread.start()
        Handler.url = f"http://127.0.0.1:{httpd.server_port}"
        yield Handler
        httpd.shutdown()
        thread.join()


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def split_remotes(server, limit=10_000):
    for split in ("train", "valid", "test"):
        server.bodies[f"/{split}"] = TEXT
    return tuple(
        Remote(url=f"{server.url}/{split}", checksum=sha256(TEXT), limit_bytes=limit, split=split)
        for split in ("train", "valid", "test")
    )


def test_splits_are_fetched_once_with_progress(server, tmp_path):
    calls = []
    remotes = split_remotes(server)
    for _ in range(2):
        ensure("x", tmp_path, remotes=remotes, progress=lambda *call: calls.append(call))
    assert (tmp_path / "valid.txt").read_bytes() == TEXT
    assert calls[-1][1:] == (len(TEXT), len(TEXT))
    assert len(server.asked) == 3  # the second call found all files
    assert "Mozilla" in server.asked[0]


def test_failures_are_retried(server, tmp_path):
    server.failures = 2
    ensure("x", tmp_path, remotes=split_remotes(server), attempts=3, pause_s=0.01)
    assert (tmp_path / "test.txt").read_bytes() == TEXT


def test_missing_pages_are_not_asked_for_again(server, tmp_path):
    remote = Remote(url=f"{server.url}/no", checksum=sha256(b""), limit_bytes=10, split="train")
    with pytest.raises(OSError, match="404"):
        fetch(remote, pause_s=0.01)
    assert len(server.asked) == 1


def test_offline_message_says_where_files_go(tmp_path):
    remote = Remote(url="http://127.0.0.1:9/x", checksum=sha256(b""), limit_bytes=10, split="train")
    with pytest.raises(OSError, match=r"put train.txt, valid.txt and test.txt into .*corpus"):
        ensure("x", tmp_path / "corpus", remotes=(remote,), attempts=2, pause_s=0.01)
    assert not (tmp_path / "corpus").exists()


def test_wrong_content_is_refused(server, tmp_path):
    remotes = split_remotes(server)
    server.bodies["/train"] = TEXT[:-1] + b"x"
    with pytest.raises(OSError, match="must have sha256"):
        ensure("x", tmp_path, remotes=remotes, attempts=2, pause_s=0.01)
    assert list(tmp_path.iterdir()) == []


def test_broken_transfer_is_refused(server, tmp_path):
    remotes = split_remotes(server)
    server.cut = True
    with pytest.raises(OSError, match=r"ended after 300 of 600 bytes.*put train.txt, valid.txt and test.txt"):
        ensure("x", tmp_path, remotes=remotes, attempts=2, pause_s=0.01)
    assert list(tmp_path.iterdir()) == [] and len(server.asked) == 2


def test_an_answer_in_pieces_that_breaks_off_is_refused(server, tmp_path):
    remotes = split_remotes(server)
    server.cut = server.in_pieces = True
    with pytest.raises(OSError, match=r"broke off.*put train.txt, valid.txt and test.txt"):
        ensure("x", tmp_path, remotes=remotes, attempts=2, pause_s=0.01)
    assert list(tmp_path.iterdir()) == [] and len(server.asked) == 2


def test_size_is_limited(server, tmp_path):
    with pytest.raises(ValueError, match="limit of 50 bytes"):
        ensure("x", tmp_path, remotes=split_remotes(server, limit=50))


def archive(server, members, extra=()):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        for _, name, _ in members:
            zipped.writestr(name, TEXT)
        for name in extra:
            zipped.writestr(name, b"outside")
    server.bodies["/zip"] = buffer.getvalue()
    return Remote(
        url=f"{server.url}/zip",
        checksum=sha256(buffer.getvalue()),
        limit_bytes=100_000,
        members=tuple(members),
    )


def test_archives_cannot_write_outside(server, tmp_path):
    members = [(s, f"../../w/{s}.tokens", sha256(TEXT)) for s in ("train", "valid", "test")]
    remote = archive(server, members, extra=["../../evil.txt", "/tmp/evil.txt"])
    ensure("x", tmp_path / "a" / "b", remotes=(remote,))
    written = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.*"))
    assert written == ["a/b/test.txt", "a/b/train.txt", "a/b/valid.txt"]


def test_members_are_checked_and_limited(server, tmp_path, monkeypatch):
    members = [(s, s, "sha1:" + "0" * 40) for s in ("train", "valid", "test")]
    with pytest.raises(OSError, match="train must have sha1"):
        ensure("x", tmp_path, remotes=(archive(server, members),))
    monkeypatch.setattr(download, "MEMBER_LIMIT_BYTES", 100)
    with pytest.raises(ValueError, match="unpacks to over 100 bytes"):
        ensure("x", tmp_path, remotes=(archive(server, members),))


def test_unknown_corpus_is_named(tmp_path):
    with pytest.raises(ValueError, match="one of penn, wikitext-2, wikitext-103.*got 'pen'"):
        ensure("pen", tmp_path)


def test_local_penn_has_the_hashes_we_demand(penn):
    for remote in REMOTES["penn"]:
        download.check((penn / f"{remote.split}.txt").read_bytes(), remote.checksum, "penn")


def test_local_wikitext2_has_the_hashes_we_demand(wikitext2):
    for split, name, checksum in REMOTES["wikitext-2"][0].members:
        download.check((wikitext2 / f"{split}.txt").read_bytes(), checksum, name)
