"""Compiles the sources in this folder to a shared library, with any available C compiler.

Rules:

1. A C compiler of the system comes first: ``CC``, then `cc`, `gcc`, `clang`. Without one that works, PyPI's package of
   Zig is installed in a temporary folder, pinned by `zig.lock`, and removed afterward: it is a download of 100 MB.
2. The library appears in its place complete, or not at all, so two processes may build it at once.
3. Only Python's standard library is used: building a wheel needs this before anything of ours is installed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = tuple(FOLDER / name for name in ("json_reader.c", "avro_reader.c", "taker.c"))
HEADERS = tuple(FOLDER / name for name in ("text.h", "values.h", "columns.h"))
ZIG_LOCK = FOLDER / "zig.lock"
NAME = "json_reader.dylib" if sys.platform == "darwin" else "json_reader.so"
OPTIONS = ("-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden")
_SYSTEMS = ("cc", "gcc", "clang")
_ZIG = (sys.executable, "-m", "ziglang", "cc")
_TIMEOUT_S = 600


class CompileError(Exception):
    """No compiler made a library; the text has each compiler's error."""


def fingerprint() -> str:
    """A hash of everything that determines the library: sources, options, platform."""
    key = hashlib.sha256(repr((OPTIONS, sysconfig.get_platform(), sysconfig.get_config_var("MULTIARCH"))).encode())
    for source in (*SOURCES, *HEADERS):
        key.update(source.read_bytes())
    return key.hexdigest()[:16]


def compile_library(target: Path, environ: Mapping[str, str] = os.environ, *, may_fetch: bool = True) -> None:
    """Make the library at ``target``. Raises CompileError. ``may_fetch`` allows Zig, too."""
    target.parent.mkdir(parents=True, exist_ok=True)
    outputs: list[str] = []  # by compiler; empty for the last one if it succeeded
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as folder:
        made = Path(folder) / NAME
        for command in dict.fromkeys(_commands(environ)):
            outputs.append(_compile(command, made, environ))
            if not outputs[-1]:
                made.replace(target)
                return
        if may_fetch:
            outputs.append(_fetch_zig(made.parent) or _compile(_ZIG, made, environ))
            if not outputs[-1]:
                made.replace(target)
                return
    raise CompileError("\n".join(outputs) or "there is no C compiler (cc, gcc or clang), and CC is not set")


def _commands(environ: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    if environ.get("CC"):
        yield tuple(environ["CC"].split())
    for name in _SYSTEMS:
        program = shutil.which(name, path=environ.get("PATH"))
        if program is not None:
            yield (program,)


def _compile(command: Sequence[str], made: Path, environ: Mapping[str, str]) -> str:
    """The error; empty if the library was made."""
    # The path of the installed Zig, and of its cache.
    zig = {"PYTHONPATH": str(made.parent / "zig"), "ZIG_GLOBAL_CACHE_DIR": str(made.parent / "zig-cache")}
    problem = _run([*command, *OPTIONS, "-o", str(made), *map(str, SOURCES)], {**environ, **zig})
    return problem if problem or made.exists() else f"{command[0]} produced no file"


def _fetch_zig(folder: Path) -> str:
    """The error; empty if it was installed."""
    install = ["install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
    return _run([sys.executable, "-m", "pip", *install, "--target", str(folder / "zig"), "-r", str(ZIG_LOCK)])


def _run(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """A command's error; empty if it succeeded."""
    try:
        done = subprocess.run(  # noqa: S603 - compilers, and pip
            command, check=False, capture_output=True, text=True, env=environ, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    output = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
    return "" if done.returncode == 0 else f"{' '.join(command[:3])}: {output}"
