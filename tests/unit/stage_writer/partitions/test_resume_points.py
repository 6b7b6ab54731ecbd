"""Where a writer starts to read a partition: its chain decides, then its origin, then the stream's start."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import MarkerError, StateError
from common.settings import Stream
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin, newest_origin, origin_path, origin_to_bytes
from common.stage.markers import Marker
from common.stage.task_files import EMPTY_STATE, MarkedState, StateFileName, StateFiles, StateKind
from common.storage.store import FsspecStore
from stage_writer.chain_end import Lineage
from stage_writer.partitions.resume_points import ResumePoint, ResumePoints, breaks_rule, unexpected
from stage_writer.ports import UNEXPECTED
from stage_writer.stage.staging import ObjectStage
from tests.builders import instance, required
from tests.fakes.clock import IdleClock
from tests.fakes.markers import ORDERS, by_hand, chain_of, flush, put
from tests.fakes.streams import stream_of

OTHER = TopicPartition(ORDERS.topic, Partition(1))
JOINED = TopicPartition(Topic("orders+payments"), Partition(0))
CHANGES = StateFileName(ORDERS, Position(0), 0, "a", StateKind.CHANGES).path


@dataclass
class Metadata:
    """Kafka has the positions ``first`` to 50 of each partition."""

    first: int = 3
    resolved: Callable[[], None] = lambda: None
    started: list[object] = field(default_factory=list)

    def resolve(self, _partition: TopicPartition, start: object) -> Position:
        self.started.append(start)
        self.resolved()
        return Position(self.first)

    def end_positions(self, _streams: Iterable[Stream]) -> dict[TopicPartition, Position]:
        return dict.fromkeys((ORDERS, OTHER), Position(50))

    def high_watermarks(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        return dict.fromkeys(partitions, Position(50))


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    return FsspecStore(tmp_path.as_uri())


def points(store: FsspecStore, metadata: Metadata | None = None) -> ResumePoints:
    known: Any = metadata or Metadata()
    return ResumePoints(known, ObjectStage(store, lambda _: store, IdleClock(), lambda: "u", "w"))


def begin(store: FsspecStore, origin: ChainOrigin, partition: TopicPartition = ORDERS) -> None:
    store.write(origin_path(partition, origin.number), origin_to_bytes(origin))


def stateful(marker: Marker) -> Marker:
    state = MarkedState(StateFiles(None, (CHANGES,)), EMPTY_STATE)
    return replace(marker, manifest=replace(required(marker.manifest), state=state))


def test_chain_then_origin_then_start(store: FsspecStore) -> None:
    assert points(store).of(ORDERS, stream_of(start="earliest")).position == 3
    assert newest_origin(store, ORDERS) is None, "it will be the same tomorrow"
    begin(store, ChainOrigin(Position(7), topic_id="id"))
    metadata = Metadata()
    begun = points(store, metadata).of(ORDERS, stream_of(start="earliest"))
    assert metadata.started == []
    assert (begun.position, begun.lineage.topic_id, required(begun.origin).position) == (7, "id", 7)
    put(store, *chain_of(7, 20))
    assert points(store).of(ORDERS, stream_of(start="earliest")).position == 20


@pytest.mark.parametrize(("start", "position"), [("2026-01-01T00:00:00Z", 3), ("latest", 50)])
def test_start_that_moves_is_recorded(store: FsspecStore, start: str, position: int) -> None:
    begun = points(store).of(ORDERS, stream_of(start=start))
    assert (begun.position, required(newest_origin(store, ORDERS)).position) == (position, position)


@pytest.mark.parametrize(("first", "is_recorded"), [(0, False), (1, True)])
def test_start_at_the_first_record_of_all_needs_no_origin(store: FsspecStore, first: int, *, is_recorded: bool) -> None:
    stream = stream_of(start="2026-01-01T00:00:00Z")
    assert points(store, Metadata(first)).of(ORDERS, stream).position == first
    assert (newest_origin(store, ORDERS) is not None) is is_recorded


def test_latest_records_no_origin_of_a_chain_that_has_begun(store: FsspecStore) -> None:
    put(store, *chain_of(0, 20, partition=OTHER))
    assert points(store).of(ORDERS, stream_of(start="latest")).position == 50
    assert newest_origin(store, OTHER) is None


@pytest.mark.parametrize("topology", [None, "no:where"])
def test_chain_that_another_writer_started_meanwhile_is_continued(store: FsspecStore, topology: str | None) -> None:
    def another() -> None:
        begin(store, ChainOrigin(Position(7)))
        put(store, *chain_of(7, 20))

    stream = stream_of(start="2026-01-01T00:00:00Z", topology=topology, columns="id INT")
    resumed = points(store, Metadata(resolved=another)).of(ORDERS, stream)
    assert (resumed.position, required(resumed.tail).end) == (20, 20)


def test_chain_of_several_topics_needs_the_position_of_each(store: FsspecStore) -> None:
    joined = stream_of(topics=["orders", "payments"], start="2026-01-01T00:00:00Z")
    message = "the position of each"
    begin(store, ChainOrigin(Position(4)), JOINED)
    with pytest.raises(MarkerError, match=message):
        points(store).of(JOINED, joined)
    put(store, by_hand(5, partition=JOINED))
    with pytest.raises(MarkerError, match=message):
        points(store).of(JOINED, joined)

    store.delete([by_hand(5, partition=JOINED).name.path, origin_path(JOINED)])

    def another() -> None:
        begin(store, ChainOrigin(Position(0)), JOINED)
        put(store, by_hand(4, partition=JOINED))

    with pytest.raises(MarkerError, match=message):
        points(store, Metadata(resolved=another)).of(JOINED, joined)


@pytest.mark.parametrize("has_marker", [True, False])
def test_state_is_read_for_a_topology_only(store: FsspecStore, *, has_marker: bool) -> None:
    state = StateFiles(None, (CHANGES,))
    if has_marker:
        put(store, stateful(flush(0, 9)))
    else:
        begin(store, ChainOrigin(Position(9), state=state))
    topology = stream_of(topology="no:where", columns="id INT")
    assert points(store).of(ORDERS, stream_of()).state == state
    with pytest.raises(StateError, match="does not exist"):
        points(store).of(ORDERS, topology)
    store.write(CHANGES, b"changes")
    assert points(store).of(ORDERS, topology).state == state
    assert ResumePoint(None, Position(9), Lineage(), ChainOrigin(Position(9))).state == EMPTY_STATE


def test_starts_are_looked_up_at_once_except_at_the_end(store: FsspecStore) -> None:
    at_once: list[TopicPartition] = []

    def each(function: Callable[[Any], object], items: Iterable[tuple[TopicPartition, Stream]]) -> list[object]:
        items = list(items)
        at_once.extend(partition for partition, _ in items)
        return [function(item) for item in items]

    workers: Any = SimpleNamespace(map=each)
    wanted = {ORDERS: stream_of(), OTHER: stream_of(start="latest")}
    resumed = points(store).of_all(wanted, workers)
    assert at_once == [ORDERS]
    assert [instance(ResumePoint, resumed[partition]).position for partition in (ORDERS, OTHER)] == [3, 50]


def test_chain_differs_by_its_end_or_its_generation() -> None:
    held = ResumePoint(None, Position(5), Lineage(1))
    others = [held, replace(held, position=Position(6)), replace(held, lineage=Lineage(2))]
    assert [other.differs(held) for other in others] == [False, True, True]


@pytest.mark.parametrize(("start", "reached"), [(1, False), (2, True), (49, True), (50, False)])
def test_start_that_was_set_by_hand_is_reached_where_kafka_has_it(
    store: FsspecStore, start: int, *, reached: bool
) -> None:
    put(store, by_hand(start))
    known = points(store)
    resumed = known.of(ORDERS, stream_of())
    assert known.is_reached(ORDERS, resumed) is reached
    assert not known.is_reached(ORDERS, replace(resumed, tail=None))
    assert not known.is_reached(JOINED, resumed)
    assert not known.is_reached(ORDERS, replace(resumed, tail=replace(required(resumed.tail), is_bare=False)))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("first\nsecond"), "unexpected RuntimeError: first"),
        (RuntimeError("x" * 600), f"unexpected RuntimeError: {'x' * 500}"),
        (RuntimeError(), "unexpected RuntimeError"),
    ],
)
def test_unexpected_exception_is_a_fault_of_its_partition(error: Exception, text: str) -> None:
    fault = unexpected(ORDERS, error)
    assert (fault.partition, fault.reason) == (ORDERS, UNEXPECTED)
    assert fault.problem == f"orders/0 cannot be staged: {text}"


def test_record_that_breaks_a_rule_is_skipped_alone() -> None:
    fault = breaks_rule(ORDERS, Position(41), "id > 0")
    assert (fault.partition, fault.reason) == (ORDERS, "expectation")
    assert "offset 41" in fault.problem
    assert "--to 42 --yes" in fault.remedy
