"""Topics that several streams of a config read: which of them can be shared, and which stream's chain has its own name.

Rules:

1. Each stream that reads a topic has chains of its own. One of them, the topic's *owner*, has the chains with the
   topic's name; the others' chains have their app_id in the name (common/stage/merged.py, rule 4).
2. The owner is in the stage (common/stage/topic_owners.py) and never changes, so the order of the streams in a config,
   which people edit, decides nothing.
3. Streams with a topology, and streams that share a table, cannot share a topic: a topology's chains are named by its
   topics, and nothing in a table says which of two streams a record's row is from.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from common.errors import ConfigError
from common.settings.stream import Stream
from common.spans import TopicPartition
from common.stage.merged import may_name_chain, topics_of
from common.tables.urls import comparable

APART = "put one of them into a config with a stage.url and a writer.group_id of its own"
"""The remedy for two streams that cannot share a topic."""


@dataclass(slots=True)
class UnsubscribedTopics:
    """Topics that appeared while a writer runs, and that it reads for none of the streams."""

    problems: Mapping[str, ConfigError] = field(default_factory=dict)
    """The reason, by topic. Replaced as a whole, so any thread may read it."""


class TopicReaders:
    """The streams that read a topic, without asking each: there may be a thousand of both."""

    def __init__(self, streams: Collection[Stream]) -> None:
        self._streams = tuple(streams)
        self._patterns = [index for index, stream in enumerate(self._streams) if stream.pattern is not None]
        self._named: dict[str, list[int]] = {}
        for index, stream in enumerate(self._streams):
            for topic in () if stream.pattern is not None else stream.topics:
                self._named.setdefault(topic, []).append(index)

    def of(self, topic: str) -> list[Stream]:
        """In the config's order."""
        matching = (index for index in self._patterns if self._streams[index].reads(topic))
        return [self._streams[index] for index in sorted({*self._named.get(topic, ()), *matching})]

    def taking(self, chain: str) -> list[Stream]:
        """The streams whose chains have this name."""
        return [stream for stream in self.of(topics_of(chain)[0]) if stream.takes(chain)]

    def partitions_of_each(self, partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
        """By app_id, those of the given Kafka partitions whose chains are the stream's."""
        of_each: dict[str, list[TopicPartition]] = {stream.app_id: [] for stream in self._streams}
        for partition in partitions:
            for stream in self.taking(partition.topic):
                of_each[stream.app_id].append(partition)
        return of_each


def readers(streams: Collection[Stream], topics: Collection[str]) -> dict[str, list[Stream]]:
    """The topics that more than one stream reads, with these streams in the config's order."""
    read_by = TopicReaders(streams)
    by_topic = {topic: read_by.of(topic) for topic in sorted(topics)}
    return {topic: reading for topic, reading in by_topic.items() if len(reading) > 1}


def may_share(streams: Collection[Stream]) -> bool:
    """Whether two streams of a config may read the same topic: one is named twice, or there is a pattern."""
    if any(stream.pattern for stream in streams):
        return len(streams) > 1
    return bool(readers(streams, {topic for stream in streams for topic in stream.topics}))


def refused_sharing(topic: str, reading: Collection[Stream]) -> ConfigError | None:
    """Why these streams cannot share a topic (rule 3); None if they can."""
    for first, two in combinations(reading, 2):
        problem, remedy = _same_table(first, two), "give one of them another table"
        if problem is None:
            problem, remedy = _problem(topic, first, two), APART
        if problem is not None:
            msg = f"the streams {first.app_id!r} and {two.app_id!r} both read the topic {topic!r}, {problem}"
            return ConfigError(msg, f"change streams[].topics so that one of them reads it, or {remedy}")
    return None


def _problem(topic: str, first: Stream, two: Stream) -> str | None:
    together = next((stream for stream in (first, two) if stream.topology is not None), None)
    if together is not None:
        return f"and a topic that {together.app_id!r} has a topology for cannot be shared"
    unnamable = next((stream for stream in (first, two) if not may_name_chain(topic, stream.app_id)), None)
    return None if unnamable is None else _unnamable(unnamable)


def _same_table(first: Stream, two: Stream) -> str | None:
    theirs = {comparable(url) for url in two.tables}
    both = next((url for url in first.tables if comparable(url) in theirs), None)
    return None if both is None else f"and both load into {both}, which does not record the stream of a row"


def _unnamable(stream: Stream) -> str:
    return (
        f"and {stream.app_id!r} cannot be part of a folder's name next to the topic's: only letters, digits, "
        "'.', '_' and '-' can, 248 with the topic's name"
    )


def shared_topics(streams: Collection[Stream], topics: Collection[str]) -> dict[str, ConfigError]:
    """The topics that several streams read and that these cannot share, and the problem with each."""
    refusals = {topic: refused_sharing(topic, reading) for topic, reading in readers(streams, topics).items()}
    return {topic: error for topic, error in refusals.items() if error is not None}


def owned_by_others(
    streams: Collection[Stream], topics: Collection[str], owners: Mapping[str, str]
) -> dict[str, ConfigError]:
    """The topics that a stream reads, though another one owns them and it cannot have chains of its own (rule 3).

    That stream may be the only one that reads the topic now. ``owners`` are app_ids, by topic.
    """
    refused: dict[str, ConfigError] = {}
    for topic, owner in ((topic, owners[topic]) for topic in sorted(topics) if topic in owners):
        for stream in streams:
            if stream.app_id == owner or not stream.reads(topic):
                continue
            problem = None if may_name_chain(topic, stream.app_id) else _unnamable(stream)
            if stream.topology is not None:
                problem = f"and {stream.app_id!r} has a topology, which cannot share a topic"
            if problem is not None:
                msg = f"the chains of the topic {topic!r} in the stage are of the stream {owner!r}, {problem}"
                away = f"put {stream.app_id!r} into a config with a stage.url and a writer.group_id of its own"
                refused[topic] = ConfigError(msg, f"change streams[].topics of {stream.app_id!r}, or {away}")
    return refused
