"""The reader in C for tests: compiled when it is not there yet, by the system's compiler."""

from functools import cache

import pytest

from stage_writer.decode.binary.avro import MakeAvroPass
from stage_writer.decode.decode_options import MakeNativeDecoder, no_native_decoder
from stage_writer.native.compiler import CompileError, compile_library
from stage_writer.native.library import library_path, load, load_avro
from stage_writer.native.reader import Library


@cache
def native_library() -> Library | None:
    """The library; None where nothing can compile it."""
    path = library_path()
    try:
        if not path.exists():
            compile_library(path, may_fetch=False)
    except CompileError:
        return None
    return load(path)


def required_library() -> Library:
    library = native_library()
    if library is None:
        pytest.skip("the native reader is not built, and there is no C compiler")
    return library


def required_avro_pass() -> MakeAvroPass:
    required_library()
    return load_avro(library_path()).avro_pass


def native_decoders() -> list[MakeNativeDecoder]:
    """None, and the one in C where there is one: what holds for a decoder holds with each."""
    library = native_library()
    return [no_native_decoder] if library is None else [no_native_decoder, library.native_decoder]
