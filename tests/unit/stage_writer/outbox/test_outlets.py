"""When a chain's outboxes are delivered, with transactions in memory and a background runner stepped by hand."""

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pytest
import structlog
from structlog.testing import capture_logs

from common.errors import BrokerError
from common.kafka.delivering import Delivered, DeliveryIdentity, FencedError
from common.metrics import Metrics
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.merged import InputEnd
from common.stage.task_files import OutboxName
from common.storage.store import FsspecStore
from stage_writer.outbox.outlets import MOST_PENDING, KafkaOutlets, Threads
from stage_writer.outbox.records import SCHEMA, Outgoing, outgoing_to_chunks
from tests.fakes.metrics import values
from tests.fakes.streams import stream_of

ORDERS = TopicPartition(Topic("orders"), Partition(0))
LONG_S = 600.0
"""Longer than anything takes on a machine that is not stuck."""


@dataclass
class Background:
    """A `stage_writer.outbox.ports.BackgroundRunner` that the test runs by hand."""

    waiting: list[Callable[[], None]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    is_closed: bool = False

    def start(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        assert len(self.pauses) < 9, "it ends"

    def close(self) -> None:
        self.is_closed = True

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


@dataclass
class World:
    errors: list[Exception | None] = field(default_factory=list)
    """The errors of the next transactions; None for one that succeeds."""
    background: Background = field(default_factory=Background)
    store: FsspecStore = field(default_factory=lambda: FsspecStore(f"memory://{uuid.uuid4().hex}"))
    sent: list[int] = field(default_factory=list)
    begun: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    delivered: dict[TopicPartition, Delivered] = field(default_factory=dict)

    def outlets(self, *writing: str, in_threads: bool = False) -> KafkaOutlets:
        return KafkaOutlets(
            {},
            "writers",
            self.store,
            writing,
            log=structlog.get_logger(),
            metrics=self.metrics,
            begin=self.begin,
            runner=None if in_threads else self.background,
        )

    def begin(self, _identity: DeliveryIdentity, _reached: Callable[[str], None]) -> "World":
        self.begun += 1
        return self

    def transact(self, records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
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


def test_writer_that_may_seal_no_more_says_why_deliveries_fail() -> None:
    world = World([BrokerError("it is away")])
    outlet = world.outlets("orders").open(ORDERS, stream_of(), (world.outbox(0),))
    assert outlet is not None
    outlet.sealed(tuple(f"outbox/{number}" for number in range(MOST_PENDING)))
    world.background.pause = lambda seconds: world.background.close()  # type: ignore[method-assign]  # noqa: ARG005
    world.background.run()
    assert (world.begun, world.sent) == (1, []), "nothing is tried again at the end of the process"
    with pytest.raises(BrokerError, match="wait for Kafka: it is away"):
        outlet.pending()


def test_failed_outbox_is_retried_before_the_next_one() -> None:
    away = BrokerError("it is away")
    world = World([away, away, None, away])
    outlets = world.outlets("orders")
    outlet = outlets.open(ORDERS, stream_of(), ())
    assert outlet is not None
    assert world.background.waiting == [], "no work without an outbox"
    paths = world.outbox(0), world.outbox(1)
    outlet.sealed(paths[:1])
    outlet.sealed(paths)  # the next marker names both
    outlet.sealed(paths)
    assert outlet.pending() == paths
    assert (len(world.background.waiting), outlets.close(0.0)) == (1, False), "in one thread, which is not done"
    world.background.is_closed = False
    world.background.run()
    assert (world.sent, world.background.pauses, outlet.pending()) == ([0, 1], [0.5, 1, 0.5], ())
    assert (world.begun, outlets.problems()) == (4, ()), "a new transaction for each try, and no problem in the end"
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


def test_end_of_the_process_leaves_what_waits_to_the_next_writer() -> None:
    world = World()
    outlets = world.outlets("orders")
    outlets.open(ORDERS, stream_of(), (world.outbox(0),))
    with capture_logs() as logs:
        assert not outlets.close(0.0)
    assert [log["event"] for log in logs] == ["records for Kafka topics wait for the next writer"]
    world.background.run()
    assert (world.sent, world.background.is_closed) == ([], True)
    with capture_logs() as logs:
        assert World().outlets("orders").close(0.0)
    assert logs == []


def test_end_of_the_process_waits_for_a_delivery_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    world, waits = World(), threading.Event()
    transact, wait_for = world.transact, threading.Condition.wait_for

    def transact_later(records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int) -> None:
        assert waits.wait(LONG_S)
        transact(records, ends, generation)

    def say_that_it_waits(
        condition: threading.Condition, predicate: Callable[[], bool], timeout_s: float | None = None
    ) -> bool:
        waits.set()
        return wait_for(condition, predicate, timeout_s)

    world.transact = transact_later  # type: ignore[method-assign]
    monkeypatch.setattr(threading.Condition, "wait_for", say_that_it_waits)
    outlets = world.outlets("orders", in_threads=True)
    outlets.open(ORDERS, stream_of(), (world.outbox(0),))
    assert outlets.close(threading.TIMEOUT_MAX)
    assert (world.sent, list(world.store.list("outbox"))) == ([0], [])


def test_closed_threads_end_what_runs_and_start_nothing() -> None:
    others, threads, done = set(threading.enumerate()), Threads(), list[int]()
    running, closing, closed, ends = threading.Barrier(5, timeout=LONG_S), *(threading.Event() for _ in range(3))

    def work(number: int) -> None:
        running.wait()
        if number == 0:
            closing.wait(LONG_S)
            threads.close()
            closed.set()
        ends.wait(LONG_S)
        done.append(number)

    for number in range(4):
        threads.start(partial(work, number))
    running.wait()
    threads.start(partial(done.append, 4))
    assert not threads.is_closed
    closing.set()
    threads.pause(LONG_S)
    assert (threads.is_closed, closed.wait(LONG_S)) == (True, True), "it does not pause longer than until it is closed"
    with pytest.raises(RuntimeError):
        threads.start(ends.set)
    ends.set()
    for thread in set(threading.enumerate()) - others:
        thread.join()
    assert sorted(done) == [0, 1, 2, 3], "what waited for a thread is left"


@pytest.mark.parametrize("errors", [[], [BrokerError("it is away")]])
def test_released_chain_is_left_to_its_new_owner(errors: list[Exception]) -> None:
    world = World([*errors, FencedError("taken")])
    outlets = world.outlets("orders")
    outlet = outlets.open(ORDERS, stream_of(), (path := world.outbox(0),))
    assert outlet is not None
    outlet.leave()
    world.background.run()
    assert world.begun == len(errors) + 1
    assert (world.sent, outlets.problems(), world.background.pauses) == ([], (), [0.5] * len(errors))
    assert [stored.path for stored in world.store.list("outbox")] == [path], "the new owner has to find it"


def test_chain_that_is_still_owned_is_taken_back() -> None:
    world = World([FencedError("taken")])
    outlets = world.outlets("orders")
    outlets.open(ORDERS, stream_of(), (world.outbox(0),))
    world.background.run()
    assert (world.sent, outlets.problems(), world.begun) == ([0], (), 2)
