"""Replacements whose tables are put back, or that overlap, between two steps: no record gets lost."""

import uuid
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace

import pytest
import structlog

from common.errors import BrokerError, StoreError, TableError
from common.metrics import Metrics
from common.remedies import replay
from common.schema import StructType, parse_ddl, schema_from_json, schema_to_json
from common.settings import Stream
from common.settings.values import Evolution
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.data_files import DataFileName, waiting_path
from common.stage.markers import TableKind
from common.stage.merged import shared_chain
from common.stage.replacements import (
    Replacement,
    ReplacementFile,
    ReplacementName,
    ReplacementTable,
    replacement_to_bytes,
)
from common.tables.commit_metadata import CommitMetadata
from common.tables.history import LoggedCommit
from common.tables.state import TableState
from common.tables.transactions import TxnIds
from delta_loader.load.replace_ranges import Replacements, SendReplayed
from delta_loader.load.replace_steps import (
    Request,
    RequestStep,
    behind,
    is_superseded,
    rolled_back,
    rows_incompatibility,
    txn_id,
    waits,
)
from delta_loader.plan.held import Held
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import TableCommit, Target
from tests.builders import required
from tests.fakes.loading import routed_settings_for, settings_for
from tests.fakes.staging import DEAD_LETTERS, Staging, _schema
from tests.fakes.stores import TrappedStore, failing
from tests.unit.delta_loader.load.test_interplay import Restorable

RANGE = frozenset(range(10))


class Books(Restorable):
    """Tables whose rows are the offsets of one Kafka partition, version by version."""

    def __init__(self) -> None:
        super().__init__()
        self.contents: dict[str, list[frozenset[int]]] = {}

    def now(self, url: str) -> frozenset[int]:
        return self.contents[url][-1]

    def create(self, url: str, shape: TableShape) -> None:
        super().create(url, shape)
        self.contents.setdefault(url, [frozenset()])

    def begin(self, url: str, schema: str, offsets: AbstractSet[int]) -> None:
        self.create(url, TableShape(schema, ()))
        self.put(url, offsets, {}, CommitMetadata("load", "orders", {}, None))

    def put(self, url: str, offsets: AbstractSet[int], advances: dict[str, int], metadata: CommitMetadata) -> None:
        table = self.tables[url]
        shape = TableShape(table.schema, table.partition_by)
        table.commits.append(
            TableCommit(
                Target(url, table.table_id, shape, {}, 0), "orders", (), dict.fromkeys(advances), advances, metadata
            )
        )
        table.transactions |= advances
        self.contents[url].append(frozenset(offsets))

    def restore(self, url: str, to: int) -> int:
        version = super().restore(url, to)
        self.contents[url].append(self.contents[url][to])
        return version


class Replacer:
    """What Spark does to the rows, with a hook of the test before each step."""

    def __init__(self, books: Books, staged: dict[str, tuple[frozenset[int], frozenset[int]]]) -> None:
        self.books = books
        self.staged = staged
        self.routed: dict[tuple[str, str], frozenset[int]] = {}
        """By request and table of a route, what is staged for that."""
        self.nameless: frozenset[int] = frozenset()
        """Records whose rows have no offsets."""
        self.before: dict[tuple[str, TableKind, RequestStep], Callable[[], bool]] = {}

    def lost(self, request: Request, urls: tuple[str, ...]) -> int:
        staged = frozenset[int]().union(*(self._new(request, url) for url in urls))
        return len(frozenset[int]().union(*(self._inside(request, url) for url in urls)) - staged)

    def unnamed(self, request: Request, urls: tuple[str, ...]) -> int:
        new = frozenset[int]().union(*(self._new(request, url) for url in urls))
        named = frozenset[int]().union(*(self._inside(request, url) for url in urls))
        return len(new - named) if self.nameless else 0

    def deletes(self, request: Request, url: str, step: RequestStep) -> bool:
        kept = self._new(request, url) if step is RequestStep.DROP else frozenset()
        return bool(self._inside(request, url) - kept)

    def replace(self, request: Request, url: str, step: RequestStep, *, keep_stale: bool, metadata: str) -> bool:
        kind = TableKind.DEAD_LETTERS if url.endswith("_dead_letters") else TableKind.ROWS
        meanwhile = self.before.pop((request.name.request, kind, step), lambda: True)
        if not meanwhile():
            return False
        txn, table = txn_id(request.name.request), self.books.tables[url]
        if table.transactions.get(txn, 0) >= step:
            return True  # as Delta does with a write that it knows
        inside = self._inside(request, url)
        new = self._new(request, url) | (inside if keep_stale else set())
        parsed = required(CommitMetadata.from_json(metadata))
        self.books.put(url, (self.books.now(url) - inside) | new, {txn: int(step)}, parsed)
        return True

    def _new(self, request: Request, url: str) -> frozenset[int]:
        of_both = self.staged[request.name.request][url.endswith("_dead_letters")]
        return self.routed.get((request.name.request, url), of_both)

    def _inside(self, request: Request, url: str) -> frozenset[int]:
        span = request.content.span
        return frozenset(offset for offset in self.books.now(url) if span.start <= offset < span.end)


