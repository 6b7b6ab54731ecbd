"""The checks by `stage-writer check` of the topics that streams read and write, and of their chains."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING

from common.errors import MarkerError
from common.http.pages import with_remedy
from common.kafka.rights import Right, require_topic
from common.settings import FromOffsets, Settings
from common.settings.overlap import TopicReaders
from common.settings.stores import stage_store
from common.sizes import counted
from common.spans import Position, Topic, TopicPartition
from common.stage.merged import topics_of
from stage_writer.chains import StagedChains
from stage_writer.converters import with_topologies
from stage_writer.partitions.catching_up import missing_topic
from stage_writer.partitions.resume_points import is_other, other_topic

if TYPE_CHECKING:
    from stage_writer.converters import AnyConverter


def topic_lines(settings: Settings, ends: Collection[TopicPartition]) -> Iterator[str]:
    """The topics of each stream. Raises the error of a topic that does not exist."""
    partitions_of = TopicReaders(settings.streams).partitions_of_each(ends)
    for stream in settings.streams:
        partitions = partitions_of[stream.app_id]
        known = {topic for partition in partitions for topic in topics_of(partition.topic)}
        missing = [] if stream.pattern else [topic for topic in stream.topics if topic not in known]
        if missing:
            raise missing_topic(stream, missing[0])
        yield f"ok: {stream.app_id} has {counted(len(partitions), 'partition')}"


def require_written(settings: Settings, converters: Sequence[AnyConverter]) -> None:
    """Raises ConfigError for a topic that a stream writes to and that is missing or not writable."""
    for stream in settings.streams:
        if stream.dead_letters_topic is not None:
            key = f"dead_letters_topic of {stream.app_id!r}"
            require_topic(settings.kafka, key, stream.dead_letters_topic, Right.WRITE)
    for converter in with_topologies(converters):
        for topic in converter.topology.topics_written:
            require_topic(settings.kafka, f"the topology of {converter.stream.app_id!r}", topic, Right.WRITE)


def starts_exist(
    settings: Settings, ends: Mapping[TopicPartition, Position], report: Callable[[str, str], None]
) -> bool:
    """Whether Kafka has each offset where a new chain starts, or writes it next; reports others. Raises StoreError."""
    chains, partitions_of = StagedChains(stage_store(settings)), TopicReaders(settings.streams).partitions_of_each(ends)
    beyond = [
        f"{partition} of {stream.app_id} starts at {start}, and Kafka ends at {ends[partition]}: correct the stream's "
        "start before a writer runs, which would hold the partition"
        for stream in settings.streams
        if isinstance(stream.start, FromOffsets)
        for partition in sorted(partitions_of[stream.app_id])
        if (start := stream.start.position(partition.topic, partition.partition)) is not None
        and start > ends[partition]
        and not _has_begun(chains, partition)
    ]
    for text in beyond:
        report("start", text)
    return not beyond


def _has_begun(chains: StagedChains, partition: TopicPartition) -> bool:
    try:
        return chains.origin(partition) is not None or chains.tail(partition) is not None
    except MarkerError:
        return True  # what cannot be read is there, and `topics_continue` reports it


_PARTITIONS_LOOKED_AT = 8
"""Of each topic, until one has a marker: a new topic may have thousands, and none."""


def topics_continue(
    settings: Settings,
    partitions: Iterable[TopicPartition],
    topic_ids: Mapping[Topic, str | None],
    report: Callable[[str, str], None],
) -> bool:
    """Whether each topic is the topic that its chains were made of; reports the others. Raises StoreError."""
    chains = StagedChains(stage_store(settings))
    problems = [
        topic_problem
        for topic, own_partitions in groupby(sorted(partitions), attrgetter("topic"))
        if (topic_problem := _problem(chains, own_partitions, topic_ids.get(topic))) is not None
    ]
    for problem in problems:
        report("chain", problem)
    return not problems


def _problem(chains: StagedChains, partitions: Iterable[TopicPartition], topic_id: str | None) -> str | None:
    for partition in islice(partitions, _PARTITIONS_LOOKED_AT):
        try:
            tail = chains.tail(partition)
        except MarkerError as error:
            return with_remedy(error.problem, error.remedy)
        if tail is not None:
            fault = other_topic(partition)
            return with_remedy(fault.problem, fault.remedy) if is_other(tail.lineage, topic_id) else None
    return None
