"""Downloads from a real HTTP server: transient errors are retried, others reported, and no partial file remains."""

import hashlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from common import downloads
from common.downloads import Jar, ensure_jars, read_lock
from common.errors import DownloadError

CONTENT = b"a jar" * 1000
JAR = Jar("org.example", "thing_2.13", "1.2.3", hashlib.sha256(CONTENT).hexdigest())


class Repository:
    """A Maven repository with scripted answers that records its requests."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:  # noqa: N805
                self.asked.append(handler.path)
                status, body = self.answers.pop(0) if self.answers else (200, CONTENT)
                handler.send_response(status)
                handler.send_header("Content-Length", str(len(CONTENT)))
                handler.end_headers()
                handler.wfile.write(body)

            def log_message(handler, *_: object) -> None:  # noqa: N805
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/maven2/"


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    monkeypatch.setattr(downloads, "_FIRST_WAIT_S", 0.01)
    server_of_jars = Repository()
    yield server_of_jars
    server_of_jars.server.shutdown()
    server_of_jars.server.server_close()


@pytest.fixture
def environ(repository: Repository, tmp_path: Path) -> dict[str, str]:
    return {"KDE_MAVEN_URL": repository.url, "XDG_CACHE_HOME": str(tmp_path)}


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


def test_jar_is_fetched_once(repository: Repository, environ: dict[str, str]) -> None:
    [first] = ensure_jars([JAR], environ)
    assert first.read_bytes() == CONTENT
    assert first.name == "thing_2.13-1.2.3.jar"
    assert first.stat().st_mode & 0o777 == 0o644  # an image is filled by root and run by another user
    assert ensure_jars([JAR], environ) == (first,)
    assert repository.asked == ["/maven2/org/example/thing_2.13/1.2.3/thing_2.13-1.2.3.jar"]


@pytest.mark.parametrize("answer", [(503, CONTENT), (429, CONTENT), (200, CONTENT[:100])])
def test_transient_errors_are_retried(
    repository: Repository, environ: dict[str, str], answer: tuple[int, bytes], tmp_path: Path
) -> None:
    repository.answers = [answer, answer]
    [jar] = ensure_jars([JAR], environ)
    assert jar.read_bytes() == CONTENT
    assert files(tmp_path) == [JAR.name]


def test_wrong_checksum_is_refused_and_not_kept(
    repository: Repository, environ: dict[str, str], tmp_path: Path
) -> None:
    repository.answers = [(200, CONTENT[::-1])]
    with pytest.raises(DownloadError, match="SHA-256"):
        ensure_jars([JAR], environ)
    assert files(tmp_path) == []


def test_missing_jar_fails_without_a_retry(repository: Repository, environ: dict[str, str]) -> None:
    repository.answers = [(404, CONTENT)]
    with pytest.raises(DownloadError, match=r"thing_2\.13-1\.2\.3\.jar .*404"):
        ensure_jars([JAR], environ)
    assert len(repository.asked) == 1


def test_lock_file_is_parsed_and_errors_name_the_line(tmp_path: Path) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text(f"# a comment\n\n[one]\n{JAR.line}\n[two]\n", "utf-8")
    assert read_lock(lock) == {"one": (JAR,), "two": ()}
    lock.write_text("[one]\nnonsense\n", "utf-8")
    with pytest.raises(DownloadError, match="line 2"):
        read_lock(lock)
