"""Messages into rows: every message ends as a row, a reject or a tombstone.

    bytes ─► native decoder, in C ─► rows
                 └─► the strict decoder ─► rows and rejects

Rules:

1. The native decoder (`stage_writer.decode.decode_options`) takes ordinary messages, which cost no Python object. The
   others go one at a time to the strict decoder, and only that refuses. The native decoder does not affect the result:
   without it each message has the same outcome, at many times the cost. Property tests enforce that.
2. Rows stay in the order of their messages, and `Decoded.row_index` gives each row's message.
3. Messages are taken in blocks of ``block_bytes``, which bounds memory; one message may be larger than a block.
4. NOT NULL is enforced here, and not declared downstream: where a struct is null its NOT NULL parts are null as well,
   which Arrow's writers and casts refuse.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.schema import StructType, nullable_columns, to_arrow_field, to_arrow_schema
from stage_writer.decode.batch import BLOCK_BYTES, Index, Messages, blocks, in_order
from stage_writer.decode.decode_options import STRICT, DecodeOptions, MakeNativeDecoder, no_native_decoder
from stage_writer.decode.rejects import Refusal, Reject
from stage_writer.decode.strict import Row, StrictDecoder
from stage_writer.decode.unknown.leftovers import Rescuer

_STRICT_MESSAGES = 256
"""So many rows are Python objects at a time."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result of a batch: each message's index is once in one of the parts; some envelopes give it several rows."""

    rows: pa.Table
    """The declared columns, nullable, with the Arrow types of `common.schema.to_arrow_schema`."""
    row_index: NDArray[np.int64]
    """For each row, the index of its message in the batch. Rising; strictly, but for messages of several rows."""
    rejects: tuple[Reject, ...]
    """By rising index."""
    tombstones: NDArray[np.int64]
    """The indices of messages whose value is null."""
    passed_over: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The indices of messages of a feed of changes that change no row. Rising."""


class _Segment(NamedTuple):
    """Some rows, as one struct array, and the indices of their messages in the block."""

    indexes: Index
    rows: pa.StructArray


class MessageDecoder(Protocol):
    """Makes rows of messages. Not thread-safe."""

    @property
    def columns(self) -> StructType: ...

    def decode(self, messages: Messages) -> Decoded:
        """The result for the messages; one without a value is a tombstone."""


class Decoder:
    """Decodes batches into the declared columns. Not thread-safe.

    Raises SchemaError for columns that no JSON value can be decoded into (VARIANT, MAP with other keys than STRING…).
    """

    def __init__(
        self,
        columns: StructType,
        reading: DecodeOptions = STRICT,
        *,
        rescue_column: str | None = None,
        block_bytes: int = BLOCK_BYTES,
        native_decoder: MakeNativeDecoder = no_native_decoder,
    ) -> None:
        """With a ``rescue_column`` the rows have it after the declared ones (see `Rescuer`)."""
        self._block_bytes = block_bytes
        self._strict = StrictDecoder(columns, reading)
        self._first = native_decoder(columns, reading)
        self._row_type = pa.struct(list(to_arrow_schema(columns)))
        self._rescuer = None if rescue_column is None else Rescuer(rescue_column, columns)
        read = columns if self._rescuer is None else columns.with_fields((self._rescuer.field,))
        self._schema = to_arrow_schema(read)
        self.columns = nullable_columns(read)
        """The columns of the rows, all nullable (rule 4)."""
        self._nullable = to_arrow_schema(self.columns)

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
            indices.append(index[rows.indexes])
            rejects += (why.at(int(index[row])) for row, why in refused)
        table = pa.Table.from_batches(batches, self._schema)
        if self._nullable != self._schema:
            table = table.cast(self._nullable)  # no copy
        return Decoded(table, np.concatenate(indices), tuple(rejects), np.flatnonzero(nulls))

    def _decode_block(self, block: pa.BinaryArray) -> tuple[_Segment, list[tuple[int, Refusal]]]:
        if self._first is None:
            return self._read_strictly(block, np.arange(len(block)))
        taken = self._first.read(block)
        indexes = np.flatnonzero(taken.is_decoded)
        segment = self._rescued(_Segment(indexes, taken.rows), block, taken.has_unknown)
        if len(indexes) == len(block):
            return segment, []
        other, refused = self._read_strictly(block, np.flatnonzero(~taken.is_decoded))
        return _Segment(*in_order([segment, other])), refused

    def _read_strictly(self, block: pa.BinaryArray, indexes: Index) -> tuple[_Segment, list[tuple[int, Refusal]]]:
        arrays: list[pa.StructArray] = [pa.array([], self._row_type)]
        good: list[int] = []
        refused: list[tuple[int, Refusal]] = []
        for start in range(0, len(indexes), _STRICT_MESSAGES):
            some = indexes[start : start + _STRICT_MESSAGES]
            rows: list[Row] = []
            for index, message in zip(some.tolist(), block.take(pa.array(some)).to_pylist(), strict=True):
                outcome = self._strict.decode(message)
                if isinstance(outcome, Refusal):
                    refused.append((index, outcome))
                else:
                    rows.append(outcome)
                    good.append(index)
            arrays.append(pa.array(rows, self._row_type))
        segment = _Segment(np.array(good, np.int64), pa.concat_arrays(arrays))
        return self._rescued(segment, block, np.ones(len(good), np.bool_)), refused

    def _rescued(self, segment: _Segment, block: pa.BinaryArray, may_have_unknown: NDArray[np.bool_]) -> _Segment:
        """The rows with the rescue column, if there is one; the mask is of the rows."""
        if self._rescuer is None:
            return segment
        texts = block.take(pa.array(segment.indexes[may_have_unknown])).cast(pa.string())
        columns = [*segment.rows.flatten(), self._rescuer.of_some(texts, may_have_unknown)]
        fields = [*segment.rows.type, to_arrow_field(self._rescuer.field)]
        return _Segment(segment.indexes, pa.StructArray.from_arrays(columns, fields=fields))
