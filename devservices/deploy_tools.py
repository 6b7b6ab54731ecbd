"""The tools that read `deploy/`: those on the path, or else built with Go into the cache, exactly these versions.

``python -m devservices.deploy_tools`` builds what is missing, which takes minutes. `promtool` would take many of them:
where there is APT it comes out of the distribution's package `prometheus`, and nothing is installed. Schemas (KEDA's
CRD, and that of compose files) come out of the Go modules of the programs that own them: nothing is copied here. What
comes in seconds is fetched by the tests themselves (`quickly`).
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
    """The distribution's package that holds it."""

    @property
    def built(self) -> Path:
        return cache_folder() / "bin" / f"{self.name}-{self.version}"

    @property
    def unpacked(self) -> Path:
        """Where it is once it was taken out of the distribution's package."""
        return cache_folder() / "bin" / f"{self.name}-{self.debian}"

    @property
    def program(self) -> Path | None:
        """What is built, or unpacked, or else one of the same name on the path; None where there is neither."""
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
    """Where a schema is once it is fetched."""
    module, version, path = source
    return cache_folder() / "schemas" / module.replace("/", "-") / version / Path(path).name


def ensure() -> None:
    """Build and fetch what is missing. Raises ServiceError."""
    for tool in TOOLS:
        if not quickly(tool):
            _require_go()
            print(f"building {tool.name} {tool.version}")
            _build(tool)
    for source in FILES:
        if not quickly(source):
            _require_go()


def quickly(what: Tool | Source) -> bool:
    """Have a tool or a schema where that takes seconds; whether it is there now. Raises ServiceError."""
    if isinstance(what, Tool):
        if what.program is None and what.debian is not None and shutil.which("apt-get") and shutil.which("dpkg-deb"):
            _unpack(what, what.debian)
        return what.program is not None
    target = file_of(what)
    if not target.exists() and shutil.which("go") is not None:
        module, version, path = what
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as whole:
            whole.write((_module(module, version) / path).read_bytes())
        Path(whole.name).replace(target)
    return target.exists()


def _require_go() -> None:
    if shutil.which("go") is None:
        msg = "the tools are built with Go, and no `go` is on the path"
        raise processes.ServiceError(msg)


def _unpack(tool: Tool, package: str) -> None:
    """Take a program out of a package. What APT cannot fetch (no lists, no network) is not there."""
    tool.unpacked.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tool.unpacked.parent) as folder:
        fetched = subprocess.run(["apt-get", "download", package], cwd=folder, check=False, capture_output=True)
        for file in Path(folder).glob("*.deb") if fetched.returncode == 0 else ():
            subprocess.run(["dpkg-deb", "--extract", file, folder], check=True, capture_output=True)
            (Path(folder) / "usr/bin" / tool.name).replace(tool.unpacked)


def _build(tool: Tool) -> None:
    tool.built.parent.mkdir(parents=True, exist_ok=True)
    # Built beside its place and moved there, so that two may do so at once. Not by `go install`: a module that replaces
    # others is refused there. Some modules' archives have a list of a `vendor` folder, and not the folder.
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