class World:
    """A stream loaded up to 10: even offsets are rows, odd ones dead letters."""

    def __init__(self) -> None:
        self.staging = Staging(f"memory://{uuid.uuid4().hex}")
        self.stream = settings_for(self.staging).streams[0].model_copy(update={"kafka_columns": True})
        self.rows, self.dead = self.staging.table, self.staging.dead_letters
        self.books = Books()
        self.books.begin(self.rows, self.staging.schema(), {0, 2, 4, 6, 8})
        self.books.begin(self.dead, _schema(DEAD_LETTERS), {1, 3, 5, 7, 9})
        self.replacer = Replacer(self.books, {})
        self.store = self.staging.store(self.staging.stage_url)
        self.metrics = Metrics()
        self.sends: SendReplayed = lambda _stream, _request: 0

    def route_to(self, *names: str, **more: object) -> None:
        (self.stream,) = routed_settings_for(self.staging, names, {**more, "kafka_columns": True}).streams

    def ask(
        self,
        digit: str,
        rows: AbstractSet[int],
        letters: AbstractSet[int],
        *,
        start: int = 0,
        end: int = 10,
        route: AbstractSet[int] = frozenset(),
        schema: str | None = None,
        letters_schema: str = "",
    ) -> None:
        """Make a request; with ``schema`` there is a file of the rows, which has these columns."""
        name = ReplacementName(self.staging.source(0), Position(start), digit * 32)
        self.replacer.staged[name.request] = frozenset(rows), frozenset(letters)
        of_letters = (self._file(self.dead, name, len(letters)),) if letters else ()
        of_rows = (self._file(self.rows, name, len(rows)),) if rows and schema else ()
        tables: tuple[ReplacementTable, ...] = (
            ReplacementTable(self.rows, TableKind.ROWS, schema or self.staging.schema(), of_rows),
            ReplacementTable(self.dead, TableKind.DEAD_LETTERS, letters_schema or _schema(DEAD_LETTERS), of_letters),
        )
        if route:
            url = self.staging.route("a")
            self.replacer.routed[name.request, url] = frozenset(route)
            file = self._file(url, name, len(route))
            tables = (*tables, ReplacementTable(url, TableKind.ROWS, self.staging.schema(), (file,)))
        content = Replacement(Span(Position(start), Position(end)), "orders", "eve", int(digit), 10, 0, tables=tables)
        self.store.write(name.path, replacement_to_bytes(name, content))

    def _file(self, url: str, name: ReplacementName, rows: int) -> ReplacementFile:
        path = waiting_path(url, DataFileName(name.topic_partition, name.start, name.request))
        self.store.write(path, b"1")
        return ReplacementFile(path, rows, 1)

    def run(self, stop: Callable[[], bool] = lambda: False, stepped: Callable[[], None] = lambda: None) -> list[Held]:
        log = structlog.get_logger()
        replacements = Replacements(self.store, self.books, self.replacer, lambda: "c", log, self.metrics, self.sends)
        return list(replacements.run(self.stream, lambda _: Position(10), stop, stepped).held.values())

    def requests(self) -> list[str]:
        return [stored.path for stored in self.store.list("replace/")]

    def now(self) -> tuple[set[int], set[int]]:
        return set(self.books.now(self.rows)), set(self.books.now(self.dead))

    def missing(self) -> set[int]:
        return set(RANGE) - self.books.now(self.rows) - self.books.now(self.dead)


