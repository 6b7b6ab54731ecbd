"""Notifications as the writer's loop uses them, and what they need from outside."""

from __future__ import annotations

from typing import Protocol


class Notifier:
    """Notifies loaders that wait for markers. This one is for writers whose loaders do not wait, and does nothing."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for operators. Safe to call from any thread."""
        return ()

    def sealed(self, app_id: str) -> None:
        """A stream has a new marker."""

    def send_due(self) -> None:
        """Send pending notifications, if they are due."""

    def end(self) -> None:
        """Send all pending notifications, before the service ends."""


NO_NOTIFIER = Notifier()


class NotificationTopic(Protocol):
    """The topic for notifications (``loader.control_topic``). Only `end` waits."""

    @property
    def problem(self) -> str | None:
        """Why it accepts no messages now; None while it does. Safe to call from any thread."""

    def send(self, app_id: str) -> bool:
        """Send the notification of a stream, without waiting for its delivery; False while the topic fails.

        It is still sent then, to find out whether that has changed, and is not part of `undelivered`.
        """

    def undelivered(self) -> frozenset[str]:
        """The streams whose notifications were sent and not delivered, since the last call."""

    def end(self, within_s: float) -> frozenset[str]:
        """Stop sending; returns the streams whose notifications are not known to be delivered within the given time."""
