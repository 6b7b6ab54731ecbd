"""S3 servers: ``with running_s3("moto") as s3: s3.storage_options``.

Three kinds:

- ``moto`` comes with pip and starts in a second; devservices/moto_server.py makes its conditional writes correct under
  concurrency. It checks no credentials and keeps nothing.
- ``versitygw`` keeps objects on a disk, checks signatures, and handles every conditional write correctly. It is built
  once with ``go install`` into the cache, if Go is found.
- ``minio`` is widely used. It is built in the same way, which takes minutes, so no test needs it. Its conditional
  writes are correct; it ignores the condition of a conditional delete.

``versitygw`` and ``minio`` keep their objects when they are killed, and can be started again at the same address.
"""

import http.client
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_never

import s3fs

from common.downloads import cache_folder
from devservices import processes
from devservices.certificates import Certificate
from devservices.ports import HOST, free_ports, is_open, wait_until_closed

S3Kind = Literal["moto", "versitygw", "minio"]

_MODULES = {
    "versitygw": ("github.com/versity/versitygw/cmd/versitygw", "v1.8.0"),
    "minio": ("github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c"),
}
"""Package and version of the Go programs."""

REGION = "eu-central-1"  # create bucket refuses the name us-east-1
_ACCESS_KEY = "development"
_SECRET_KEY = "development-secret"  # noqa: S105 - for a server on the loopback interface that ends with its parent


@dataclass(slots=True)
class S3Server:
    """A server and its clients' settings; it can be stopped, and started again at the same address."""

    kind: S3Kind
    port: int
    folder: Path
    endpoint_url: str = ""
    """URL for clients; differs from the server's own address when a proxy stands in between."""
    child: processes.Child | None = None
    access_key: str = _ACCESS_KEY
    secret_key: str = _SECRET_KEY
    region: str = REGION
    certificate: Certificate | None = None
    """Certificate for TLS (moto only)."""

    def __post_init__(self) -> None:
        scheme = "http" if self.certificate is None else "https"
        self.endpoint_url = self.endpoint_url or f"{scheme}://{HOST}:{self.port}"

    def start(self) -> None:
        wait_until_closed(self.port)
        log = self.folder / f"{self.kind}.log"
        command = _command(self.kind, self.port, self.folder)
        if self.certificate is not None:
            command += ["--ssl-cert", str(self.certificate.certificate), "--ssl-key", str(self.certificate.key)]
        self.child = processes.start(command, log, _environ(self.kind))
        self.child.wait_until(self._answers, f"the S3 server {self.kind}")

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop()

    def kill(self) -> None:
        if self.child is not None:
            self.child.kill()

    def _answers(self) -> bool:
        """Whether the server answers HTTP with anything but 503: MinIO listens before it can serve."""
        if not is_open(self.port):
            return False
        connection = http.client.HTTPConnection(HOST, self.port, timeout=20)
        if self.certificate is not None:
            tls = ssl.create_default_context(cafile=str(self.certificate.authority))
            connection = http.client.HTTPSConnection(HOST, self.port, timeout=20, context=tls)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status != http.HTTPStatus.SERVICE_UNAVAILABLE
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    @property
    def storage_options(self) -> dict[str, object]:
        trusted = {} if self.certificate is None else {"verify": str(self.certificate.authority)}
        return {
            "key": self.access_key,
            "secret": self.secret_key,
            "endpoint_url": self.endpoint_url,
            "client_kwargs": {"region_name": self.region, **trusted},
        }

    @property
    def environ(self) -> dict[str, str]:
        """Environment for AWS tools and other clients that read it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
        }

    def create_bucket(self, name: str) -> str:
        """Create a bucket and return its URL."""
        s3fs.S3FileSystem(skip_instance_cache=True, **self.storage_options).mkdir(name)
        return f"s3://{name}"


@contextmanager
def running_s3(
    kind: S3Kind = "moto", folder: Path | None = None, port: int | None = None, certificate: Certificate | None = None
) -> Iterator[S3Server]:
    """Start a server, wait until it answers, and stop it on exit; without ``folder`` its data is deleted."""
    with ExitStack() as started:
        root = folder or Path(started.enter_context(tempfile.TemporaryDirectory(prefix="s3-")))
        root.mkdir(parents=True, exist_ok=True)
        number = port or free_ports(1)[0]
        processes.require_free(number)
        server = S3Server(kind, number, root, certificate=certificate)
        started.callback(server.stop)
        server.start()
        yield server


def unavailable_reason(kind: S3Kind) -> str | None:
    if kind in _MODULES and shutil.which("go") is None and not program_of(kind).exists():
        return f"{kind} is built with Go, and `go` is not on the PATH"
    return None


def ensure_program(kind: S3Kind) -> Path:
    """The program's path; builds it if the cache lacks it. Raises ServiceError."""
    program = program_of(kind)
    if not program.exists():
        if reason := unavailable_reason(kind):
            raise processes.ServiceError(reason)
        program.parent.mkdir(parents=True, exist_ok=True)
        # Built next to its target and moved there, so two test runs may build it at once.
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            source = "@".join(_MODULES[kind])
            environ = {**os.environ, "GOBIN": folder}
            done = subprocess.run(["go", "install", source], env=environ, check=False, capture_output=True, text=True)
            if done.returncode != 0:
                msg = f"go install {source} failed:\n{done.stderr}"
                raise processes.ServiceError(msg)
            (Path(folder) / kind).replace(program)
    return program


def program_of(kind: S3Kind) -> Path:
    return cache_folder() / "bin" / f"{kind}-{_MODULES[kind][1]}"


def _command(kind: S3Kind, port: int, root: Path) -> list[str]:
    match kind:
        case "moto":
            return [sys.executable, "-m", "devservices.moto_server", "-H", HOST, "-p", str(port)]
        case "versitygw":
            objects = root / "objects"
            objects.mkdir(exist_ok=True)
            command = [str(ensure_program(kind)), "--port", f"{HOST}:{port}", "--region", REGION, "--quiet", "posix"]
            if not _supports_attributes(objects):
                sidecar = root / "attributes"
                sidecar.mkdir(exist_ok=True)
                command += ["--sidecar", str(sidecar)]
            return [*command, str(objects)]
        case "minio":
            return [
                str(ensure_program(kind)),
                "server",
                "--quiet",
                "--address",
                f"{HOST}:{port}",
                str(root / "objects"),
            ]
        case _:
            assert_never(kind)


def _environ(kind: S3Kind) -> dict[str, str]:
    match kind:
        case "moto":
            return {"PYTHONWARNINGS": "ignore"}
        case "versitygw":
            return {"ROOT_ACCESS_KEY": _ACCESS_KEY, "ROOT_SECRET_KEY": _SECRET_KEY}
        case "minio":
            quiet = {"MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}
            keys = {"MINIO_ROOT_USER": _ACCESS_KEY, "MINIO_ROOT_PASSWORD": _SECRET_KEY}
            return {**quiet, **keys, "MINIO_REGION": REGION}
        case _:
            assert_never(kind)


def _supports_attributes(folder: Path) -> bool:
    """Whether the disk supports extended attributes, in which versitygw stores objects' metadata."""
    if sys.platform != "linux":
        return True
    try:
        os.setxattr(folder, "user.probe", b"1")
        os.removexattr(folder, "user.probe")
    except OSError:
        return False
    return True


if __name__ == "__main__":  # python -m devservices.s3: fill the cache, as `make setup` does if Go is found
    if unavailable_reason("versitygw") is None:
        ensure_program("versitygw")