ODD, EVEN = {1, 3, 5, 7, 9}, {0, 2, 4, 6, 8}


@pytest.fixture
def world() -> World:
    return World()


def test_completed_request_is_deleted(world: World) -> None:
    world.ask("1", ODD, EVEN)
    assert world.run() == []
    assert (world.now(), world.requests()) == ((ODD, EVEN), [])
    assert list(world.store.list("data/")) == []


def test_request_that_cannot_be_deleted_keeps_its_files(world: World) -> None:
    away = failing("delete", StoreError("it is away"), below="replace/")
    world.ask("1", ODD, EVEN)
    world.store = TrappedStore(world.store.url, before=away)
    with pytest.raises(StoreError, match="it is away"):
        world.run()
    assert list(world.store.list("data/")) != [], "it would be refused, because they are gone"


def test_request_stays_until_its_dead_letters_are_sent(world: World) -> None:
    world.ask("1", ODD, EVEN)
    sent: list[tuple[str, set[int]]] = []

    def sends(_stream: Stream, request: Request) -> int:
        sent.append((request.name.request[0], world.now()[1] & {*range(10)}))
        if len(sent) == 1:
            raise BrokerError("Kafka is away")
        return 5

    world.sends = sends
    (held,) = world.run()
    assert (held.reason, "Kafka is away" in held.problem, world.now()) == ("replacement_failed", True, (ODD, EVEN))
    steps: list[int] = []
    assert world.run(stepped=lambda: steps.append(1)) == []
    assert (steps, sent, world.requests()) == ([], [("1", EVEN), ("1", EVEN)], [])


@pytest.mark.parametrize(
    ("stopped_at", "left"),
    [
        ((TableKind.ROWS, RequestStep.ROWS), ("lost", "rows", "letters deleted", "nothing deleted from the route")),
        ((TableKind.DEAD_LETTERS, RequestStep.DROP), ("letters deleted",)),
        (None, ()),
    ],
)
def test_completed_steps_are_not_repeated(
    world: World, stopped_at: tuple[TableKind, RequestStep] | None, left: tuple[str, ...]
) -> None:
    world.route_to("a")
    world.books.begin(world.staging.route("a"), world.staging.schema(), set())
    world.ask("1", ODD, EVEN)
    request = {stored.path: required(world.store.read(stored.path)) for stored in world.store.list("")}
    if stopped_at is not None:
        world.replacer.before["1" * 32, *stopped_at] = in_the_way
    world.run()
    for path, data in request.items():
        world.store.write(path, data)
    steps: list[int] = []
    assert world.run(stepped=lambda: steps.append(1)) == []
    assert (len(steps), world.now(), world.requests()) == (len(left), (ODD, EVEN), [])


def test_table_without_staged_rows_needs_no_add_step(world: World) -> None:
    world.ask("1", {0}, set(), end=1)
    steps: list[int] = []
    assert world.run(stepped=lambda: steps.append(1)) == []
    assert len(steps) == len(("lost", "rows", "letters deleted"))


def test_request_completed_by_another_loader_is_ignored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ask("1", ODD, EVEN)
    monkeypatch.setattr(world.store, "read", lambda _path: None)
    assert (world.run(), counted(world)) == ([], (0, 0, 0))


def test_request_creates_the_tables_it_needs(world: World) -> None:
    world.route_to("a", "b", columns="id BIGINT, day STRING", partition_by=["day"])
    del world.books.tables[world.dead]
    world.ask("1", {0, 2}, RANGE - {0, 2, 4}, route={4})
    assert world.run() == []
    assert world.books.now(world.staging.route("a")) == {4}
    assert world.now() == ({0, 2}, set(RANGE - {0, 2, 4}))
    assert world.books.tables[world.staging.route("a")].partition_by == ("day",)
    assert world.books.tables[world.dead].partition_by == ()
    assert world.staging.route("b") not in world.books.tables


def test_table_without_new_rows_is_not_created(world: World) -> None:
    del world.books.tables[world.dead]
    world.ask("1", RANGE, set())
    assert (world.run(), world.dead in world.books.tables) == ([], False)


