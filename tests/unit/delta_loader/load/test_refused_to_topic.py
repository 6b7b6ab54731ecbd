"""Dead letters of refused records and of replays, in the stream's topic: each once, wherever a loader ends."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import BrokerError
from common.kafka.delivering import Delivered, DeliveryIdentity, FencedError
from common.ports import ObjectStore
from common.schema.arrow import to_arrow_schema
from common.settings import Settings
from common.spans import Offset, Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import TableKind
from common.stage.merged import InputEnd, inputs_of, merged_position
from common.stage.replacements import Replacement, ReplacementFile, ReplacementName, ReplacementTable
from common.stage.sent import sent_path
from common.storage.store import FsspecStore
from common.tables.dead_letters import DEAD_LETTER_SCHEMA
from common.tables.transactions import TxnIds
from delta_loader.load.refused_to_topic import RefusedToTopic
from delta_loader.load.replace_steps import Request
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import DeadLetterRow, Target
from tests.fakes.loading import routed_settings_for
from tests.fakes.refusals import CHECK, SOURCE, RefusingTables
from tests.fakes.staging import JoinedStaging, Staging


@dataclass
class ErrorsTopic:
    """A topic, and what its cluster knows of transactions."""

    records: list[dict[str, object]] = field(default_factory=list)
    positions: dict[tuple[str, TopicPartition], Delivered] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    begun: int = 0
    closed: int = 0
    answers: list[str] = field(default_factory=list)
    """Of the next commits: "" for a good one, "none" for one that is made without an answer, "error" for none."""
    before_commit: Callable[[], None] | None = None

    def begin(self, identity: DeliveryIdentity, _reached: Callable[[str], None]) -> "Sending":
        self.begun += 1
        self.epochs[identity.transactional_id] = self.epochs.get(identity.transactional_id, 0) + 1
        known = {partition: end for (group, partition), end in self.positions.items() if group == identity.out_group}
        return Sending(self, identity, self.epochs[identity.transactional_id], known)

    def values(self) -> list[object]:
        return [record["value"] for record in self.records]


@dataclass
class Sending:
    topic: ErrorsTopic
    identity: DeliveryIdentity
    epoch: int
    delivered: dict[TopicPartition, Delivered]

    def transact(self, records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int) -> None:
        happens, self.topic.before_commit = self.topic.before_commit, None
        if happens is not None:
            happens()
        if self.topic.epochs[self.identity.transactional_id] != self.epoch:
            raise FencedError("taken")
        answer = self.topic.answers.pop(0) if self.topic.answers else ""
        if answer != "error":
            made = {partition: Delivered(end, generation) for partition, end in ends.items()}
            self.topic.records += records.to_pylist()
            self.topic.positions |= {(self.identity.out_group, partition): end for partition, end in made.items()}
            self.delivered |= made
        if answer:
            raise BrokerError("Kafka is away")

    def close(self) -> None:
        self.topic.closed += 1


@dataclass
class World:
    tables: RefusingTables
    topic: ErrorsTopic = field(default_factory=ErrorsTopic)
    routes: Sequence[str] = ()

    @property
    def settings(self) -> Settings:
        given = routed_settings_for(self.tables.staging, self.routes)
        streams = tuple(stream.model_copy(update={"dead_letters_topic": "errors"}) for stream in given.streams)
        return given.model_copy(update={"streams": streams})

    def loader(self) -> Callable[[], BaseException | None]:
        """The passes of a new process."""
        stage = FsspecStore(self.settings.stage.url)
        sends = RefusedToTopic({}, "writers", self.tables.dead_letters, self.topic.begin, stage)
        return lambda: self.tables.run(self.settings, sends).failure


def begun(staging: Staging) -> World:
    world = World(RefusingTables(staging))
    staging.flush(0, 0, 4)
    assert world.loader()() is None
    world.tables.tables[staging.table].properties = dict(CHECK)
    return world


@pytest.fixture
def world() -> World:
    return begun(Staging(f"memory://{uuid.uuid4().hex}"))


def test_refused_record_is_in_the_topic_once(world: World) -> None:
    assert world.topic.begun == 0, "nothing was refused"
    world.tables.refuses = {5, 7}
    world.tables.staging.flush(0, 4, 10, dead=[6])
    run = world.loader()
    assert [run(), run()] == [None, None]
    assert world.topic.values() == [b"sent 5", b"sent 7"]
    (first, _) = world.topic.records
    names = {header["name"]: header["value"] for header in first["headers"]}  # type: ignore[attr-defined]
    assert (first["topic"], first["timestamp_ms"], names) == (
        "errors",
        1,
        {
            "dead_letter.app_id": b"orders",
            "dead_letter.error_class": b"refused_by_table",
            "dead_letter.error": b"odd",
            "dead_letter.topic": b"orders",
            "dead_letter.partition": b"0",
            "dead_letter.offset": b"5",
        },
    )
    assert world.topic.begun == 1
    assert [*world.topic.epochs] == ["writers.orders.out:refused.orders.0"], "and not the writer's"
    assert {group for group, _ in world.topic.positions} == {"writers.orders.out:refused"}
    assert world.loader()() is None
    assert (world.topic.begun, world.topic.values()) == (2, [b"sent 5", b"sent 7"]), "a new process asks how far it is"
    world.tables.refuses = {11}
    world.tables.staging.flush(0, 10, 12)
    assert run() is None
    assert world.topic.values() == [b"sent 5", b"sent 7", b"sent 11"]


def test_refused_records_of_an_unfinished_load_are_sent_with_the_rest(world: World) -> None:
    world.tables.refuses, world.tables.dies = {7}, True
    world.tables.staging.flush(0, 4, 10)
    assert world.loader()() is not None
    assert (world.tables.buried, world.topic.values()) == ([7], [])
    world.tables.refuses, world.tables.dies = {5, 7}, False
    assert world.loader()() is None
    assert world.topic.values() == [b"sent 5", b"sent 7"]


@pytest.mark.parametrize("answer", ["none", "error"])
def test_records_that_kafka_may_not_have_taken_are_sent_once_and_hold_no_load(world: World, answer: str) -> None:
    world.tables.refuses, world.topic.answers = {5}, [answer]
    world.tables.staging.flush(0, 4, 10)
    run = world.loader()
    assert "Kafka is away" in str(run())
    assert world.tables.tables[world.tables.staging.table].transactions == {"orders-0": 9}
    assert run() is None
    assert world.topic.values() == [b"sent 5"]


def test_fenced_loader_sends_nothing_twice(world: World) -> None:
    world.tables.refuses = {5}
    world.tables.staging.flush(0, 4, 10)
    other = world.loader()

    def another_loader_is_faster() -> None:
        assert other() is None

    world.topic.before_commit = another_loader_is_faster
    run = world.loader()
    assert "another process sends the dead letters of orders/0 to errors" in str(run())
    assert run() is None
    assert world.topic.values() == [b"sent 5"]


@pytest.mark.parametrize("forgets", ["Kafka", "the stage", "the stage its last delivery", "the stage how to read it"])
def test_sent_position_outlives_the_offsets_of_the_group(world: World, forgets: str) -> None:
    """Kafka drops a group's positions after a week without a commit."""
    world.tables.refuses = {5, 11}
    world.tables.staging.flush(0, 4, 10)
    stage = FsspecStore(world.settings.stage.url)
    assert world.loader()() is None
    before = stage.read(sent_path("orders"))
    world.tables.staging.flush(0, 10, 14)
    assert world.loader()() is None
    match forgets:
        case "Kafka":
            world.topic.positions.clear()
        case "the stage":
            stage.delete([sent_path("orders")])
        case _:
            assert before is not None
            stage.write(sent_path("orders"), before if "last" in forgets else b"{")
    assert world.loader()() is None
    assert world.topic.values() == [b"sent 5", b"sent 11"]
    world.topic.positions.clear()
    assert world.loader()() is None
    assert world.topic.values() == [b"sent 5", b"sent 11"], "the loader before has recorded it again"


