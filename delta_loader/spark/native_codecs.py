"""The native libraries of Parquet's codecs, unpacked once, where Java may execute them.

Snappy and zstd come as libraries within their jars, which each Java process unpacks into its temporary folder. A
hardened host or container mounts that without the right to execute (compose's tmpfs does), and every append, merge and
checkpoint ends with an UnsatisfiedLinkError. They are therefore unpacked into the project's cache, next to the jars,
when an image is built or a loader first starts, and Java is given the path. Libraries that are not known here are left
to Java as usual.
"""

import hashlib
import os
import platform
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pyspark

from common.downloads import READABLE, cache_folder


class _Codec(NamedTuple):
    jar: str
    """A pattern of its jar's name."""
    library: str
    """A pattern of the library's path in the jar, for a kind of processor."""
    options: tuple[str, ...]
    """Java's options, with the library's folder and name filled in."""


_SNAPPY = _Codec(
    "snappy-java-*.jar",
    "org/xerial/snappy/native/Linux/{snappy}/libsnappyjava.so",
    ("-Dorg.xerial.snappy.lib.path={folder}", "-Dorg.xerial.snappy.lib.name={name}"),
)
_ZSTD = _Codec("zstd-jni-*.jar", "linux/{zstd}/libzstd-jni-{version}.so", ("-DZstdNativePath={folder}/{name}",))
_PROCESSORS = {
    "x86_64": {"snappy": "x86_64", "zstd": "amd64"},
    "aarch64": {"snappy": "aarch64", "zstd": "aarch64"},
}


def codec_options(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Java's options for the libraries, which are unpacked if missing; none where that is not possible."""
    processor = _PROCESSORS.get(platform.machine())
    if processor is None or platform.system() != "Linux":
        return ()
    folder = cache_folder(environ) / "native"
    try:
        return (*_options(_SNAPPY, processor, folder), *_options(_ZSTD, processor, folder))
    except OSError:
        return ()


def _options(codec: _Codec, processor: Mapping[str, str], folder: Path) -> tuple[str, ...]:
    for jar in sorted((Path(pyspark.__file__).parent / "jars").glob(codec.jar)):
        version = jar.stem.rpartition("-")[0] if codec is _SNAPPY else jar.stem.removeprefix("zstd-jni-")
        with zipfile.ZipFile(jar) as archive:
            try:
                content = archive.read(codec.library.format(**processor, version=version))
            except KeyError:
                return ()
        library = folder / hashlib.sha256(content).hexdigest()[:16] / f"{jar.stem}.so"
        if not library.exists():
            _write(library, content)
        return tuple(option.format(folder=library.parent, name=library.name) for option in codec.options)
    return ()


def _write(target: Path, content: bytes) -> None:
    """Write atomically, because two processes may do so at once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        part.chmod(READABLE)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
