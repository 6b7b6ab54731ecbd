"""What `stage-writer check` says about topics that were deleted and created again since their chains were made."""

from __future__ import annotations

from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING

from common.clock import SystemClock
from common.errors import MarkerError
from common.http.pages import with_remedy
from common.settings.stores import stage_store
from stage_writer.partitions.resume_points import is_other, other_topic
from stage_writer.stage.staging import ObjectStage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from common.settings import Settings
    from common.spans import Topic, TopicPartition

_PARTITIONS_LOOKED_AT = 8
"""Of each topic, until one has a marker: a new topic may have thousands, and none."""


def topics_continue(
    settings: Settings,
    partitions: Iterable[TopicPartition],
    topic_ids: Mapping[Topic, str | None],
    report: Callable[[str, str], None],
) -> bool:
    """Whether each topic is the one that its chains were made of; reports those that are not. Raises StoreError."""
    store = stage_store(settings)
    stage = ObjectStage(store, lambda _: store, SystemClock(), lambda: "", "check")
    problems = [
        found
        for topic, mine in groupby(sorted(partitions), attrgetter("topic"))
        if (found := _problem(stage, mine, topic_ids.get(topic))) is not None
    ]
    for problem in problems:
        report("chain", problem)
    return not problems


def _problem(stage: ObjectStage, partitions: Iterable[TopicPartition], topic_id: str | None) -> str | None:
    for partition in islice(partitions, _PARTITIONS_LOOKED_AT):
        try:
            tail = stage.tail(partition)
        except MarkerError as error:
            return with_remedy(error.problem, error.remedy)
        if tail is not None:
            fault = other_topic(partition)
            return with_remedy(fault.problem, fault.remedy) if is_other(tail.lineage, topic_id) else None
    return None