def test_records_that_a_late_table_refuses_are_sent_as_well(world: World) -> None:
    world.routes = ["a"]
    staging = world.tables.staging
    staging.flush(0, 4, 6, routed={"a": [4]})
    run = world.loader()
    assert run() is None
    world.tables.tables[staging.route("a")].properties = dict(CHECK)
    world.tables.unreadable = {staging.route("a")}
    world.tables.refuses = {8}
    staging.flush(0, 6, 10, routed={"a": [6, 7, 8]})
    assert "the log is away" in str(run())
    assert world.topic.values() == []
    world.tables.unreadable, world.tables.refuses = set(), {7}
    assert run() is None
    assert (world.tables.buried, world.topic.values()) == ([7, 8], [b"sent 7", b"sent 8"])


def test_failed_table_is_reported_even_if_kafka_is_away(world: World) -> None:
    world.routes = ["a"]
    staging = world.tables.staging
    world.tables.refuses, world.topic.answers = {5}, ["error", "error"]
    staging.flush(0, 4, 6, routed={"a": [4]})
    run = world.loader()
    assert "Kafka is away" in str(run())
    world.tables.unreadable = {staging.route("a")}
    assert "the log is away" in str(run())
    assert world.topic.answers == [], "it was tried"


def test_chain_of_several_topics_has_a_sent_position_in_each() -> None:
    world = begun(JoinedStaging(f"memory://{uuid.uuid4().hex}"))
    world.tables.refuses = {2}
    world.tables.staging.flush(0, 4, 10)
    run = world.loader()
    assert [run(), run()] == [None, None]
    assert world.topic.values() == [b"sent 2"]
    ends = {str(partition): int(end.position) for (_, partition), end in world.topic.positions.items()}
    assert ends == {"orders/0": 5, "payments/0": 5}


