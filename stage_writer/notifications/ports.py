"""Telling of news: what the writer's loop asks of it, and what it needs of the world."""

from __future__ import annotations

from typing import Protocol


class Notifier(Protocol):
    """What the loop tells whoever waits for markers."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person may want to know. Safe to call from any thread."""

    def sealed(self, app_id: str) -> None:
        """A stream has a new marker."""

    def tell(self) -> None:
        """Tell what is untold, if it is time."""

    def end(self) -> None:
        """Tell all that is untold, before the service ends."""


class NoNotifier:
    """Of writers whose loader waits for nothing."""

    notes: tuple[str, ...] = ()

    def sealed(self, app_id: str) -> None:
        """Nothing."""

    def tell(self) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


NO_NOTIFIER = NoNotifier()


class ControlTopic(Protocol):
    """The topic through which writers tell (``loader.control_topic``). Nothing here waits, but `end`."""

    @property
    def problem(self) -> str | None:
        """Why it takes no messages now; None while it does. Safe to call from any thread."""

    def send(self, app_id: str) -> bool:
        """Send the sign of a stream, without waiting for what becomes of it; False where it takes nothing now.

        Then it is sent all the same, to see whether that has changed, and `undelivered` does not tell of it.
        """

    def undelivered(self) -> frozenset[str]:
        """The streams whose signs were sent and not taken, since the last call."""

    def end(self, within_s: float) -> frozenset[str]:
        """Send nothing more; the streams whose signs are not known to be taken after that time at most."""
