"""The effects of a stream's `merge` on its rows: keys, order, operation, and the types that these may have."""

from dataclasses import dataclass

from common.schema import DataType, DecimalType, Primitive, type_to_ddl
from common.settings.columns import (
    columns_of_message,
    declared_columns_of_table,
    made_columns,
    naming_of,
    table_columns_of,
)
from common.settings.envelopes import DELETES, UPDATE, may_have_several_rows
from common.settings.formats import path_steps
from common.settings.stream import Stream
from common.tables.changes import HISTORY_COLUMNS, ROW_COLUMN, TRUNCATE_COLUMN, MergeBy, identity_of_events

_WHOLE = (Primitive.BYTE, Primitive.SHORT, Primitive.INTEGER, Primitive.LONG)
_ORDERED = (Primitive.STRING, *_WHOLE, Primitive.DATE, Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ)
KEY_TYPES = (*_ORDERED, Primitive.BOOLEAN)


def merge_by_of(stream: Stream) -> MergeBy | None:
    if stream.merge is None:
        return None
    merge = stream.merge
    about = (*stream.kafka_column_names, *stream.included_column_names, *columns_of_message(stream))
    element = element_keys_of(stream)
    return MergeBy(
        (*(key for key in merge.keys if key not in element), *element),
        identity_of_events(stream.kafka_column_names),
        merge.sequence,
        merge.soft_delete,
        ROW_COLUMN if may_have_several_rows(stream) else None,
        about if merge.ignore_nulls else None,
        TRUNCATE_COLUMN if merge.truncates == "apply" else None,
        merge.history,
        tuple(element.values()),
    )


def element_column_of(stream: Stream) -> str | None:
    """The table's column for an exploded element, or None."""
    return (
        None
        if stream.shaping.explode is None
        else naming_of(stream).name_of((stream.shaping.explode,), made_columns(stream))
    )


def element_keys_of(stream: Stream) -> dict[str, tuple[str, ...]]:
    """The keys that an exploded element has, each with the steps to it."""
    column = element_column_of(stream)
    if stream.merge is None or column is None:
        return {}
    known = {*table_columns_of(stream).names, *stream.kafka_column_names}
    steps = {key: (key,) if key in known else path_steps(key) for key in stream.merge.keys}
    return {key: path for key, path in steps.items() if path[0] == column}


def columns_of_merge(stream: Stream) -> tuple[str, ...]:
    """The names of the columns that merging adds to the table."""
    if stream.merge is None:
        return ()
    soft = () if stream.merge.soft_delete is None else (stream.merge.soft_delete,)
    return (*soft, *(HISTORY_COLUMNS if stream.merge.history else ()))


def columns_of_rows(stream: Stream) -> tuple[str, ...]:
    """The names of all columns that the settings give the stream's rows in the table."""
    added = (*stream.kafka_column_names, *stream.included_column_names, *columns_of_merge(stream))
    return (*table_columns_of(stream).names, *added)


def settings_of_columns(stream: Stream) -> dict[str, str]:
    """The keys of the settings that give the table columns which no field of a record is, by the columns' names."""
    keys = {name: f"derive.{name}" for name in stream.shaping.derive}
    if stream.record.rescues:
        keys[stream.record.rescue_column] = "rescue_column"
    if stream.merge is not None and stream.merge.soft_delete is not None:
        keys[stream.merge.soft_delete] = "merge.soft_delete"
    if stream.merge is not None and stream.merge.history:
        keys |= dict.fromkeys(HISTORY_COLUMNS, "merge.sequence")
    element = element_column_of(stream)
    if element is not None and stream.shaping.explode not in stream.shaping.derive:
        keys[element] = "explode"
    return {name.casefold(): key for name, key in keys.items()}


def operation_of(stream: Stream) -> tuple[str, tuple[str, ...]] | None:
    """The expression and the values that delete; None where every record is an upsert."""
    if stream.merge is None:
        return None
    if stream.merge.operation is not None:
        return stream.merge.operation, stream.merge.deletes
    return ("_cdc.op", stream.merge.deletes or DELETES[stream.record.envelope]) if stream.record.has_events else None


def record_names(stream: Stream) -> dict[str, str]:
    """For each declared column of the table its field's name in the record."""
    naming, columns = naming_of(stream), stream.record.schema_of_columns
    kept = [name for name in columns.names if (name,) not in naming.drop]
    return dict(zip(declared_columns_of_table(stream).names, kept, strict=True))


@dataclass(frozen=True, slots=True)
class KeyFields:
    """The fields of a record whose old values say which row an update has moved."""

    fields: tuple[str, ...]
    """The key columns that are fields of the record, by their names there."""
    is_derived: bool
    """Whether there are others."""
    sequence: str | None


def key_fields_of(stream: Stream) -> KeyFields | None:
    """None for a stream whose events are not merged; an envelope that needs it cannot be exploded."""
    if stream.merge is None or stream.shaping.explode is not None or stream.record.envelope not in UPDATE:
        return None
    names = record_names(stream)
    made = {path_steps(column)[0] for column in stream.record.jmespath}
    known = {*declared_columns_of_table(stream).names}
    if stream.record.has_own_columns:  # those that its table has gained are fields, too
        known |= set(stream.merge.keys) - set(stream.shaping.derive)
    fields = tuple(name for key in stream.merge.keys if key in known and (name := names.get(key, key)) not in made)
    others = set(stream.merge.keys) - set(stream.kafka_column_names)
    sequence = stream.merge.sequence
    return KeyFields(fields, len(fields) < len(others), None if sequence is None else names.get(sequence, sequence))


def table_with_other_rows(stream: Stream) -> str | None:
    """A table for which a message may have other rows than for the main one: an update deletes a row by its keys."""
    own = key_fields_of(stream)
    if stream.merge is None or own is None:
        return None
    if stream.record.has_own_columns:
        return stream.routing.route_table
    merged = {url: stream.at(url) for url in stream.row_tables}
    for route in stream.merge.route_keys.keys() - stream.routing.routes.keys():  # it may appear
        keys = {"keys": stream.merge.route_keys[route]}
        merged[f"the route {route}"] = stream.model_copy(update={"merge": stream.merge.model_copy(update=keys)})
    return next((table for table, each in merged.items() if key_fields_of(each) != own), None)


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
