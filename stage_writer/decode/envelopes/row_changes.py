"""The envelopes whose parts are read like columns, of Canal, Maxwell and AWS DMS: a message's rows, and their `_cdc`.

Rule: a message has images, or is passed over, or is refused. It is passed over where it belongs to the feed and changes
no row (a schema change, the start of a snapshot).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.schema import Primitive, StructType, parse_ddl, to_arrow_type
from stage_writer.decode.batch import Index, Mask
from stage_writer.decode.decode import Decoded
from stage_writer.decode.json_document import Object
from stage_writer.decode.rejects import ErrorClass, Refusal, Reject, truncated

_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Images:
    texts: pa.StringArray
    """JSON objects."""
    owners: Index
    """For each image the index of its message. Rising."""
    ops: pa.StringArray
    old: pa.StringArray
    """For an update the JSON text of what the row was, or of the parts that were different; null if that is unknown."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The content of a batch: each message has images, is a tombstone, is passed over, or is refused."""

    images: Images
    """With the numbers of events as their owners."""
    about: pa.StructArray
    """As `about_of` has it, for each event."""
    events: Index
    """For each event the index of its message. Rising."""
    rejects: tuple[Reject, ...]
    tombstones: Index
    passed_over: Index


class Opener(Protocol):
    """Opens the messages of an envelope. Not thread-safe."""

    def opened(self, values: pa.BinaryArray) -> Opened: ...


class Envelope(Protocol):
    """A form of change events whose parts are read like columns."""

    @property
    def fields(self) -> StructType:
        """The fields that are read of a message, all nullable; images are STRING with the format `json`."""

    @property
    def forms(self) -> Mapping[str, str]: ...

    def opened(self, parts: Decoded) -> Opened:
        """The content of messages with these fields."""

    def image_of(self, message: Object) -> object:
        """The first image of one message."""


def about_of(ts: pa.Array, source: pa.Array, source_ts: pa.Array) -> pa.StructArray:
    """The content of `_cdc` for events, without their operations."""
    return pa.StructArray.from_arrays([ts, source, source_ts], names=["ts", "source", "source_ts"])


def column_of(parts: Decoded, name: str) -> pa.Array:
    column = parts.rows.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


def mask_of(values: pa.BooleanArray) -> Mask:
    """Booleans as a mask, in which null is false."""
    mask: Mask = pc.fill_null(values, fill_value=False).to_numpy(zero_copy_only=False)
    return mask


def is_one_of(column: pa.Array, values: Collection[str]) -> Mask:
    """Which entries are one of these texts."""
    return mask_of(pc.is_in(column, value_set=pa.array(values, pa.string())))


def is_object(images: pa.Array) -> Mask:
    """Which JSON texts are objects."""
    return mask_of(pc.starts_with(images, "{"))


def single_images(texts: pa.Array, ops: pa.Array, old: pa.Array, rows: Mask) -> Images:
    """The images of messages that have at most one; ``rows`` are those that change a row."""
    owners = np.flatnonzero(rows & is_object(texts))
    taken = pa.array(owners)
    return Images(texts.take(taken), owners, ops.take(taken), old.take(taken))


def opened(
    parts: Decoded, images: Images, about: pa.StructArray, passed_over: Mask, why: Callable[[int], Refusal]
) -> Opened:
    """The content of messages with these parts; ``why`` refuses one that has no image and is not passed over."""
    others = np.setdiff1d(np.flatnonzero(~passed_over), images.owners).tolist()
    rejects = (*parts.rejects, *(why(index).at(int(parts.row_index[index])) for index in others))
    return Opened(images, about, parts.row_index, rejects, parts.tombstones, parts.row_index[passed_over])


def not_a_row_change(name: str, value: object, known: Collection[str]) -> Refusal:
    """The refusal of a message whose operation is missing or unknown."""
    problem = f"it has no {name}" if value is None else f"its {name} is {str(value)[:_SHOWN_CHARACTERS]!r}"
    text = f"the message is not a row change: {problem}, not one of {', '.join(known)}"
    return Refusal(ErrorClass.NOT_AN_EVENT, text)


