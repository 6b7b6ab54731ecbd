"""The Delta log of all processes, a model of what Spark does to rows on their way into a table, and a process's view of
it.

Added files stay where they are, so their rows are read at the final check. Writes through Spark are modeled here: rows
below a start and of refused records are left out, a row that violates the table's constraint fails the job, and change
events are merged by the loader's own statement, run by DuckDB. Rows and txn actions change together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import TableError
from common.schema import schema_from_json
from common.schema.evolution import Addition
from common.settings.stream import KAFKA_COLUMNS
from common.spans import Offset, Partition, Position, Span, Topic, TopicPartition
from common.stage.merged import ends_at, inputs_of
from common.tables.changes import MergeBy
from common.tables.history import LoggedCommit
from common.tables.state import TableState
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import CommitOutcome, Conflicted, DeadLetterRow, NotWritten, TableCommit, Target
from delta_loader.tables.file_split import SparkWrite
from delta_loader.tables.load_modes.casting import Widening
from delta_loader.tables.load_modes.layout import Layout, Template
from delta_loader.tables.load_modes.load_mode import Refused, choose_load_mode
from delta_loader.tables.load_modes.refused import REFUSED_BY_TABLE, RefusedRecord
from delta_loader.tables.merging.bounds import bounded_keys, key_bounds
from delta_loader.tables.merging.elements import element_statement
from delta_loader.tables.merging.statement import MergeStatement
from tests.fakes import database
from tests.fakes.delta_tables import MemoryDeltaTables, MemoryTable
from tests.fakes.judged import judged
from tests.simulation.files import rows_in
from tests.simulation.kafka import Record
from tests.simulation.store import Bucket
from tests.simulation.world import Fault, World

CONSTRAINT = "delta.constraints.world"
CHECKED = 3, frozenset[str]()
"""The protocol of a table that has, or had, a constraint."""
_OFFSET = "_kafka_offset"


class Place(NamedTuple):
    """The partition, offset and time (milliseconds) of a record. A recreated topic uses offsets again."""

    partition: int
    offset: int
    time_ms: int

    @classmethod
    def of(cls, partition: TopicPartition, record: Record) -> Place:
        return cls(int(partition.partition), record.offset, record.timestamp_ms)


Forbids = Callable[[pa.Table], pa.Array]
"""Which rows a table with the property `CONSTRAINT` does not take."""


def nothing_is_forbidden(rows: pa.Table) -> pa.Array:
    return pa.array([False] * len(rows), pa.bool_())


class WatchesCommits(Protocol):
    def committed(self, table: MemoryTable, commit: TableCommit) -> None: ...


class DeltaLog(MemoryDeltaTables):
    def __init__(self, bucket: Bucket, stage_url: str, forbids: Forbids = nothing_is_forbidden) -> None:
        super().__init__()
        self._bucket = bucket
        self._stage_url = stage_url
        self._forbids = forbids
        self._files: dict[str, pa.Table] = {}
        self._places: dict[str, list[Place]] = {}
        self._keyed: dict[str, pa.Table] = {}
        self._judged: dict[object, set[tuple[str, int, int]]] = {}
        """The refused events by what was asked, while no rows change: a loader that waits asks again at each pass."""
        self.invariants: WatchesCommits | None = None

    def commit(self, commit: TableCommit) -> CommitOutcome:
        """The real log's rules, in its order."""
        way = choose_load_mode(self._state(commit.target.url))
        may_not = isinstance(way, Refused) or (way.through_spark and commit.files)
        if may_not and not commit.is_resolution:
            return Conflicted("files may not be added any more")
        changed = self.changed(commit)
        if changed is not None:
            return changed
        if not all(self._is_there(path) for write in commit.written for path in self._paths(write)):
            return NotWritten("a staged file is gone")
        url = commit.target.url
        if commit.merges:
            merged = self._merged(commit)
            if self._breaks(url, merged):
                return NotWritten("a row violates the table's constraint")
            self._keyed[url] = merged
            self._judged.clear()
        elif any(pc.any(self._forbidden(url, self.rows_of(write))).as_py() for write in commit.written):
            return NotWritten("a row violates the table's constraint")
        if self.invariants is not None:
            self.invariants.committed(self.tables[url], commit)
        return self._done(commit)

    def _state(self, url: str) -> TableState:
        state = self.state(url)
        assert state is not None
        return state

    def _paths(self, write: SparkWrite) -> list[str]:
        return [f"{write.root or self._stage_url}/{file.path}" for file in write.files]

    def _is_there(self, path: str) -> bool:
        return path in self._bucket.objects and self.read(path).num_rows > 0  # and is kept for the final check

    def _forbidden(self, url: str, rows: pa.Table) -> pa.Array:
        is_checked = CONSTRAINT in self.tables[url].properties and rows.num_rows
        return self._forbids(rows) if is_checked else nothing_is_forbidden(rows)

    # What Spark reads.

    def rows_of(self, write: SparkWrite) -> pa.Table:
        parts = []
        for path, file in zip(self._paths(write), write.files, strict=True):
            rows = self.read(path)
            for name, value in (file.partition_values or {}).items():
                kind = schema_from_json(write.shape.schema).field(name)
                assert kind is not None
                rows = rows.append_column(name, pa.array([value] * len(rows)).cast(pa.int64()))
            if not write.start and not write.without:
                parts.append(rows)
                continue
            keep = pc.greater_equal(rows[_OFFSET], int(write.start or 0))
            for topic in {partition.topic for partition, _ in write.without}:
                offsets = pa.array(
                    [int(record) for partition, record in write.without if partition.topic == topic], pa.int64()
                )
                is_of = pc.and_(pc.equal(rows[KAFKA_COLUMNS[0]], topic), pc.is_in(rows[_OFFSET], offsets))
                keep = pc.and_(keep, pc.invert(is_of))
            parts.append(rows.filter(keep))
        return pa.concat_tables(parts, promote_options="default")

    def read(self, path: str) -> pa.Table:
        """Of a data file, which never changes; a missing file has no rows, so that they are reported as missing."""
        if path not in self._files:
            stored = self._bucket.objects.get(path)
            if stored is None:
                return pa.table({})
            self._files[path] = rows_in(stored[0])
        return self._files[path]

    def refused(self, target: Target, writes: Sequence[SparkWrite], most: int) -> list[RefusedRecord]:
        """The records of which the table refuses a row."""
        records: list[RefusedRecord] = []
        if writes and writes[0].shape.merge is not None:
            return self._refused_events(target.url, writes)[:most]
        for write in writes:
            rows = self.rows_of(write)
            bad = rows.filter(self._forbidden(target.url, rows))
            places = zip(*(bad[name].to_pylist() for name in KAFKA_COLUMNS[:3]), strict=True)
            records += [_record(*place) for place in dict.fromkeys(places)]
        return records[:most]

    def dead(self, url: str, partition: TopicPartition, start: Position) -> list[RefusedRecord]:
        """The refused records from ``start`` on that a dead-letter table has."""
        letters = [letter for commit in self.tables[url].commits for letter in commit.dead_letter_rows]
        begins = dict.fromkeys(inputs_of(partition), 0) | {
            input_end.partition: input_end.position for input_end in ends_at(partition, start)
        }
        return [
            RefusedRecord(letter.partition, letter.offset, letter.error, None)
            for letter in letters
            if letter.offset >= begins.get(letter.partition, letter.offset + 1)
            and letter.error_class == REFUSED_BY_TABLE
        ]

    def letters(self, url: str, partition: TopicPartition, span: Span, most: int) -> list[DeadLetterRow]:
        """The first of the dead letters of each refused record."""
        by_record = {
            (letter.offset, letter.timestamp_ms or 0): letter
            for commit in self.tables[url].commits
            for letter in commit.dead_letter_rows
            if letter.partition == partition and span.covers(Position(letter.offset))
        }
        return [by_record[place] for place in sorted(by_record)][:most]

    # Merging.

    def _merged(self, commit: TableCommit) -> pa.Table:
        with self._at_merge(commit.target.url, commit.written) as (connection, columns, by, bounds):
            statement = MergeStatement("target", "staged", columns, by, bounds, _quoted)
            if by.element:
                statement = element_statement("target", "staged", columns, by, bounds, before="before", quote=_quoted)
            connection.execute(statement.text)
            return connection.sql("SELECT * FROM target").to_arrow_table()

    def _refused_events(self, url: str, writes: Sequence[SparkWrite]) -> list[RefusedRecord]:
        check = self.tables[url].properties.get(CONSTRAINT)
        if check is None:
            return []
        question = url, check, repr(writes)
        if question not in self._judged:
            with self._at_merge(url, writes) as (connection, columns, by, bounds):
                self._judged[question] = judged(connection, columns, by, check, bounds)
        return [_record(*place) for place in sorted(self._judged[question])]

    @contextmanager
    def _at_merge(
        self, url: str, writes: Sequence[SparkWrite]
    ) -> Iterator[tuple[duckdb.DuckDBPyConnection, tuple[str, ...], MergeBy, tuple[str, ...]]]:
        """The events of some writes as ``staged``, next to the table as ``target``."""
        by, columns = writes[0].shape.merge, schema_from_json(writes[0].shape.schema)
        assert by is not None
        staged = pa.concat_tables(map(self.rows_of, writes), promote_options="default")
        bounds = key_bounds([file for write in writes for file in write.files], columns, bounded_keys(by), _quoted)
        with database.connection() as connection:
            connection.register("before", self._keyed.get(url, staged.select(columns.names).slice(0, 0)))
            connection.register("staged", staged)
            connection.execute("CREATE TEMP TABLE target AS SELECT * FROM before")
            yield connection, columns.names, by, bounds

    def takes(self, url: str, check: str) -> bool:
        """Whether all rows of a table into which events are merged pass a check."""
        return url not in self._keyed or not self._failing(self._keyed[url], check)

    def _breaks(self, url: str, rows: pa.Table) -> bool:
        check = self.tables[url].properties.get(CONSTRAINT)
        return check is not None and self._failing(rows, check) > 0

    def _failing(self, rows: pa.Table, check: str) -> int:
        with database.connection() as connection:
            connection.register("rows", rows)
            failing = connection.sql("SELECT * FROM rows").filter(f"NOT coalesce({check}, false)")
            return len(failing.to_arrow_table())

    def keyed_rows(self, url: str) -> list[dict[str, object]]:
        """The rows of a table into which events are merged."""
        rows: list[dict[str, object]] = self._keyed[url].to_pylist() if url in self._keyed else []
        return rows

    # What the final check reads.

    def places(self, url: str) -> Iterator[Place]:
        """The origin of each row of a table that was added or appended."""
        table = self.tables.get(url)
        for commit in table.commits if table is not None else ():
            yield from self.places_of(url, commit)

    def places_of(self, url: str, commit: TableCommit) -> Iterator[Place]:
        """The origin of each row of a table."""
        for file in commit.files:
            yield from self.places_in(f"{url}/{file.path}")
        for letter in commit.dead_letter_rows:
            yield Place(int(letter.partition.partition), int(letter.offset), letter.timestamp_ms or 0)
        for write in commit.written:
            yield from places_of(self.rows_of(write))

    def rows(self, url: str) -> Iterator[dict[str, object]]:
        """The rows of a table that were added, or written from some offset on."""
        table = self.tables.get(url)
        for commit in table.commits if table is not None else ():
            for file in commit.files:
                yield from self.read(f"{url}/{file.path}").to_pylist()
            for write in commit.written:
                yield from self.rows_of(write).to_pylist()

    def places_in(self, path: str) -> list[Place]:
        """The origins of a data file's rows."""
        if path not in self._places:
            rows = self.read(path)
            if not rows.num_rows:
                return []  # reported as missing rows
            self._places[path] = places_of(rows)
        return self._places[path]


