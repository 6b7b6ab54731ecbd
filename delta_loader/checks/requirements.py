"""Conditions for the loader's start, as pure functions: one line per check (check_result.py)."""

from collections.abc import Collection, Iterator, Sequence

from common.errors import SchemaError
from common.remedies import delta_table, of_table
from common.schema import StructType
from common.schema.evolution import extended
from common.schema.spark_json import schema_from_json, schema_to_json
from common.settings import Stream
from common.settings.columns import declared_columns_of_table, kafka_fields_of, table_columns_of
from common.settings.merging import merge_by_of, settings_of_columns
from common.settings.overlap import shared_topics
from common.settings.values import Evolution
from common.tables.changes import made_fields
from common.tables.identity import TableIdentity
from common.tables.state import TXN_RETENTION, TableState, retention_ms
from common.tables.urls import comparable
from delta_loader.check_result import Check, Level, StreamChecks
from delta_loader.load.merged_keys import changed_sequence, has_one_row_for_each_key, how_merged
from delta_loader.plan.plan import TableShape
from delta_loader.tables.load_modes.compatibility import differences, remedy_for
from delta_loader.tables.load_modes.load_mode import LoadMode, Refused, choose_load_mode
from delta_loader.tables.vacuum import RETENTION, guarded_age_s, retention_s, vacuum_problem

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_DELTAS_LOG_RETENTION_MS = 30 * _DAY_MS
_LEAST_LOG_RETENTION_MS = 7 * _DAY_MS
_LOG_RETENTION = "delta.logRetentionDuration"


def table_checks(stream: Stream, state: TableState | None, url: str = "") -> Iterator[Check]:
    """The checks of a table for rows (protocol, features, columns, properties), by default the stream's main table.

    A ``state`` of None is a table that will be created.
    """
    checks, url = StreamChecks(stream.app_id), url or stream.table
    stream = stream.at(url)
    yield from _elements(stream)
    if state is None:
        yield checks.ok("table", f"{url} will be created by the first load")
        return
    load_mode = choose_load_mode(state, stream.load)
    if isinstance(load_mode, Refused):
        text = f"rows cannot be loaded into {url}: {load_mode.reason}"
        yield checks.error("table", text, of_table(load_mode.remedy, url))
    else:
        text = f"{url}, version {state.version}, is loaded by {load_mode.name}: {load_mode.reason}"
        yield checks.ok("table", text)
    yield _columns(stream, state, url, load_mode)
    yield from _soft_deletes(stream, state, url)
    yield from property_checks(stream.app_id, url, state)


def merge_checks(stream: Stream, url: str, identity: TableIdentity) -> Iterator[Check]:
    """Conditions of later merges into a table. The keys themselves are read only when events are loaded."""
    merge, before = merge_by_of(stream.at(url)), identity.merged_by
    if merge is None:
        return
    change = changed_sequence(before, merge)
    if change is not None:
        problem, setting = change
        remedy = f"{setting}; or load into a new table (another table, app_id and stage)"
        yield StreamChecks(stream.app_id).error("merge", f"{url}: {problem}", remedy)
    elif not has_one_row_for_each_key(before, merge):
        keys = ", ".join(merge.keys)
        text = (
            f"the rows of {url} were {how_merged(before)}, according to its commits: before the next merge the loader "
            f"reads {keys} of all rows, and does not merge while several rows have the same values"
        )
        remedy = f"none, if {keys} are unique there, or the table is empty"
        yield StreamChecks(stream.app_id).warning("merge", text, remedy)


def columns_from_check(stream: Stream, resolved: Stream | None) -> Check:
    """The columns of a stream that does not declare them; ``resolved`` is the stream with them, None if unknown."""
    columns = "none yet; its writer finds them" if resolved is None else resolved.record.columns
    return StreamChecks(stream.app_id).ok("columns", f"{stream.record.columns}: {columns}")


