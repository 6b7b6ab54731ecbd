"""Checks of a stream's `merge`, and of its `envelope`.

Rule: meaningless combinations are refused here. With `explode`, each row needs a key of its own: one of its element.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from common.hints import did_you_mean
from common.schema.types import StructType
from common.settings.checks.columns import require_column
from common.settings.columns import declared_columns_of_table, table_columns_of
from common.settings.envelopes import TRUNCATES, UPDATE, may_have_several_rows
from common.settings.merge import MergeSettings
from common.settings.merging import (
    element_column_of,
    element_keys_of,
    operation_of,
    require_key_type,
    require_sequence_type,
)
from common.settings.section import refuse
from common.settings.stream import Stream
from common.settings.values import LoadSetting
from common.tables.changes import HISTORY_COLUMNS, RESERVED


def check_merge(stream: Stream) -> None:
    merge = stream.merge
    if (stream.load is LoadSetting.MERGE) != (merge is not None):
        msg = "load is merge, and merge.keys is missing; add merge: {keys: [columns]}"
        if merge is not None:
            msg = f"merge is set, but load is {stream.load.value}; write load: merge, or remove merge"
        raise ValueError(msg)
    if merge is None:
        return
    _check_together(stream)
    if stream.record.columns_from is not None:
        return
    known = table_columns_of(stream)
    names = [*known.names, *stream.kafka_column_names]
    element = _check_explode(stream, merge)
    for key in (key for key in merge.keys if key not in element and not stream.record.has_own_columns):
        require_column("merge.keys", key, key, names)
    if len(set(merge.keys)) < len(merge.keys):
        refuse("merge.keys names a column twice; name each once")
    if merge.sequence is not None:
        require_column("merge.sequence", merge.sequence, merge.sequence, names)
    for name in (name for name in names if name.casefold().startswith(RESERVED)):
        refuse(f"the column {name!r} begins with {RESERVED}, which is reserved for merges; rename it")
    soft = merge.soft_delete
    names += HISTORY_COLUMNS if merge.history else ()
    if soft is not None and (soft.casefold() in map(str.casefold, names) or soft.startswith(RESERVED)):
        refuse(f"merge.soft_delete makes the column {soft!r}, but that name is taken; choose another name")
    _check_types(stream)


def _check_types(stream: Stream) -> None:
    """Checks the declared columns; types of the others are known when the writer has bound their expressions."""
    declared = declared_columns_of_table(stream)
    element = element_keys_of(stream)
    for key in stream.merge.keys if stream.merge is not None else ():
        field = declared.at(element.get(key, (key,)))
        if field is not None:
            require_key_type(key, field.type)
    sequence = stream.merge.sequence if stream.merge is not None else None
    field = None if sequence is None else declared.field(sequence)
    if field is not None:
        require_sequence_type(field.name, field.type)


def _check_together(stream: Stream) -> None:
    merge = stream.merge
    if merge is not None and not merge.keys and not stream.record.has_own_columns:
        raise ValueError("merge.keys is missing; name the columns that identify a row, for example keys: [id]")
    if merge is not None and merge.truncates == "apply":
        _check_truncates(stream)
    if merge is not None and merge.history:
        _check_history(merge)
    if merge is not None and merge.operation is not None and not merge.deletes:
        refuse("merge.operation is set without merge.deletes, so it has no effect; name the values that delete")
    if merge is not None and merge.deletes and operation_of(stream) is None:
        refuse("merge.deletes is set without merge.operation; set merge.operation to the expression with these values")


def _check_explode(stream: Stream, merge: MergeSettings) -> Mapping[str, Sequence[str]]:
    """The keys that are an element's. Raises ValueError where rows of elements cannot be merged by these settings."""
    if stream.shaping.explode is None:
        return {}
    for setting, given, why in (
        ("merge.history", merge.history, "each version belongs to one row, and one event would end many"),
        ("merge.ignore_nulls", merge.ignore_nulls, "an event without the array may mean no elements or no change"),
    ):
        if given:
            refuse(f"{setting} is set together with explode, and cannot be: {why}; remove one of them")
    column, element = element_column_of(stream), element_keys_of(stream)
    _check_element_keys(stream, column, element)
    if len(element) < len(merge.keys) and merge.sequence == column:
        msg = f"merge.sequence names {column!r}, the element, and the rows of a record are replaced together"
        raise ValueError(msg + "; name a column of the record")
    if len(element) == len(merge.keys) and merge.soft_delete is not None:
        msg = "merge.soft_delete marks the elements that a record has lost, and merge.keys has no column of the record"
        raise ValueError(msg + "; add one, or remove soft_delete")
    if len(element) == len(merge.keys) and merge.tombstones == "delete":
        msg = "merge.keys has only columns of the element, and a tombstone names a record; write merge.tombstones: "
        raise ValueError(msg + "ignore, or add a column of the record to merge.keys")
    return element