def test_staged_rows_with_an_unknown_type_are_refused(world: World) -> None:
    world.stream = world.stream.model_copy(update={"evolution": Evolution.ADD})
    world.ask("1", ODD, EVEN, schema=world.staging.schema().replace('"long"', '"quaternion"'))
    assert [held.reason for held in world.run()] == ["replacement_refused"]


def with_columns(schema: str, ddl: str) -> str:
    return schema_to_json(schema_from_json(schema).with_fields(parse_ddl(ddl)))


@pytest.mark.parametrize(
    ("more", "columns", "is_refused"),
    [
        ({}, "gained BIGINT", True),
        ({"unknown_fields": "evolve"}, "gained BIGINT", False),
        ({"evolution": "add"}, "gained BIGINT", False),
        ({"evolution": "add"}, "", False),
        ({"evolution": "add"}, "day BIGINT", True),
    ],
)
def test_replacement_adds_columns_where_evolution_allows(
    world: World, more: dict[str, str], columns: str, *, is_refused: bool
) -> None:
    world.route_to("a", **more)
    world.books.begin(world.staging.route("a"), world.staging.schema(), set())
    older = world.staging.schema()
    fields = tuple(field for field in schema_from_json(older) if not columns.startswith(f"{field.name} "))
    world.ask("1", ODD, EVEN, schema=schema_to_json(StructType((*fields, *parse_ddl(columns)))) if columns else older)
    assert [held.reason for held in world.run()] == ["replacement_refused"] * is_refused
    gained = schema_from_json(world.books.tables[world.rows].schema).names[len(schema_from_json(older)) :]
    assert gained == (() if is_refused or not columns else ("gained",))
    assert world.now() == ((EVEN, ODD) if is_refused else (ODD, EVEN))


@pytest.mark.parametrize("why_not", ["no rows", "dead letters"])
def test_replacement_without_evolvable_rows_adds_no_columns(world: World, why_not: str) -> None:
    """It has no rows for the table, or the table is for dead letters."""
    world.stream = world.stream.model_copy(update={"evolution": Evolution.ADD})
    older = {url: table.schema for url, table in world.books.tables.items()}
    rows, wider = (set() if why_not == "no rows" else ODD), with_columns(older[world.rows], "gained BIGINT")
    letters = with_columns(older[world.dead], "gained BIGINT") if why_not == "dead letters" else ""
    world.ask("1", rows, RANGE - rows, schema=None if letters else wider, letters_schema=letters)
    assert [held.reason for held in world.run()] == ["replacement_refused"] * (why_not != "no rows")
    assert {url: table.schema for url, table in world.books.tables.items()} == older


def test_replacement_that_would_lose_loaded_records_is_refused(world: World) -> None:
    """Kafka compacted them away after they were loaded."""
    world.ask("1", ODD, EVEN - {4, 8})
    (held,) = world.run()
    assert held.reason == "replacement_refused"
    assert "the tables have 2 records" in held.problem
    assert (world.now(), len(world.requests())) == ((EVEN, ODD), 1)


def in_the_way() -> bool:
    return False


@pytest.mark.parametrize(
    ("stopped_at", "table"),
    [
        ((TableKind.DEAD_LETTERS, RequestStep.DROP), "rows"),  # the old rows are back, the letters would go
        ((TableKind.ROWS, RequestStep.ROWS), "dead"),  # the new letters are gone, the old rows would go
    ],
)
def test_request_is_refused_after_a_restore_removed_its_step(
    world: World, stopped_at: tuple[TableKind, RequestStep], table: str
) -> None:
    world.ask("1", ODD, EVEN)
    world.replacer.before["1" * 32, *stopped_at] = in_the_way
    assert world.run() == []
    assert len(world.requests()) == 1
    world.books.restore(getattr(world, table), 1)
    (held,) = world.run()
    assert held.reason == "replacement_refused"
    assert "was removed from" in held.problem
    request = required(ReplacementName.parse(world.requests()[0]))
    assert f"`{replay(request.topic_partition, 0, 10)}`" in held.remedy
    assert world.missing() == set()
    # The suggested replay repairs it.
    world.store.delete(world.requests())
    world.ask("2", ODD, EVEN)
    assert world.run() == []
    assert world.now() == (ODD, EVEN)


