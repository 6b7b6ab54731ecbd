"""Protobuf schemas, as .proto text or as descriptors, into one set of descriptors that needs nothing else.

Rules:

1. Text is compiled by Google's compiler, which comes with grpcio-tools, in a process of its own: nothing that a schema
   has can harm this one. A schema registry may also give descriptors in base64, as Confluent's Python client registers
   them; these need no compiler.
2. Google's well-known types and Confluent's own need no reference: they come with the packages.
"""

from __future__ import annotations

import base64
import binascii
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from common.errors import BuildError, ConfigError, SchemaError

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

_EXTRA = "pip install 'kafka-delta-express[protobuf]'"
_BUILT_IN = (
    *(f"google.protobuf.{name}_pb2" for name in ("any", "api", "descriptor", "duration", "empty", "field_mask")),
    *(f"google.protobuf.{name}_pb2" for name in ("source_context", "struct", "timestamp", "type", "wrappers")),
    "confluent_kafka.schema_registry.confluent.meta_pb2",
    "confluent_kafka.schema_registry.confluent.types.decimal_pb2",
    *(f"google.type.{name}_pb2" for name in ("date", "datetime", "timeofday", "money", "latlng", "decimal")),
)
_MAIN = "schema.proto"
_WITHIN_S = 120
_NOISE = "absl::InitializeLog"


def compile_protobuf(schema: str | bytes, references: Mapping[str, str] | None = None) -> bytes:
    """A serialized ``google.protobuf.FileDescriptorSet``, whose last file is ``schema``.

    ``schema`` is .proto text, or a descriptor in base64; ``references`` are the files that it imports, by the names in
    its imports. Bytes are the content of a file: text, or a descriptor set as `protoc --descriptor_set_out` writes it.
    Raises SchemaError for an invalid schema, ConfigError where the packages are not installed, and BuildError where the
    compiler is ended.
    """
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415 - only with Protobuf
    except ImportError as error:
        raise ConfigError(f"format: protobuf needs a package that is not installed ({error.name})", _EXTRA) from error
    files_by_name = {each.name: each for each in _built_in()}
    texts: dict[str, str] = {}
    for name, text in (references or {}).items():
        described = _described(text)
        if described is None:
            texts[name] = text
        else:
            described.name = name
            files_by_name[name] = described
    if isinstance(schema, bytes):
        decoded = _text(schema)
        if decoded is None:
            return _complete(schema, files_by_name)
        schema = decoded
    main = _described(schema)
    if main is None:
        return _compiled({**texts, _MAIN: schema}, _bytes(files_by_name.values()))
    if texts:
        together = _compiled(texts, _bytes(files_by_name.values()))
        files_by_name |= {each.name: each for each in FileDescriptorSet.FromString(together).file}
    return _bytes(_ordered(main, files_by_name))


def _text(content: bytes) -> str | None:
    """The text of a file; None for a descriptor set, which has bytes that no text has."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if any(sign < " " and sign not in "\t\n\r\f\v" for sign in text) else text


def _bytes(files: Iterable[FileDescriptorProto]) -> bytes:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415 - only with Protobuf

    data: bytes = FileDescriptorSet(file=files).SerializeToString()
    return data


def _complete(files: bytes, files_by_name: Mapping[str, FileDescriptorProto]) -> bytes:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415 - only with Protobuf
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - only with Protobuf

    try:
        given = FileDescriptorSet.FromString(files).file
    except DecodeError:
        given = []
    if not given:
        msg = "the schema file is neither .proto text nor a descriptor set"
        raise SchemaError(msg, "write one with protoc --include_imports --descriptor_set_out=FILE")
    known = {**files_by_name, **{each.name: each for each in given}}
    return _bytes(_ordered(given[-1], known))


def _ordered(main: FileDescriptorProto, known: Mapping[str, FileDescriptorProto]) -> list[FileDescriptorProto]:
    """A file's imports, depth first, then the file itself. Raises SchemaError for a missing one."""
    done: dict[str, FileDescriptorProto] = {}
    waiting: set[str] = set()

    def add(file: FileDescriptorProto) -> None:
        if file.name in waiting:
            raise SchemaError(f"the Protobuf file {file.name} imports itself", "fix the schema")
        waiting.add(file.name)
        for name in file.dependency:
            if name not in known:
                msg = f"the Protobuf schema imports {name}, and has no reference to it"
                raise SchemaError(msg, "register it as a reference of the schema, under the name in the import")
            if name not in done:
                add(known[name])
        waiting.discard(file.name)
        done[file.name] = file

    add(main)
    return list(done.values())


def _described(text: str) -> FileDescriptorProto | None:
    """The descriptor that the text encodes in base64; None for .proto text."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - only with Protobuf
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - only with Protobuf

    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    return file if file.ByteSize() else None


def _built_in() -> Iterator[FileDescriptorProto]:
    """The files of rule 2, as far as they are installed."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415 - only with Protobuf

    for name in _BUILT_IN:
        try:
            file: FileDescriptor = import_module(name).DESCRIPTOR
        except ImportError:
            continue
        descriptor = FileDescriptorProto()
        file.CopyToProto(descriptor)
        yield descriptor


def _compiled(texts: Mapping[str, str], known: bytes) -> bytes:
    """The descriptors of some .proto texts and of their imports; the last text's descriptor comes last."""
    with tempfile.TemporaryDirectory(prefix="protoc-") as folder_name:
        folder = Path(folder_name)
        for name, text in texts.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.name:
                msg = f"a reference of the Protobuf schema has the name {name!r}, which is not a valid file path"
                raise SchemaError(msg, "register the reference under the name in the import")
            target = folder / "texts" / path
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, "utf-8")
            except (ValueError, FileExistsError, NotADirectoryError, IsADirectoryError) as error:
                msg = f"the Protobuf schema {name!r} is not valid text under a valid file path: {error}"
                raise SchemaError(msg, "fix the schema, or the names of its references") from None
        (folder / "known").write_bytes(known)
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={folder / 'texts'}"]
        command += [f"--descriptor_set_in={folder / 'known'}", "--include_imports"]
        command += [f"--descriptor_set_out={folder / 'set'}", *texts]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)  # noqa: S603
        if done.returncode == 0:
            return _with_last(list(texts)[-1], (folder / "set").read_bytes())
    if done.returncode < 0:
        msg = f"the compiler of Protobuf schemas was killed by signal {-done.returncode}"
        raise BuildError(msg, "give it more memory, and start again")
    if "No module named" in done.stderr:
        raise ConfigError("a Protobuf schema in text needs grpcio-tools, which is not installed", _EXTRA)
    problems = [line.partition("/texts/")[2] or line for line in done.stderr.splitlines() if _NOISE not in line]
    msg = f"the Protobuf schema is invalid: {'; '.join(problems)[:1000]}"
    raise SchemaError(msg, "fix the schema, or use a valid one with all its references")


def _with_last(name: str, files: bytes) -> bytes:
    """The set with the file of that name moved to its end."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415 - only with Protobuf

    described_files = FileDescriptorSet.FromString(files).file
    return _bytes(sorted(described_files, key=lambda each: bool(each.name == name)))
