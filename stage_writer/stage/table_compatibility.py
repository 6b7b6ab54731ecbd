"""Whether the tables' folders can be written to, and whether rows can ever be loaded into the existing tables.

Rules:

1. A table's log is read before the first flush that has rows for it, without a JVM. This process does not check a
   compatible table again: from then on the loader, which checks at each load, reports what has changed.
2. An unknown table blocks nothing: it does not exist yet, or its log cannot be read. Staging loses nothing, and the
   loader does not load incompatible rows. The table is checked again after a while.
3. Only rows that no change to the table could make loadable are refused (common/tables/schema_compatibility.py).
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf

from structlog.typing import FilteringBoundLogger

from common.errors import StoreError
from common.ports import Clock, ObjectStore
from common.remedies import CONFIG, quoted
from common.schema.spark_json import schema_from_json
from common.settings import Settings
from common.settings.columns_from import ColumnsFrom
from common.stage.appeared_routes import ROUTES
from common.stage.data_files import STAGED
from common.stage.markers import DONE
from common.stage.versions import COLUMNS
from common.storage.store import prove_writable
from common.tables.delta_log import read_table_state
from common.tables.schema_compatibility import (
    columns_setting,
    partitioning_problem,
    partitioning_setting,
    type_problems,
)
from common.tables.state import TableState
from common.tables.table_features import appended_for
from common.tables.urls import comparable
from stage_writer.parquet.buffer import TableFormat

CHECK_AGAIN_S = 600.0
"""After the check was inconclusive."""
CHECK_REFUSED_EVERY_S = 20.0
"""For a table that can never accept the staged rows, independent of how many partitions wait for it."""


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """Why rows can never be loaded into a table, and the remedy."""

    problem: str
    remedy: str


def incompatibility(table: TableFormat, state: TableState) -> Incompatibility | None:
    """The rows' columns that the table, as it is, can never accept (rule 3). Raises SchemaError for an unknown type."""
    problems, settings = list[str](), list[str]()
    staged = schema_from_json(table.schema)
    is_added = not table.waits and appended_for(state) is None
    problem = partitioning_problem(state.partition_by, table.partition_by) if is_added else None
    if problem is not None:
        problems.append(problem)
        settings.append(partitioning_setting(state.partition_by, staged))
    columns = list(type_problems(schema_from_json(state.schema), staged))
    if columns:
        problems += [column.message for column in columns]
        settings.append(columns_setting(columns, table.settings))
    if not problems:
        return None
    return Incompatibility(
        f"the Delta table {table.url} can never accept these rows, so none are staged: {'; '.join(problems)}",
        f"write {' and '.join(settings)} in the stream, as the table has it, and start the writer again; or give it a "
        f"new table. The table is checked again every half minute; `stage-writer check {CONFIG}` does it now",
    )


class TableCompatibility:
    """Checks tables, each once if it accepts the staged rows. Safe to use from several threads."""

    def __init__(self, open_table: Callable[[str], ObjectStore], clock: Clock, log: FilteringBoundLogger) -> None:
        self._open_table = open_table
        self._clock = clock
        self._log = log
        self._known: dict[tuple[str, str, tuple[str, ...]], tuple[float, Incompatibility | None]] = {}
        """Results by the staged schema, and until when they are valid."""

    def find(self, tables: Iterable[TableFormat]) -> Incompatibility | None:
        """Why rows for some of these tables can never be loaded; None where they can be, or where it is unknown."""
        return next((incompatibility for table in tables if (incompatibility := self._find(table)) is not None), None)

    def _find(self, table: TableFormat) -> Incompatibility | None:
        key = (table.url, table.schema, table.partition_by)
        until_s, known = self._known.get(key, (0.0, None))
        if self._clock.monotonic_s() < until_s:
            return known
        try:
            state = read_table_state(self._open_table(table.url))
            result = None if state is None else incompatibility(table, state)
        except Exception as error:  # noqa: BLE001 - rule 2: a broken log costs staging nothing
            self._log.warning("table not inspected", table=quoted(table.url), problem=str(error))
            state, result = None, None
        holds_s = CHECK_REFUSED_EVERY_S if result is not None else CHECK_AGAIN_S if state is None else inf
        self._known[key] = (self._clock.monotonic_s() + holds_s, result)
        return result


_AT_ONCE = 16


def prove_tables(settings: Settings, open_store: Callable[[str], ObjectStore]) -> int:
    """Write to each table whose data files writers write. Returns the number of tables.

    Raises the ConfigError or StoreError of the first one that is not writable. Rows for a table that only Spark can
    write wait in the stage, and writers need no access to such a table.
    """
    tables = {
        comparable(url): (f"streams[{index}].{key.partition('.')[2]} ({stream.app_id})", url)
        for index, stream in enumerate(settings.streams)
        for key, url in stream.table_locations
        if not stream.load_of(url).waits_for_spark
    }

    _prove(tables.values(), "data files", open_store)
    return len(tables)


def prove_stage_folders(settings: Settings, open_store: Callable[[str], ObjectStore]) -> None:
    """Write to each folder of the stage without whose objects no flush is staged; raises as `prove_tables` does."""
    folders = {DONE}
    for stream in settings.streams:
        waits = any(stream.load_of(url).waits_for_spark for url in stream.row_tables)
        folders |= {STAGED} if waits else set()
        folders |= {COLUMNS} if stream.record.columns_from not in {None, ColumnsFrom.TABLE} else set()
        folders |= set() if stream.routing.route_table is None else {ROUTES}
    url = settings.stage.url.rstrip("/")
    _prove([("stage.url", f"{url}/{folder}") for folder in sorted(folders)], "objects", open_store)


def _prove(table_locations: Iterable[tuple[str, str]], what: str, open_store: Callable[[str], ObjectStore]) -> None:
    def prove(place: tuple[str, str]) -> None:
        key, url = place
        try:
            prove_writable(open_store(url))
        except StoreError as error:
            msg = f"{key}: this writer cannot create {what} below {url}: {error.problem}"
            raise type(error)(msg, error.remedy) from error

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="probe") as pool:
        list(pool.map(prove, table_locations))
