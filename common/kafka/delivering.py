"""Deliveries of a chain's records to Kafka topics: their identity, their position, and the port to Kafka.

A delivery commits the chain's position together with its records, so each record is sent once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from common.settings.section import Option
from common.spans import Position, TopicPartition

REFUSED = "out:refused"
REPLAYED = "out:replayed"
"""The kinds of the loader's deliveries: no topic has a colon in its name, so no id is another kind's."""


class FencedError(Exception):
    """Another process has started to deliver the chain."""


@dataclass(frozen=True, slots=True)
class DeliveryIdentity:
    """The identity of a chain's deliveries of one kind."""

    kafka: Mapping[str, Option]
    group_id: str
    """The group of the writers."""
    app_id: str
    partition: TopicPartition
    kind: str = "out"
    """Each kind has positions of its own: ``out`` for outboxes, `REFUSED` or `REPLAYED`."""

    @property
    def out_group(self) -> str:
        """The consumer group that stores the delivered positions."""
        return f"{self.group_id}.{self.app_id}.{self.kind}"

    @property
    def transactional_id(self) -> str:
        """The chain's transactional id."""
        return f"{self.out_group}.{self.partition.topic}.{self.partition.partition}"


@dataclass(frozen=True, slots=True)
class Delivered:
    """The delivered position of one input of a chain."""

    position: Position
    generation: int
    """The chain's generation; for a `REPLAYED` delivery, the number of the request."""


class Transactions(Protocol):
    """A chain's transactional id, usable until another process takes it or an error occurs."""

    @property
    def delivered(self) -> Mapping[TopicPartition, Delivered]:
        """The delivered positions when the id was taken, updated by each commit since."""

    def transact(self, records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int) -> None:
        """Commit records and positions in one transaction.

        Raises FencedError, and BrokerError if the outcome is unknown.
        """

    def close(self) -> None: ...


StartDelivery = Callable[[DeliveryIdentity, Callable[[str], None]], Transactions]
"""Takes a chain's id: aborts another process's work with it, and only then reads the delivered positions.

The second argument is called at steps between which a process may end. Raises FencedError and BrokerError.
"""