def no_image(name: str, value: object, field: str) -> Refusal:
    """The refusal of a change without an object in its place."""
    return Refusal(ErrorClass.NOT_AN_EVENT, f"the event of {name} {value} has no object in `{field}`")


_CANAL_ROWS = ("INSERT", "UPDATE", "DELETE")
_TRUNCATE = "TRUNCATE"
_TRUNCATES = r"(?i)^\s*truncate\b"
_CANAL_PASSED_OVER = (
    "ALTER",
    "CINDEX",
    "CREATE",
    "DINDEX",
    "ERASE",
    "GTID",
    "MHEARTBEAT",
    "QUERY",
    "RENAME",
    "TIDB_WATERMARK",
    "XACOMMIT",
    "XAROLLBACK",
)


class Canal:
    """An `Envelope`: each object of `data` is a row of an INSERT, an UPDATE or a DELETE, in their order.

    Schema changes (`isDdl`, or a type of its own), statements without rows (QUERY) and markers of transactions and
    progress are passed over. A TRUNCATE is refused, also where it is the statement of a QUERY. Canal sends every value
    as text, so values are read as with `coerce: lenient`.
    """

    fields = parse_ddl(
        "type STRING, isDdl BOOLEAN, sql STRING, `database` STRING, `table` STRING, es TIMESTAMP, ts TIMESTAMP, "
        "data ARRAY<STRING>, `old` ARRAY<STRING>"
    )
    forms = {"es": "epoch_ms", "ts": "epoch_ms", "data.element": "json", "old.element": "json"}  # noqa: RUF012 - read only

    def opened(self, parts: Decoded) -> Opened:
        kind, rows, old = column_of(parts, "type"), column_of(parts, "data"), column_of(parts, "old")
        is_ddl = mask_of(column_of(parts, "isDdl"))
        truncates = is_one_of(kind, (_TRUNCATE,)) | mask_of(
            pc.match_substring_regex(column_of(parts, "sql"), _TRUNCATES)
        )
        truncates &= is_ddl | ~is_one_of(kind, _CANAL_ROWS)
        passed_over = (is_ddl | is_one_of(kind, _CANAL_PASSED_OVER)) & ~truncates
        texts, owners, within = _elements(rows)
        changes = is_one_of(kind, _CANAL_ROWS) & ~is_ddl
        changes[owners[~is_object(texts)]] = False
        kept = changes[owners]
        owners, within = owners[kept], within[kept]

        def why(index: int) -> Refusal:
            return _why_not_canal(kind[index].as_py(), rows[index].as_py(), truncates=bool(truncates[index]))

        source = pc.binary_join_element_wise(column_of(parts, "database"), column_of(parts, "table"), ".")
        return opened(
            parts,
            Images(texts.filter(pa.array(kept)), owners, kind.take(pa.array(owners)), _at(old, owners, within)),
            about_of(column_of(parts, "ts"), source, column_of(parts, "es")),
            passed_over,
            why,
        )

    def image_of(self, message: Object) -> object:
        rows = dict(message).get("data")
        return rows[0] if isinstance(rows, list) and rows else None


def _elements(lists: pa.ListArray) -> tuple[pa.StringArray, Index, Index]:
    """The elements of all lists, with the index of each one's list, and its index there."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    firsts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return lists.flatten(), np.repeat(np.arange(len(lists)), lengths), np.arange(len(firsts)) - firsts


def _at(lists: pa.ListArray, owners: Index, within: Index) -> pa.StringArray:
    """The elements with these indices in these lists; null where a list is shorter."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    firsts = np.cumsum(lengths) - lengths
    return lists.flatten().take(pa.array(firsts[owners] + within, mask=within >= lengths[owners]))


def _why_not_canal(kind: str | None, rows: list[str | None] | None, *, truncates: bool) -> Refusal:
    if truncates:
        return truncated()
    if kind not in _CANAL_ROWS:
        return not_a_row_change("type", kind, _CANAL_ROWS)
    if not rows:
        return Refusal(ErrorClass.NOT_AN_EVENT, f"the event of type {kind} has no rows in `data`")
    index = next(number for number, row in enumerate(rows) if row is None or not row.startswith("{"))
    return Refusal(
        ErrorClass.NOT_AN_EVENT, f"row {index + 1} of {len(rows)} in the `data` of type {kind} is not an object"
    )