def test_chain_of_several_topics_waits_for_a_position_in_each(world: World) -> None:
    topic, (stream,), stage = ErrorsTopic(), world.settings.streams, FsspecStore(world.settings.stage.url)
    both = TopicPartition(Topic("orders+payments"), Partition(0))
    table = Target(stream.dead_letters, "1", TableShape("", ()), {"orders-0:refused": 4}, 0)
    ids, sends = TxnIds("orders", several_topics=False), sender(topic, stage, 2)
    assert sends(stream, table, ids, {both: Position(5)}) == 0
    assert topic.begun == 0, "an operator's marker ends there"
    end = merged_position([InputEnd(SOURCE, Position(3)), InputEnd(inputs_of(both)[1], Position(2))])
    assert sends(stream, table, ids, {both: end}) == 1


def letters(*offsets: int) -> list[DeadLetterRow]:
    return [
        DeadLetterRow(SOURCE, Offset(each), None, None, b"%d" % each, "refused_by_table", "odd") for each in offsets
    ]


def sender(topic: ErrorsTopic, stage: ObjectStore, *offsets: int) -> RefusedToTopic:
    def read(_url: str, _partition: TopicPartition, span: Span, most: int) -> list[DeadLetterRow]:
        return letters(*[each for each in offsets if span.start <= each < span.end][:most])

    return RefusedToTopic({}, "writers", read, topic.begin, stage)


def test_many_are_sent_in_several_transactions_of_which_each_is_kept(world: World) -> None:
    topic, (stream,) = ErrorsTopic(answers=["", "error"]), world.settings.streams
    stage = FsspecStore(world.settings.stage.url)
    table = Target(stream.dead_letters, "1", TableShape("", ()), {"orders-0:refused": 2499}, 0)
    ids, finished = TxnIds("orders", several_topics=False), {SOURCE: Position(3000)}
    sends = sender(topic, stage, *range(2500))
    with pytest.raises(BrokerError):
        sends(stream, table, ids, finished)
    assert len(topic.records) == 999, "more of the last offset may follow"
    assert (topic.begun, topic.closed) == (1, 1), "the connection ends with the error"
    assert sends(stream, table, ids, finished) == 1501
    assert topic.values() == [b"%d" % each for each in range(2500)]
    assert topic.records[0]["timestamp_ms"] == -1, "none is known"