def test_restore_to_a_version_with_the_step_is_harmless(world: World) -> None:
    world.ask("1", ODD, EVEN)
    world.replacer.before["1" * 32, TableKind.DEAD_LETTERS, RequestStep.DROP] = in_the_way
    world.run()
    world.books.restore(world.rows, 2)
    assert world.run() == []
    assert world.now() == (ODD, EVEN)


@pytest.mark.parametrize(
    ("before", "table"),
    [((TableKind.ROWS, RequestStep.ROWS), "dead"), ((TableKind.DEAD_LETTERS, RequestStep.DROP), "rows")],
)
def test_restore_between_two_steps_of_a_pass_refuses_the_request(
    world: World, before: tuple[TableKind, RequestStep], table: str
) -> None:
    def restore() -> bool:
        world.books.restore(getattr(world, table), 1)
        return True

    world.ask("1", ODD, EVEN)
    world.replacer.before["1" * 32, *before] = restore
    for _ in range(2):  # and for as long as the request exists
        (held,) = world.run()
        assert (held.reason, "in none" in held.problem) == ("replacement_refused", True)
    world.store.delete(world.requests())
    world.ask("2", ODD, EVEN)
    assert world.run() == []
    assert world.now() == (ODD, EVEN)


def test_later_request_waits_for_a_stopped_one_over_its_range(world: World) -> None:
    world.ask("1", ODD, EVEN)
    world.ask("2", EVEN | {1}, ODD - {1})
    world.ask("3", {9}, {8}, start=8)
    world.replacer.before["1" * 32, TableKind.ROWS, RequestStep.ROWS] = in_the_way
    (held,) = world.run()
    assert held.reason == "replacement_waits"
    assert "1.replace, which replaces [0, 10)" in held.problem
    assert (len(world.requests()), world.missing()) == (3, set())
    assert counted(world) == (1, 0, 3)
    assert world.run() == []
    assert world.now() == ({0, 1, 2, 4, 6, 9}, {3, 5, 7, 8})
    assert counted(world) == (1, 3, 0)


def counted(world: World) -> tuple[int, int, int]:
    """Conflicts, requests that were carried out, and those that were left."""
    lines = dict(line.rsplit(" ", 1) for line in world.metrics.exposition().decode().splitlines() if line[0] != "#")
    names = ("conflicts_total", "replacements_total", "replacements_left")
    conflicts, done, left = (int(float(lines.get(f'delta_loader_{name}{{app_id="orders"}}', 0))) for name in names)
    return conflicts, done, left


def test_stopped_request_does_not_block_another_range(world: World) -> None:
    world.ask("1", {1}, {0}, end=2)
    world.ask("2", {9}, {8}, start=8)
    world.replacer.before["1" * 32, TableKind.ROWS, RequestStep.ROWS] = in_the_way
    assert world.run() == []
    assert world.books.now(world.rows) == {0, 2, 4, 6, 9}


def test_stopping_loader_starts_no_further_request(world: World) -> None:
    world.ask("1", {1}, {0}, end=2)
    world.ask("2", {9}, {8}, start=8)
    steps: list[str] = []
    assert world.run(lambda: len(steps) > 0, lambda: steps.append("one more")) == []
    assert (len(world.requests()), world.now()) == (1, ({1, 2, 4, 6, 8}, {0, 3, 5, 7, 9}))
    assert len(steps) == len(("lost", "letters added", "rows", "letters deleted"))


def test_foreign_and_unreadable_requests_stay(world: World) -> None:
    other = ReplacementName(TopicPartition(Topic("payments"), Partition(0)), Position(0), "1" * 32)
    torn = ReplacementName(world.staging.source(0), Position(0), "2" * 32)
    paths = {other.path, torn.path, "replace/README"}
    for path in paths:
        world.store.write(path, b"{")
    (held,) = world.run()
    assert (held.reason, torn.path in held.problem) == ("replacement_refused", True)
    assert (set(world.requests()), counted(world)) == (paths, (0, 0, 1))


def test_started_request_precedes_one_with_an_earlier_date(world: World) -> None:
    """The earlier date comes from a machine whose clock is behind."""
    world.ask("5", ODD, EVEN)
    world.replacer.before["5" * 32, TableKind.ROWS, RequestStep.ROWS] = in_the_way
    world.run()
    world.ask("2", EVEN | {1}, ODD - {1})
    assert world.run() == []
    assert world.missing() == set()
    assert world.now() == (EVEN | {1}, ODD - {1})


