"""The ports of waiting for markers."""

from __future__ import annotations

from typing import Protocol


class Notifications(Protocol):
    """The source of writers' notifications."""

    def take(self) -> frozenset[str]:
        """The streams that have new markers since the last call; they are returned once."""


class ControlTopic(Notifications, Protocol):
    """The topic with writers' notifications (``loader.control_topic``). `take` does not wait.

    When reading starts, at first or again, all streams count as notified: there may have been earlier messages.
    """

    @property
    def is_connected(self) -> bool:
        """Whether writers' messages arrive now."""
