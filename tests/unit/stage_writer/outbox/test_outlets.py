"""When a chain's outboxes are delivered, with transactions in memory and a background runner stepped by hand."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
import structlog

from common.errors import BrokerError
from common.kafka.delivering import Delivered, DeliveryIdentity, FencedError
from common.metrics import Metrics
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.merged import InputEnd
from common.stage.task_files import OutboxName
from common.storage.store import FsspecStore
from stage_writer.outbox.outlets import MOST_PENDING, KafkaOutlets
from stage_writer.outbox.records import SCHEMA, Outgoing, outgoing_to_chunks
from tests.fakes.metrics import values
from tests.fakes.streams import stream_of

ORDERS = TopicPartition(Topic("orders"), Partition(0))


@dataclass
class Background:
    """A `stage_writer.outbox.ports.BackgroundRunner` that the test runs by hand."""

    waiting: list[Callable[[], None]] = field(default_factory=list)
    pauses: int = 0
    is_closed: bool = False

    def start(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def pause(self, seconds: float) -> None:
        assert seconds > 0
        self.pauses += 1
        assert self.pauses < 9, "it ends"

    def close(self) -> None:
        self.is_closed = True

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


@dataclass
class World:
    errors: list[Exception] = field(default_factory=list)
    """The errors of the next transactions."""
    background: Background = field(default_factory=Background)
    store: FsspecStore = field(default_factory=lambda: FsspecStore(f"memory://{uuid.uuid4().hex}"))
    sent: list[int] = field(default_factory=list)
    begun: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    delivered: dict[TopicPartition, Delivered] = field(default_factory=dict)

    def outlets(self, *writing: str) -> KafkaOutlets:
        return KafkaOutlets(
            {},
            "writers",
            self.store,
            writing,
            log=structlog.get_logger(),
            metrics=self.metrics,
            begin=self.begin,
            runner=self.background,
        )

    def begin(self, _identity: DeliveryIdentity, _reached: Callable[[str], None]) -> "World":
        self.begun += 1
        return self

    def transact(self, records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.sent += records["offset"].to_pylist()
        self.delivered |= {partition: Delivered(end, generation) for partition, end in ends.items()}

    def close(self) -> None: ...

    def outbox(self, offset: int) -> str:
        """The outbox of a flush of one message, with one record for it."""
        columns: list[list[object]] = [["to"], [None], [None], [0], [None], [0], [offset]]
        table = pa.table(
            [pa.array(values, kind.type) for values, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
        )
        path = OutboxName(ORDERS, Position(offset), 0, "1").path
        outgoing = Outgoing(ORDERS, 0, (InputEnd(ORDERS, Position(offset + 1)),), table)
        self.store.upload(path, outgoing_to_chunks(outgoing))
        return path


def test_stream_without_topics_still_delivers_the_outboxes_of_its_markers() -> None:
    world = World()
    outlets = world.outlets()
    assert outlets.open(ORDERS, stream_of(), ()) is None
    assert outlets.open(ORDERS, stream_of(), (world.outbox(0), world.outbox(1))) is not None
    world.background.run()
    assert (world.sent, list(world.store.list("outbox"))) == ([0, 1], [])


def test_dead_letters_go_to_the_topic_of_their_stream() -> None:
    outlet = World().outlets("orders").open(ORDERS, stream_of(dead_letters_topic="errors"), ())
    assert outlet is not None
    assert outlet.delivery.dead_letters_topic == "errors"


def test_flushes_continue_while_outboxes_wait_and_stop_at_too_many() -> None:
    world = World()
    outlet = world.outlets("orders").open(ORDERS, stream_of(), ())
    assert outlet is not None
    for offset in range(MOST_PENDING - 1):
        outlet.sealed((f"outbox/{offset}",))
    assert len(outlet.pending()) == MOST_PENDING - 1
    outlet.sealed(("outbox/one more",))
    with pytest.raises(BrokerError, match=f"{MOST_PENDING} outboxes of orders/0 wait for Kafka"):
        outlet.pending()


def test_failed_outbox_is_retried_before_the_next_one() -> None:
    world = World([BrokerError("it is away"), BrokerError("it is away")])
    outlets = world.outlets("orders")
    outlet = outlets.open(ORDERS, stream_of(), ())
    assert outlet is not None
    paths = world.outbox(0), world.outbox(1)
    outlet.sealed(paths[:1])
    outlet.sealed(paths)  # the next marker names both
    assert outlet.pending() == paths
    assert (len(world.background.waiting), outlets.close(0.0)) == (1, False), "in one thread, which is not done"
    world.background.is_closed = False
    world.background.run()
    assert (world.sent, world.background.pauses, outlet.pending()) == ([0, 1], 2, ())
    assert (world.begun, outlets.problems()) == (3, ()), "a new transaction for each try, and no problem in the end"
    assert values(world.metrics)["stage_writer_outbox_records_total", (("app_id", "orders"),)] == 2
    outlet.sealed((world.outbox(2),))
    world.background.run()
    assert (world.sent, outlets.close(0.0)) == ([0, 1, 2], True)
    outlet.sealed(tuple(f"outbox/{number}" for number in range(MOST_PENDING)))
    with pytest.raises(BrokerError, match="wait for Kafka: it is slow"):
        outlet.pending()


def test_unreadable_outbox_is_a_problem_until_it_is_gone() -> None:
    world = World()
    outlets = world.outlets("orders")
    path = world.outbox(0)
    world.store.write(path, b"torn")
    outlets.open(ORDERS, stream_of(), (path, world.outbox(1)))
    shown: list[int] = []

    def remove(seconds: float) -> None:  # noqa: ARG001 - the port's
        assert not shown
        shown.append(len(outlets.problems()))
        world.store.delete([path])  # as a missing one, it counts as delivered

    world.background.pause = remove  # type: ignore[method-assign]
    world.background.run()
    assert (shown, world.sent, outlets.problems()) == ([1], [1], ())


def test_bug_in_a_delivery_does_not_keep_the_process_from_its_end() -> None:
    world = World([ZeroDivisionError()])
    outlets = world.outlets("orders")
    outlets.open(ORDERS, stream_of(), (world.outbox(0),))
    world.background.run()
    assert outlets.close(0.0)


@pytest.mark.parametrize("errors", [[], [BrokerError("it is away")]])
def test_released_chain_is_left_to_its_new_owner(errors: list[Exception]) -> None:
    world = World([*errors, FencedError("taken")])
    outlets = world.outlets("orders")
    outlet = outlets.open(ORDERS, stream_of(), (path := world.outbox(0),))
    assert outlet is not None
    outlet.leave()
    world.background.run()
    assert world.begun == len(errors) + 1
    assert (world.sent, outlets.problems(), world.background.pauses) == ([], (), len(errors))
    assert [stored.path for stored in world.store.list("outbox")] == [path], "the new owner has to find it"


def test_chain_that_is_still_owned_is_taken_back() -> None:
    world = World([FencedError("taken")])
    outlets = world.outlets("orders")
    outlets.open(ORDERS, stream_of(), (world.outbox(0),))
    world.background.run()
    assert (world.sent, outlets.problems(), world.begun) == ([0], (), 2)