def test_dead_letter_of_a_former_topic_does_not_hide_one_of_the_same_offset(world: World) -> None:
    topic, (stream,) = ErrorsTopic(), world.settings.streams
    table = Target(stream.dead_letters, "1", TableShape("", ()), {"orders-0@1:refused": 1200}, 0)
    ids = TxnIds("orders", several_topics=False, generations={SOURCE: 1})
    twice = sorted([*range(1201), 999])  # the first part ends between the two
    assert (
        sender(topic, FsspecStore(world.settings.stage.url), *twice)(stream, table, ids, {SOURCE: Position(1201)})
        == 1202
    )
    assert topic.values() == [b"%d" % each for each in twice]


def test_late_table_does_not_move_the_sent_position_back(world: World) -> None:
    (stream,), stage = world.settings.streams, FsspecStore(world.settings.stage.url)
    table = Target(stream.dead_letters, "1", TableShape("", ()), {"orders-0:refused": 7}, 0)
    ids = TxnIds("orders", several_topics=False)
    counts = [
        sender(topic, stage, 2, 7)(stream, table, ids, {SOURCE: Position(end)})
        for topic, end in ((ErrorsTopic(), 9), (ErrorsTopic(), 3), (ErrorsTopic(), 9))  # Kafka forgets each position
    ]
    assert counts == [2, 0, 0]


def test_position_of_a_deleted_topic_does_not_count_for_the_new_one(world: World) -> None:
    topic, (stream,) = ErrorsTopic(), world.settings.streams
    stage = FsspecStore(world.settings.stage.url)
    ids, table = TxnIds("orders", several_topics=False), TableShape("", ())
    first = Target(stream.dead_letters, "1", table, {"orders-0:refused": 7}, 0)
    sends = sender(topic, stage, 2, 7)
    assert sends(stream, first, ids, {SOURCE: Position(9)}) == 2
    both = Target(stream.dead_letters, "1", table, {"orders-0:refused": 7, "orders-0@1:refused": 2}, 0)
    again = TxnIds("orders", several_topics=False, generations={SOURCE: 1})
    assert sends(stream, both, again, {SOURCE: Position(3)}) == 1
    assert topic.values() == [b"2", b"7", b"2"]
    forgetful = sender(ErrorsTopic(), stage, 2, 7)
    assert forgetful(stream, both, again, {SOURCE: Position(3)}) == 0, "the stage has the new topic's position"


def test_kafka_is_not_asked_while_nothing_more_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, (stream,) = ErrorsTopic(), world.settings.streams
    table = Target(stream.dead_letters, "1", TableShape("", ()), {"orders-0:refused": 7}, 0)
    sends = sender(topic, FsspecStore(world.settings.stage.url), 7)
    ids = TxnIds("orders", several_topics=False)
    assert [sends(stream, table, ids, {SOURCE: Position(end)}) for end in (8, 20)] == [1, 0]
    assert topic.begun == 1
    monkeypatch.delattr(FsspecStore, "write")  # what the stage has of it stays
    late = sender(topic, FsspecStore(world.settings.stage.url), 2, 7)
    assert [late(stream, table, ids, {SOURCE: Position(3)}) for _ in range(2)] == [0, 0]
    assert topic.begun == 2, "the rest is not finished yet"


@pytest.mark.parametrize("offsets", [(5, 5, 8), (5, 5, 6), (4, 5, 5)])
def test_dead_letters_of_one_offset_that_are_more_than_fit_are_sent(
    world: World, monkeypatch: pytest.MonkeyPatch, offsets: Sequence[int]
) -> None:
    monkeypatch.setattr("delta_loader.load.refused_to_topic._AT_A_TIME", 2)
    topic, (stream,), requests = ErrorsTopic(), world.settings.streams, iter(range(3))

    def read(_url: str, _partition: TopicPartition, span: Span, most: int) -> list[DeadLetterRow]:
        next(requests)
        return letters(*[each for each in offsets if span.start <= each < span.end][:most])

    sends = RefusedToTopic({}, "writers", read, topic.begin, FsspecStore(world.settings.stage.url))
    table = Target(stream.dead_letters, "1", TableShape("", ()), {"orders-0:refused": 8}, 0)
    assert sends(stream, table, TxnIds("orders", several_topics=False), {SOURCE: Position(9)}) == 3


