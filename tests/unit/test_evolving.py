"""Writers and a loader on one stage: how columns are agreed on, staged, offered, added and adopted."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from common.errors import ConfigError, StoreError, StoreRefusedError, TableError
from common.metrics import Metrics
from common.schema import StructType, parse_ddl, schema_from_json, schema_to_json, to_ddl
from common.schema.agreement import PublishedColumns, agree
from common.schema.evolution import NO_COLUMNS, Addition
from common.settings import Settings
from common.settings.own_columns import columns_at
from common.spans import Partition, Topic, TopicPartition
from common.stage.versions import Evolved, Gained, folder_of, latest
from common.storage.store import FsspecStore
from delta_loader.service import LoaderService
from stage_writer.convert import StreamConverter
from stage_writer.convert_by_table import converter_of
from stage_writer.decode.unknown.offers import Offers
from stage_writer.loop import StageWriter
from stage_writer.schemas import LATE_AFTER_S, LOOK_AT_SCHEMAS_S
from stage_writer.shape.slicing import ExplodeLimits
from stage_writer.stage.gaining import continued_columns, gain_columns
from stage_writer.stage.staging import ObjectStage
from tests.builders import required
from tests.fakes.answering import route_registry
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.group import HandClock, JsonMember
from tests.fakes.loading import ports_for
from tests.fakes.metrics import numbers
from tests.fakes.stores import TrappedStore, acting, failing
from tests.fakes.streams import batch_of
from tests.fakes.writers import new_writer, runtime_of
from tests.staged import manifests
from tests.unit.stage_writer.stage.test_table_compatibility import write_log

SOURCES = [TopicPartition(Topic("orders"), Partition(number)) for number in range(2)]


VALUES: dict[TopicPartition, list[object]] = {}


class Picky(MemoryDeltaTables):
    """Refuses the column ``sick``."""

    def add_columns(self, url: str, added: Sequence[Addition]) -> None:
        if any(column.path == ("sick",) for column in added):
            msg = "no such column here"
            raise TableError(msg, "")
        super().add_columns(url, added)


def refusing(folder: Path) -> FsspecStore:
    """The stage of a process that may not publish columns, as a writer of an older release does not."""
    return TrappedStore(f"{folder}/stage", before=failing("create", StoreRefusedError("not for you"), below="schema/"))


class World:
    def __init__(self, folder: Path, tables: MemoryDeltaTables | None = None, **stream: object) -> None:
        self.store, self.table = FsspecStore(f"{folder}/stage"), FsspecStore(f"{folder}/table")
        self.tables = tables or MemoryDeltaTables()
        self.clock, self.metrics = HandClock(), Metrics()
        self.settings = settings_of(f"{folder}", **stream)
        self.stream = self.settings.streams[0]

    def writer(self, partition: TopicPartition, stage: FsspecStore | None = None) -> tuple[StageWriter, JsonMember]:
        """A writer of one Kafka partition; ``stage`` is how it sees the stage."""
        group = JsonMember(self.clock, {partition: 0}, ids={partition.topic: "first"}, values=VALUES)
        names = iter(range(1_000))
        objects = ObjectStage(
            stage or self.store,
            lambda url: self.table if url == self.stream.table else FsspecStore(url),
            self.clock,
            lambda: f"{partition.partition}{next(names):031x}",
            "w",
        )
        routes = route_registry(self.stream, lambda: self.store, self.clock)
        converter = converter_of(self.stream, appearing=None if self.stream.routing.route_table is None else routes)
        writer = new_writer(converter, source=group, stage=objects, runtime=runtime_of(self.clock))
        group.subscribe([self.stream], writer)
        VALUES[partition] = []
        return writer, group

    def load(self, stage: FsspecStore | None = None, failure: str | None = None) -> None:
        ports = ports_for(stage or self.store, self.tables, clock=self.clock, metrics=self.metrics)
        (report,) = LoaderService(self.settings.streams, self.settings.loader, ports).run_pass()
        assert (report.failure and report.failure.problem, report.held) == (failure, {})

    def staged(self, partition: TopicPartition) -> list[tuple[str, str | None]]:
        """By marker, the columns of its files, and the columns that it offers."""
        columns = []
        for manifest in manifests(self.store, f"done/orders/{partition.partition}"):
            offered = None if manifest.offered is None else to_ddl(schema_from_json(manifest.offered))
            columns.append((to_ddl(schema_from_json(manifest.tables[0].schema)), offered))
        return columns

    def rows(self, partition: TopicPartition) -> list[dict[str, object]]:
        """The staged rows of a partition, without the columns that are null."""
        paths = [
            file.path
            for marker in manifests(self.store, f"done/orders/{partition.partition}")
            for file in marker.tables[0].files
        ]
        rows = [row for path in paths for row in pq.read_table(BytesIO(required(self.table.read(path)))).to_pylist()]
        return [{name: value for name, value in row.items() if value is not None} for row in rows]

    @property
    def columns(self) -> str:
        return to_ddl(schema_from_json(self.tables.tables[self.stream.table].schema))

    @property
    def published(self) -> Evolved:
        return required(latest(self.store, "orders", by_route=self.stream.gains_by_table))


def settings_of(folder: str, **stream: object) -> Settings:
    settings = {"app_id": "orders", "topics": ["orders"], "table": f"{folder}/table", "columns": "id BIGINT"}
    return Settings.model_validate(
        {
            "kafka": {"bootstrap.servers": "nowhere:1"},
            "stage": {"url": f"{folder}/stage"},
            "streams": [{**settings, "kafka_columns": False, "unknown_fields": "evolve", **stream}],
        }
    )


def produce(writer: StageWriter, group: JsonMember, partition: TopicPartition, *values: object) -> None:
    VALUES[partition] += values
    group.ends[partition] = len(VALUES[partition])
    for _ in range(8):
        writer.step(0.5)


def test_new_field_has_its_column_from_its_first_record(tmp_path: Path) -> None:
    world = World(tmp_path, columns="id BIGINT, meta STRUCT<a: BIGINT>")
    writer = world.writer(SOURCES[0])
    produce(*writer, SOURCES[0], {"id": 1})
    produce(*writer, SOURCES[0], {"id": 2}, {"id": 3, "x": 1, "meta": {"new": "n"}}, {"id": 4, "x": 0, "bad name": 1})
    produce(*writer, SOURCES[0], {"id": 5, "x": 2, "X": 3, "y": None}, {"id": 6, "x": "text"})
    older, newer = "id BIGINT, meta STRUCT<a: BIGINT>", "id BIGINT, meta STRUCT<a: BIGINT, new: STRING>, x BIGINT"
    assert world.staged(SOURCES[0]) == [(f"{older}, _rescued STRING", None), *[(f"{newer}, _rescued STRING", None)] * 2]
    assert world.rows(SOURCES[0]) == [
        {"id": 1},
        {"id": 2},
        {"id": 3, "x": 1, "meta": {"a": None, "new": "n"}},
        {"id": 4, "x": 0, "_rescued": '{"bad name":1}'},
        {"id": 5, "x": 2, "_rescued": '{"X":3,"y":null}'},
        {"id": 6, "_rescued": '{"x":"text"}'},
    ]
    assert [(gain.column, gain.offered_by) for gain in world.published.gained] == [
        ("meta.new STRING", f"done/orders/0/{1:020d}.done"),
        ("x BIGINT", f"done/orders/0/{1:020d}.done"),
    ]
    world.load()
    assert world.columns == f"{older[:-1]}, new: STRING>, _rescued STRING, x BIGINT"
    assert (world.published.version, len(world.tables.tables[world.stream.table].paths)) == (1, 3)
    assert numbers(world.metrics)["columns_gained_total{app_id=orders}"] == 2


def test_first_of_two_writers_that_infer_differently_wins(tmp_path: Path) -> None:
    world = World(tmp_path)
    quick = world.writer(SOURCES[0])
    first = acting("create", lambda: produce(*quick, SOURCES[0], {"id": 1, "x": 1, "a": 1}), below="schema/")
    slow = world.writer(SOURCES[1], TrappedStore(f"{tmp_path}/stage", before=first))
    produce(*slow, SOURCES[1], {"id": 2, "x": "text", "y": True}, {"id": 3, "x": 3})
    assert world.rows(SOURCES[0]) == [{"id": 1, "a": 1, "x": 1}]
    assert world.rows(SOURCES[1]) == [{"id": 2, "y": True, "_rescued": '{"x":"text"}'}, {"id": 3, "x": 3}]
    assert (world.published.version, to_ddl(world.published.columns)) == (2, "a BIGINT, x BIGINT, y BOOLEAN")
    produce(*quick, SOURCES[0], {"id": 4, "y": False})  # it agrees on what is agreed on
    assert world.rows(SOURCES[0])[-1] == {"id": 4, "y": False}
    world.load()
    assert world.columns == "id BIGINT, a BIGINT, x BIGINT, _rescued STRING, y BOOLEAN"
    assert world.published.version == 2


def test_gained_column_names_the_first_marker_that_offers_it() -> None:
    offers = {path: parse_ddl(columns) for path, columns in {"1": "x INT", "2": "x INT, y INT", "3": "y INT"}.items()}
    columns = parse_ddl("x INT, y INT, z INT")
    gained = Evolved.nothing("orders", by_route=False).with_columns(columns, parse_ddl("id INT"), offers, 5).gained
    assert gained == (Gained("x INT", "1", 5), Gained("y INT", "2", 5), Gained("z INT", "", 5))


def test_partitions_of_one_writer_offer_columns_together(tmp_path: Path) -> None:
    world = World(tmp_path)
    writer, group = world.writer(SOURCES[0])
    group.ends[SOURCES[1]] = 1
    VALUES[SOURCES[1]] = [{"id": 2, "x": 0.5}]
    produce(writer, group, SOURCES[0], {"id": 1, "x": 1})
    assert (world.rows(SOURCES[0]), world.rows(SOURCES[1])) == ([{"id": 1, "x": 1.0}], [{"id": 2, "x": 0.5}])
    produce(writer, group, SOURCES[0], {"id": 3, "late": 1})
    VALUES[SOURCES[1]] += [{"id": 4}, {"id": 5, "late": 2}]
    group.ends[SOURCES[1]] = 3
    for _ in range(8):
        writer.step(0.5)
    assert world.rows(SOURCES[1])[1:] == [{"id": 4}, {"id": 5, "late": 2}]
    assert world.published.version == 2


def test_type_of_an_existing_table_column_wins(tmp_path: Path) -> None:
    world = World(tmp_path)
    write_log(world.table, "id BIGINT, _rescued STRING, X STRING, day DATE, blob BINARY")
    writer = world.writer(SOURCES[0])
    produce(*writer, SOURCES[0], {"id": 1, "x": 1, "day": "2026-03-01"}, {"id": 2, "day": "soon"})
    assert world.staged(SOURCES[0]) == [("id BIGINT, day DATE, _rescued STRING", "x BIGINT")]
    assert world.rows(SOURCES[0]) == [
        {"id": 1, "day": date(2026, 3, 1), "_rescued": '{"x":1}'},
        {"id": 2, "_rescued": '{"day":"soon"}'},
    ]


def test_type_that_the_table_got_meanwhile_wins_and_is_published(tmp_path: Path) -> None:
    world = World(tmp_path)
    writer = world.writer(SOURCES[0])
    produce(*writer, SOURCES[0], {"id": 1})
    world.load()
    produce(*writer, SOURCES[0], {"id": 2, "x": 1})
    table = world.tables.tables[world.stream.table]
    table.schema = schema_to_json(parse_ddl("id BIGINT, _rescued STRING, x STRING"))  # as ALTER TABLE does
    problem = (
        f"what is staged is not compatible with the Delta table {world.stream.table}: "
        "the column x is STRING, staged as BIGINT"
    )
    world.load(failure=problem)
    assert (world.published.version, to_ddl(world.published.columns)) == (2, "x STRING")


def test_reading_does_not_advance_while_the_stage_fails(tmp_path: Path) -> None:
    world = World(tmp_path)
    store = TrappedStore(f"{tmp_path}/stage")
    writer, group = world.writer(SOURCES[0], store)
    produce(writer, group, SOURCES[0], {"id": 1})
    well, store.before = store.before, failing("create", StoreError("the store is away", "wait"), below="schema/")
    VALUES[SOURCES[0]] += [{"id": 2}, {"id": 3, "x": 1}]
    group.ends[SOURCES[0]] = 3
    writer.step(0.1)
    (owned,) = writer.assignment.by_partition.values()
    assert (owned.wait is not None, writer.health().problems) == (True, ())  # no problem so far
    world.clock.now_s += LATE_AFTER_S + 1
    problem = "1 partition waiting: orders gains columns for the new fields x → check that the stage's store responds"
    assert writer.health().problems == (problem,)
    for _ in range(8):
        writer.step(0.5)
    assert world.rows(SOURCES[0]) == [{"id": 1}]
    (owned,) = writer.assignment.by_partition.values()
    assert (owned.buffer.end, owned.taken, owned.read_to) == (1, 1, 1)
    assert writer.health().problems == ("1 partition waiting: the store is away → wait",)
    store.before = well
    for _ in range(400):
        writer.step(0.5)
    assert world.rows(SOURCES[0])[1:] == [{"id": 2}, {"id": 3, "x": 1}]
    assert writer.health().problems == ()


def test_records_before_a_held_one_are_read_again_first(tmp_path: Path) -> None:
    world = World(tmp_path, expect={"positive": "id > 0"}, on_fail="hold")
    writer, group = world.writer(SOURCES[0])
    produce(writer, group, SOURCES[0], {"id": 1}, {"id": 2})
    VALUES[SOURCES[0]] += [{"id": 3}]
    group.ends[SOURCES[0]] = 3
    writer.step(0.1)  # a buffer with the old columns is open
    produce(writer, group, SOURCES[0], {"id": 4, "x": 1}, {"id": -5}, {"id": 6})
    assert world.rows(SOURCES[0]) == [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4, "x": 1}]
    assert [(held.reason, required(held.resume_point).position) for held in writer.assignment.held.values()] == [
        ("expectation", 4)
    ]


def test_writers_adopt_columns_that_the_loader_publishes(tmp_path: Path) -> None:
    world = World(tmp_path)
    first, second = (world.writer(partition, refusing(tmp_path)) for partition in SOURCES)
    produce(*first, SOURCES[0], {"id": 1, "x": 1}, {"id": 2, "x": None})
    produce(*second, SOURCES[1], {"id": 3, "x": 1.5, "y": {"z": True}})
    assert world.staged(SOURCES[0]) == [("id BIGINT, _rescued STRING", "x BIGINT")]
    assert world.staged(SOURCES[1]) == [("id BIGINT, _rescued STRING", "x DOUBLE, y STRUCT<z: BOOLEAN>")]
    world.load()
    assert world.columns == "id BIGINT, _rescued STRING, x DOUBLE, y STRUCT<z: BOOLEAN>"
    assert len(world.tables.tables[world.stream.table].paths) == 2

    world.clock.now_s += LOOK_AT_SCHEMAS_S
    for writer, partition in ((first, SOURCES[0]), (second, SOURCES[1])):
        produce(*writer, partition, {"id": 4, "x": 2})
        produce(*writer, partition, {"id": 5, "x": "text"})
        assert world.staged(partition)[-1] == ("id BIGINT, x DOUBLE, y STRUCT<z: BOOLEAN>, _rescued STRING", None)
    world.load()
    assert world.columns == "id BIGINT, _rescued STRING, x DOUBLE, y STRUCT<z: BOOLEAN>"
    assert (world.published.version, to_ddl(world.published.columns)) == (1, "x DOUBLE, y STRUCT<z: BOOLEAN>")
    assert {gained.offered_by.split("/")[2] for gained in world.published.gained} <= {"0", "1"}


def test_table_that_lost_its_columns_gets_them_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    writer = world.writer(SOURCES[0])
    produce(*writer, SOURCES[0], {"id": 1, "x": 1})
    world.load()
    table = world.tables.tables[world.stream.table]
    table.schema = schema_to_json(parse_ddl("id BIGINT, _rescued STRING"))  # as a RESTORE does
    world.clock.now_s += LOOK_AT_SCHEMAS_S
    produce(*writer, SOURCES[0], {"id": 2, "x": 2})
    produce(*writer, SOURCES[0], {"id": 3, "x": 3})
    world.load()
    assert world.columns == "id BIGINT, _rescued STRING, x BIGINT"


def test_loader_that_dies_before_publishing_is_recovered_by_the_next(tmp_path: Path) -> None:
    world = World(tmp_path)
    produce(*world.writer(SOURCES[0], refusing(tmp_path)), SOURCES[0], {"id": 1, "x": 1})
    world.load(refusing(tmp_path), failure="not for you")
    assert (world.columns, world.tables.tables[world.stream.table].paths) == (
        "id BIGINT, _rescued STRING, x BIGINT",
        [],
    )
    world.load()
    published = latest(world.store, "orders")
    assert to_ddl(required(published).columns) == "x BIGINT"
    assert len(world.tables.tables[world.stream.table].paths) == 1


def test_later_of_two_loaders_publishes_the_joined_types(tmp_path: Path) -> None:
    world = World(tmp_path)
    produce(*world.writer(SOURCES[0], refusing(tmp_path)), SOURCES[0], {"id": 1, "x": 1.5, "y": "y"})
    other = Evolved("orders", 1, parse_ddl("x BIGINT"))
    before = acting("create", lambda: other.create(world.store), below="schema/")
    world.load(TrappedStore(f"{tmp_path}/stage", before=before))
    published = latest(world.store, "orders")
    assert published is not None
    assert (published.version, to_ddl(published.columns)) == (2, "x DOUBLE, y STRING")
    assert world.columns == "id BIGINT, _rescued STRING, x DOUBLE, y STRING"


def test_column_that_the_table_refuses_blocks_no_row(tmp_path: Path) -> None:
    world = World(tmp_path, Picky())
    writer = world.writer(SOURCES[0], refusing(tmp_path))
    produce(*writer, SOURCES[0], {"id": 1, "a": 1, "sick": 1, "z": "z"})
    world.load()
    assert world.columns == "id BIGINT, _rescued STRING, a BIGINT, z STRING"
    assert len(world.tables.tables[world.stream.table].paths) == 1


def test_evolve_limit_bounds_gained_columns_of_all_writers(tmp_path: Path) -> None:
    world = World(tmp_path, evolve_limit=3)
    first, second = (world.writer(partition) for partition in SOURCES)
    produce(*first, SOURCES[0], {"id": 1, **{f"user-{number}": number for number in range(100)}})
    produce(*second, SOURCES[1], {"id": 1, "a": {"b": 1, "c": 1, "d": 1}})
    world.load()
    assert world.columns == "id BIGINT, `user-0` BIGINT, `user-1` BIGINT, `user-10` BIGINT, _rescued STRING"
    assert [offered for partition in SOURCES for _, offered in world.staged(partition)] == [None, None]


def test_columns_of_an_altered_table_are_used_unchanged() -> None:
    table = parse_ddl("id BIGINT, day DATE, _rescued STRING")
    known = PublishedColumns(parse_ddl("id BIGINT"), parse_ddl("old STRING"), 10)
    agreement = agree(table, known, parse_ddl("day STRING, ID BIGINT"), table)
    assert [str(column) for column in agreement.added] == ["old STRING"]
    assert to_ddl(agreement.columns) == "old STRING, day DATE"


def test_unreadable_published_columns_leave_a_writer_s_columns_unchanged(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.write(Evolved("orders", 1, parse_ddl("x BIGINT")).path, b"{")
    writer = world.writer(SOURCES[0])
    produce(*writer, SOURCES[0], {"id": 1, "x": 1})
    assert world.staged(SOURCES[0]) == [("id BIGINT, _rescued STRING", "x BIGINT")]


def test_published_columns_round_trip(tmp_path: Path) -> None:
    store = FsspecStore(f"{tmp_path}/stage")
    assert latest(store, "a/b") is None
    for version in (2, 10, 9):
        evolved = Evolved("a/b", version, parse_ddl(f"x{version} STRUCT<y: ARRAY<BIGINT>>"))
        store.create(evolved.path, evolved.to_bytes())
    published = latest(store, "a/b")
    assert published == Evolved("a/b", 10, parse_ddl("x10 STRUCT<y: ARRAY<BIGINT>>"))
    assert folder_of("a/b") == "schema/a%2Fb/"


def test_rescue_column_cannot_be_dropped() -> None:
    with pytest.raises((ConfigError, ValueError), match="evolve"):
        settings_of("/x", drop=["_rescued"])


@pytest.mark.parametrize(
    ("table", "first", "refused"),
    [
        (
            "id BIGINT, _rescued STRING, price FLOAT",
            {"price": 1.5},
            False,
        ),  # counts toward the limit, though no record may fill it
        ("id BIGINT, _rescued STRING, Attrs STRING", {}, False),
        (None, {}, True),
    ],
    ids=["limit", "case", "refused"],
)
def test_field_names_that_are_data_do_not_cost_a_flush_each(
    tmp_path: Path, table: str | None, first: dict[str, object], *, refused: bool
) -> None:
    world = World(tmp_path, evolve_limit=3)
    if table is not None:
        write_log(world.table, table)
    writer, group = world.writer(SOURCES[0], refusing(tmp_path) if refused else None)
    for number in range(20):
        new = {f"user_{number}": 1} if number else first
        VALUES[SOURCES[0]].append({"id": number, **({"attrs": new} if table and "Attrs" in table else new)})
        group.ends[SOURCES[0]] = number + 1
        for _ in range(4):
            writer.step(0.001)
    assert len(world.staged(SOURCES[0])) <= 3


def test_types_of_a_route_s_table_win(tmp_path: Path) -> None:
    route = f"{tmp_path}/route"
    world = World(tmp_path, route="kind", columns="id BIGINT, kind STRING", routes={"a": route})
    stores = {world.stream.table: world.table, route: FsspecStore(route)}
    write_log(world.table, "id BIGINT, kind STRING, _rescued STRING")
    write_log(stores[route], "id BIGINT, kind STRING, _rescued STRING, x STRING")
    agreed = gain_columns(world.store, stores.__getitem__, world.clock, world.stream, {"m": parse_ddl("x BIGINT")})
    assert to_ddl(agreed.columns) == "x STRING"


OWN: dict[str, Any] = {"route": "kind", "route_columns": "own", "unrouted": "dead_letters", "columns": "kind STRING"}


def columns_by_route(world: World) -> dict[str, str]:
    tables = {url: to_ddl(schema_from_json(table.schema)) for url, table in world.tables.tables.items()}
    return {url.rpartition("/")[2]: columns for url, columns in tables.items() if "/by/" in url}


def test_tables_with_own_columns_gain_them_separately(tmp_path: Path) -> None:
    world = World(tmp_path, **OWN, route_table=f"{tmp_path}/by/{{route}}")
    first, second = SOURCES
    writer, group = world.writer(first)
    produce(writer, group, first, {"kind": "a", "x": 1}, {"kind": "b", "x": "one"}, {"kind": "a", "y": {"z": 1}})
    world.load()
    assert columns_by_route(world) == {
        "a": "kind STRING, x BIGINT, y STRUCT<z: BIGINT>, _rescued STRING",
        "b": "kind STRING, x STRING, _rescued STRING",
    }
    gained = [each.column for each in world.published.gained]
    assert gained == ["a STRUCT<x: BIGINT, y: STRUCT<z: BIGINT>>", "b STRUCT<x: STRING>"]
    # Another writer may not agree on columns: its offer is for the table of its route alone.
    other, group = world.writer(second, refusing(tmp_path))
    produce(other, group, second, {"kind": "b", "x": "two", "late": True}, {"kind": "a", "x": "text"})
    world.load()
    assert columns_by_route(world)["a"] == "kind STRING, x BIGINT, y STRUCT<z: BIGINT>, _rescued STRING"
    assert columns_by_route(world)["b"] == "kind STRING, x STRING, _rescued STRING, late BOOLEAN"
    assert to_ddl(world.published.columns) == (
        "a STRUCT<x: BIGINT, y: STRUCT<z: BIGINT>>, b STRUCT<x: STRING, late: BOOLEAN>"
    )
    assert world.published.gained[-1].column == "b.late BOOLEAN"


def sections_of(folder: Path) -> dict[str, Any]:
    sections = {"a": "id STRING", "b": "page STRUCT<name: STRING>", "c": "id STRING"}
    routes = {name: {"table": f"{folder}/by/{name}", "columns": columns} for name, columns in sections.items()}
    return {"route": "kind", "columns": "id BIGINT, kind STRING", "routes": routes}


def test_sections_gain_columns_separately(tmp_path: Path) -> None:
    """Columns that only the stream declares do not belong to the sections."""
    world = World(tmp_path, **sections_of(tmp_path), evolve_limit=4)
    first, second = SOURCES
    writer = world.writer(first)
    produce(*writer, first, {"kind": "a", "id": "x", "n": 1}, {"id": 1, "n": "text"})
    produce(*writer, first, {"kind": "b", "id": "y", "page": {"name": "p", "n": 1}})
    world.load()
    assert world.columns == "id BIGINT, kind STRING, n STRING, _rescued STRING"
    assert columns_by_route(world) == {
        "a": "id STRING, kind STRING, n BIGINT, _rescued STRING",
        "b": "page STRUCT<name: STRING, n: BIGINT>, id STRING, kind STRING, _rescued STRING",
    }
    # Another writer may not agree on columns: the loader adds what it offers, by the same limit.
    late = {"kind": "c", "id": "z", "w": "", "x": 1, "y": {"z": 1}}
    refused = world.writer(second, refusing(tmp_path))
    produce(*refused, second, {"id": 2, "n": 1}, late, {"kind": "b", "more": 1})
    world.load()
    produce(*refused, second, {"kind": "c", "v1": 1, "v2": 1})
    world.load()
    assert columns_by_route(world) == {
        "a": "id STRING, kind STRING, n BIGINT, _rescued STRING",
        "b": "page STRUCT<name: STRING, n: BIGINT>, id STRING, kind STRING, _rescued STRING, more BIGINT",
        "c": "id STRING, _rescued STRING, kind STRING, w STRING, x BIGINT, v1 BIGINT",
    }
    assert world.columns == "id BIGINT, kind STRING, n STRING, _rescued STRING"
    assert columns_at(world.stream, f"{tmp_path}/by/c", world.published.columns).names == ("kind", "w", "x", "v1")


def test_sections_can_become_plain_routes_and_sections_again(tmp_path: Path) -> None:
    settings, (first, _) = sections_of(tmp_path), SOURCES
    settings["routes"] = {"a": {"table": f"{tmp_path}/by/a", "columns": "id BIGINT"}}
    sections = World(tmp_path, **settings)
    produce(*sections.writer(first), first, {"kind": "a", "id": 1, "n": 1}, {"id": 1, "n": 1})
    values = VALUES[first]
    shared = World(tmp_path, sections.tables, **{**settings, "routes": {"a": f"{tmp_path}/by/a"}})
    shared.load()
    produce(*shared.writer(first), first, *values, {"kind": "a", "id": 2, "n": 2, "m": True})
    shared.load()
    assert to_ddl(shared.published.columns) == "m BOOLEAN, n BIGINT"
    assert columns_by_route(shared)["a"] == "id BIGINT, kind STRING, n BIGINT, _rescued STRING, m BOOLEAN"
    values = VALUES[first]
    produce(*sections.writer(first), first, *values, {"kind": "a", "id": 3, "m": False, "n": 2})
    sections.load()
    assert columns_by_route(sections)["a"] == "id BIGINT, kind STRING, n BIGINT, _rescued STRING, m BOOLEAN"
    assert "a STRUCT<kind: STRING, n: BIGINT, m: BOOLEAN>" in to_ddl(sections.published.columns)


def test_own_columns_can_become_shared_and_own_again(tmp_path: Path) -> None:
    template, (first, second) = f"{tmp_path}/by/{{route}}", SOURCES
    own = World(tmp_path, **OWN, route_table=template)
    produce(*own.writer(first), first, {"kind": "a", "x": 1}, {"kind": "b", "y": 1})
    produce(*own.writer(second, refusing(tmp_path)), second, {"kind": "a", "late": True})  # its marker has an offer
    values = VALUES[first]
    shared = World(tmp_path, own.tables, **{**OWN, "route_columns": "shared"}, route_table=template)
    shared.load()
    assert columns_by_route(own) == {
        "a": "kind STRING, x BIGINT, _rescued STRING",
        "b": "kind STRING, y BIGINT, _rescued STRING",
    }
    writer, group = shared.writer(first)
    produce(writer, group, first, *values, {"kind": "a", "z": 1}, {"kind": "b"})
    shared.load()
    assert to_ddl(shared.published.columns) == "z BIGINT"
    assert columns_by_route(own) == {
        "a": "kind STRING, x BIGINT, _rescued STRING, z BIGINT",
        "b": "kind STRING, y BIGINT, _rescued STRING, z BIGINT",
    }
    values = VALUES[first]
    writer, group = own.writer(first)
    produce(writer, group, first, *values, {"kind": "b", "a": {"n": 1}}, {"kind": "a", "z": 2})
    own.load()
    assert to_ddl(own.published.columns) == "a STRUCT<x: BIGINT, z: BIGINT>, b STRUCT<y: BIGINT, a: STRUCT<n: BIGINT>>"
    assert columns_by_route(own)["b"] == "kind STRING, y BIGINT, _rescued STRING, z BIGINT, a STRUCT<n: BIGINT>"


def test_existing_table_with_own_columns_keeps_its_types(tmp_path: Path) -> None:
    world = World(tmp_path, **OWN, route_table=f"{tmp_path}/by/{{route}}")
    write_log(FsspecStore(f"{tmp_path}/by/a"), "kind STRING, x STRING")
    writer, group = world.writer(SOURCES[0])
    produce(writer, group, SOURCES[0], {"kind": "a", "x": 1}, {"kind": "a", "x": "text"}, {"kind": "b", "x": 1})
    assert to_ddl(world.published.columns) == "a STRUCT<x: STRING>, b STRUCT<x: BIGINT>"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("shared", "section"),
        ("section", "shared"),
        ("section", "another route"),
        ("section", "another case"),
        ("template", "own"),
        ("own", "shared"),
    ],
)
def test_event_without_a_field_clears_columns_gained_under_former_settings(
    tmp_path: Path, before: str, after: str
) -> None:
    url, (first, second) = f"{tmp_path}/by/a", SOURCES
    section = {"table": url, "columns": "id BIGINT, kind STRING"}
    settings: dict[str, dict[str, Any]] = {
        "shared": {"routes": {"a": url}},
        "section": {"routes": {"a": section}},
        "another route": {"routes": {"b": section, "a": section}},
        "another case": {"routes": {"A": section}, "route": "coalesce(kafka.key_text, 'A')"},
        "template": {"route_table": f"{tmp_path}/by/{{route}}"},
        "own": {"route_columns": "own", "unrouted": "dead_letters", "route_table": f"{tmp_path}/by/{{route}}"},
    }
    plain: dict[str, Any] = {"columns": "id BIGINT, kind STRING", "load": "merge", "merge": {"keys": ["id"]}}
    plain["route"] = "coalesce(kafka.key_text, 'a')"

    def world(form: str) -> World:
        return World(tmp_path, **{**plain, **settings[form]})

    writer, group = world(before).writer(first)
    produce(writer, group, first, {"id": 1, "n": 1, "m": {"x": 1}})
    write_log(
        FsspecStore(url), "id BIGINT, kind STRING, n BIGINT, m STRUCT<x: BIGINT>, by_hand STRING, _rescued STRING"
    )
    edited = world(after)
    writer, group = edited.writer(second)
    produce(writer, group, second, {"id": 1})
    produce(writer, group, second, {"id": 1, "new": True})
    staged = [table.schema for each in manifests(edited.store, "done/orders/1") for table in each.tables if table.files]
    names = [{*schema_from_json(schema).names} - {"id", "kind", "_rescued"} for schema in staged]
    assert names == [{"n", "m"}, {"n", "m", "new"}], "by_hand does not belong to this stream"


def test_merging_stream_reads_its_tables_once_after_an_edit(tmp_path: Path) -> None:
    """A writer that may not agree on columns starts, too."""
    url = f"{tmp_path}/by/a"
    merged: dict[str, Any] = {"route": "coalesce(kafka.key_text, 'a')", "load": "merge", "merge": {"keys": ["id"]}}
    merged["columns"] = "id BIGINT, kind STRING"
    shared = World(tmp_path, **merged, routes={"a": url})
    produce(*shared.writer(SOURCES[0]), SOURCES[0], {"id": 1, "kind": "a", "n": 1})
    write_log(FsspecStore(url), "id BIGINT, kind STRING, n BIGINT")
    sections = World(tmp_path, **merged, routes={"a": {"table": url, "columns": "id BIGINT, kind STRING"}})

    def continued(stage: FsspecStore, error: Exception | None = None) -> tuple[StructType | None, list[str]]:
        opened: list[str] = []

        def open_table(opened_url: str) -> FsspecStore:
            opened.append(opened_url)
            if error is not None:
                raise error
            return FsspecStore(opened_url)

        evolved = continued_columns(stage, open_table, sections.clock, sections.stream)
        return (None if evolved is None else evolved.columns), opened

    assert continued(refusing(tmp_path)) == (None, [sections.stream.table, url])
    with pytest.raises(StoreError, match="away"):
        continued(sections.store, StoreError("away", "wait"))  # the caller tries again
    (columns, _), (again, opened) = continued(sections.store), continued(sections.store)
    assert (columns, opened) == (again, [sections.stream.table]), "the main table has gained nothing yet"
    assert to_ddl(required(columns)) == "a STRUCT<n: BIGINT>"


def test_partitions_wait_until_previously_gained_columns_are_known(tmp_path: Path) -> None:
    world, (first, second) = World(tmp_path), SOURCES
    produce(*world.writer(first), first, {"id": 1, "x": 1})
    store = TrappedStore(
        f"{tmp_path}/stage", before=failing("list", StoreError("away", "wait"), below="schema/", times=2)
    )
    writer, group = world.writer(second, store)
    writer.step(0.1)
    assert (list(writer.assignment.by_partition), len(writer.assignment.starting)) == ([], 1)
    world.clock.now_s += 60
    produce(writer, group, second, {"id": 2})
    for _ in range(60):
        writer.step(0.5)
    assert [columns for columns, _ in world.staged(second)] == ["id BIGINT, x BIGINT, _rescued STRING"]


ITEMS: dict[str, Any] = {"columns": "id BIGINT, items ARRAY<STRUCT<sku: STRING>>", "explode": "items"}


def test_rows_of_elements_gain_columns(tmp_path: Path) -> None:
    """Both columns of the record and fields of the element, which is a column of the table."""
    world, (first, second) = World(tmp_path, **ITEMS), SOURCES
    writer, group = world.writer(first)
    produce(writer, group, first, {"id": 1, "items": [{"sku": "a"}, {"sku": "b", "n": 2}], "x": True})
    columns = "id BIGINT, items STRUCT<sku: STRING, n: BIGINT>, x BOOLEAN, _rescued STRING"
    assert world.staged(first) == [(columns, None)]
    assert to_ddl(world.published.columns) == "items ARRAY<STRUCT<n: BIGINT>>, x BOOLEAN"
    assert [(row["items"], row["x"]) for row in world.rows(first)] == [
        ({"sku": "a", "n": None}, True),
        ({"sku": "b", "n": 2}, True),
    ]
    world.load()
    refused = world.writer(second, refusing(tmp_path))
    produce(*refused, second, {"id": 2, "items": [{"sku": "c", "n": "text", "w": 0.5}]}, {"id": 3, "y": 1})
    assert world.staged(second)[-1][1] == "items ARRAY<STRUCT<w: DOUBLE>>, y BIGINT"
    world.load()
    assert world.columns == (
        "id BIGINT, items STRUCT<sku: STRING, n: BIGINT, w: DOUBLE>, x BOOLEAN, _rescued STRING, y BIGINT"
    )
    assert to_ddl(world.published.columns) == "items ARRAY<STRUCT<n: BIGINT, w: DOUBLE>>, x BOOLEAN, y BIGINT"
    world.clock.now_s += LOOK_AT_SCHEMAS_S
    produce(writer, group, first, {"id": 4, "items": [{"sku": "d", "w": 1}], "y": 2})
    assert world.staged(first)[-1] == (
        "id BIGINT, items STRUCT<sku: STRING, n: BIGINT, w: DOUBLE>, x BOOLEAN, y BIGINT, _rescued STRING",
        None,
    )
    world.load()


def test_type_of_an_element_s_field_in_the_table_wins(tmp_path: Path) -> None:
    world = World(tmp_path, **ITEMS)
    write_log(world.table, "id BIGINT, items STRUCT<sku: STRING, n: DOUBLE>, _rescued STRING")
    writer, group = world.writer(SOURCES[0])
    produce(writer, group, SOURCES[0], {"id": 1, "items": [{"sku": "a", "n": 2}]})
    assert to_ddl(world.published.columns) == "items ARRAY<STRUCT<n: DOUBLE>>"


def test_derived_array_gains_no_fields(tmp_path: Path) -> None:
    derive = {"part": "string_split(names, ',')"}
    world = World(tmp_path, columns="id BIGINT, names STRING", derive=derive, explode="part")
    writer, group = world.writer(SOURCES[0])
    produce(writer, group, SOURCES[0], {"id": 1, "names": "a,b", "part": ["c"], "x": 1})
    assert world.rows(SOURCES[0]) == [
        {"id": 1, "names": "a,b", "part": part, "x": 1, "_rescued": '{"part":["c"]}'} for part in "ab"
    ]
    world.load()
    assert world.columns == "id BIGINT, names STRING, x BIGINT, _rescued STRING, part STRING"


def test_first_slice_of_a_record_offers_its_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offered before one of its rows is in a buffer: from there it is not read again."""
    world, (first, _) = World(tmp_path, **ITEMS), SOURCES
    converter = StreamConverter(world.stream, limits=ExplodeLimits(slice_bytes=200))
    items = [{"sku": f"{number}", "n": number} for number in range(30)]
    values = [json.dumps({"id": number, "items": items, "x": 1}).encode() for number in range(2)]
    batch = replace(batch_of(values), partition=first)
    pieces = [staged for each in converter.slices([batch]) for _, staged in each]
    offers = [to_ddl(piece.offered) for piece in pieces]
    offer = "items ARRAY<STRUCT<n: BIGINT>>, x BIGINT"
    assert (offers.count(offer), {*offers}) == (2, {offer, ""})
    assert [offers[0], offers[len(offers) // 2]] == [offer, offer]
    later = converter.at(pieces[0].offered)
    rows = [row for each in later.slices([batch]) for _, staged in each for row in staged.rows[0]["items"].to_pylist()]
    assert rows == items * 2
    texts: list[int] = []

    def count(_: Offers, some: list[str]) -> StructType:
        texts.append(len(some))
        return NO_COLUMNS

    monkeypatch.setattr(Offers, "of", count)
    assert len(list(StreamConverter(world.stream).slices([batch]))) == 1
    assert texts == [2], "one text for each message, and not for each row"