def _columns(stream: Stream, state: TableState, url: str, load_mode: LoadMode) -> Check:
    checks, columns = StreamChecks(stream.app_id), declared_columns_of_table(stream)
    columns = columns.with_fields(kafka_fields_of(stream))
    by = merge_by_of(stream)
    columns = columns if by is None else columns.with_fields(made_fields(columns, by))
    casting = stream.evolution is not Evolution.STRICT
    schema = _assuming_evolution(state.schema, columns) if stream.record.evolves or casting else state.schema
    if load_mode.through_spark:
        columns = _with_added_columns(stream, columns, schema)
    table = TableShape(schema, state.partition_by)
    declared = TableShape(schema_to_json(columns), stream.layout.partition_by, by)
    problems, lacking = differences(table, declared, load_mode, casting=casting), _missing_added_columns(stream, schema)
    if problems or lacking:
        all_of_them = "; ".join((*problems, *lacking))
        remedy = remedy_for(
            table, declared, url, stream.key_of(url, "columns"), load_mode, settings=settings_of_columns(stream)
        )
        return checks.error(
            "columns",
            f"{url} is not compatible with what the stream declares: {all_of_them}",
            remedy if problems else f"set evolution: add, so that the loader adds what is missing; or {remedy}",
        )
    return checks.ok("columns", "its columns accept what the stream declares")


def _soft_deletes(stream: Stream, state: TableState, url: str) -> Iterator[Check]:
    """A soft delete of a key that the table does not have creates a row with nothing else."""
    merge = stream.merge
    if merge is None or merge.soft_delete is None or stream.shaping.explode is not None:
        return
    given = {*merge.keys, merge.soft_delete, merge.sequence}
    try:
        wanted = [field.name for field in schema_from_json(state.schema) if not field.nullable]
    except SchemaError:
        return  # reported by `differences`
    without = [name for name in wanted if name not in given]
    if without:
        yield StreamChecks(stream.app_id).warning(
            "columns",
            f"{url} has the NOT NULL columns {', '.join(without)}, and a delete of an unknown key would insert a row "
            "with only the key: such an event becomes a dead letter",
            f"ALTER TABLE {delta_table(url)} ALTER COLUMN {without[0]} DROP NOT NULL; or remove merge.soft_delete",
        )


def _elements(stream: Stream) -> Iterator[Check]:
    by = merge_by_of(stream)
    if by is not None and by.element and not by.replaces_records:
        text = (
            "merge.keys are all of the exploded element: each element is a row of its own, and rows of elements that a "
            "record has lost stay"
        )
        yield StreamChecks(stream.app_id).ok("merge", text)


def _missing_added_columns(stream: Stream, schema: str) -> tuple[str, ...]:
    """Columns that writers add and the table lacks. Their types are not known here, so all of them are reported."""
    if stream.record.evolves or stream.evolution is not Evolution.STRICT:
        return ()
    try:
        known = schema_from_json(schema)
    except SchemaError:
        return ()  # reported by `differences`
    made = table_columns_of(stream).names[len(declared_columns_of_table(stream)) :]
    return tuple(f"the column {name}, which writers create, is not in it" for name in made if known.field(name) is None)


def _with_added_columns(stream: Stream, declared: StructType, schema: str) -> StructType:
    """The declared columns and those that writers add, of which only the names are known here."""
    made = {*stream.shaping.derive, *stream.record.jmespath}
    made |= {stream.record.rescue_column} if stream.record.rescues else set()
    made |= {"_cdc"} if stream.record.has_events else set()
    try:
        table = schema_from_json(schema)
    except SchemaError:
        return declared  # reported by `differences`
    return declared.with_fields(field for field in table if field.name in made and declared.field(field.name) is None)


def _assuming_evolution(schema: str, declared: StructType) -> str:
    """A table that evolves gets the columns that it lacks in the first load (delta_loader/load/schema_evolution.py)."""
    try:
        table = schema_from_json(schema)
    except SchemaError:
        return schema  # reported by `differences`
    return schema_to_json(extended(table, declared))


