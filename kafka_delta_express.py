"""The start of each command: finds the program's packages, and names the extra that is not installed.

Rules:

1. The packages of this program are those beside this file, whatever folder or `PYTHONPATH` has one of the same name.
2. A command whose extra is not installed says which one to install, and ends with 2.
3. A standard stream that is closed leads nowhere. Otherwise a file or a socket of ours would get its number, and what
   libraries in C write there.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_HERE = str(Path(__file__).resolve().parent)
_PACKAGES = frozenset({"bootstrap", "common", "delta_loader", "stage_writer"})
_USAGE = 2


class _OwnPackages(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [_HERE], target) if path is None and fullname in _PACKAGES else None


def stage_writer() -> None:
    """``stage-writer``."""
    _run("stage-writer", "stage_writer.__main__", "stage-writer")


def delta_loader() -> None:
    """``delta-loader``."""
    _run("delta-loader", "delta_loader.__main__", "delta-loader")


def bootstrap() -> None:
    """``bootstrap``."""
    _run("bootstrap", "bootstrap.__main__", "bootstrap")


def tools() -> None:
    """``kafka-delta-express``."""
    _run("kafka-delta-express", "bootstrap.tools", "bootstrap")


def _open_closed_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - stays open


def _run(command: str, module: str, extra: str) -> None:
    _open_closed_streams()
    sys.meta_path.insert(0, _OwnPackages())
    try:
        main = import_module(module).main
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in _PACKAGES:
            raise
        sys.stderr.write(
            f"error: {command} needs the package {missing!r}, which is not installed\n"
            f"  → pip install 'kafka-delta-express[{extra}]'\n"
        )
        sys.exit(_USAGE)
    main()


if __name__ == "__main__":  # how workers are started
    sys.argv[0] = "stage-writer"
    stage_writer()