def places_of(rows: pa.Table) -> list[Place]:
    times = rows["_kafka_timestamp"].combine_chunks().view(pa.int64())
    times_ms = [time_us // 1000 for time_us in times.to_pylist()]
    return list(map(Place, rows["_kafka_partition"].to_pylist(), rows[_OFFSET].to_pylist(), times_ms))


def _record(topic: str, partition: int, offset: int) -> RefusedRecord:
    return RefusedRecord(TopicPartition(Topic(topic), Partition(partition)), Offset(offset), "forbidden")


def _quoted(name: str) -> str:
    return f'"{name}"'


def place_of(row: Mapping[str, object]) -> Place:
    time = row["_kafka_timestamp"]
    return Place(row["_kafka_partition"], row[_OFFSET], round(time.timestamp() * 1000))  # type: ignore[attr-defined, arg-type]


class SimulatedTables:
    """`delta_loader.ports.DeltaTables` and related ports, reached through the world."""

    def __init__(self, world: World, log: DeltaLog, broken: Mapping[str, int] | None = None) -> None:
        """``broken`` are tables that do not work, until a time."""
        self._world = world
        self.log = self._log = log
        self._broken = broken or {}

    def require_working(self, url: str) -> None:
        """Raises TableError while a table does not work."""
        if not self._world.faults_ended and self._broken.get(url, 0) > self._world.now_ms:
            msg = f"{url} is broken"
            raise TableError(msg, "")

    def state(self, url: str) -> TableState | None:
        self.require_working(url)
        return self._world.effect(f"look at {url}", lambda: self._log.state(url))

    def history(self, url: str, newest: int) -> Iterator[LoggedCommit]:
        return self._log.history(url, newest)

    def create(self, url: str, shape: TableShape) -> None:
        self.require_working(url)
        self._world.effect(f"create {url}", lambda: self._log.create(url, shape), changes=True)

    def make(self, url: str, shape: TableShape, layout: Layout, *, nullable: bool) -> None:
        raise AssertionError(url, shape, layout, nullable)

    def template(self, url: str) -> Template | None:
        raise AssertionError(url)

    def add_columns(self, url: str, added: Sequence[Addition]) -> None:
        self._world.effect(f"alter {url}", lambda: self._log.add_columns(url, added), changes=True)

    def widen(self, url: str, widening: Widening) -> None:
        self._world.effect(f"widen {url}", lambda: self._log.widen(url, widening), changes=True)

    def commit(self, commit: TableCommit) -> CommitOutcome:
        """Atomic, as Delta's commit is; a foreign commit may come between, so that the load has to be planned again."""
        self.require_working(commit.target.url)
        return self._world.effect(f"commit to {commit.target.url}", lambda: self._commit(commit), changes=True)

    def refused(self, target: Target, writes: Sequence[SparkWrite], most: int) -> list[RefusedRecord]:
        return self._world.effect(f"screen for {target.url}", lambda: self._log.refused(target, writes, most))

    def dead(self, url: str, partition: TopicPartition, start: Position) -> list[RefusedRecord]:
        return self._world.effect(f"read {url}", lambda: self._log.dead(url, partition, start))

    def dead_letters(self, url: str, partition: TopicPartition, span: Span, most: int) -> list[DeadLetterRow]:
        return self._world.effect(f"read {url}", lambda: self._log.letters(url, partition, span, most))

    def _commit(self, commit: TableCommit) -> CommitOutcome:
        if not self._world.faults_ended and self._world.rng.random() < self._world.chances.foreign:
            self._world.faults[Fault.FOREIGN_COMMIT] += 1
            return Conflicted("a foreign writer's commit came between")
        return self._log.commit(commit)
