"""What waiting for markers needs of the world."""

from __future__ import annotations

from typing import Protocol


class News(Protocol):
    """Where writers' signs come from."""

    def take(self) -> frozenset[str]:
        """The streams that have new markers since the last call; what is taken is gone."""


class ControlTopic(News, Protocol):
    """The topic through which writers tell (``loader.control_topic``). `take` waits for nothing.

    When it begins to be heard, at first or again, all streams are taken for told of: somebody may have spoken before.
    """

    @property
    def is_heard(self) -> bool:
        """Whether what writers say there arrives now."""