def test_reappearing_request_deletes_no_rows_of_a_later_one(world: World) -> None:
    """All of its creates arrived twice, the second time after both were carried out, and a table more is there."""
    world.ask("1", {0}, set(), end=1)
    first = {stored.path: required(world.store.read(stored.path)) for stored in world.store.list("")}
    world.run()
    world.ask("2", set(), {0}, end=1)
    world.run()
    route = world.staging.route("a")  # which is there since then
    world.stream = routed_settings_for(world.staging, ["a"]).streams[0].model_copy(update={"kafka_columns": True})
    world.books.begin(route, world.staging.schema(), set())
    world.ask("3", set(), set(), end=1, route={0})
    world.replacer.routed |= {("1" * 32, route): frozenset(), ("3" * 32, world.rows): frozenset()}
    assert world.run() == []
    for path, data in first.items():
        world.store.write(path, data)
    assert world.run() == []
    assert world.books.now(route) == {0}
    assert world.requests() == []


def test_reappearing_request_without_files_is_deleted(world: World) -> None:
    world.ask("1", ODD, EVEN)
    (path,) = world.requests()
    request = required(world.store.read(path))
    world.run()
    world.store.write(path, request)
    assert world.run() == []
    assert (world.now(), world.requests()) == ((ODD, EVEN), [])


def test_request_with_a_missing_file_is_refused(world: World) -> None:
    world.ask("1", ODD, EVEN)
    world.store.delete([stored.path for stored in world.store.list("data/")])
    (held,) = world.run()
    assert (held.reason, "is gone" in held.problem) == ("replacement_refused", True)
    assert (world.now(), len(world.requests())) == ((EVEN, ODD), 1)


@pytest.mark.parametrize("plain_topic", [None, "orders"])
def test_range_of_a_recreated_topic_is_not_replaced(world: World, plain_topic: str | None) -> None:
    """Even when the config gained a topic and the table's first commits had one."""
    world.ask("1", ODD, EVEN)
    table = world.books.tables[world.rows]
    if plain_topic is not None:
        world.stream = world.stream.model_copy(update={"topics": ("orders", "payments")})
        metadata = replace(
            table.commits[-1].metadata, positions={world.staging.source(0): Position(10)}, plain_topic=plain_topic
        )
        table.commits[-1] = replace(table.commits[-1], metadata=metadata)
    ids = TxnIds(world.stream.app_id, world.stream.several_topics, {world.staging.source(0): 1}, plain_topic)
    table.transactions[ids.of(world.staging.source(0))] = 9
    (held,) = world.run()
    assert (held.reason, "was recreated" in held.problem) == ("replacement_refused", True)
    assert world.now() == (EVEN, ODD)


def test_request_waits_for_its_table(world: World) -> None:
    world.ask("1", ODD, EVEN)
    del world.books.tables[world.rows]
    (held,) = world.run()
    assert (held.reason, f"there is no table {world.rows}" in held.problem) == ("replacement_waits", True)


def test_paused_loader_deletes_no_rows_of_a_later_request(world: World) -> None:
    def another_loader() -> bool:
        world.run()
        world.ask("2", set(), {0}, end=1)
        world.run()
        return True

    world.ask("1", {0}, set(), end=1)
    world.replacer.before["1" * 32, TableKind.DEAD_LETTERS, RequestStep.DROP] = another_loader
    world.run()
    assert (0 in world.books.now(world.dead), world.missing()) == (True, set())


def test_request_is_refused_when_the_log_no_longer_shows_its_step(world: World) -> None:
    world.ask("1", ODD, EVEN)
    world.replacer.before["1" * 32, TableKind.ROWS, RequestStep.ROWS] = in_the_way
    world.run()
    world.books.tables[world.dead].commits[-1] = world.books.tables[world.dead].commits[0]
    (held,) = world.run()
    assert (held.reason, world.now()[0]) == ("replacement_refused", EVEN)


