"""The columns of a stream that does not declare them, as far as they are known without reading a record.

Rules:

1. `columns: from_table`: the table is the truth. Nothing is kept in the stage, and a table that is missing is an error.
2. Otherwise the writers have agreed on columns in the stage (common/stage/versions.py). Where the table has one
   of these, the table's type counts: it is what rows are loaded into. What the table lacks is kept as agreed. With
   `evolution: widen`, the types of schemas count: the table gets them.
3. What records are wrapped in is agreed on with their columns (`is_envelope_open`).
4. A table's partitioning is the stream's, unless the settings have one.
5. Of a table's columns, those are a record's that are made neither by this program (Kafka's columns, the rescue column,
   the description of a change, a soft delete), nor by the stream's expressions (`derive`), nor by Delta (generated and
   identity columns). What the program makes by other settings, which the stream may have had before, is not a record's
   either: so a stream that merges without `history` does not take a table that keeps versions for one of its own, and
   overwrite them.
"""

import json
from collections.abc import Callable, Mapping

from common.errors import ConfigError, SchemaError
from common.ports import ObjectStore
from common.schema import Field, StructType, schema_from_json, to_ddl
from common.schema.evolution import NO_COLUMNS, extended
from common.schema.naming import restricted
from common.settings import Stream
from common.settings.checks import checked
from common.settings.checks.columns_from import renaming_keys
from common.settings.columns import CDC_COLUMN, made_columns
from common.settings.columns_from import FROM_SCHEMAS, ColumnsFrom
from common.settings.envelopes import is_envelope_open
from common.settings.formats import forms_of
from common.settings.merging import columns_of_merge
from common.settings.parts import FIRST_MESSAGE
from common.settings.stream import INCLUDED_COLUMNS, KAFKA_COLUMNS
from common.settings.values import Evolution
from common.stage.versions import AgreedColumns, agreed_columns
from common.tables.changes import HISTORY_COLUMNS
from common.tables.delta_log import read_table_state
from common.tables.state import TableState


def found_columns(stream: Stream, stage: ObjectStore, open_table: Callable[[str], ObjectStore]) -> Stream | None:
    """The stream with its columns as they are now; itself if it declares them, None if none were agreed on yet.

    Raises ConfigError, StoreError, TableError and MarkerError.
    """
    source = stream.record.columns_from
    if source is None:
        return stream
    if source is ColumnsFrom.TABLE:
        return columns_of_table(stream, read_table_state(open_table(stream.table)))
    agreed = agreed_columns(stage, stream.app_id)
    return None if agreed is None else columns_as_agreed(stream, agreed, state_of(stream, open_table))


def columns_of_table(stream: Stream, state: TableState | None) -> Stream:
    """The stream with the columns of its table (rules 1 and 4). Raises ConfigError."""
    if state is None:
        msg = f"{stream.app_id}: columns is from_table, and there is no Delta table at {stream.table}"
        raise ConfigError(msg, "create the table, or write columns: from_records, with which the loader creates it")
    columns = record_columns(stream, state.schema)
    if not columns.fields:
        msg = f"{stream.app_id}: columns is from_table, and {stream.table} has no column for a field of a record"
        raise ConfigError(msg, "add columns by ALTER TABLE … ADD COLUMNS, or declare them in the stream's columns")
    return _with_columns(stream, columns, partition_by=state.partition_by)


def columns_as_agreed(stream: Stream, agreed: AgreedColumns, state: TableState | None) -> Stream:
    """The stream with the columns that its writers agreed on (rules 2 to 4). Raises ConfigError."""
    stream, columns = with_envelope(stream, agreed.envelope), agreed.columns
    if stream.record.columns_from not in FROM_SCHEMAS or stream.evolution is not Evolution.WIDEN:
        columns = extended(restricted(table_columns(stream, state), columns), columns)
    partition_by = None if state is None else state.partition_by
    return _with_columns(stream, columns, partition_by=partition_by, formats=agreed.formats)


