"""A flush's changes as messages of a topic, and back.

Rules:

1. Their bytes, concatenated, are those of a changes file (stage_writer/topologies/stores/files.py).
2. No piece is longer than a message may be. Each has headers, for debugging and for the reader: the task, the flush,
   the piece's number and the number of pieces, and its checksum.
3. No piece has a key. So Kafka rejects them if the topic was changed to a compacted one, instead of discarding them.
4. Anything that differs from what was written is refused with its topic, partition and offset, and not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from common.errors import StateError
from common.stage.changelogs import changes_digest
from stage_writer.changelog.ports import Piece

if TYPE_CHECKING:
    from collections.abc import Iterable

    from common.spans import Position
    from common.stage.changelogs import TopicChanges
    from common.stage.state_files import StateFileName
    from common.storage.pieces import Pieces

PIECE_BYTES = 256 * 2**10
APP, TASK, FLUSH, PIECE, CHECKSUM = "kdx.app", "kdx.task", "kdx.flush", "kdx.piece", "kdx.crc32"


def cut(app_id: str, name: StateFileName, data: Pieces, piece_bytes: int) -> list[Piece]:
    """Split a flush's changes into messages."""
    starts = range(0, max(len(data), 1), piece_bytes)
    values = [data[start : start + piece_bytes] for start in starts]
    about = (
        (APP, app_id.encode()),
        (TASK, str(name.partition).encode()),
        (FLUSH, f"{name.start}-{name.generation}".encode()),
    )
    return [
        Piece(value, (*about, (PIECE, _number(number, len(values))), (CHECKSUM, _checksum(value))))
        for number, value in enumerate(values, 1)
    ]


def joined(changes: TopicChanges, found: Iterable[tuple[Position, Piece]]) -> bytes:
    """The inverse of `cut`, for what a marker names. Raises StateError."""
    values: list[bytes] = []
    for number, (offset, piece) in enumerate(found, 1):
        headers = dict(piece.headers)
        if headers.get(PIECE) != _number(number, changes.pieces) or headers.get(CHECKSUM) != _checksum(piece.value):
            msg = f"the message at offset {offset} of {changes.place} is not the piece that a marker names there"
            raise StateError(msg)
        values.append(piece.value)
    data = b"".join(values)
    if (len(data), changes_digest(data)) != (changes.size_bytes, changes.digest):
        msg = f"the messages at offset {changes.spans[0].start} of {changes.place} are not those that a marker names"
        raise StateError(msg)
    return data


def _number(number: int, of: int) -> bytes:
    return f"{number}/{of}".encode()


def _checksum(value: bytes) -> bytes:
    return f"{crc32(value):08x}".encode()