def test_record_at_the_first_offset_is_sent(world: World) -> None:
    topic, (stream,), stage = ErrorsTopic(), world.settings.streams, FsspecStore(world.settings.stage.url)
    table = Target(stream.dead_letters, "1", TableShape("", ()), {"orders-0:refused": 0}, 0)
    assert sender(topic, stage, 0)(stream, table, TxnIds("orders", several_topics=False), {SOURCE: Position(1)}) == 1
    assert topic.values() == [b"0"]


def request_of(stage: ObjectStore, dead_letters: str, digit: str, *files: Sequence[int]) -> Request:
    """A replay of [0, 4000) that was carried out, with files of dead letters at these offsets."""
    staged: list[ReplacementFile] = []
    for number, offsets in enumerate(files):
        same = ("orders", 0, datetime.fromtimestamp(0.007001, UTC), None, b"x", "wrong_type", "odd")
        rows = [dict(zip(DEAD_LETTER_SCHEMA.names, (*same[:2], offset, *same[2:]), strict=True)) for offset in offsets]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, to_arrow_schema(DEAD_LETTER_SCHEMA)), sink)
        staged.append(ReplacementFile(f"data/{digit}-{number}.parquet", len(offsets), 1))
        stage.write(staged[-1].path, sink.getvalue().to_pybytes())
    name = ReplacementName(SOURCE, Position(0), digit * 32)
    stage.write(name.path, b"{}")
    tables = (ReplacementTable(dead_letters, TableKind.DEAD_LETTERS, "", tuple(staged)),)
    return Request(name, Replacement(Span(Position(0), Position(4000)), "orders", "eve", 1, 10, 0, tables=tables))


def offsets_in(topic: ErrorsTopic) -> list[int]:
    heads = [{each["name"]: each["value"] for each in record["headers"]} for record in topic.records]  # type: ignore[attr-defined]
    return [int(head["dead_letter.offset"]) for head in heads]


def test_dead_letters_of_a_replay_are_sent_once_wherever_the_loader_ends(world: World) -> None:
    topic, (stream,), stage = ErrorsTopic(), world.settings.streams, FsspecStore(world.settings.stage.url)
    request = request_of(stage, stream.dead_letters, "a", range(0, 3000, 2), range(2999, 3001))
    topic.answers = ["", "none"]  # the second transaction of three
    with pytest.raises(BrokerError):
        sender(topic, stage).replayed(stream, request)
    assert [sender(topic, stage).replayed(stream, request) for _ in range(2)] == [2, 0]
    assert offsets_in(topic) == [*range(0, 3000, 2), 2999, 3000]
    assert [*topic.positions.values()] == [Delivered(Position(3001), int("a" * 32, 16))]
    assert [topic.records[0][name] for name in ("topic", "key", "value", "timestamp_ms")] == ["errors", None, b"x", 7]
    assert [*topic.epochs] == ["writers.orders.out:replayed.orders.0"], "and not that of refused records"
    later = request_of(stage, stream.dead_letters, "b", [5])
    assert sender(topic, stage).replayed(stream, later) == 1, "each replay has its own"
    stage.delete([request.name.path])
    assert sender(topic, stage).replayed(stream, request) == 0, "a loader that was slower than the one that sent all"


def test_replay_without_dead_letters_or_topic_sends_nothing(world: World) -> None:
    topic, (stream,), stage = ErrorsTopic(), world.settings.streams, FsspecStore(world.settings.stage.url)
    request = request_of(stage, stream.dead_letters, "a", [5])
    without = stream.model_copy(update={"dead_letters_topic": None})
    assert sender(topic, stage).replayed(without, request) == 0
    assert sender(topic, stage).replayed(stream, request_of(stage, stream.dead_letters, "b")) == 0
    assert sender(topic, stage).replayed(stream, request_of(stage, "memory://other", "b", [5])) == 0
    assert topic.begun == 0
