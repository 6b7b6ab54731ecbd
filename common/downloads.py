"""Jars from Maven Central by plain downloads, each checked against a lock file.

Rules:

1. A lock file names every jar exactly, with its SHA-256. Nothing is resolved on a user's machine, and a downloaded file
   is used only if its checksum is the lock's.
2. A file appears in the cache under its own name only when it is complete and checked (a temporary file next to it,
   then a rename), so two processes may fetch the same jar at once, and cached files are used without a check.
3. Transient errors (a reset connection, a 503) are retried; permanent ones (a 404, a wrong checksum) fail at once,
   with the URL and the remedy.

The cache is ``$XDG_CACHE_HOME/kafka-delta-express`` (``~/.cache`` by default); ``KDE_MAVEN_URL`` sets another
repository with Maven's layout.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from common.errors import DownloadError

MAVEN_URL = "https://repo1.maven.org/maven2"
READABLE = 0o644
"""Permissions of fetched files, which are public: an image's cache is filled by root and read by another user."""
_ATTEMPTS = 5
_TIMEOUT_S = 60
_PARALLEL = 6
_FIRST_WAIT_S = 0.5
_SERVER_ERROR = 500
_TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"

    @property
    def line(self) -> str:
        """The jar's line in a lock file; `parse` is the inverse."""
        return f"{self.sha256} {self.group}:{self.artifact}:{self.version}"

    @classmethod
    def parse(cls, line: str) -> Jar:
        sha256, coordinates = line.split()
        group, artifact, version = coordinates.split(":")
        return cls(group, artifact, version, sha256)


class _PassingError(Exception):
    """A transient failure."""


def read_lock(path: Path) -> Mapping[str, tuple[Jar, ...]]:
    """The groups of a lock file: ``[group]`` lines, each followed by its jars; ``#`` starts a comment."""
    groups: dict[str, list[Jar]] = {}
    jars: list[Jar] = []
    for number, raw in enumerate(path.read_text("utf-8").splitlines(), start=1):
        line = raw.partition("#")[0].strip()
        if line.startswith("[") and line.endswith("]"):
            jars = groups.setdefault(line[1:-1], [])
        elif line:
            try:
                jars.append(Jar.parse(line))
            except ValueError:
                msg = f"{path}, line {number}: {line!r} is not '<sha256> <group>:<artifact>:<version>'"
                raise DownloadError(msg, "restore the file from the release") from None
    return {group: tuple(requirements) for group, requirements in groups.items()}


def ensure_jars(jars: Sequence[Jar], environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The paths of the jars on this machine, in the given order; downloads missing ones first."""
    base = environ.get("KDE_MAVEN_URL", MAVEN_URL).rstrip("/")
    cache = cache_folder(environ) / "jars"

    def ensure(jar: Jar) -> Path:
        # The checksum is part of the path: another lock's jar with the same name is another file.
        target = cache / jar.sha256[:16] / jar.name
        if not target.exists():
            fetch(f"{base}/{jar.path}", target, jar.sha256)
        return target

    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="download") as pool:
        return tuple(pool.map(ensure, jars))


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The project's folder for files that can be fetched again."""
    base = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kafka-delta-express"


def fetch(url: str, target: Path, sha256: str) -> None:
    """Download ``url`` to ``target``, whose content then has the given SHA-256; raises DownloadError."""
    # Imported here: code that only needs the cache's path does without it.
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter  # noqa: PLC0415

    attempts = Retrying(
        retry=retry_if_exception_type(_PassingError),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_exponential_jitter(multiplier=_FIRST_WAIT_S, max=10),
        reraise=True,
    )
    try:
        attempts(_fetch_once, url, target, sha256)
    except _PassingError as error:
        msg = f"{url} could not be downloaded in {_ATTEMPTS} attempts: {error}"
        raise DownloadError(msg, "check the network, or set KDE_MAVEN_URL to a repository in reach") from error


def _fetch_once(url: str, target: Path, sha256: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "w+b") as file:
            _download(url, file)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != sha256:
            msg = f"{url} has the SHA-256 {digest}, and the lock file says {sha256}"
            raise DownloadError(msg, "something between here and the repository changed it; do not use it")
        part.chmod(READABLE)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _download(url: str, file: BinaryIO) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "kafka-delta-express"})  # noqa: S310 - the operator's
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
            shutil.copyfileobj(response, file, 1 << 20)
            expected = response.headers.get("Content-Length")
    except urllib.error.HTTPError as error:
        if error.code >= _SERVER_ERROR or error.code == _TOO_MANY_REQUESTS:
            raise _PassingError(str(error)) from error
        msg = f"{url} could not be downloaded: {error}"
        raise DownloadError(msg, "check KDE_MAVEN_URL, and that the repository has the file") from error
    except (OSError, http.client.HTTPException) as error:
        raise _PassingError(str(error) or type(error).__name__) from error
    if expected is not None and file.tell() != int(expected):
        raise _PassingError(f"the connection ended after {file.tell()} of {expected} bytes")
