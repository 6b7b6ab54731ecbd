"""What reading a stream's records needs of the outside: its schema file, and the compiler of .proto texts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import ConfigError
from common.protoc import compile_protobuf
from stage_writer.layers import RecordInputs

if TYPE_CHECKING:
    from common.settings import Stream
    from stage_writer.decode.binary.avro import MakeAvroPass

_PACKAGES = {"avro": ("fastavro",), "protobuf": ("google.protobuf", "grpc_tools"), "json-schema": ("jsonschema",)}
"""What is needed of each extra."""


def record_inputs(stream: Stream, avro_pass: MakeAvroPass) -> RecordInputs:
    """Raises ConfigError for a file that cannot be read, and for a package that is not installed."""
    extra, key = ("json-schema", "validate: true") if stream.validates else (stream.format, f"format: {stream.format}")
    for package in _PACKAGES.get(extra, ()):
        if not _is_installed(package):
            msg = f"{key} needs the package {package}, which is not installed"
            raise ConfigError(msg, f"pip install 'kafka-delta-express[{extra}]'")
    file = None
    if stream.schema_file is not None:
        try:
            file = Path(stream.schema_file).read_bytes()
        except OSError as error:
            msg = f"schema_file {stream.schema_file} cannot be read: {error.strerror or error}"
            raise ConfigError(msg, "set streams[].schema_file to a file that the writer can read") from error
    return RecordInputs(file, avro_pass, compile_protobuf)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
