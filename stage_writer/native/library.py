"""Finds the compiled reader.

Rules:

1. A wheel that was built with a compiler includes the library next to this module. Otherwise it is in the cache, under
   a name that depends on its sources; `python -m stage_writer.native` puts it there, as `make setup` does.
2. A writer does not compile. Without the library it still works, and logs that once.
3. A library that reads a test record wrongly is not used.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from common.downloads import cache_folder
from common.errors import ConfigError
from common.schema import parse_ddl
from common.settings import Native
from stage_writer.decode.binary.avro import MakeAvroPass, no_avro_pass
from stage_writer.decode.binary.avro_plan import AvroKind, AvroNode
from stage_writer.decode.binary.texts import quoted
from stage_writer.decode.decode_options import STRICT, MakeNativeDecoder, no_native_decoder
from stage_writer.native.avro import AvroLibrary
from stage_writer.native.compiler import FOLDER, NAME, fingerprint
from stage_writer.native.reader import Library

REMEDY = "run `python -m stage_writer.native` to compile it"
_RECORD = b'{"a":[1.5,null],"b":"\\u00e9"}'


@dataclass(frozen=True, slots=True)
class NativeDecoders:
    make: MakeNativeDecoder
    make_avro: MakeAvroPass
    problem: str | None
    """Why there is none, if one is wanted."""
    library: Path | None = None


def library_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The library's path, whether it exists or not."""
    brought = FOLDER / NAME
    return brought if brought.exists() else cached_path(environ)


def cached_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The library's path when it did not come with the package."""
    return cache_folder(environ) / "built" / fingerprint() / NAME


def find_reader(wanted: Native, environ: Mapping[str, str] = os.environ) -> NativeDecoders:
    """The reader for a value of `writer.native`. Raises ConfigError when it is required and missing."""
    if wanted is Native.OFF:
        return NativeDecoders(no_native_decoder, no_avro_pass, None)
    problem = None
    try:
        path = library_path(environ)
        return NativeDecoders(load(path).native_decoder, load_avro(path).avro_pass, None, path)
    except OSError as error:
        problem = f"the native JSON reader is missing: {error}"
    if wanted is Native.ON:
        raise ConfigError(f"writer.native is on, but {problem}", REMEDY)
    return NativeDecoders(no_native_decoder, no_avro_pass, problem)


def load(path: Path) -> Library:
    """Load the library. Raises OSError if it is missing, or does not work (rule 3)."""
    library = Library(path)
    reader = library.native_decoder(parse_ddl("a ARRAY<DOUBLE>, b STRING"), STRICT)
    taken = None if reader is None else reader.read(pa.array([_RECORD], pa.binary()))
    if taken is None or taken.rows.to_pylist() != [{"a": [1.5, None], "b": "é"}]:
        raise OSError(f"{path} gives wrong results")
    return library


def load_avro(path: Path) -> AvroLibrary:
    """Load its reader of Avro. Raises OSError if it is missing, or does not work (rule 3)."""
    library = AvroLibrary(path)
    texts = (AvroNode(kind, quoted, bits=64) for kind in (AvroKind.INTEGER, AvroKind.STRING))
    record = AvroNode(AvroKind.RECORD, quoted, names=("a", "b"), parts=list(texts))
    reader = library.avro_pass(record)
    body = pa.array([b"\x03\x04\xc3\xa9", b"\x03\x04\xc3"], pa.large_binary())
    taken = None if reader is None else reader.read(body)
    if taken is None or taken[0].to_pylist() != ['{"a":-2,"b":"é"}'.encode()] or taken[1].tolist() != [True, False]:
        raise OSError(f"{path} gives wrong results for Avro")
    return library
