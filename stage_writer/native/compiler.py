"""From the sources beside this to a shared library, by whatever C compiler there is.

Rules:

1. A C compiler of the system comes first: ``CC``, then `cc`, `gcc`, `clang`. Without one that works, PyPI's package of
   Zig is installed in a temporary folder, exactly as `zig.lock` says, and is gone afterwards: it is 100 MB to fetch.
2. The library appears in its place whole, or not at all, so that two processes may build it at once.
3. Nothing but Python's own library is used: building a wheel needs this before anything of ours is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FOLDER = Path(__file__).parent
SOURCES = (FOLDER / "json_reader.c", FOLDER / "taker.c")
HEADERS = tuple(FOLDER / name for name in ("text.h", "values.h", "columns.h"))
ZIG_LOCK = FOLDER / "zig.lock"
NAME = "json_reader.dylib" if sys.platform == "darwin" else "json_reader.so"
OPTIONS = ("-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden")
_SYSTEMS = ("cc", "gcc", "clang")
_ZIG = (sys.executable, "-m", "ziglang", "cc")
_TIMEOUT_S = 600


class CompileError(Exception):
    """No compiler made a library; the text says what each of them said."""


def fingerprint() -> str:
    """Of all that decides what the library is: sources, options, platform."""
    key = hashlib.sha256(repr((OPTIONS, sysconfig.get_platform(), sysconfig.get_config_var("MULTIARCH"))).encode())
    for source in (*SOURCES, *HEADERS):
        key.update(source.read_bytes())
    return key.hexdigest()[:16]


def compile_library(
    target: Path, options: Sequence[str] = OPTIONS, environ: Mapping[str, str] = os.environ, *, may_fetch: bool = True
) -> None:
    """Make the library at ``target``. Raises CompileError. Without ``may_fetch`` only by the system's compilers."""
    target.parent.mkdir(parents=True, exist_ok=True)
    said: list[str] = []  # by each of them; by the last one nothing, when it did it
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as folder:
        made = Path(folder) / NAME
        for command in _system_compilers(environ):
            said.append(_compile(command, made, options, environ))
            if not said[-1]:
                made.replace(target)
                return
        if may_fetch:
            said.append(_fetch_zig(made.parent) or _compile(_ZIG, made, options, environ))
            if not said[-1]:
                made.replace(target)
                return
    msg = "\n".join(said) or "there is no C compiler (cc, gcc or clang), and CC names none"
    raise CompileError(msg)


def _system_compilers(environ: Mapping[str, str]) -> list[list[str]]:
    return [list(command) for command in dict.fromkeys(_commands(environ))]


def _commands(environ: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    if environ.get("CC"):
        yield tuple(environ["CC"].split())
    for name in _SYSTEMS:
        found = shutil.which(name, path=environ.get("PATH"))
        if found is not None:
            yield (found,)


def _compile(command: Sequence[str], made: Path, options: Sequence[str], environ: Mapping[str, str]) -> str:
    """What is wrong; nothing when the library is there."""
    # What Zig was installed in, and where it is to have its own cache.
    zig = {"PYTHONPATH": str(made.parent / "zig"), "ZIG_GLOBAL_CACHE_DIR": str(made.parent / "zig-cache")}
    problem = _run([*command, *options, "-o", str(made), *map(str, SOURCES)], {**environ, **zig})
    return problem if problem or made.exists() else f"{command[0]} made nothing"


def _fetch_zig(folder: Path) -> str:
    """What is wrong; nothing when it is there."""
    install = ["install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
    return _run([sys.executable, "-m", "pip", *install, "--target", str(folder / "zig"), "-r", str(ZIG_LOCK)])


def _run(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """What is wrong with a command; nothing when it did its work."""
    try:
        done = subprocess.run(  # noqa: S603 - compilers, and pip
            command, check=False, capture_output=True, text=True, env=environ, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
    return "" if done.returncode == 0 else f"{' '.join(command[:3])}: {said}"
