"""The native library: where it is found, errors without it, and its compilation."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from common.errors import ConfigError
from common.schema import parse_ddl
from common.settings import Native
from stage_writer.decode.decode_options import STRICT
from stage_writer.native import library
from stage_writer.native.compiler import CompileError, compile_library
from tests.builders import settings_of
from tests.fakes.native import required_library

# A consumer that is leaving its group may be assigned partitions once more.
ASSIGNED_WHILE_CLOSING = """
from confluent_kafka import Consumer
from stage_writer.native.library import library_path
from stage_writer.native.fetching import NativeFetch
consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
taking = NativeFetch(library_path(), consumer, lambda _topic: False)
taking.take_over([("orders", 0)])
taking.close()
taking.take_over([("orders", 1)])
consumer.close()
"""


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(library, "FOLDER", tmp_path / "package")
    return {"XDG_CACHE_HOME": str(tmp_path)}


def test_writer_continues_without_the_library_and_reports_why(empty_cache: dict[str, str]) -> None:
    reader = library.find_reader(Native.AUTO, empty_cache)
    assert reader.make(parse_ddl("i INT"), STRICT) is None
    assert reader.problem is not None
    assert "the native JSON reader is missing" in reader.problem


def test_writer_with_native_on_fails_without_the_library(empty_cache: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"writer\.native is on, but the native JSON reader is missing"):
        library.find_reader(Native.ON, empty_cache)


def test_library_is_not_searched_if_native_is_off(empty_cache: dict[str, str]) -> None:
    assert library.find_reader(Native.OFF, empty_cache).problem is None


def test_invalid_library_file_counts_as_missing(empty_cache: dict[str, str]) -> None:
    place = library.cached_path(empty_cache)
    place.parent.mkdir(parents=True)
    place.write_bytes(b"not a library")
    assert library.find_reader(Native.AUTO, empty_cache).problem is not None


def test_library_is_compiled_and_found(empty_cache: dict[str, str]) -> None:
    required_library()  # or there is no compiler
    compile_library(library.cached_path(empty_cache), may_fetch=False)
    reader = library.find_reader(Native.ON, empty_cache).make(parse_ddl("i INT"), STRICT)
    assert reader is not None
    assert reader.read(pa.array([b'{"i":1}', b"{"], pa.binary())).rows.to_pylist() == [{"i": 1}]


def test_missing_compiler_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="there is no C compiler"):
        compile_library(tmp_path / "library", environ={"PATH": str(tmp_path)}, may_fetch=False)


def test_failed_compiler_command_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="no-such-compiler"):
        compile_library(tmp_path / "it", environ={"PATH": str(tmp_path), "CC": "no-such-compiler"}, may_fetch=False)


@pytest.mark.parametrize(("written", "meant"), [(True, Native.ON), (False, Native.OFF), ("auto", Native.AUTO)])
def test_native_setting_accepts_yaml_booleans(written: object, meant: Native) -> None:
    settings = settings_of(
        {"app_id": "a", "topics": ["t"], "table": "memory://t", "columns": "i INT"},
        folder="memory:/",
        writer={"native": written},
    )
    assert settings.writer.native is meant


def test_partitions_assigned_while_the_consumer_closes_use_no_freed_memory() -> None:
    required_library()
    environment = {**os.environ, "MALLOC_PERTURB_": "85"}  # glibc fills freed memory, so it has no valid pointers
    command = [sys.executable, "-c", ASSIGNED_WHILE_CLOSING]
    assert subprocess.run(command, env=environment, check=False, timeout=180).returncode == 0
