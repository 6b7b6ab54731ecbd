"""A flush leaves its files, its state and a marker that lists them, once, however often it is retried."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from common.errors import StoreError
from common.schema import parse_ddl, schema_to_json, to_arrow_schema
from common.spans import Position, Span
from common.stage.data_files import waiting_folder
from common.stage.idle import IDLE, IdleFact, StreamFact, facts_from_bytes
from common.stage.markers import LastRecord, Marker, MarkerName, Origin, TableKind, marker_from_bytes
from common.stage.task_files import EMPTY_STATE, MarkedState, StateFileName, StateFiles, StateKind
from common.stage.undeclared import UndeclaredFields
from common.stage.versions import Evolved
from common.storage.chunks import ByteChunks
from common.storage.store import FsspecStore
from stage_writer.chain_end import Lineage, Tail
from stage_writer.decode.unknown.census import FieldCensus
from stage_writer.outbox.ports import Outlet
from stage_writer.outbox.records import SCHEMA as SCHEMA_OF_OUTGOING
from stage_writer.parquet.buffer import Buffer, StagedRows, TableFormat
from stage_writer.ports import ClaimVerdict, FlushIdentity, Incompatible, Postponed, Sealed, StateChange, StateStore
from stage_writer.stage.staging import ObjectStage
from stage_writer.stage.table_compatibility import Incompatibility
from tests.fakes.group import HandClock
from tests.fakes.writers import always
from tests.unit.stage_writer.stage.test_staging import SOURCE, Waiting, World

ROWS = parse_ddl("n BIGINT, day STRING")
NAME = MarkerName(SOURCE, Position(10))
BEFORE = Tail(Position(10), Position(4), MarkerName(SOURCE, Position(4)).path, "digest")


@dataclass
class Tables:
    """A table's store whose first uploads fail."""

    store: FsspecStore
    failures: int = 0
    uploaded: list[str] = field(default_factory=list)

    def upload(self, path: str, data: ByteChunks) -> None:
        if len(self.uploaded) == 1 and self.failures:
            self.failures -= 1
            msg = "no response"
            raise StoreError(msg)
        self.uploaded.append(path)
        self.store.upload(path, data)


@dataclass
class Change:
    """The change of a task's state in a flush: a snapshot of ten bytes."""

    before: StateFiles = EMPTY_STATE
    written: list[StateFileName] = field(default_factory=list)
    memory_bytes: int = 10

    def write(self, store: StateStore, name: Callable[[StateKind], StateFileName]) -> MarkedState:
        del store
        self.written.append(name(StateKind.SNAPSHOT))
        return MarkedState(StateFiles(self.written[-1].path), self.before)


class Unchanged(Change):
    """A change that adds to the existing snapshot."""

    def write(self, store: StateStore, name: Callable[[StateKind], StateFileName]) -> MarkedState:
        files = super().write(store, name).files
        return MarkedState(files, files)