def property_checks(app_id: str, url: str, state: TableState) -> Iterator[Check]:
    """Checks of properties that make a table drop metadata that the loader needs."""
    checks = StreamChecks(app_id)
    retained = state.properties.get(TXN_RETENTION)
    if retained is not None:
        yield checks.warning(
            "memory",
            f"{url} forgets txn actions after {retained}: a Kafka partition that is idle for longer is held",
            f"ALTER TABLE {delta_table(url)} UNSET TBLPROPERTIES ('{TXN_RETENTION}')",
        )
    log_ms = _property_ms(state, _LOG_RETENTION, _DELTAS_LOG_RETENTION_MS)
    if log_ms < _LEAST_LOG_RETENTION_MS:
        yield checks.warning(
            "memory",
            f"{url} keeps its log for {_days(log_ms)}: if the loader pauses for longer, it is unknown what a RESTORE "
            "removed",
            f"ALTER TABLE {delta_table(url)} SET TBLPROPERTIES ('{_LOG_RETENTION}' = 'interval 30 days')",
        )


def vacuum_check(
    app_id: str, url: str, state: TableState | None, oldest_waiting_ms: int | None, marker_retention_ms: int
) -> Check:
    """Whether VACUUM could delete files that are staged and not loaded (tables/vacuum.py).

    ``oldest_waiting_ms`` is the age of the oldest marker that the table does not have, or None. A load
    that is a day late must still find its files.
    """
    checks, properties = StreamChecks(app_id), {} if state is None else state.properties
    longest_days = -(-max(oldest_waiting_ms or 0, marker_retention_ms) // _DAY_MS)
    raised = f"interval {max(7, 2 * longest_days)} days"
    raise_it = f"ALTER TABLE {delta_table(url)} SET TBLPROPERTIES ('{RETENTION}' = '{raised}')"
    waits_h = max(-(-(oldest_waiting_ms or 0) // _HOUR_MS), 24)  # whole hours, for display
    problem = vacuum_problem(properties, waits_h * 3600.0)
    if problem is not None:
        return checks.warning("vacuum", f"of {url}, {problem}", raise_it)
    window_ms = int((retention_s(properties) or 0.0) * 1000)
    if marker_retention_ms > window_ms:
        return checks.warning(
            "vacuum",
            f"markers are kept for {_days(marker_retention_ms)}, a VACUUM of {url} deletes files that left "
            f"the table after {_days(window_ms)}: after a RESTORE the oldest cannot be used again",
            f"{raise_it}, or shorten loader.marker_retention",
        )
    text = f"VACUUM keeps files of {url} for {_days(window_ms)}, longer than any file waits"
    guarded_ms = guarded_age_s(properties) * 1000
    if oldest_waiting_ms is not None and oldest_waiting_ms > guarded_ms:
        text += f"; files that wait longer than {_days(int(guarded_ms))} are copied before they are added"
    return checks.ok("vacuum", text)


def shared_tables(streams: Sequence[Stream]) -> Iterator[Check]:
    """A note on streams that load into one table, which is allowed."""
    by_table: dict[str, list[str]] = {}
    for stream in streams:
        for url in stream.row_tables:
            by_table.setdefault(comparable(url), []).append(stream.app_id)
    for url, app_ids in by_table.items():
        if len(app_ids) > 1:
            yield Check(
                "table",
                Level.WARNING,
                f"the streams {', '.join(app_ids)} load into one table, {url}",
                "none, if that is intended: a RESTORE holds all of them, and each needs its own `bootstrap accept`",
            )


def shared_topic_checks(streams: Sequence[Stream], topics: Collection[str]) -> Iterator[Check]:
    """Topics that several streams take, one check each: a running writer reads such a topic for none of them."""
    for topic, error in shared_topics(streams, topics).items():
        for stream in (stream for stream in streams if stream.reads(topic)):
            yield StreamChecks(stream.app_id).warning("kafka", f"{error.problem}: no writer reads it", error.remedy)


def _property_ms(state: TableState, key: str, default_ms: int) -> int:
    text = state.properties.get(key)
    value_ms = None if text is None else retention_ms(text)
    return default_ms if value_ms is None else value_ms


def _days(duration_ms: int) -> str:
    if duration_ms >= 2 * _DAY_MS:
        return f"{duration_ms / _DAY_MS:.0f} days"
    return f"{duration_ms / _HOUR_MS:.1f} hours"
