"""Checks of a stream's `merge`.

Rule: meaningless combinations are refused here. A record that gives several rows has no single row to change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.settings.columns import declared_columns_of_table, table_columns_of
from common.settings.envelopes import TRUNCATES
from common.settings.hints import did_you_mean
from common.settings.loading import LoadSetting
from common.settings.merging import operation_of, require_key_type, require_sequence_type
from common.tables.changes import HISTORY_COLUMNS, RESERVED

if TYPE_CHECKING:
    from common.settings.merge import MergeSettings
    from common.settings.stream import Stream


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
    if stream.columns_from is not None:
        return
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
    names += HISTORY_COLUMNS if merge.history else ()
    if soft is not None and (soft.casefold() in map(str.casefold, names) or soft.startswith(RESERVED)):
        msg = f"merge.soft_delete makes the column {soft!r}, and there is one of that name; choose another name"
        raise ValueError(msg)
    _check_types(stream)


def _check_types(stream: Stream) -> None:
    """Checks the declared columns; types of the others are known when the writer has bound their expressions."""
    declared = declared_columns_of_table(stream)
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
        "explode": stream.explode is not None,
    }
    for key in (key for key, given in refused.items() if given):
        msg = f"{key} is set together with merge, and cannot be: an event changes one row; "
        raise ValueError(msg + f"leave {key} out, or load an append stream and merge it with a query of your own")
    merge = stream.merge
    if merge is not None and merge.truncates == "apply":
        _check_truncates(stream)
    if merge is not None and merge.history:
        _check_history(merge)
    if merge is not None and merge.operation is not None and not merge.deletes:
        msg = "merge.operation is given without merge.deletes, so it has no effect; name the values that delete"
        raise ValueError(msg)
    if merge is not None and merge.deletes and operation_of(stream) is None:
        msg = "merge.deletes is given without merge.operation; say which expression has these values"
        raise ValueError(msg)


def _check_history(merge: MergeSettings) -> None:
    """Raise ValueError for settings under which a version would have no values, or no time."""
    if merge.ignore_nulls:
        msg = "merge.history keeps whole rows, and with merge.ignore_nulls an event has only what changed; "
        raise ValueError(msg + "leave one of them out")
    if merge.sequence is None:
        return
    if merge.tombstones == "delete":
        msg = f"with merge.history a delete needs its sequence, {merge.sequence}, and a tombstone has none; "
        raise ValueError(msg + "write merge.tombstones: ignore, or leave merge.sequence out")
    if merge.truncates == "apply":
        msg = f"with merge.history a delete needs its sequence, {merge.sequence}, and a truncation has none; "
        raise ValueError(msg + "leave merge.truncates or merge.sequence out")


def _check_truncates(stream: Stream) -> None:
    """Raise ValueError where a truncated source table is not all that the table is made of."""
    if stream.envelope not in TRUNCATES:
        known = ", ".join(TRUNCATES)
        msg = f"merge.truncates is apply, and only the envelopes {known} have such events; leave truncates out"
        raise ValueError(msg)
    several = {
        "where": stream.where is not None,
        "route": stream.route is not None,
        "tables": len(stream.row_tables) > 1,
        "topics": len(stream.topics) > 1 or stream.topics[0].startswith("^"),
    }
    for key in (key for key, given in several.items() if given):
        msg = (
            f"merge.truncates is apply, and with {key} the stream may have the rows of several source tables, of which "
            "one is truncated; give each source table a topic and a stream of its own, or leave truncates out"
        )
        raise ValueError(msg)


def _require_known(setting: str, name: str, known: list[str]) -> None:
    if name not in known:
        hint = did_you_mean(name, known, "declare it in columns, or derive it")
        msg = f"{setting} names {name!r}, which is no column of the table; {hint}"
        raise ValueError(msg)
