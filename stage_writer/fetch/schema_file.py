"""Local requirements for reading a stream's records: the packages of its format, and its `schema_file`."""

from importlib.util import find_spec
from pathlib import Path

from common.errors import ConfigError
from common.settings import Stream

_PACKAGES = {"avro": ("fastavro",), "protobuf": ("google.protobuf", "grpc_tools"), "json-schema": ("jsonschema",)}
"""The packages needed from each extra."""


def require_packages(stream: Stream) -> None:
    """Raises ConfigError for a package that is not installed."""
    extra, key = (
        ("json-schema", "validate: true")
        if stream.record.validates
        else (stream.record.format, f"format: {stream.record.format}")
    )
    for package in _PACKAGES.get(extra, ()):
        if not _is_installed(package):
            msg = f"{key} needs the package {package}, which is not installed"
            raise ConfigError(msg, f"pip install 'kafka-delta-express[{extra}]'")


def read_schema_file(stream: Stream) -> bytes | None:
    """The content of a stream's `schema_file`, if it has one. Raises ConfigError for a file that cannot be read."""
    if stream.record.schema_file is None:
        return None
    try:
        return Path(stream.record.schema_file).read_bytes()
    except OSError as error:
        msg = f"schema_file {stream.record.schema_file} cannot be read: {error.strerror or error}"
        raise ConfigError(msg, "set streams[].schema_file to a file that the writer can read") from error


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
