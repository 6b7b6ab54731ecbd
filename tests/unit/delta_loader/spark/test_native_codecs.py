"""The native libraries of Parquet's codecs lie in the cache, where Java is told to take them from."""

import ctypes
import platform
from pathlib import Path

import pytest

from delta_loader.spark.native_codecs import codec_options

pytestmark = pytest.mark.skipif(
    (platform.system(), platform.machine()) not in {("Linux", "x86_64"), ("Linux", "aarch64")},
    reason="Java unpacks them by itself here",
)


def given(environ: dict[str, str]) -> dict[str, str]:
    return dict(option.removeprefix("-D").split("=", 1) for option in codec_options(environ))


def test_native_libraries_can_be_loaded_and_read_by_any_user(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    options = given(environ)
    libraries = [
        Path(options["org.xerial.snappy.lib.path"]) / options["org.xerial.snappy.lib.name"],
        Path(options["ZstdNativePath"]),
    ]
    for library in libraries:
        assert library.is_relative_to(tmp_path)
        assert library.stat().st_mode & 0o777 == 0o644
        ctypes.CDLL(str(library))
    written_ns = [library.stat().st_mtime_ns for library in libraries]
    assert given(environ) == options
    assert [library.stat().st_mtime_ns for library in libraries] == written_ns
    assert len(list(tmp_path.rglob("*.*"))) == len(libraries)


def test_java_does_as_ever_where_there_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert codec_options({"XDG_CACHE_HOME": str(tmp_path / "file")}) == ()
