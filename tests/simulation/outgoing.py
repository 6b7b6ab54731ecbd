"""Kafka's transactions in memory: a coordinator with epochs, and the view of a consumer with `read_committed`.

Rules:

1. A producer that starts with a transactional id gets the next epoch; open transactions of lower epochs are aborted. A
   request of a lower epoch is refused, however late it arrives.
2. Records and positions appear together when a transaction is committed. A commit that arrives twice has one effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import pyarrow as pa

from common.errors import BrokerError, StoreError
from common.kafka.delivering import Delivered, DeliveryIdentity, FencedError
from common.metrics import Metrics
from common.settings import Stream
from common.spans import Position, TopicPartition
from stage_writer.outbox.outlets import KafkaOutlets
from tests.simulation.store import SimulatedStore
from tests.simulation.world import SILENT, Crash, Fault, Process, World

Result = TypeVar("Result")


class SourceMessage(NamedTuple):
    """The message that a record was made for."""

    topic: str
    partition: int
    offset: int
    time_ms: int


def _places(records: pa.Table) -> list[SourceMessage]:
    """The messages named in the records' values."""
    return [SourceMessage(*json.loads(value)["place"]) for value in records["value"].to_pylist()]


@dataclass(slots=True)
class Coordinator:
    world: World
    sources: Callable[[pa.Table], list[SourceMessage]] = _places
    """The messages that some records were made for."""
    epochs: dict[str, int] = field(default_factory=dict)
    positions: dict[tuple[str, TopicPartition], Delivered] = field(default_factory=dict)
    """The committed positions of groups."""
    committed: list[SourceMessage] = field(default_factory=list)
    """The source messages of its records, in order."""
    away_until_ms: int = 0
    """Until when it takes no transaction."""

    def inject_faults(self) -> None:
        """Sometimes Kafka takes no transactions."""
        world = self.world
        if world.rng.random() < world.chances.undelivered:
            world.faults[Fault.UNDELIVERED] += 1
            self.away_until_ms = world.now_ms + world.rng.choice([5_000, 30_000, 120_000])
            world.note(f"Kafka takes no transactions for {self.away_until_ms - world.now_ms} ms")

    def begin(self, place: DeliveryIdentity, step: Callable[[str], None]) -> SimulatedTransactions:
        """A `common.kafka.delivering.StartDelivery`."""
        del step
        epoch = self.asked(f"begin {place.transactional_id}", lambda: self._next_epoch(place.transactional_id))
        known = self.asked(f"positions of {place.out_group}", lambda: self._positions(place.out_group))
        return SimulatedTransactions(self, place, epoch, known)

    def asked(self, name: str, call: Callable[[], Result]) -> Result:
        """A request; the faults are Kafka's."""
        if self.world.now_ms < self.away_until_ms and not self.world.faults_ended:
            msg = f"{name} is not answered"
            raise BrokerError(msg, "")
        try:
            return self.world.effect(name, call, changes=not name.startswith("positions"))
        except StoreError as error:
            raise BrokerError(error.problem, "") from error

    def _next_epoch(self, transactional_id: str) -> int:
        self.epochs[transactional_id] = self.epochs.get(transactional_id, 0) + 1
        return self.epochs[transactional_id]

    def _positions(self, group: str) -> dict[TopicPartition, Delivered]:
        return {partition: position for (group_id, partition), position in self.positions.items() if group_id == group}


@dataclass(slots=True)
class SimulatedTransactions:
    coordinator: Coordinator
    place: DeliveryIdentity
    epoch: int
    delivered: dict[TopicPartition, Delivered]

    def transact(self, records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int) -> None:
        """Produce, and commit by a request that may arrive late, twice, or lose its answer."""
        delivered = {partition: Delivered(position, generation) for partition, position in ends.items()}
        values = self.coordinator.sources(records)
        is_done: list[bool] = []

        def commit() -> bool:
            if self.coordinator.epochs[self.place.transactional_id] != self.epoch:
                return False
            if not is_done:
                is_done.append(True)
                self.coordinator.committed += values
                self.coordinator.positions |= {
                    (self.place.out_group, partition): end for partition, end in delivered.items()
                }
            return True

        self.coordinator.asked(f"produce {len(values)} records", lambda: None)
        if not self.coordinator.asked(f"commit {self.place.transactional_id}", commit):
            raise FencedError(self.place.transactional_id)
        self.delivered |= delivered

    def close(self) -> None: ...


class Strand:
    """A `stage_writer.outbox.ports.BackgroundRunner` in a process of the world."""

    is_closed = False

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Crash:
                return

        self._world.spawn(self._process, run)

    def pause(self, seconds: float) -> None:
        self._world.sleep_s(seconds)

    def close(self) -> None: ...


def outlets(coordinator: Coordinator, process: Process, store: SimulatedStore, stream: Stream) -> KafkaOutlets:
    """The real ones of a writer's process."""
    runner = Strand(coordinator.world, process)
    return KafkaOutlets(
        {},
        "writers",
        store,
        [stream.app_id],
        log=SILENT,
        metrics=Metrics(),
        begin=coordinator.begin,
        runner=runner,
    )