def with_envelope(stream: Stream, envelope: str | None) -> Stream:
    """The stream with the `envelope` that its records have, if its settings leave it to them."""
    is_new = envelope is not None and is_envelope_open(stream)
    return stream.model_copy(update={"envelope": envelope}) if is_new else stream


def before_agreement(stream: Stream, state: TableState | None) -> Stream | None:
    """The stream with its table's columns, as long as its writers have agreed on none. Raises ConfigError."""
    columns = table_columns(stream, state)
    return (
        None if state is None or not columns.fields else _with_columns(stream, columns, partition_by=state.partition_by)
    )


def with_columns_of_files(stream: Stream, schema: str, agreed: Callable[[str], AgreedColumns | None]) -> Stream:
    """The stream with all columns that files for its table may have, of which the settings are not checked again.

    ``schema`` is that of the main table. ``agreed`` returns what the writers of a stream agreed on. Raises StoreError
    and MarkerError.
    """
    if stream.record.columns_from is None:
        return stream
    if stream.record.columns_from is ColumnsFrom.TABLE:
        columns = record_columns(stream, schema)
    else:
        agreed_columns = agreed(stream.app_id)
        columns = NO_COLUMNS if agreed_columns is None else agreed_columns.columns
        stream = stream if agreed_columns is None else with_envelope(stream, agreed_columns.envelope)
    return stream.model_copy(update={"columns": to_ddl(columns)}) if columns.fields else stream


def state_of(stream: Stream, open_table: Callable[[str], ObjectStore]) -> TableState | None:
    """The state of the stream's table; None if its columns cannot be told from the record's, or if there is none."""
    return None if renaming_keys(stream) else read_table_state(open_table(stream.table))


def table_columns(stream: Stream, state: TableState | None) -> StructType:
    """The table's columns for fields of records; none without a table."""
    return NO_COLUMNS if state is None else record_columns(stream, state.schema)


_MADE_BY_DELTA = ("delta.generationExpression", "delta.identity.start")


def record_columns(stream: Stream, schema: str) -> StructType:
    """The columns of a table's schema for a record's fields (rule 5), with its types. Raises SchemaError for others."""
    ours = (stream.record.rescue_column, CDC_COLUMN, *KAFKA_COLUMNS, *INCLUDED_COLUMNS.values())
    made = {name.casefold() for name in (*made_columns(stream), *ours, *columns_of_merge(stream))}
    columns = schema_from_json(schema)
    names = {field.name.casefold() for field in columns}
    if stream.merge is not None and names.issuperset(HISTORY_COLUMNS):
        made |= {*HISTORY_COLUMNS}
    return StructType(tuple(field for field in columns if field.name.casefold() not in made and not _by_delta(field)))


def _by_delta(field: Field) -> bool:
    return not json.loads(field.metadata_json).keys().isdisjoint(_MADE_BY_DELTA)


def _with_columns(
    stream: Stream,
    columns: StructType,
    *,
    partition_by: tuple[str, ...] | None = None,
    formats: Mapping[str, str] | None = None,
) -> Stream:
    """The stream with these columns, and, unless it says more, with this partitioning and these formats.

    Raises ConfigError for columns that contradict the stream's settings.
    """
    updates: dict[str, object] = {"columns": to_ddl(columns), "formats": {**(formats or {}), **stream.record.formats}}
    if partition_by is not None and not stream.layout.partition_by:
        updates["partition_by"] = partition_by
    if stream.record.columns_from is ColumnsFrom.REGISTRY and stream.record.format == "protobuf":
        updates["message"] = stream.record.message or FIRST_MESSAGE  # the columns are those of one
    new = stream.model_copy(update=updates)
    try:
        forms_of(columns, new.record.formats)
        return checked(new)
    except (ValueError, SchemaError) as error:
        source = stream.record.columns_from
        reason = error.problem if isinstance(error, SchemaError) else str(error)
        msg = f"{stream.app_id}: with columns {'declared' if source is None else source.value}: {reason}"
        raise ConfigError(msg, f"the columns are: {updates['columns']}") from None