def test_rerouted_record_is_always_in_a_table(world: World) -> None:
    """Even offsets move from the main table to the route's, and 1 and 3 the other way."""
    route = world.staging.route("a")
    settings = routed_settings_for(world.staging, ["a"])
    world.stream = settings.streams[0].model_copy(update={"kafka_columns": True})
    world.books.begin(route, world.staging.schema(), {1, 3})
    world.books.contents[world.dead][-1] -= {1, 3}
    seen: list[bool] = []

    def observe() -> bool:
        everywhere = frozenset[int]().union(*(world.books.now(url) for url in (world.rows, world.dead, route)))
        seen.append(everywhere == set(RANGE))
        return True

    world.ask("1", set(), {9}, route=EVEN | {5, 7})
    world.replacer.routed["1" * 32, world.rows] = frozenset({1, 3})
    for kind in TableKind:
        for step in (RequestStep.ADD, RequestStep.DROP):
            world.replacer.before["1" * 32, kind, step] = observe
    assert world.run() == []
    assert observe()
    assert (world.now(), set(world.books.now(route))) == (({1, 3}, {9}), EVEN | {5, 7})
    assert seen
    assert all(seen)
    assert world.requests() == []


def request_of(
    world: World,
    digit: str = "1",
    start: int = 2,
    end: int = 10,
    *,
    partition: int = 0,
    app_id: str = "orders",
    url: str | None = None,
    only: tuple[Span, ...] = (),
) -> Request:
    name = ReplacementName(world.staging.source(partition), Position(start), digit * 32)
    table = ReplacementTable(url or world.rows, TableKind.ROWS, world.staging.schema(), ())
    span = Span(Position(start), Position(end))
    return Request(name, Replacement(span, app_id, "eve", 1, 8, 0, only=only, tables=(table,)))


def test_condition_of_a_request_is_its_range_or_offsets(world: World) -> None:
    whole = "_kafka_topic = 'orders' AND _kafka_partition = 0 AND _kafka_offset >= 2 AND _kafka_offset < 10"
    assert request_of(world).condition == whole
    only = (Span(Position(2), Position(4)), Span(Position(9), Position(10)))
    assert request_of(world, only=only).condition == f"{whole} AND _kafka_offset IN (2, 3, 9)"
    request = request_of(world)
    shared = replace(request.name, topic_partition=TopicPartition(shared_chain("orders", "b"), Partition(0)))
    assert replace(request, name=shared).condition == whole, "rows have the topic's own name"


@pytest.mark.parametrize(("position", "reason"), [(None, "replacement_waits"), (9, "replacement_waits"), (10, None)])
def test_request_waits_until_its_whole_range_is_loaded(world: World, position: int | None, reason: str | None) -> None:
    held = waits(request_of(world), world.stream, None if position is None else Position(position))
    assert (None if held is None else held.reason) == reason
    assert held is None or "replace/orders/0/00000000000000000002-1" in held.remedy
    assert held is None or ("the table has no position" if position is None else "the table is at 9,") in held.problem


@pytest.mark.parametrize(
    ("stream", "request_"),
    [
        ({}, {"app_id": "payments"}),
        ({}, {"url": "memory://another"}),
        ({"kafka_columns": False}, {}),
        ({"merge": 1}, {}),
    ],
    ids=str,
)
def test_request_not_meant_for_the_stream_is_refused(
    world: World, stream: dict[str, object], request_: dict[str, str]
) -> None:
    request = request_of(world, app_id=request_.get("app_id", "orders"), url=request_.get("url"))
    held = required(waits(request, world.stream.model_copy(update=stream), Position(10)))
    assert (held.reason, request.give_up in held.remedy) == ("replacement_refused", True)


def test_restore_below_the_last_step_counts_as_a_rollback(world: World) -> None:
    """Its first one is still there: the table says of the second that it is done, and has no trace of it."""
    request = request_of(world)
    metadata = request.metadata("c")
    history = [
        LoggedCommit(3, "RESTORE", restored_version=1),
        LoggedCommit(2, "WRITE", metadata=metadata),
        LoggedCommit(1, "WRITE", metadata=metadata),
        LoggedCommit(0, "CREATE TABLE"),
    ]
    assert required(rolled_back(request, world.rows, history)).reason == "replacement_refused"
    assert rolled_back(request, world.rows, history[1:]) is None


