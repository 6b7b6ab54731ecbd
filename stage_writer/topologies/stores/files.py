"""The files of a task's state: the changes of a flush, or, periodically, everything (a snapshot).

    changes_to_chunks(changes), snapshot_to_chunks(snapshot)            → Pieces, to be uploaded
    changes_from_bytes(path, data)                                      → Changes
    snapshot_from_bytes(path, data), snapshot_from_file(path, opened)   → parts, for `TaskStores.restore`

A file is a head and blocks:

    head    KDXSTATE, version (1 byte), then a block of {"kind": "changes" or "snapshot", "stores": {name: kind}}
    block   length, length when decompressed, checksum (4 bytes each, big-endian), then that many bytes of zstd over
            MessagePack: [store, [key, value, key, value, …]], a value being null where its key was deleted
    end     a block of the number of blocks before it

Rules:

1. Nothing is read from a block before its checksum was verified, which covers its position too; and a file without its
   end is incomplete. Any defect is a StateError that names the file, and never gives another state.
2. A newer version is refused. A file holds bytes, numbers and names: nothing in it is run or imported.
3. A writer holds compressed data, never an uncompressed copy of everything; a reader holds one block.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from typing import BinaryIO
from zlib import crc32

import msgpack
import pyarrow as pa

from common.errors import StateError
from common.storage.chunks import ByteChunks
from stage_writer.topologies.stores.backend import Changes, Space, SpaceChanges
from stage_writer.topologies.stores.task_stores import Snapshot

MAGIC = b"KDXSTATE"
VERSION = 1
CHANGES, SNAPSHOT = "changes", "snapshot"
_BLOCK = struct.Struct(">III")
_BLOCK_BYTES = 2**20
_LONGEST_BLOCK_BYTES = 2**30
_CODEC = pa.Codec("zstd", compression_level=1)


def changes_to_chunks(changes: Changes) -> ByteChunks:
    entries = (
        (space, key, changed[key]) for space, changed in sorted(changes.spaces.items()) for key in sorted(changed)
    )
    return ByteChunks(_blocks(CHANGES, changes.kinds, entries))


def snapshot_to_chunks(snapshot: Snapshot) -> ByteChunks:
    """A complete state, as a file. Reads the snapshot's entries, in the calling thread; does not close it."""
    return ByteChunks(_blocks(SNAPSHOT, snapshot.kinds, snapshot.entries()))


def changes_from_bytes(path: str, data: bytes) -> Changes:
    """The inverse of `changes_to_chunks`. Raises StateError, which names the file."""
    spaces: dict[Space, dict[bytes, bytes | None]] = {}
    kinds: Mapping[Space, str] = {}
    for part in _parts(path, BytesIO(data), CHANGES):
        kinds = part.kinds
        for space, changed in part.spaces.items():
            spaces.setdefault(space, {}).update(changed)
    return Changes(spaces, kinds)


def snapshot_from_bytes(path: str, data: bytes) -> Iterator[Changes]:
    """A snapshot in parts, one after the other. Raises StateError, which names the file."""
    return _parts(path, BytesIO(data), SNAPSHOT)


def snapshot_from_file(path: str, opened: BinaryIO) -> Iterator[Changes]:
    """Like `snapshot_from_bytes`, for a file that is read on demand, and closed by the caller."""
    return _parts(path, opened, SNAPSHOT)


def _blocks(
    kind: str, kinds: Mapping[Space, str], entries: Iterable[tuple[Space, bytes, bytes | None]]
) -> Iterator[bytes]:
    yield MAGIC + bytes((VERSION,))
    head = {"kind": kind, "stores": {name: str(each) for name, each in kinds.items()}}
    yield _block(0, head)
    number = 1
    for part in _grouped(entries):
        yield _block(number, part)
        number += 1
    yield _block(number, number)


def _grouped(entries: Iterable[tuple[Space, bytes, bytes | None]]) -> Iterator[list[object]]:
    flat: list[bytes | None] = []
    held, current = 0, ""
    for space, key, value in entries:
        if flat and (space != current or held >= _BLOCK_BYTES):
            yield [current, flat]
            flat, held = [], 0
        current = space
        flat += (key, value)
        held += len(key) + len(value or b"") + 8
    if flat:
        yield [current, flat]


def _block(number: int, content: object) -> bytes:
    raw = msgpack.packb(content)
    data = _CODEC.compress(raw, asbytes=True)
    return b"".join((_BLOCK.pack(len(data), len(raw), crc32(data, number)), data))


def _parts(path: str, opened: BinaryIO, kind: str) -> Iterator[Changes]:
    blocks = _read(path, opened)
    kinds = _kinds(path, next(blocks, None), kind)
    yield Changes({}, kinds)  # gives the stores' kinds, even without entries
    number = 1
    for content in blocks:
        if content == number and not isinstance(content, bool):
            if opened.read(1):
                raise _unreadable(path, "more data follows its end")
            return
        yield Changes(_entries(path, content), kinds)
        number += 1
    raise _unreadable(path, "it ends too early")


def _read(path: str, opened: BinaryIO) -> Iterator[object]:
    start = opened.read(len(MAGIC) + 1)
    if len(start) <= len(MAGIC) or not start.startswith(MAGIC):
        raise _unreadable(path, "it is not a state file, or it is incomplete")
    version = start[len(MAGIC)]
    if version > VERSION:
        msg = f"the state file {path} has format version {version}; this program reads up to {VERSION}"
        raise StateError(msg, "upgrade this service to at least the release that wrote it")
    number = 0
    while head := opened.read(_BLOCK.size):
        if len(head) < _BLOCK.size:
            raise _unreadable(path, "it ends too early")
        length, raw_length, checksum = _BLOCK.unpack(head)
        if max(length, raw_length) > _LONGEST_BLOCK_BYTES:
            raise _unreadable(path, f"its block {number} is too long")
        data = opened.read(length)
        if len(data) < length:
            raise _unreadable(path, "it ends too early")
        if crc32(data, number) != checksum:
            raise _unreadable(path, f"the checksum of its block {number} does not match")
        yield _unpacked(path, data, raw_length)
        number += 1


def _unpacked(path: str, data: bytes, raw_length: int) -> object:
    try:
        raw = _CODEC.decompress(data, decompressed_size=raw_length, asbytes=True)
        content: object = msgpack.unpackb(raw)
    except (ValueError, TypeError, OSError, MemoryError, msgpack.UnpackException) as error:
        raise _unreadable(path, str(error)) from error
    return content


def _kinds(path: str, head: object, kind: str) -> dict[Space, str]:
    match head:
        case {"kind": str(stored_kind), "stores": dict(stores)} if all(
            isinstance(name, str) and isinstance(each, str) for name, each in stores.items()
        ):
            if stored_kind != kind:
                raise _unreadable(path, f"it holds {stored_kind}, but {kind} was expected")
            return stores
        case _:
            raise _unreadable(path, "its header has an unknown format")


def _entries(path: str, content: object) -> dict[Space, SpaceChanges]:
    match content:
        case [str(space), list(flat)] if len(flat) % 2 == 0:
            keys, values = flat[0::2], flat[1::2]
            if set(map(type, keys)) <= {bytes} and set(map(type, values)) <= {bytes, type(None)}:
                return {space: dict(zip(keys, values, strict=True))}
    raise _unreadable(path, "a block holds something other than entries")


def _unreadable(path: str, why: str) -> StateError:
    return StateError(
        f"the state file {path} cannot be read: {why}",
        "restore it from a version or a backup of the bucket, or rewind the chain to a marker whose state exists",
    )
