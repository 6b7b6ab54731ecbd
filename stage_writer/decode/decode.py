"""Messages into rows, in bulk: every message ends as a row, a reject or a tombstone.

    bytes ─► first pass ─► rows
                 └─► UTF-8? ─► one JSON object? ─► read together ─► in range, well formed? ─► rows
                       └────────────┴──────────────────┴──────────────────┴─► the strict decoder ─► rows and rejects

Rules:

1. Good messages cost no Python object each. Messages that the bulk path cannot prove good are *suspect*, and go one at
   a time to the strict decoder, and only that refuses. So a fault of the bulk path can cost time, but no record, as
   long as it accepts nothing that the strict decoder would refuse or read differently; property tests enforce that.
2. Rows stay in the order of their messages, and `Decoded.row_index` gives each row's message.
3. A message that cannot be read together with its neighbors is found by the parser's own report or by halving, down to
   groups of 32: a bad message costs its own handling, not its batch's.
4. Messages are taken in blocks of ``block_bytes``, which bounds memory; one message may be larger than a block.
5. NOT NULL is enforced here, and not declared downstream: where a struct is null its NOT NULL parts are null as well,
   which Arrow's writers and casts refuse.
6. The first pass (`stage_writer.decode.first_pass`) takes nearly all messages where there is one. It does not
   affect the result: without it each message has the same outcome. If it leaves only a few, they are decoded strictly
   at once: one call of the bulk path costs as much as some hundred of them.

See `stage_writer.decode.documents` for the proof that rows are aligned, and for measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from common.schema import StructType, nullable_columns, to_arrow_field, to_arrow_schema
from stage_writer.decode.blocks import BLOCK_BYTES, begin_as_objects, blocks, texts_of
from stage_writer.decode.documents import DocumentReader, Unreadable, doubts_about, proved_documents
from stage_writer.decode.first_pass import no_first_pass
from stage_writer.decode.reading import STRICT, Reading
from stage_writer.decode.rejects import ErrorClass, Refusal, Reject
from stage_writer.decode.rewriting import Rewriter, Use
from stage_writer.decode.strict import Row, StrictDecoder
from stage_writer.decode.unknown.rescue import Rescuer
from stage_writer.duck import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stage_writer.decode.batch import Messages
    from stage_writer.decode.conversions import Converted
    from stage_writer.decode.first_pass import MakeFirstPass, Taken

    Index = NDArray[np.int64]
    Mask = NDArray[np.bool_]

__all__ = ["Decoded", "Decoder", "ErrorClass", "Reject"]

_SMALL_GROUP = 32
_SEARCH_GROUP = 1024
FEW_MESSAGES = 256
_FEW_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result of a batch: each message's index is with the rows, the rejects or the tombstones, once."""

    rows: pa.Table
    """The declared columns, nullable, with the Arrow types of `common.schema.to_arrow_schema`."""
    row_index: NDArray[np.int64]
    """For each row, the index of its message in the batch. Strictly rising."""
    rejects: tuple[Reject, ...]
    """By rising index."""
    tombstones: NDArray[np.int64]
    """The indices of messages whose value is null."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows, as one struct array, and the indices of their messages in the block."""

    rows: pa.StructArray
    places: Index
    is_closed: bool = False
    """Whether the messages are known to have no unknown fields."""


class Decodes(Protocol):
    """Makes rows of messages. Not thread-safe."""

    @property
    def columns(self) -> StructType:
        """The columns of the rows."""

    def decode(self, messages: Messages) -> Decoded:
        """The result for the messages; one without a value is a tombstone."""


