"""The Kafka topic of a stream's dead letters, next to their table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.settings.stream import Stream

SCHEME = "kafka://"


def with_dead_letters_topic(values: object) -> object:
    """A stream's settings, with the topic of ``dead_letters: kafka://topic`` as `dead_letters_topic`."""
    if not isinstance(values, dict) or not str(values.get("dead_letters", "")).startswith(SCHEME):
        return values
    if values.get("dead_letters_topic") is not None:
        msg = "dead_letters is a topic, and dead_letters_topic is another one; write dead_letters as the table's URL"
        raise ValueError(msg)
    others = {key: value for key, value in values.items() if key != "dead_letters"}
    return {**others, "dead_letters_topic": values["dead_letters"].removeprefix(SCHEME)}


def check_dead_letters_topic(stream: Stream) -> None:
    """Raise ValueError for a topic whose messages would be read again."""
    topic = stream.dead_letters_topic
    if topic is not None and stream.takes(topic):
        msg = f"dead_letters_topic is {topic!r}, which the stream reads, so dead letters would come back; name another"
        raise ValueError(msg)
