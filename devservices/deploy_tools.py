"""The tools that check `deploy/`: from the PATH, or built with Go into the cache in exactly these versions.

``python -m devservices.deploy_tools`` builds missing tools, which takes minutes. `promtool` would take many minutes:
with APT, it is unpacked from the distribution's package `prometheus`, and nothing is installed. Schemas (KEDA's CRDs
and compose's schema) come from the Go modules of the programs that own them, so the repository has no copies. The tests
themselves fetch everything that takes only seconds (`ensure_quickly`).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common.downloads import cache_folder
from devservices import processes


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    module: str
    version: str
    package: str = "."
    debian: str | None = None
    """Distribution's package that contains the tool."""

    @property
    def built(self) -> Path:
        return cache_folder() / "bin" / f"{self.name}-{self.version}"

    @property
    def unpacked(self) -> Path:
        """Path of the tool that was unpacked from the distribution's package."""
        return cache_folder() / "bin" / f"{self.name}-{self.debian}"

    @property
    def program(self) -> Path | None:
        """The built tool, else the unpacked one, else one of the same name on the PATH; None if all are missing."""
        if self.built.exists():
            return self.built
        if self.unpacked.exists():
            return self.unpacked
        found = shutil.which(self.name)
        return None if found is None else Path(found)


Source = tuple[str, str, str]
"""A file of a Go module: module, version, path."""

KUSTOMIZE = Tool("kustomize", "sigs.k8s.io/kustomize/kustomize/v5", "v5.7.1")
KUBECTL_VALIDATE = Tool("kubectl-validate", "sigs.k8s.io/kubectl-validate", "v0.0.4")
PROMTOOL = Tool("promtool", "github.com/prometheus/prometheus", "v0.305.0", "./cmd/promtool", debian="prometheus")
TOOLS = (KUSTOMIZE, KUBECTL_VALIDATE, PROMTOOL)
KEDA: Source = ("github.com/kedacore/keda/v2", "v2.17.2", "config/crd/bases/keda.sh_scaledobjects.yaml")
KEDA_AUTHENTICATION: Source = (*KEDA[:2], "config/crd/bases/keda.sh_triggerauthentications.yaml")
COMPOSE: Source = ("github.com/compose-spec/compose-go/v2", "v2.9.0", "schema/compose-spec.json")
FILES = (KEDA, KEDA_AUTHENTICATION, COMPOSE)


def file_of(source: Source) -> Path:
    """The cached path of a schema."""
    module, version, path = source
    return cache_folder() / "schemas" / module.replace("/", "-") / version / Path(path).name


def ensure() -> None:
    """Build and fetch missing tools and schemas. Raises ServiceError."""
    for tool in TOOLS:
        if not ensure_quickly(tool):
            _require_go()
            print(f"building {tool.name} {tool.version}")
            _build(tool)
    for source in FILES:
        if not ensure_quickly(source):
            _require_go()


def ensure_quickly(wanted: Tool | Source) -> bool:
    """Fetch a tool or a schema if that takes seconds; returns whether it is available now. Raises ServiceError."""
    if isinstance(wanted, Tool):
        if (
            wanted.program is None
            and wanted.debian is not None
            and shutil.which("apt-get")
            and shutil.which("dpkg-deb")
        ):
            _unpack(wanted, wanted.debian)
        return wanted.program is not None
    target = file_of(wanted)
    if not target.exists() and shutil.which("go") is not None:
        module, version, path = wanted
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as copy:
            copy.write((_module(module, version) / path).read_bytes())
        Path(copy.name).replace(target)
    return target.exists()


def _require_go() -> None:
    if shutil.which("go") is None:
        msg = "the tools are built with Go, and `go` is not on the PATH"
        raise processes.ServiceError(msg)


def _unpack(tool: Tool, package: str) -> None:
    """Unpack a program from a package. Leaves it missing if APT cannot fetch the package (no lists, no network)."""
    tool.unpacked.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tool.unpacked.parent) as folder:
        fetched = subprocess.run(["apt-get", "download", package], cwd=folder, check=False, capture_output=True)
        for file in Path(folder).glob("*.deb") if fetched.returncode == 0 else ():
            subprocess.run(["dpkg-deb", "--extract", file, folder], check=True, capture_output=True)
            (Path(folder) / "usr/bin" / tool.name).replace(tool.unpacked)


def _build(tool: Tool) -> None:
    tool.built.parent.mkdir(parents=True, exist_ok=True)
    # Built next to its target and moved there, so two processes may build it at once. `go install` refuses a module
    # that replaces others. Some modules' archives list a `vendor` folder and do not contain it: hence `-mod=readonly`.
    with tempfile.TemporaryDirectory(dir=tool.built.parent) as folder:
        target = Path(folder) / tool.name
        _go(
            ["build", "-mod=readonly", "-trimpath", "-o", str(target), tool.package], _module(tool.module, tool.version)
        )
        target.replace(tool.built)


def _module(module: str, version: str) -> Path:
    answer = _go(["mod", "download", "-json", f"{module}@{version}"], Path(tempfile.gettempdir()))
    return Path(str(json.loads(answer)["Dir"]))


def _go(arguments: list[str], folder: Path) -> str:
    environ = {**os.environ, "GOFLAGS": "-buildvcs=false"}
    done = subprocess.run(["go", *arguments], cwd=folder, env=environ, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        msg = f"go {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}"
        raise processes.ServiceError(msg)
    return done.stdout


if __name__ == "__main__":
    try:
        ensure()
    except processes.ServiceError as error:
        sys.exit(f"error: {error}")