class Decoder:
    """Decodes batches into the declared columns. Not thread-safe.

    Raises SchemaError for columns that no JSON value can be decoded into (VARIANT, MAP with other keys than STRING…).
    """

    def __init__(
        self,
        columns: StructType,
        reading: Reading = STRICT,
        *,
        rescue_column: str | None = None,
        block_bytes: int = BLOCK_BYTES,
        first_pass: MakeFirstPass = no_first_pass,
        few_messages: int = FEW_MESSAGES,
    ) -> None:
        """With a ``rescue_column`` the rows have it after the declared ones (`stage_writer.decode.unknown.rescue`)."""
        self._block_bytes = block_bytes
        self._strict = StrictDecoder(columns, reading)
        self._first = first_pass(columns, reading)
        self._few_messages = few_messages
        self._row_type = pa.struct(list(to_arrow_schema(columns)))
        self._connection = connect()
        self._doubts = doubts_about(columns, reading)
        self._shapes = Rewriter(columns, reading, Use.SHAPE)
        self._coercion = Rewriter(columns, reading, Use.COERCION) if reading.lenient else None
        self._bulk = DocumentReader(columns, self._connection, reading.rewritten)
        self._rescuer = None if rescue_column is None else Rescuer(rescue_column, columns, self._connection)
        self._closed = None
        if rescue_column is not None:
            self._closed = DocumentReader(columns, self._connection, reading.rewritten, unknown_fields="error")
        read = columns if self._rescuer is None else columns.with_fields((self._rescuer.field,))
        self._schema = to_arrow_schema(read)
        self._columns = nullable_columns(read)
        self._nullable = to_arrow_schema(self._columns)

    @property
    def columns(self) -> StructType:
        """The columns of the rows, all nullable (rule 5)."""
        return self._columns

    def decode(self, values: pa.BinaryArray | pa.LargeBinaryArray | Sequence[bytes | None]) -> Decoded:
        """The result for the messages with these values; None is a tombstone."""
        array = values if isinstance(values, pa.Array) else pa.array(values, pa.large_binary())
        nulls = array.is_null().to_numpy(zero_copy_only=False)
        present = np.flatnonzero(~nulls)
        batches: list[pa.RecordBatch] = []
        indices: list[Index] = [np.zeros(0, np.int64)]
        rejects: list[Reject] = []
        for start, block in blocks(array.drop_null() if len(present) < len(array) else array, self._block_bytes):
            index = present[start : start + len(block)]
            rows, refused = self._decode_block(block)
            batches.append(pa.RecordBatch.from_struct_array(rows.rows))
            indices.append(index[rows.places])
            rejects += (Reject(int(index[place]), why.error_class, why.error) for place, why in refused)
        table = pa.Table.from_batches(batches, self._schema)
        if self._nullable != self._schema:
            table = table.cast(self._nullable)  # no copy
        return Decoded(table, np.concatenate(indices), tuple(rejects), np.flatnonzero(nulls))

    def _decode_block(self, block: pa.BinaryArray) -> tuple[_Piece, list[tuple[int, Refusal]]]:
        if self._first is None:
            return self._decode_slowly(block)
        taken = self._first.read(block)
        piece = _Piece(taken.rows, np.flatnonzero(taken.is_taken))
        if self._rescuer is not None:
            piece = _rescued_of_taken(piece, taken, block, self._rescuer)
        left = np.flatnonzero(~taken.is_taken)
        if len(left) == 0:
            return piece, []
        rest = block.take(pa.array(left))
        is_small = len(rest) <= self._few_messages and rest.nbytes <= _FEW_BYTES
        other, refused = self._decode_alone(rest) if is_small else self._decode_slowly(rest)
        other = replace(other, places=left[other.places])
        return self._merged([piece, other]), [(int(left[place]), why) for place, why in refused]

    def _decode_slowly(self, block: pa.BinaryArray) -> tuple[_Piece, list[tuple[int, Refusal]]]:
        texts = texts_of(block)
        proved = self._prove(texts)
        places = np.flatnonzero(proved)
        good = texts if len(places) == len(texts) else texts.filter(pa.array(proved))
        pieces = self._read_in_bulk(*_rewritten(self._shapes, good, places))
        left = np.ones(len(block), np.bool_)
        for piece in pieces:
            left[piece.places] = False
        strict_rows, refused = self._read_strictly(block, np.flatnonzero(left))
        pieces.append(strict_rows)
        if self._rescuer is not None:
            pieces = [_rescued(piece, texts, self._rescuer, is_proved=piece is not strict_rows) for piece in pieces]
        return self._merged(pieces), refused

    def _decode_alone(self, block: pa.BinaryArray) -> tuple[_Piece, list[tuple[int, Refusal]]]:
        piece, refused = self._read_strictly(block, np.arange(len(block)))
        if self._rescuer is not None:
            piece = _rescued(piece, texts_of(block), self._rescuer, is_proved=False)
        return piece, refused

    def _prove(self, texts: pa.StringArray) -> Mask:
        """Which messages are one JSON object each, by themselves; an unproved one may still be one."""
        return proved_documents(texts, self._connection, self._doubts) & begin_as_objects(texts)

    def _read_in_bulk(self, texts: pa.StringArray, places: Index) -> list[_Piece]:
        """The rows of all messages that can be read in bulk, and the remaining messages."""
        rows = Unreadable(None) if self._closed is None else self._closed.read(texts)
        if not isinstance(rows, Unreadable):
            return [replace(_good(rows, places), is_closed=True)]
        rows = self._bulk.read(texts)
        if self._coercion is not None and isinstance(rows, Unreadable):
            texts, places = _rewritten(self._coercion, texts, places)
            rows = self._bulk.read(texts)
        if not isinstance(rows, Unreadable):
            return [_good(rows, places)]
        expected = ~self._bulk.unexpected(texts)
        texts, places = texts.filter(pa.array(expected)), places[expected]
        pieces: list[_Piece] = []
        groups = [(0, len(texts))]
        while groups:
            start, end = groups.pop()
            if start == end:
                continue
            rows = self._bulk.read(texts.slice(start, end - start))
            if isinstance(rows, Unreadable):
                groups += _narrowed(start, end, rows.row)
            else:
                pieces.append(_good(rows, places[start:end]))
        return pieces

    def _read_strictly(self, block: pa.BinaryArray, places: Index) -> tuple[_Piece, list[tuple[int, Refusal]]]:
        rows: list[Row] = []
        good: list[int] = []
        refused: list[tuple[int, Refusal]] = []
        for place in places.tolist():
            outcome = self._strict.decode(block[place].as_py())
            if isinstance(outcome, Refusal):
                refused.append((place, outcome))
            else:
                rows.append(outcome)
                good.append(place)
        return _Piece(pa.array(rows, self._row_type), np.array(good, np.int64)), refused

    def _merged(self, pieces: Sequence[_Piece]) -> _Piece:
        """The pieces as one, in the order of the messages."""
        filled = [piece for piece in pieces if len(piece.places)]
        if len(filled) == 1:
            return filled[0]
        if not filled:
            return _Piece(pa.array([], pa.struct(list(self._schema))), np.zeros(0, np.int64))
        places = np.concatenate([piece.places for piece in filled])
        order = np.argsort(places)
        rows = pa.concat_arrays([piece.rows for piece in filled])
        return _Piece(rows.take(pa.array(order)), places[order])


