"""A whole schema registry for tests, from Maven Central: ``with running_apicurio() as url``.

Apicurio Registry also speaks Confluent's protocol. It keeps its schemas in memory. The release runs on Java 17.
"""

import os
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from common.downloads import MAVEN_URL, cache_folder, fetch
from devservices import processes
from devservices.java import java
from devservices.ports import HOST, free_ports

_NAME = "apicurio-registry-app-3.0.9"
_PATH = f"io/apicurio/apicurio-registry-app/3.0.9/{_NAME}-all.tar.gz"
_SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@contextmanager
def running_apicurio() -> Iterator[str]:
    """The URL of Confluent's interface. Raises DownloadError, and ServiceError if the server does not start."""
    program = _program()
    (port,) = free_ports(1)
    url = f"http://{HOST}:{port}/apis/ccompat/v7"
    with tempfile.TemporaryDirectory(prefix="apicurio-") as folder:
        address = (f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={port}")
        command = [java(), *_OPTIONS, *address, "-jar", str(program)]
        server = processes.start(command, Path(folder) / "registry.log", folder=Path(folder))
        try:
            server.wait_until(partial(_answers, url), "Apicurio Registry")
            yield url
        finally:
            server.stop()


def _program() -> Path:
    """The server's jar, next to the folder with its libraries."""
    folder = cache_folder() / "apicurio" / _SHA256[:16]
    program = folder / f"{_NAME}-runner.jar"
    if not program.exists():
        archive = folder.with_suffix(".tar.gz")
        fetch(f"{os.environ.get('KDE_MAVEN_URL', MAVEN_URL).rstrip('/')}/{_PATH}", archive, _SHA256)
        with tempfile.TemporaryDirectory(dir=archive.parent) as unpacked, tarfile.open(archive) as content:
            content.extractall(f"{unpacked}/whole", filter="data")
            with suppress(FileExistsError):  # another process was faster
                Path(unpacked, "whole").rename(folder)
        archive.unlink(missing_ok=True)
    return program


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/subjects", timeout=5).close()  # noqa: S310 - loopback
    except OSError:
        return False
    return True
