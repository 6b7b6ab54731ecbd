"""What the writer asks of outboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from common.settings import Stream
    from common.spans import TopicPartition
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

    def problems(self) -> tuple[str, ...]:
        """What cannot be delivered now, for ``/healthcheck``."""


class NoOutlets:
    """For a writer without topologies that write to topics."""

    def open(self, source: TopicPartition, stream: Stream, tail: Tail | None) -> None:
        """None for any."""

    def problems(self) -> tuple[str, ...]:
        """None."""
        return ()


NO_OUTLETS = NoOutlets()
