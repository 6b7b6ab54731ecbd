"""What the writer asks of outboxes, and what outboxes ask of Kafka and of threads.

A simulation hands them its own; production hands them Kafka's transactions and a few threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from common.errors import KafkaDeltaExpressError
    from common.settings import Stream
    from common.settings.section import Option
    from common.spans import Position, TopicPartition
    from stage_writer.ports import Tail


class Outlet(Protocol):
    """The outboxes of one chain, on their way to their topics."""

    def pending(self) -> tuple[str, ...]:
        """Those that a marker has to name, the oldest first. Safe to call from any thread.

        Raises BrokerError when there are so many that nothing more may be sealed.
        """

    def sealed(self, paths: tuple[str, ...]) -> None:
        """A marker names these; those that are new may be delivered now."""

    def leave(self) -> None:
        """The chain is somebody else's, or is read again: what is sealed goes on, until somebody else takes it over."""


class Outlets(Protocol):
    """Makes outlets."""

    def open(self, source: TopicPartition, stream: Stream, tail: Tail | None) -> Outlet | None:
        """Of a chain that ends there; None for a stream that writes to no topic."""

    def problems(self) -> tuple[KafkaDeltaExpressError, ...]:
        """What cannot be delivered now, one for each chain. Safe to call from any thread."""


class NoOutlets:
    """For a writer without topologies that write to topics."""

    def open(self, source: TopicPartition, stream: Stream, tail: Tail | None) -> None:
        """None for any."""

    def problems(self) -> tuple[KafkaDeltaExpressError, ...]:
        """None."""
        return ()


NO_OUTLETS = NoOutlets()


class FencedError(Exception):
    """Another process has begun with the chain's deliveries."""


@dataclass(frozen=True, slots=True)
class Place:
    """Whose deliveries these are."""

    kafka: Mapping[str, Option]
    group_id: str
    """The writers'."""
    app_id: str
    source: TopicPartition

    @property
    def out_group(self) -> str:
        """The group that has the delivered positions."""
        return f"{self.group_id}.{self.app_id}.out"

    @property
    def transactional_id(self) -> str:
        """The chain's."""
        return f"{self.out_group}.{self.source.topic}.{self.source.partition}"


@dataclass(frozen=True, slots=True)
class Delivered:
    """How far one input of a chain is delivered."""

    position: Position
    generation: int


class Transactions(Protocol):
    """A chain's transactional id, from when it was taken until somebody else takes it, or something fails."""

    @property
    def delivered(self) -> Mapping[TopicPartition, Delivered]:
        """How far the chain was delivered when the id was taken, and by what was committed since."""

    def transact(self, records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int) -> None:
        """Records and positions, both or neither. Raises FencedError, and BrokerError: then the outcome is unknown."""

    def close(self) -> None:
        """Let go of the connections."""


class Begins(Protocol):
    """Takes a chain's id: ends what another process had begun with it, and only then asks how far it is delivered."""

    def __call__(self, place: Place, at: Callable[[str], None], /) -> Transactions:
        """``at`` is told of steps between which a process may end. Raises FencedError and BrokerError."""


class Beside(Protocol):
    """Where outboxes are delivered: beside the writer's loop."""

    def start(self, work: Callable[[], None]) -> None:
        """Have it run soon."""

    def pause(self, seconds: float) -> None:
        """Let time pass, or less when it is closed meanwhile."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing new is to be begun."""

    def close(self) -> None:
        """Begin nothing new; nobody waits for what runs."""