@pytest.mark.parametrize(("files", "is_refused"), [(1, True), (0, False), (None, False)])
def test_only_a_table_that_gets_rows_must_be_compatible(world: World, files: int | None, *, is_refused: bool) -> None:
    request = request_of(world, url=world.rows if files is not None else world.dead)
    (table,) = request.content.tables
    staged = (ReplacementFile("data/one", 1, 1),) * (files or 0)
    request = replace(request, content=replace(request.content, tables=(replace(table, files=staged),)))
    target = Target(world.rows, "1", TableShape(_schema(DEAD_LETTERS), ()), {}, 0)
    assert (rows_incompatibility(request, target) is not None) == is_refused


OVERLAPS = pytest.mark.parametrize(
    ("start", "end", "overlaps"), [(0, 2, False), (0, 3, True), (2, 10, True), (9, 12, True), (10, 12, False)]
)


@OVERLAPS
def test_request_waits_behind_an_overlapping_unfinished_one(
    world: World, start: int, end: int, *, overlaps: bool
) -> None:
    request = request_of(world)
    assert (behind(request, [request_of(world, "2", start, end)]) is not None) == overlaps
    assert behind(request, [request_of(world, "2", start, end, partition=1)]) is None


@OVERLAPS
def test_request_is_superseded_by_a_later_overlapping_one(
    world: World, start: int, end: int, *, overlaps: bool
) -> None:
    own = LoggedCommit(1, "WRITE", metadata=request_of(world).metadata("c"))
    later = request_of(world, "2", start, end).metadata("c")
    load = LoggedCommit(3, "STREAMING UPDATE", metadata=CommitMetadata("c", "orders", {}, None))
    rolled_back = [LoggedCommit(4, "RESTORE", restored_version=1), load, LoggedCommit(2, "WRITE", metadata=later), own]
    assert is_superseded(request_of(world), rolled_back[1:]) == overlaps
    assert not is_superseded(request_of(world), rolled_back)
    before = [replace(own, version=2), LoggedCommit(1, "WRITE", metadata=later)]
    assert not is_superseded(request_of(world), before)
    assert not is_superseded(request_of(world), [load])


def test_unreadable_table_blocks_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.ask("1", {1}, {0}, end=2)
    world.ask("2", {9}, {8}, start=8)
    state = world.books.state

    def unreadable(url: str) -> TableState | None:
        if url == world.dead:
            msg = "its log cannot be read"
            raise TableError(msg, "look at it")
        return state(url)

    monkeypatch.setattr(world.books, "state", unreadable)
    assert {held.reason for held in world.run()} == {"replacement_failed"}


def test_append_only_table_refuses_the_request_before_any_write(world: World) -> None:
    world.books.tables[world.dead].properties["delta.appendOnly"] = "true"
    before = world.now()
    world.ask("1", EVEN | ODD, set())
    (held,) = world.run()
    assert held.reason == "replacement_refused"
    assert held.remedy.startswith(f"ALTER TABLE delta.`{world.dead}` UNSET TBLPROPERTIES ('delta.appendOnly')")
    assert world.now() == before
    world.books.tables[world.dead].properties.clear()
    assert world.run() == []
    assert world.now() == (EVEN | ODD, set())


def test_append_only_table_without_rows_of_the_range_accepts_rows(world: World) -> None:
    world.books.put(world.dead, set(), {}, CommitMetadata("others", "orders", {}, None))
    world.books.tables[world.dead].properties["delta.appendOnly"] = "true"
    world.ask("1", {0, 2, 4, 6}, {8})
    assert world.run() == []
    assert world.now() == ({0, 2, 4, 6}, {8})


def test_records_that_may_be_rows_without_offsets_are_refused(world: World) -> None:
    world.replacer.nameless = frozenset({3})
    world.books.contents[world.dead].append(frozenset(ODD - {3}))
    world.ask("1", ODD | EVEN, set())
    (held,) = world.run()
    assert held.reason == "replacement_refused"
    assert "no table identifies 1 of its records" in held.problem
    assert world.now() == (EVEN, ODD - {3})
    world.store.delete(world.requests())
    world.ask("2", EVEN, {5, 7, 9}, start=4)
    world.replacer.staged["2" * 32] = frozenset({4, 6, 8}), frozenset({5, 7, 9})
    assert world.run() == []
