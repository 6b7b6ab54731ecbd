"""`merge` of a stream: change events become the newest state of each key's row.

Rules:

1. Keys, sequence and soft_delete are columns of the table, by their names there; ``operation`` sees the record.
2. Meaningless combinations are refused here: a record that gives several rows or goes to several tables has no single
   row to change, and a table that gains columns would keep old values in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from common.schema import DataType, DecimalType, Primitive, type_to_ddl
from common.settings.columns import naming_of, table_columns_of
from common.settings.hints import did_you_mean
from common.settings.loading import LoadSetting
from common.settings.section import Section
from common.tables.changes import RESERVED, MergeBy, merge_by

if TYPE_CHECKING:
    from common.settings.stream import Stream

_WHOLE = (Primitive.BYTE, Primitive.SHORT, Primitive.INTEGER, Primitive.LONG)
_ORDERED = (Primitive.STRING, *_WHOLE, Primitive.DATE, Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ)
KEY_TYPES = (*_ORDERED, Primitive.BOOLEAN)


class Merge(Section):
    """How a stream's events become a table with one row for each key."""

    keys: tuple[str, ...] = Field(
        min_length=1,
        description="Columns of the table that identify a row. An event whose key has a null is a dead letter.",
        examples=[["id"]],
    )
    operation: str | None = Field(
        default=None,
        min_length=1,
        description="SQL over the same inputs as `derive` and the derived columns: the operation of an event. "
        "With `envelope: debezium` it is `_cdc.op`. Without it every record is an upsert.",
        examples=["op"],
    )
    deletes: tuple[str, ...] = Field(
        default=(),
        description="Values of `operation`, as text, that delete the key's row; any other value, and null, is an "
        "upsert. With `envelope: debezium` it is `[d]`.",
        examples=[["delete"]],
    )
    tombstones: str = Field(
        default="delete",
        pattern="^(delete|ignore)$",
        description="Effect of a message without a value: `delete` deletes the row whose key is in the message "
        "key (a JSON object with the key's fields, or a single value for one key column); `ignore` "
        "does nothing. A message whose key cannot be read is a dead letter.",
    )
    sequence: str | None = Field(
        default=None,
        min_length=1,
        description="Column of the table that orders a key's events: an event that is lower than the row's value "
        "is ignored, also in a later load. An upsert without it is a dead letter; a delete without "
        "it always applies. By default the order in Kafka counts.",
        examples=["updated_at"],
    )
    soft_delete: str | None = Field(
        default=None,
        min_length=1,
        description="Name of a BOOLEAN column that the table gets: true for deleted rows, which then stay.",
        examples=["is_deleted"],
    )


def merge_by_of(stream: Stream) -> MergeBy | None:
    """How a stream's rows are merged; None for one that is not."""
    if stream.merge is None:
        return None
    merge = stream.merge
    return merge_by(merge.keys, stream.kafka_column_names, merge.sequence, merge.soft_delete)


def operation_of(stream: Stream) -> tuple[str, tuple[str, ...]] | None:
    """The expression and the values that delete; None where every record is an upsert."""
    if stream.merge is None:
        return None
    if stream.merge.operation is not None:
        return stream.merge.operation, stream.merge.deletes
    return ("_cdc.op", stream.merge.deletes or ("d",)) if stream.has_events else None


def record_names(stream: Stream) -> dict[str, str]:
    """For each declared column of the table its field's name in the record."""
    naming, columns = naming_of(stream), stream.schema_of_columns
    kept = [name for name in columns.names if (name,) not in naming.drop]
    return dict(zip(stream.declared_columns_of_table.names, kept, strict=True))


def require_key_type(name: str, data_type: DataType) -> None:
    """Raise ValueError for a column that cannot be a key."""
    if data_type not in KEY_TYPES and not isinstance(data_type, DecimalType):
        msg = f"merge.keys names {name!r}, whose type {type_to_ddl(data_type)} cannot tell rows apart; "
        raise ValueError(msg + "name a string, a whole number, a decimal, a date or a time")


def require_sequence_type(name: str, data_type: DataType) -> None:
    """Raise ValueError for a column that cannot be a sequence."""
    if data_type not in _ORDERED and not isinstance(data_type, DecimalType):
        msg = f"merge.sequence names {name!r}, whose type {type_to_ddl(data_type)} has no exact order; "
        raise ValueError(msg + "name a whole number, a decimal, a date, a time or a string")


def check_merge(stream: Stream) -> None:
    """Raise ValueError for a `merge` that cannot work."""
    merge = stream.merge
    if (stream.load is LoadSetting.MERGE) != (merge is not None):
        msg = "load is merge, and merge.keys is missing; add merge: {keys: [columns]}"
        if merge is not None:
            msg = f"merge is given, and load is {stream.load.value}; write load: merge, or leave merge out"
        raise ValueError(msg)
    if merge is None:
        return
    _check_together(stream)
    known = table_columns_of(stream)
    names = [*known.names, *stream.kafka_column_names]
    for key in merge.keys:
        _require_known("merge.keys", key, names)
    if len(set(merge.keys)) < len(merge.keys):
        msg = "merge.keys names a column twice; name each once"
        raise ValueError(msg)
    if merge.sequence is not None:
        _require_known("merge.sequence", merge.sequence, names)
    for name in (name for name in names if name.casefold().startswith(RESERVED)):
        msg = f"the column {name!r} begins with {RESERVED}, which merging has for itself; rename it"
        raise ValueError(msg)
    soft = merge.soft_delete
    if soft is not None and (soft.casefold() in map(str.casefold, names) or soft.startswith(RESERVED)):
        msg = f"merge.soft_delete makes the column {soft!r}, and there is one of that name; choose another name"
        raise ValueError(msg)
    _check_types(stream)


def _check_types(stream: Stream) -> None:
    """Checks the declared columns; types of the others are known when the writer has bound their expressions."""
    declared = stream.declared_columns_of_table
    for key in stream.merge.keys if stream.merge is not None else ():
        field = declared.field(key)
        if field is not None:
            require_key_type(key, field.type)
    sequence = stream.merge.sequence if stream.merge is not None else None
    field = None if sequence is None else declared.field(sequence)
    if field is not None:
        require_sequence_type(field.name, field.type)


def _check_together(stream: Stream) -> None:
    refused = {
        "route": stream.route is not None,
        "explode": stream.explode is not None,
        "unknown_fields: evolve": stream.evolves,
    }
    for key in (key for key, given in refused.items() if given):
        msg = f"{key} is given beside merge, and cannot be: an event changes one row of one table, whose columns stay; "
        raise ValueError(msg + f"leave {key} out, or load an append stream and merge it with a query of your own")
    merge = stream.merge
    if merge is not None and merge.operation is not None and not merge.deletes:
        msg = "merge.operation is given without merge.deletes, so it has no effect; name the values that delete"
        raise ValueError(msg)
    if merge is not None and merge.deletes and operation_of(stream) is None:
        msg = "merge.deletes is given without merge.operation; say which expression has these values"
        raise ValueError(msg)


def _require_known(setting: str, name: str, known: list[str]) -> None:
    if name not in known:
        hint = did_you_mean(name, known, "declare it in columns, or derive it")
        msg = f"{setting} names {name!r}, which is no column of the table; {hint}"
        raise ValueError(msg)
