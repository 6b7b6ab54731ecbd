"""What `stage-writer check` says about the topics that streams read from and write to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.kafka.rights import Right, require_topic
from common.stage.merged import topics_of
from stage_writer.converters import with_topologies
from stage_writer.partitions.catching_up import missing_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from common.settings import Settings
    from common.spans import TopicPartition
    from stage_writer.converters import AnyConverter


def topic_lines(settings: Settings, ends: Collection[TopicPartition]) -> Iterator[str]:
    """The topics of each stream. Raises the error of a topic that does not exist."""
    for stream in settings.streams:
        mine = [found for found in ends if stream.takes(found.topic)]
        missing = [
            topic
            for topic in stream.topics
            if not stream.pattern and topic not in {one for m in mine for one in topics_of(m.topic)}
        ]
        if missing:
            raise missing_topic(stream, missing[0])
        yield f"ok: {stream.app_id} has {len(mine)} partition(s)"


def require_written(settings: Settings, converters: Sequence[AnyConverter]) -> None:
    """Raises ConfigError for a topic that a stream writes to and that is missing or not writable."""
    for stream in settings.streams:
        if stream.dead_letters_topic is not None:
            key = f"dead_letters_topic of {stream.app_id!r}"
            require_topic(settings.kafka, key, stream.dead_letters_topic, Right.WRITE)
    for converter in with_topologies(converters):
        for topic in converter.topology.topics_written:
            require_topic(settings.kafka, f"the topology of {converter.stream.app_id!r}", topic, Right.WRITE)
