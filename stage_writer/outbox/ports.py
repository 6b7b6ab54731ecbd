"""Outboxes as the writer uses them, and what they need from Kafka and from threads.

A simulation provides its own; production provides Kafka's transactions and a few threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from common.errors import KafkaDeltaExpressError
    from common.settings import Stream
    from common.settings.section import Option
    from common.spans import Position, TopicPartition


class Outlet(Protocol):
    """The outboxes of one chain, in delivery to their topics."""

    def pending(self) -> tuple[str, ...]:
        """Those that a marker has to name, oldest first. Safe to call from any thread.

        Raises BrokerError when there are so many that nothing more may be sealed.
        """

    def sealed(self, paths: tuple[str, ...]) -> None:
        """A marker names these; the new ones may be delivered now."""

    def leave(self) -> None:
        """The chain was revoked, or is read again: sealed outboxes are delivered until another process takes over."""


class Outlets:
    """The outlets of a writer. These are of one without topologies that write to topics, and deliver nothing."""

    def open(self, partition: TopicPartition, stream: Stream, outboxes: tuple[str, ...]) -> Outlet | None:  # noqa: ARG002
        """The outlet of a chain, with those not known to be delivered; None for a stream that writes to no topic."""
        return None

    def problems(self) -> tuple[KafkaDeltaExpressError, ...]:
        """What cannot be delivered now, one for each chain. Safe to call from any thread."""
        return ()


NO_OUTLETS = Outlets()


class FencedError(Exception):
    """Another process has started to deliver the chain."""


@dataclass(frozen=True, slots=True)
class DeliveryIdentity:
    kafka: Mapping[str, Option]
    group_id: str
    """The group of the writers."""
    app_id: str
    partition: TopicPartition

    @property
    def out_group(self) -> str:
        """The group that has the delivered positions."""
        return f"{self.group_id}.{self.app_id}.out"

    @property
    def transactional_id(self) -> str:
        return f"{self.out_group}.{self.partition.topic}.{self.partition.partition}"


@dataclass(frozen=True, slots=True)
class Delivered:
    """The delivered position of one input of a chain."""

    position: Position
    generation: int


class Transactions(Protocol):
    """A chain's transactional id, from when it was taken until another process takes it, or an error."""

    @property
    def delivered(self) -> Mapping[TopicPartition, Delivered]:
        """The delivered positions when the id was taken, updated by each commit since."""

    def transact(self, records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int) -> None:
        """Records and positions, both or neither. Raises FencedError, and BrokerError: then the outcome is unknown."""

    def close(self) -> None: ...


StartsDelivery = Callable[[DeliveryIdentity, Callable[[str], None]], Transactions]
"""Takes a chain's id: aborts another process's work with it, and only then reads the delivered positions.

The second argument is called at steps between which a process may end. Raises FencedError and BrokerError.
"""


class BackgroundRunner(Protocol):
    """Runs deliveries in the background of the writer's loop."""

    def start(self, work: Callable[[], None]) -> None: ...

    def pause(self, seconds: float) -> None:
        """Sleep, or less if it is closed meanwhile."""

    @property
    def is_closed(self) -> bool:
        """Whether no new work may be started."""

    def close(self) -> None:
        """Start nothing new; does not wait for running work."""
