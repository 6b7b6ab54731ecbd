"""The record source for a writer's settings and topologies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stage_writer.fetch.kafka import KafkaSource
from stage_writer.fetch.merged.groups import TopicGroup, TopicGroups
from stage_writer.memory_shares import MemoryShares

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from structlog.typing import FilteringBoundLogger

    from common.ports import Clock
    from common.settings import Settings, Stream
    from common.settings.overlap import UnsubscribedTopics
    from common.stage.topic_owners import StageTopicOwners
    from stage_writer.ports import RecordSource


def groups_of(joined: Iterable[tuple[Sequence[str], float]]) -> TopicGroups:
    """The groups of topics that tasks read, with how long they wait for idle ones; single topics have no group."""
    return TopicGroups(tuple(TopicGroup(tuple(topics), idle_s) for topics, idle_s in joined if len(topics) > 1))


def source_of(
    settings: Settings,
    groups: TopicGroups,
    clock: Clock,
    log: FilteringBoundLogger,
    *,
    with_headers: Sequence[Stream] = (),
    native: Path | None = None,
    unsubscribed: UnsubscribedTopics | None = None,
    owners: StageTopicOwners | None = None,
) -> RecordSource:
    """Kafka, with merged chains where there are groups; otherwise like `KafkaSource`. Raises ConfigError.

    ``with_headers`` are the streams whose messages' headers are read; ``owners`` decides whose the chains of shared
    topics are.
    """
    merges = bool(groups.groups)
    sharing = None if owners is None else owners.agree
    kafka = KafkaSource(
        settings,
        clock,
        log,
        with_headers=with_headers,
        co_partitioned=merges,
        native=native,
        unsubscribed=unsubscribed,
        sharing=sharing,
    )
    source: RecordSource = kafka
    if settings.may_share:
        from stage_writer.fetch.shared.source import SharedTopicSource  # noqa: PLC0415 - few writers share topics

        source = SharedTopicSource(kafka, settings.chains_of, clock)
    if not merges:
        return source
    from stage_writer.fetch.merged.source import MergingSource  # noqa: PLC0415 - few writers merge

    return MergingSource(source, groups, clock, log, MemoryShares.of(settings.writer.memory_bytes).poll)