@dataclass
class RefusedTables:
    """`TableCompatibility` that finds some tables incompatible."""

    urls: Sequence[str]

    def find(self, tables: Sequence[TableFormat]) -> Incompatibility | None:
        return next(
            (Incompatibility("it has a constraint", "drop it") for table in tables if table.url in self.urls), None
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def tables(world: World) -> Tables:
    return Tables(world.table)


def flush_of(
    world: World,
    buffer: Buffer,
    tail: Tail | None = None,
    lineage: Lineage = Lineage(),  # noqa: B008 - frozen
    *,
    state: StateChange | None = None,
    outlet: Outlet | None = None,
) -> FlushIdentity:
    return FlushIdentity(SOURCE, world.stream, buffer, tail, lineage, state, outlet)


def stage_of(world: World, tables: Tables, refused: Sequence[str] = ()) -> ObjectStage:
    return ObjectStage(
        world.store,
        lambda _: tables,  # type: ignore[arg-type,return-value]
        HandClock(),
        lambda: f"{next(world.numbers):032x}",
        "w",
        compatibility=RefusedTables(refused),  # type: ignore[arg-type]
    )


def format_of(world: World, name: str = "table", *, waits: bool = False, by: tuple[str, ...] = ("day",)) -> TableFormat:
    kind = TableKind.ROWS if name == "table" else TableKind.DEAD_LETTERS
    url = str(world.table.url).replace("/table", f"/{name}")
    return TableFormat(url, kind, schema_to_json(ROWS), to_arrow_schema(ROWS), by, waits=waits)


def rows_of(*days: str) -> pa.Table:
    return pa.table({"n": list(range(len(days))), "day": list(days)}, schema=to_arrow_schema(ROWS))


def buffer_of(*formats: TableFormat, rows: Sequence[pa.Table] | None = None, records: int = 3) -> Buffer:
    buffer = Buffer.begin(NAME.start, formats)
    rows = [rows_of("a", "b", "a")] * len(formats) if rows is None else rows
    buffer.add(StagedRows(Position(30), records, 0, {}, None, tuple(rows)), now_s=0.0)
    return buffer


def test_marker_accounts_for_every_record(world: World, tables: Tables) -> None:
    buffer = Buffer.begin(NAME.start, [format_of(world), format_of(world, "letters", by=())])
    staged = StagedRows(
        Position(30),
        12,
        3,
        {"not_json": 2},
        (1_000, 2_000),
        (rows_of("a", "b", "a"), rows_of("x")),
        offered=parse_ddl("more STRING"),
        filtered_offsets=np.array([11, 12]),
        exploded=4,
        violations={"positive": 6},
    )
    buffer.add(staged, now_s=0.0)
    buffer.last_record = LastRecord(29, 2_000, 7)
    census = FieldCensus(ROWS)
    census.records, census.undeclared["more"] = 12, 5
    buffer.add_sample(census)
    job = stage_of(world, tables).flush_job(flush_of(world, buffer, BEFORE, Lineage(2, "id", 3)), always)
    outcome = job.run()
    assert isinstance(outcome, Sealed)
    assert outcome.marker == marker_from_bytes(NAME, world.store.read(NAME.path) or b"")
    manifest = outcome.marker.manifest
    assert manifest is not None
    assert replace(manifest, tables=()) == type(manifest)(
        span=Span(Position(10), Position(30)),
        previous=Position(4),
        app_id="orders",
        origin=Origin.FLUSH,
        writer="w",
        created_ms=1_000_000,
        records=12,
        tombstones=3,
        filtered=2,
        exploded=4,
        dead_letters={"not_json": 2},
        lowest_timestamp_ms=1_000,
        highest_timestamp_ms=2_000,
        topic_id="id",
        generation=2,
        offered=schema_to_json(parse_ddl("more STRING")),
        last_record=LastRecord(29, 2_000, 7),
        undeclared=UndeclaredFields(12, {"more": 5}, census.others),
        violations={"positive": 6},
        chain_origin=3,
        previous_digest="digest",
    )
    main, letters = manifest.tables
    assert (main.url, main.kind, main.schema, main.partition_by) == (
        format_of(world).url,
        TableKind.ROWS,
        schema_to_json(ROWS),
        ("day",),
    )
    assert [(file.partition_values, file.rows) for file in main.files] == [({"day": "a"}, 2), ({"day": "b"}, 1)]
    assert [(file.partition_values, file.rows) for file in letters.files] == [({}, 1)]
    files = [*main.files, *letters.files]
    assert tables.uploaded == [file.path for file in files]
    assert [world.table.stat(file.path) is not None for file in files] == [True] * 3
    assert all("day=a" in file.path for file in main.files[:1])
    assert (outcome.files, outcome.size_bytes) == (3, sum(file.size_bytes for file in files))


def test_first_flush_of_a_chain_names_no_previous_marker(world: World, tables: Tables) -> None:
    outcome = stage_of(world, tables).flush_job(flush_of(world, buffer_of(format_of(world))), always).run()
    assert isinstance(outcome, Sealed)
    assert outcome.marker.manifest is not None
    manifest = outcome.marker.manifest
    assert (manifest.previous, manifest.offered, manifest.undeclared, manifest.outboxes) == (None, None, None, ())


def test_rows_that_wait_for_spark_are_staged_in_one_file(world: World, tables: Tables) -> None:
    buffer = buffer_of(format_of(world, waits=True))
    outcome = stage_of(world, tables).flush_job(flush_of(world, buffer), always).run()
    assert isinstance(outcome, Sealed)
    ((file,),) = (table.files for table in outcome.marker.tables)
    assert (file.partition_values, file.is_mixed, file.rows, tables.uploaded) == (None, True, 3, [])
    assert world.store.stat(file.path) is not None
    assert file.path.startswith(waiting_folder(format_of(world).url))


def test_retried_job_keeps_its_encoded_and_uploaded_files(world: World, tables: Tables) -> None:
    tables.failures = 1
    change = Change()
    asked: list[bool] = []

    def guard() -> ClaimVerdict:
        asked.append(True)
        return ClaimVerdict.WAIT if len(asked) == 1 else ClaimVerdict.CLAIM

    buffer = buffer_of(format_of(world))
    outgoing = pa.table([["out"], [b"k"], [b"v"], [1], [None], [0], [0]], schema=SCHEMA_OF_OUTGOING)
    buffer.add(StagedRows(Position(30), 0, 0, {}, None, (rows_of(),), outgoing=outgoing), now_s=0.0)
    arrow_bytes = buffer.memory_bytes
    stage = stage_of(world, tables)
    job = stage.flush_job(flush_of(world, buffer, state=change, outlet=Waiting()), guard)
    assert job.memory_bytes == arrow_bytes + 10
    with pytest.raises(StoreError):
        job.run()
    left = job.memory_bytes - 10
    (first,) = tables.uploaded
    assert 0 < left < arrow_bytes + 10_000
    assert change.written == []
    assert job.run() == Postponed()
    assert job.memory_bytes == 10
    outcome = job.run()
    assert isinstance(outcome, Sealed)
    assert len(tables.uploaded) == 2
    assert tables.uploaded[0] == first
    assert [(name.partition, name.start, name.generation) for name in change.written] == [(SOURCE, NAME.start, 0)]
    assert outcome.tail.state == StateFiles(change.written[0].path)
    assert tuple(stored.path for stored in world.store.list("outbox/")) == outcome.tail.outboxes
    assert stage.chains.tail(SOURCE) == outcome.tail


def test_job_memory_is_the_size_of_the_remaining_uploads(world: World, tables: Tables) -> None:
    tables.failures = 1
    job = stage_of(world, tables).flush_job(flush_of(world, buffer_of(format_of(world))), always)
    with pytest.raises(StoreError):
        job.run()
    left = job.memory_bytes
    outcome = job.run()
    assert isinstance(outcome, Sealed)
    (table,) = outcome.marker.tables
    assert (left, job.memory_bytes) == (table.files[1].size_bytes, 0)


def test_rows_for_an_incompatible_table_are_not_written(world: World, tables: Tables) -> None:
    main, letters = format_of(world), format_of(world, "letters")
    refusing = stage_of(world, tables, [main.url])
    outcome = refusing.flush_job(flush_of(world, buffer_of(main)), always).run()
    assert outcome == Incompatible(NAME.start, (main,), "it has a constraint", "drop it")
    assert (tables.uploaded, world.markers()) == ([], [])
    only_letters = buffer_of(main, letters, rows=[rows_of(), rows_of("a")])
    assert isinstance(refusing.flush_job(flush_of(world, only_letters), always).run(), Sealed)


def test_written_files_are_claimed_even_if_the_table_becomes_incompatible(world: World, tables: Tables) -> None:
    tables.failures = 1
    refused: list[str] = []
    job = stage_of(world, tables, refused).flush_job(flush_of(world, buffer_of(format_of(world))), always)
    with pytest.raises(StoreError):
        job.run()
    refused.append(format_of(world).url)
    assert isinstance(job.run(), Sealed)


def test_new_state_snapshot_triggers_a_cleanup_of_older_files(world: World, tables: Tables) -> None:
    class Cleaning:
        asked = 0

        def clean(self, _: object) -> int:
            self.asked += 1
            return 0

    first = world.seal(0, 10, None)

    def cleaned(change: Change | None, start: int, tail: Tail) -> tuple[int, Tail]:
        stage = stage_of(world, tables)
        stage.state_cleaning = cleaning = Cleaning()  # type: ignore[assignment]
        buffer = Buffer.begin(Position(start), [format_of(world)])
        buffer.add(StagedRows(Position(start + 10), 1, 0, {}, None, (rows_of("a"),)), now_s=0.0)
        outcome = stage.flush_job(flush_of(world, buffer, tail, state=change), always).run()
        assert isinstance(outcome, Sealed)
        return cleaning.asked, outcome.tail

    asked, tail = cleaned(Change(), 10, first.tail)
    assert asked == 1
    asked, tail = cleaned(None, 20, tail)
    assert asked == 0
    asked, tail = cleaned(Unchanged(), 30, tail)
    assert asked == 0
    world.settle(30)
    assert cleaned(Change(), 40, tail)[0] == 0, "the chain has moved: the files to delete are unknown"


def test_idle_facts_are_stored_and_gained_columns_are_read(world: World, tables: Tables) -> None:
    stage = stage_of(world, tables)
    idle = [IdleFact(SOURCE, Position(7), 1_000, 2)]
    streams = [StreamFact("orders", 1_000, {SOURCE.topic: 1})]
    stage.put_idle(idle, streams)
    (item,) = world.store.list(f"{IDLE}/")
    facts = facts_from_bytes(item.path, world.store.read(item.path) or b"")
    assert (list(facts.partitions), list(facts.streams)) == (idle, streams)
    assert stage.gained("orders", by_route=False) is None
    evolved = Evolved("orders", 1, parse_ddl("more STRING"))
    world.store.create(evolved.path, evolved.to_bytes())
    assert stage.gained("orders", by_route=False) == evolved


def test_oversized_marker_drops_its_file_statistics(
    world: World, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seal() -> tuple[Marker, int]:
        buffer = buffer_of(format_of(world, by=()), rows=[rows_of("x" * 500)])
        outcome = stage_of(world, tables).flush_job(flush_of(world, buffer), always).run()
        assert isinstance(outcome, Sealed)
        size_bytes = len(world.store.read(NAME.path) or b"")
        assert outcome.marker == marker_from_bytes(NAME, world.store.read(NAME.path) or b"")
        world.settle(10)
        return outcome.marker, size_bytes

    whole, size_bytes = seal()
    (file,) = whole.tables[0].files
    assert "minValues" in json.loads(file.statistics)
    monkeypatch.setattr("common.stage.stored.MOST_BYTES", size_bytes)
    same, _ = seal()
    assert same.tables[0].files[0].statistics == file.statistics
    monkeypatch.setattr("common.stage.stored.MOST_BYTES", size_bytes - 1)
    less, _ = seal()
    assert less.tables[0].files[0].statistics == '{"numRecords":1}'
    monkeypatch.setattr("common.stage.stored.MOST_BYTES", 100)
    with pytest.raises(StoreError, match="was not written, because it is larger than"):
        seal()
    assert world.markers() == []
