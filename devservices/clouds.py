"""Emulators of two clouds' object stores: ``with running_cloud("gcs") as cloud: cloud.storage_options``.

- ``gcs``: Google Cloud Storage, emulated by fake-gcs-server (Go).
- ``azure``: Azure's blob service, emulated by Azurite (npm), without hierarchical namespaces and ABFS.

They are optional: `make setup` installs neither them nor fsspec's back ends (``gcsfs``, ``adlfs``). If both are
installed, the contract tests of the object store run on them too. ``python -m devservices.clouds`` puts the emulators
into the cache, with Go and npm.
"""

import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import fsspec

from common.downloads import cache_folder
from devservices import processes
from devservices.ports import HOST, free_ports, is_open

CloudKind = Literal["gcs", "azure"]

_GCS = ("github.com/fsouza/fake-gcs-server", "v1.56.1")
_AZURITE = "3.35.0"
_BACK_ENDS = {"gcs": "gcsfs", "azure": "adlfs"}
_ACCOUNT = "devstoreaccount1"
# Azurite's documented account key.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
# gcsfs asks Google's own address for the type of the bucket, by gRPC; the emulator does not support that.
_ENVIRON = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}


@dataclass(frozen=True, slots=True)
class Cloud:
    kind: CloudKind
    port: int

    @property
    def storage_options(self) -> dict[str, object]:
        endpoint_url = f"http://{HOST}:{self.port}"
        if self.kind == "gcs":
            return {"token": "anon", "endpoint_url": endpoint_url, "project": "development"}
        parts = {
            "DefaultEndpointsProtocol": "http",
            "AccountName": _ACCOUNT,
            "AccountKey": _KEY,
            "BlobEndpoint": f"{endpoint_url}/{_ACCOUNT}",
        }
        return {"connection_string": ";".join(f"{name}={value}" for name, value in parts.items())}

    def create_bucket(self, name: str) -> str:
        """Create a bucket or a container, and return its URL."""
        scheme = "gs" if self.kind == "gcs" else "abfs"
        fsspec.filesystem(scheme, skip_instance_cache=True, **self.storage_options).mkdir(name)
        return f"{scheme}://{name}"


def available_clouds() -> list[CloudKind]:
    """The kinds whose emulator is in the cache and whose fsspec back end is installed."""
    kinds: tuple[CloudKind, ...] = ("gcs", "azure")
    return [kind for kind in kinds if _program(kind).exists() and importlib.util.find_spec(_BACK_ENDS[kind])]


@contextmanager
def running_cloud(kind: CloudKind) -> Iterator[Cloud]:
    """Start one of the `available_clouds`, wait until it answers, and stop it on exit; its data is deleted."""
    os.environ.update(_ENVIRON)  # before gcsfs is imported
    with ExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix=f"{kind}-")))
        (port,) = free_ports(1)
        processes.require_free(port)
        child = processes.start(_command(kind, port, folder), folder / f"{kind}.log")
        started.callback(child.stop)
        child.wait_until(lambda: is_open(port), f"the emulator {kind}")
        yield Cloud(kind, port)


def _command(kind: CloudKind, port: int, folder: Path) -> list[str]:
    program, data = str(_program(kind)), str(folder / "data")
    if kind == "gcs":
        options = ["-scheme", "http", "-host", HOST, "-port", str(port), "-public-host", f"{HOST}:{port}"]
        return [program, *options, "-external-url", f"http://{HOST}:{port}", "-filesystem-root", data]
    options = ["--blobHost", HOST, "--blobPort", str(port), "--location", data]
    return [program, *options, "--skipApiVersionCheck", "--disableTelemetry", "--silent"]


def _program(kind: CloudKind) -> Path:
    folder = cache_folder() / "bin"
    if kind == "gcs":
        return folder / f"fake-gcs-server-{_GCS[1]}"
    return folder / f"azurite-{_AZURITE}" / "node_modules" / ".bin" / "azurite-blob"


def _fill_cache() -> None:
    folder = cache_folder() / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as built:
        subprocess.run(["go", "install", "@".join(_GCS)], env={**os.environ, "GOBIN": built}, check=True)
        (Path(built) / "fake-gcs-server").replace(_program("gcs"))
    place = folder / f"azurite-{_AZURITE}"
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--prefix", place, f"azurite@{_AZURITE}"], check=True)


if __name__ == "__main__":
    _fill_cache()
