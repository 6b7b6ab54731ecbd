"""Checks of the settings of a stream that name Kafka topics: `start`, `dead_letters_topic`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.settings.values import FromOffsets

if TYPE_CHECKING:
    from common.settings.stream import Stream


def check_topics(stream: Stream) -> None:
    """Raise ValueError for positions of a topic that is not read, and a topic that would be read again."""
    topic = stream.dead_letters_topic
    if topic is not None and stream.reads(topic):
        msg = f"dead_letters_topic is {topic!r}, which the stream reads, so dead letters would come back; name another"
        raise ValueError(msg)
    for topic, _ in stream.start.positions if isinstance(stream.start, FromOffsets) else ():
        if topic is not None and not stream.reads(topic):
            msg = f"start has positions of {topic!r}, which is none of topics; name a topic of the stream"
            raise ValueError(msg)