_MAXWELL_ROWS = ("insert", "update", "delete", "bootstrap-insert")
_MAXWELL_PASSED_OVER = (
    "bootstrap-start",
    "bootstrap-complete",
    "database-create",
    "database-alter",
    "database-drop",
    "table-create",
    "table-alter",
    "table-drop",
)


class Maxwell:
    """An `Envelope`: the record is `data`, of an insert, an update, a delete or a row of a bootstrap.

    The records that begin and end a bootstrap, and the schema changes of `output_ddl`, are passed over.
    """

    fields = parse_ddl("type STRING, `database` STRING, `table` STRING, ts TIMESTAMP, data STRING, old STRING")
    forms = {"ts": "epoch_s", "data": "json", "old": "json"}  # noqa: RUF012 - read only

    def opened(self, parts: Decoded) -> Opened:
        kind = column_of(parts, "type")
        images = single_images(column_of(parts, "data"), kind, column_of(parts, "old"), is_one_of(kind, _MAXWELL_ROWS))
        passed_over = is_one_of(kind, _MAXWELL_PASSED_OVER)

        def why(index: int) -> Refusal:
            known = kind[index].as_py()
            return (
                no_image("type", known, "data")
                if known in _MAXWELL_ROWS
                else not_a_row_change("type", known, _MAXWELL_ROWS)
            )

        never = pa.nulls(len(kind), to_arrow_type(Primitive.TIMESTAMP))  # Maxwell does not say when it sent it
        source = pc.binary_join_element_wise(column_of(parts, "database"), column_of(parts, "table"), ".")
        return opened(parts, images, about_of(never, source, column_of(parts, "ts")), passed_over, why)

    def image_of(self, message: Object) -> object:
        return dict(message).get("data")


_DMS_ROWS = ("load", "insert", "update", "delete")
_DMS_RECORD_TYPES = ("data", "control")


class Dms:
    """An `Envelope`: `data` is the record, and `metadata` says what happened: a load, an insert, an update or a delete.

    Control records, about tables and columns of the source, are passed over.
    """

    fields = parse_ddl(
        "data STRING, `before-image` STRING, metadata STRUCT<`record-type`: STRING, operation: STRING, "
        "`schema-name`: STRING, `table-name`: STRING, `timestamp`: TIMESTAMP, `commit-timestamp`: TIMESTAMP>"
    )
    forms = {"data": "json", "before-image": "json"}  # noqa: RUF012 - read only

    def opened(self, parts: Decoded) -> Opened:
        metadata = column_of(parts, "metadata")

        def part(name: str) -> pa.Array:
            return pc.struct_field(metadata, name)

        kind, operation, table = part("record-type"), part("operation"), part("table-name")
        truncates = mask_of(pc.match_substring(operation, "truncate", ignore_case=True))
        passed_over = is_one_of(kind, ("control",)) & ~truncates
        rows = is_one_of(kind, ("data",)) & is_one_of(operation, _DMS_ROWS)
        images = single_images(column_of(parts, "data"), operation, column_of(parts, "before-image"), rows)

        def why(index: int) -> Refusal:
            known, record_type = operation[index].as_py(), kind[index].as_py()
            if truncates[index]:
                return truncated()
            if record_type not in _DMS_RECORD_TYPES:
                return not_a_row_change("metadata.record-type", record_type, _DMS_RECORD_TYPES)
            if known not in _DMS_ROWS:
                return not_a_row_change("metadata.operation", known, _DMS_ROWS)
            return no_image("operation", known, "data")

        source = pc.coalesce(pc.binary_join_element_wise(part("schema-name"), table, "."), table)
        about = about_of(part("timestamp"), source, part("commit-timestamp"))
        return opened(parts, images, about, passed_over, why)

    def image_of(self, message: Object) -> object:
        return dict(message).get("data")


ENVELOPES: Mapping[str, Envelope] = {"maxwell": Maxwell(), "canal": Canal(), "dms": Dms()}
