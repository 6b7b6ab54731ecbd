"""Checks of a stream's `dead_letters_topic`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.settings.stream import Stream


def check_dead_letters_topic(stream: Stream) -> None:
    """Raise ValueError for a topic whose messages would be read again."""
    topic = stream.dead_letters_topic
    if topic is not None and stream.reads(topic):
        msg = f"dead_letters_topic is {topic!r}, which the stream reads, so dead letters would come back; name another"
        raise ValueError(msg)