def _check_element_keys(stream: Stream, column: str | None, element: Mapping[str, Sequence[str]]) -> None:
    columns = StructType(()) if stream.shaping.explode in stream.shaping.derive else declared_columns_of_table(stream)
    within = None if column is None else columns.field(column)
    names = within.type.names if within is not None and isinstance(within.type, StructType) else ()
    if not element:
        msg = "merge.keys has no column of the element that explode makes a row of, so all rows of a record would have "
        if column is None:
            msg += f"one key; take {stream.shaping.explode} out of drop, and add it, or a field of it, to merge.keys"
        else:
            msg += f"one key; add one, such as {column}{f'.{names[0]}' if names else ''}"
        raise ValueError(msg)
    for key, steps in element.items():
        if within is not None and columns.at(steps) is None:
            hint = did_you_mean(steps[1], names, f"{column} has {', '.join(names) or 'no fields'}")
            refuse(f"merge.keys names {key!r}, which is not a field of the element; {hint}")


def _check_history(merge: MergeSettings) -> None:
    """Raise ValueError for settings under which a version would have no values, or no time."""
    if merge.ignore_nulls:
        msg = "merge.history keeps whole rows, and with merge.ignore_nulls an event has only what changed; "
        raise ValueError(msg + "remove one of them")
    if merge.sequence is None:
        return
    if merge.tombstones == "delete":
        msg = f"with merge.history a delete needs its sequence, {merge.sequence}, and a tombstone has none; "
        raise ValueError(msg + "write merge.tombstones: ignore, or remove merge.sequence")
    if merge.truncates == "apply":
        msg = f"with merge.history a delete needs its sequence, {merge.sequence}, and a truncation has none; "
        raise ValueError(msg + "leave merge.truncates or merge.sequence out")


def _check_truncates(stream: Stream) -> None:
    """Raise ValueError where a truncated source table is not all that the table is made of."""
    if stream.record.envelope not in TRUNCATES:
        known = ", ".join(TRUNCATES)
        refuse(f"merge.truncates is apply, and only the envelopes {known} have such events; remove truncates")
    several = {
        "where": stream.shaping.where is not None,
        "route": stream.routing.route is not None,
        "tables": len(stream.row_tables) > 1,
        "topics": len(stream.topics) > 1 or stream.topics[0].startswith("^"),
    }
    for key in (key for key, given in several.items() if given):
        refuse(
            f"merge.truncates is apply, and with {key} the stream may have the rows of several source tables, of which "
            "one is truncated; give each source table a topic and a stream of its own, or remove truncates"
        )


def check_envelope(stream: Stream) -> None:
    for problem in _problems(stream):
        raise ValueError(problem)


def _problems(stream: Stream) -> Iterator[str]:
    record = stream.record
    if record.format != "json" and record.envelope in UPDATE:
        yield (
            f"envelope is {record.envelope}, which is JSON, and format is {record.format}; remove format, or write "
            "envelope: debezium"
        )
    if stream.shaping.explode is not None and may_have_several_rows(stream):
        yield (
            f"explode is set, but a message of envelope: {record.envelope} may have several rows already; leave "
            "explode out, and explode the array in a query of the table"
        )
    where = stream.shaping.where
    if where is None or stream.merge is None or not may_have_several_rows(stream):
        return
    words = set(re.findall(r"\w+", where.casefold()))
    named = [name for name in record.schema_of_columns.names if name.casefold() in words]
    if record.has_own_columns and named:
        yield (
            f"an update of envelope: {record.envelope} may also delete a row, by the keys of its table, and where "
            f"decides by {named[0]} about both rows at once; name only _cdc and kafka in where, or give each table a "
            "stream of its own"
        )
