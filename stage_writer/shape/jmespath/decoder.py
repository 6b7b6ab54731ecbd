"""Decoding with `jmespath`: rows whose columns are filled by expressions, like kafka-delta-ingest's transforms.

Rules:

1. `stage_writer.shape.jmespath.rewriting` and the decoder define the result for a message: it is rewritten with its
   values and decoded. That costs tens of microseconds per message.
2. Where every expression of a stream is plain (`stage_writer.shape.jmespath.expressions`), the fields that they use are
   decoded with the others, and the columns are filled in Arrow. A message that this cannot prove good is processed by
   rule 1, and only that refuses; so both paths give the same result.
3. Plain expressions are processed by rule 1 as well if the types of their field and of their column differ, or where
   `formats`, `coerce`, a NOT NULL column or a rescue column would see another record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import SchemaError
from common.schema import DataType, Field, Primitive, StructType, to_arrow_schema, to_arrow_type
from common.schema.naming import Naming, Parts
from common.stage.merged import kafka_topic
from stage_writer.decode.batch import NO_TIMESTAMP, Index, Messages, in_order
from stage_writer.decode.decode import Decoded, Decoder
from stage_writer.decode.decode_options import STRICT, DecodeOptions, MakeNativeDecoder, no_native_decoder
from stage_writer.decode.rejects import Refusal, Reject, moved
from stage_writer.decode.unknown.evolving import EvolvingDecoder
from stage_writer.shape.expressions import refused
from stage_writer.shape.jmespath.expressions import (
    Assignment,
    Goal,
    MessageProperty,
    Path,
    Plain,
    Substring,
    assignments_of,
)
from stage_writer.shape.jmespath.rewriting import MessageRewriter
from stage_writer.shape.names import rearranged

Steps = tuple[str, ...]


class JmesPathDecoder:
    """Decodes messages into columns, some of which expressions fill. Not thread-safe.

    Raises ExpressionError for an expression that is incompatible with the columns.
    """

    def __init__(
        self,
        columns: StructType,
        expressions: Mapping[str, str],
        reading: DecodeOptions = STRICT,
        *,
        rescuing: Decoder | EvolvingDecoder | None = None,
        in_bulk: bool = True,
        native_decoder: MakeNativeDecoder = no_native_decoder,
    ) -> None:
        """``expressions`` by the columns that they fill; without ``in_bulk`` all messages are processed by rule 1.

        ``rescuing`` decodes into these columns, those that the stream has gained, and a rescue column.
        """
        self._assignments = assignments_of(columns, expressions)
        for assignment in self._assignments:
            _require_own_form(assignment, reading)
        self._decoder = rescuing or Decoder(columns, reading, native_decoder=native_decoder)
        self.columns = self._decoder.columns
        sourced = rescuing is not None or reading.holds_json
        self._rewriter = MessageRewriter(self._assignments, sourced=sourced)
        is_plain = in_bulk and rescuing is None and reading == STRICT
        self._filler = _filler_of(columns, self._assignments, native_decoder) if is_plain else None

    @property
    def is_bulk(self) -> bool:
        """Whether good messages cost no Python object each."""
        return self._filler is not None

    def decode(self, messages: Messages) -> Decoded:
        if self._filler is None:
            return self._one_by_one(messages, np.arange(len(messages)))
        filled, doubtful = self._filler.decode(messages)
        return _joined(filled, self._one_by_one(messages, doubtful)) if len(doubtful) else filled

    def _one_by_one(self, messages: Messages, index: Index) -> Decoded:
        about = _About(messages)
        rewritten: list[bytes | None] = []
        indexes: list[int] = []
        rejects: list[Reject] = []
        for row, message in zip(index.tolist(), messages.values.take(pa.array(index)).to_pylist(), strict=True):
            outcome = None if message is None else self._rewriter.rewritten(message, about.of(row))
            if isinstance(outcome, Refusal):
                rejects.append(outcome.at(row))
            else:
                rewritten.append(outcome)
                indexes.append(row)
        decoded = self._decoder.decode(pa.array(rewritten, pa.large_binary()))
        given = np.array(indexes, np.int64)
        rejects = sorted([*rejects, *moved(decoded.rejects, given)])
        return Decoded(decoded.rows, given[decoded.row_index], tuple(rejects), given[decoded.tombstones])


def _require_own_form(assignment: Assignment, reading: DecodeOptions) -> None:
    """Kafka's own values have one form, independent of `formats` for the record's values."""
    for step in assignment.goal.steps:
        reading = reading.at(step)
    if isinstance(assignment.plain, MessageProperty) and reading.format is not None:
        problem = f"its column has the format {reading.format.value}"
        raise refused(assignment.setting, assignment.text, problem, "remove the column from `formats`")


class _About:
    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def of(self, index: int) -> Mapping[str, object]:
        """The properties of one message (see `OF_MESSAGE`), times in milliseconds."""
        messages = self._messages
        batch = messages.batches[int(np.searchsorted(messages.starts, index, side="right")) - 1]
        stamp = int(messages.timestamps_ms[index])
        return {
            "kafka.topic": str(kafka_topic(batch.partition.topic)),
            "kafka.partition": int(batch.partition.partition),
            "kafka.offset": int(messages.offsets[index]),
            "kafka.timestamp": None if stamp == NO_TIMESTAMP else stamp,
        }


@dataclass(frozen=True, slots=True)
class _Fill:
    plain: Plain
    goal: Goal


def _filler_of(
    columns: StructType, assignments: Sequence[Assignment], native_decoder: MakeNativeDecoder
) -> _Filler | None:
    """Fills the columns in Arrow; None where an expression is not plain, or is incompatible (rule 3)."""
    fills = [_Fill(assignment.plain, assignment.goal) for assignment in assignments if assignment.plain is not None]
    if len(fills) < len(assignments) or any(_is_required(columns, fill.goal.steps) for fill in fills):
        return None
    wide = columns
    added: list[Steps] = []
    for fill in fills:
        if isinstance(fill.plain, MessageProperty):
            continue
        if isinstance(fill.plain, Substring) and fill.goal.type is not Primitive.STRING:
            return None
        try:
            struct_type = _with_field(wide, fill.plain.steps, (), fill.goal.type, added)
        except SchemaError:  # names that differ only in case
            return None
        if struct_type is None:
            return None
        wide = struct_type
    plan = Naming(drop=frozenset(added)).of(wide).plan if added else None
    return _Filler(columns, Decoder(wide, native_decoder=native_decoder), plan, fills)


def _is_required(columns: StructType, steps: Steps) -> bool:
    data_type: DataType = columns
    for step in steps:
        field = data_type.field(step) if isinstance(data_type, StructType) else None
        if field is None or not field.nullable:
            return True
        data_type = field.type
    return False


def _with_field(
    struct: StructType, steps: Steps, prefix: Steps, wanted: DataType, added: list[Steps]
) -> StructType | None:
    """The struct with a field of some type at a path; None if the path has another type. New parts are ``added``."""
    name, rest = steps[0], steps[1:]
    path = (*prefix, name)
    inner_field = struct.field(name)
    if inner_field is None:
        for step in reversed(rest):
            wanted = StructType((Field(step, wanted),))
        if not any(path[: len(path_added)] == path_added for path_added in added):
            added.append(path)
        return struct.with_fields((Field(name, wanted),))
    if not rest:
        return struct if inner_field.type == wanted else None
    inner = (
        _with_field(inner_field.type, rest, path, wanted, added) if isinstance(inner_field.type, StructType) else None
    )
    if inner is None:
        return None
    return StructType(tuple(replace(field, type=inner) if field is inner_field else field for field in struct))


class _Filler:
    """Fills columns in Arrow (rule 2)."""

    def __init__(self, columns: StructType, decoder: Decoder, plan: Parts | None, fills: Sequence[_Fill]) -> None:
        """The ``decoder`` reads these and the fields used by expressions, which ``plan`` leaves out again."""
        self._decoder = decoder
        self._schema = to_arrow_schema(columns)
        self._plan = plan
        self._fills = fills

    def decode(self, messages: Messages) -> tuple[Decoded, Index]:
        """The rows of messages that are proved good, and the other messages."""
        decoded = self._decoder.decode(messages.values)
        wide = {name: decoded.rows.column(name).combine_chunks() for name in decoded.rows.column_names}
        good = np.ones(len(decoded.row_index), np.bool_)
        values: list[pa.Array] = []
        for fill in self._fills:
            value = _value(fill, wide, decoded.row_index, messages)
            if isinstance(fill.plain, Substring):
                good &= value.is_valid().to_numpy(zero_copy_only=False)  # null has no value
            values.append(value)
        for fill, value in zip(self._fills, values, strict=True):
            name = fill.goal.steps[0]
            wide[name] = _filled(wide[name], fill.goal.steps[1:], value)
        doubtful = [*(reject.index for reject in decoded.rejects), *decoded.row_index[~good].tolist()]
        table = self._declared(list(wide.values()))
        if not good.all():
            table = table.filter(pa.array(good))
        rows = Decoded(table, decoded.row_index[good], (), decoded.tombstones)
        return rows, np.sort(np.array(doubtful, np.int64))

    def _declared(self, wide: Sequence[pa.Array]) -> pa.Table:
        if self._plan is None:
            return pa.table(list(wide), schema=self._schema)
        kept = zip(self._schema, self._plan.kept, strict=True)
        columns = [rearranged(wide[index], field.type, inner) for field, (index, inner) in kept]
        return pa.table(columns, schema=self._schema)


def _value(fill: _Fill, columns: Mapping[str, pa.Array], index: Index, messages: Messages) -> pa.Array:
    match fill.plain:
        case Path(steps):
            return _at(columns, steps)
        case Substring(steps, skip, take):
            return pc.utf8_slice_codeunits(_at(columns, steps), skip, skip + take)
        case MessageProperty(name):
            return _of_messages(name, fill.goal.type, index, messages)


def _at(columns: Mapping[str, pa.Array], steps: Steps) -> pa.Array:
    column = columns[steps[0]]
    for step in steps[1:]:
        column = pc.struct_field(column, step)
    return column


def _of_messages(name: str, data_type: DataType, index: Index, messages: Messages) -> pa.Array:
    arrow_type = to_arrow_type(data_type)
    if name == "kafka.topic":
        return messages.topics(index)
    if name == "kafka.partition":
        return messages.partitions(index).cast(arrow_type)
    if name == "kafka.offset":
        return pa.array(messages.offsets[index])
    stamps = messages.timestamps_ms[index]
    unit = 1_000_000 if data_type is Primitive.LONG else 1000  # nanoseconds there, as in kafka-delta-ingest
    return pa.array(stamps * unit, pa.int64(), mask=stamps == NO_TIMESTAMP).view(arrow_type)


def _filled(array: pa.Array, steps: Steps, value: pa.Array) -> pa.Array:
    """An array with a value put in at a path within its structs, where the path exists."""
    if not steps:
        return value if value.null_count == 0 else pc.coalesce(value, array)
    fields = list(array.type)
    parts = array.flatten()
    index = next(number for number, field in enumerate(fields) if field.name == steps[0])
    parts[index] = _filled(parts[index], steps[1:], value)
    mask = pc.and_(array.is_null(), value.is_null()) if array.null_count else None
    return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)


def _joined(first: Decoded, other: Decoded) -> Decoded:
    """The results of some messages and of others, merged in order."""
    index, rows = in_order([(first.row_index, first.rows), (other.row_index, other.rows)])
    tombstones = np.sort(np.concatenate([first.tombstones, other.tombstones]))
    return Decoded(rows, index, tuple(sorted([*first.rejects, *other.rejects])), tombstones)
