"""Outboxes as the writer uses them, and the threads that they need.

A simulation provides its own; production provides Kafka's transactions (common/kafka/delivering.py) and a few threads.
"""

from collections.abc import Callable
from typing import Protocol

from common.errors import KafkaDeltaExpressError
from common.settings import Stream
from common.spans import TopicPartition


class Outlet(Protocol):
    def pending(self) -> tuple[str, ...]:
        """The outboxes that a marker must name, oldest first. Safe to call from any thread.

        Raises BrokerError when there are so many that nothing more may be sealed.
        """

    def sealed(self, paths: tuple[str, ...]) -> None:
        """A marker names these; the new ones may be delivered now."""

    def leave(self) -> None:
        """The chain was revoked, or is read again: sealed outboxes are delivered until another process takes over."""


class Outlets:
    """The outlets of a writer. This class is for a writer whose topologies write to no topics, and delivers nothing."""

    def open(self, partition: TopicPartition, stream: Stream, outboxes: tuple[str, ...]) -> Outlet | None:  # noqa: ARG002
        """The outlet of a chain, with those not known to be delivered; None for a stream that writes to no topic."""
        return None

    def problems(self) -> tuple[KafkaDeltaExpressError, ...]:
        """Deliveries that fail now, one problem for each chain. Safe to call from any thread."""
        return ()


NO_OUTLETS = Outlets()


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
