"""Taking partitions up: from the group's word that one is ours, or somebody's repair, to where it is read on.

Rules:

1. A partition waits here until its chain was read. A store that fails, or a Kafka that does not say where to begin, is
   asked again with growing pauses, the place in the group kept.
2. All that wait are looked up at once: there may be a thousand of one topic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from common.errors import BrokerError, MarkerError, StoreError
from stage_writer.partitions import Unread
from stage_writer.places import Look, Place, is_other, other_topic
from stage_writer.ports import PartitionFault

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from structlog.typing import FilteringBoundLogger

    from common.ports import Clock
    from common.spans import Topic, TopicPartition
    from stage_writer.places import Places
    from stage_writer.ports import Converter, RecordSource, Workers
    from stage_writer.schemas import Schemas

_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class TakenUp:
    """It is read on from here."""

    place: Place
    converter: Converter


@dataclass(frozen=True, slots=True)
class Unfit:
    """It cannot go on; ``place`` is the one that is no good, None if unknown."""

    fault: PartitionFault
    converter: Converter
    place: Place | None


Found = TakenUp | Unfit | StoreError | BrokerError
"""An error is of this moment: the partition still waits."""


class TakingUp:
    """The partitions whose chain has to be read before anything else."""

    def __init__(
        self,
        *,
        source: RecordSource,
        places: Places,
        schemas: Schemas,
        workers: Workers,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        self._source = source
        self._places = places
        self._schemas = schemas
        self._workers = workers
        self._clock = clock
        self._log = log
        self.waiting: dict[TopicPartition, Unread] = {}

    def add(self, source: TopicPartition, converter: Converter) -> None:
        """Have it taken up."""
        self.waiting[source] = Unread(converter, self._clock.monotonic_s())

    def look(self, among: Collection[TopicPartition] | None = None) -> dict[TopicPartition, Found]:
        """What became of those whose time it is; of some of them only, or of all."""
        now_s = self._clock.monotonic_s()
        asked = self.waiting if among is None else [source for source in among if source in self.waiting]
        due = [source for source in asked if now_s >= self.waiting[source].retry_at_s]
        ids = topic_ids(self._source, {source.topic for source in due}, self._log)
        streams = {source: self.waiting[source].converter.stream for source in due}
        looks = self._places.of_all(streams, self._workers)
        return {source: self._found(source, ids, look) for source, look in looks.items()}

    def _found(self, source: TopicPartition, ids: Mapping[Topic, str | None], look: Look) -> Found:
        """``ids`` are those of topics that were looked up just now; another one is looked up here."""
        unread = self.waiting[source]
        try:
            topic_id = (ids or self._source.topic_ids([source.topic])).get(source.topic)
            if not isinstance(look, Place):
                raise look
        except MarkerError as error:
            del self.waiting[source]
            fault = PartitionFault(source, error.problem, error.remedy, "unreadable_marker")
            return Unfit(fault, unread.converter, None)
        except (StoreError, BrokerError) as error:
            unread.retry_at_s = self._clock.monotonic_s() + unread.pause_s
            unread.pause_s = min(unread.pause_s * 2, _LONGEST_PAUSE_S)
            self._log.warning("chain not read, trying again", partition=str(source), error=error.problem)
            return error
        del self.waiting[source]
        if is_other(look.lineage, topic_id):
            return Unfit(other_topic(source), unread.converter, look)
        lineage = replace(look.lineage, topic_id=topic_id or look.lineage.topic_id)
        return TakenUp(replace(look, lineage=lineage), self._schemas.newest(unread.converter))


def topic_ids(source: RecordSource, topics: Collection[Topic], log: FilteringBoundLogger) -> Mapping[Topic, str | None]:
    """The topics' ids; none while Kafka does not say."""
    try:
        return source.topic_ids(topics) if topics else {}
    except BrokerError as error:
        log.warning("topics not looked up", problem=error.problem)
        return {}
