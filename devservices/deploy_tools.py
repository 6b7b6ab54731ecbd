"""The tools that read `deploy/`: those on the path, or else built with Go into the cache, exactly these versions.

``python -m devservices.deploy_tools`` builds what is missing. That takes minutes, and for `promtool` many of them:
Debian's package `prometheus` has one. Schemas (KEDA's CRD, and that of compose files) come out of the Go modules of the
programs that own them, so that nothing is copied here.
"""

from __future__ import annotations

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
    """A program, and the Go module that it is in."""

    name: str
    module: str
    version: str
    package: str = "."

    @property
    def built(self) -> Path:
        """Where it is once it is built."""
        return cache_folder() / "bin" / f"{self.name}-{self.version}"

    @property
    def program(self) -> Path | None:
        """What is built, or else one of the same name on the path; None where there is neither."""
        if self.built.exists():
            return self.built
        found = shutil.which(self.name)
        return None if found is None else Path(found)


KUSTOMIZE = Tool("kustomize", "sigs.k8s.io/kustomize/kustomize/v5", "v5.7.1")
KUBECTL_VALIDATE = Tool("kubectl-validate", "sigs.k8s.io/kubectl-validate", "v0.0.4")
PROMTOOL = Tool("promtool", "github.com/prometheus/prometheus", "v0.305.0", "./cmd/promtool")
TOOLS = (KUSTOMIZE, KUBECTL_VALIDATE, PROMTOOL)
KEDA = ("github.com/kedacore/keda/v2", "v2.17.2", "config/crd/bases/keda.sh_scaledobjects.yaml")
COMPOSE = ("github.com/compose-spec/compose-go/v2", "v2.9.0", "schema/compose-spec.json")
FILES = (KEDA, COMPOSE)


def file_of(source: tuple[str, str, str]) -> Path:
    """Where a schema is once it is fetched."""
    module, version, path = source
    return cache_folder() / "schemas" / module.replace("/", "-") / version / Path(path).name


def missing() -> list[str]:
    """What is not there yet."""
    return [tool.name for tool in TOOLS if tool.program is None] + [
        file_of(source).name for source in FILES if not file_of(source).exists()
    ]


def ensure() -> None:
    """Build and fetch what is missing. Raises ServiceError."""
    if missing() and shutil.which("go") is None:
        msg = "the tools are built with Go, and no `go` is on the path"
        raise processes.ServiceError(msg)
    for tool in TOOLS:
        if tool.program is None:
            print(f"building {tool.name} {tool.version}")
            _build(tool)
    for source in FILES:
        module, version, path = source
        target = file_of(source)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_module(module, version) / path, target)


def _build(tool: Tool) -> None:
    tool.built.parent.mkdir(parents=True, exist_ok=True)
    # Built beside its place and moved there, so that two may do so at once. Not by `go install`: a module that replaces
    # others is refused there.
    with tempfile.TemporaryDirectory(dir=tool.built.parent) as folder:
        target = Path(folder) / tool.name
        _go(["build", "-trimpath", "-o", str(target), tool.package], _module(tool.module, tool.version))
        target.replace(tool.built)


def _module(module: str, version: str) -> Path:
    """The folder of a module's source."""
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