def _rewritten(rewriter: Rewriter, texts: pa.StringArray, places: Index) -> tuple[pa.StringArray, Index]:
    """The texts after rewriting, without those that it is not sure of."""
    if not rewriter:
        return texts, places
    found = rewriter.rewrite(texts)
    if found.sure is None:
        return found.texts, places
    return found.texts.filter(pa.array(found.sure)), places[found.sure]


def _good(converted: Converted, places: Index) -> _Piece:
    if converted.suspects is None:
        return _Piece(converted.array, places)
    good = ~converted.suspects
    return _Piece(converted.array.filter(pa.array(good)), places[good])


def _rescued(piece: _Piece, texts: pa.StringArray, rescuer: Rescuer, *, is_proved: bool) -> _Piece:
    """The rows with the rescue column; ``texts`` are the block's."""
    if piece.is_closed:
        left = pa.nulls(len(piece.places), pa.string())
    else:
        chosen = texts.take(pa.array(piece.places))
        left = rescuer.of_proved(chosen) if is_proved else rescuer.of(chosen)
    return _with_rescued(piece, left, rescuer)


def _rescued_of_taken(piece: _Piece, taken: Taken, block: pa.BinaryArray, rescuer: Rescuer) -> _Piece:
    having = block.take(pa.array(piece.places[taken.has_unknown])).cast(pa.string())
    return _with_rescued(piece, rescuer.of_some(having, taken.has_unknown), rescuer)


def _with_rescued(piece: _Piece, left: pa.StringArray, rescuer: Rescuer) -> _Piece:
    columns = [*piece.rows.flatten(), left]
    fields = [*piece.rows.type, to_arrow_field(rescuer.field)]
    return replace(piece, rows=pa.StructArray.from_arrays(columns, fields=fields))


def _narrowed(start: int, end: int, row: int | None) -> list[tuple[int, int]]:
    """The groups to try after ``[start, end)`` failed, at ``row`` of it if that is known; small ones are not."""
    if end - start <= _SMALL_GROUP:
        return []
    if end - start > _SEARCH_GROUP:
        return [(first, min(first + _SEARCH_GROUP, end)) for first in range(start, end, _SEARCH_GROUP)]
    if row is None:
        middle = (start + end) // 2
        return [(start, middle), (middle, end)]
    given_up = 1 if row >= _SMALL_GROUP else _SMALL_GROUP - row
    return [(start, start + row), (start + row + given_up, end)]
