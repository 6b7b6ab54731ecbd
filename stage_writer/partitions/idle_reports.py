"""Reports partitions with nothing new (common/stage/idle.py), every minute, with one request and one object.

Rules:

1. A partition is idle when everything read from it is staged, and Kafka reports that its end, open transactions
   included, is the position that reading has reached.
2. The same holds for a partition without a chain, from where its chain would start: it may hold only what aborted
   transactions left behind.
3. The topic's id is requested after that: the end of another topic with the same name is meaningless.
4. A failure has no consequence; the report is tried again a minute later.
5. The partitions of each stream's topics are recorded in the same report, and once at startup; not those of a stream
   with a topic that this user may not see.
6. So are the partitions that this writer holds, as soon as they change, for ``delta-loader status``.
"""

from collections.abc import Callable, Collection, Mapping

from structlog.typing import FilteringBoundLogger

from common.errors import BrokerError, BrokerRefusedError, ConfigError, StoreError
from common.ports import Clock
from common.settings import Stream
from common.settings.overlap import TopicReaders
from common.spans import TopicPartition
from common.stage.idle import MARGIN_MS, REPORT_EVERY_S, HeldFact, IdleFact, StreamFact, stream_fact
from stage_writer.partitions.hidden_topics import seen_end_positions
from stage_writer.partitions.partition import AssignedPartition, HeldPartition
from stage_writer.partitions.resume_points import is_other
from stage_writer.ports import KafkaMetadata
from stage_writer.stage.staging import ObjectStage


class IdleReporter:
    def __init__(
        self,
        metadata: KafkaMetadata,
        stage: ObjectStage,
        clock: Clock,
        log: FilteringBoundLogger,
        streams: Collection[Stream],
        *,
        report_hidden: Callable[[Mapping[str, BrokerRefusedError]], None] = lambda _hidden: None,
    ) -> None:
        """``report_hidden`` gets, by app_id, the streams with a topic that this user may not see."""
        self._streams = streams
        self._readers = TopicReaders(streams)
        self._metadata = metadata
        self._stage = stage
        self._clock = clock
        self._log = log
        self._report_hidden = report_hidden
        self._hidden: Collection[str] = ()
        self._reported_s = -REPORT_EVERY_S
        self._reported_held: Collection[TopicPartition] = ()

    def report(
        self,
        partitions_of_writer: Collection[AssignedPartition],
        held: Mapping[TopicPartition, HeldPartition],
        *,
        now: bool = False,
    ) -> None:
        """Check and report, if it is due or ``now`` is set."""
        now_s = self._clock.monotonic_s()
        if not now and held.keys() == self._reported_held and now_s - self._reported_s < REPORT_EVERY_S:
            return
        self._reported_s, self._reported_held = now_s, frozenset(held)
        quiet = [
            assigned for assigned in partitions_of_writer if assigned.in_flight is None and assigned.buffer.is_empty
        ]
        try:
            self._stage.put_idle(self._facts(quiet) if quiet else [], self._topics(), self._held(held))
        except (StoreError, BrokerError, ConfigError) as error:
            self._log.debug("idle report failed", problem=error.problem)

    def _held(self, held: Mapping[TopicPartition, HeldPartition]) -> list[HeldFact]:
        time_ms = self._clock.wall_ms() - MARGIN_MS
        return [
            HeldFact(
                partition,
                each.resume_point.position,
                time_ms,
                each.resume_point.lineage.generation,
                each.reason,
                each.problem,
                each.remedy,
            )
            for partition, each in held.items()
            if each.resume_point is not None
        ]

    def _topics(self) -> list[StreamFact]:
        time_ms = self._clock.wall_ms() - MARGIN_MS
        taken: dict[str, list[TopicPartition]] = {stream.app_id: [] for stream in self._streams}
        for partition in self._end_positions(taken):
            for stream in self._readers.taking(partition.topic):
                if stream.app_id in taken:
                    taken[stream.app_id].append(partition)
        return [stream_fact(app_id, time_ms, partitions) for app_id, partitions in taken.items()]

    def _end_positions(self, taken: dict[str, list[TopicPartition]]) -> Collection[TopicPartition]:
        """The partitions of all streams; those with a topic that this user may not see are removed from ``taken``."""
        ends, hidden = seen_end_positions(self._metadata, self._streams)
        for app_id in hidden:
            del taken[app_id]
        for app_id in hidden.keys() - self._hidden:
            self._log.error(
                "topic not read", app_id=app_id, problem=hidden[app_id].problem, remedy=hidden[app_id].remedy
            )
        self._hidden = hidden
        self._report_hidden(hidden)
        return ends.keys()

    def _facts(self, quiet: Collection[AssignedPartition]) -> list[IdleFact]:
        time_ms = self._clock.wall_ms() - MARGIN_MS
        ends = self._metadata.high_watermarks([assigned.partition for assigned in quiet])
        ids = self._metadata.topic_ids({assigned.partition.topic for assigned in quiet})
        return [
            IdleFact(assigned.partition, assigned.buffer.end, time_ms, assigned.lineage.generation)
            for assigned in quiet
            if assigned.partition in ends
            and ends[assigned.partition] == max(assigned.buffer.end, assigned.read_to)
            and not is_other(assigned.lineage, ids.get(assigned.partition.topic))
        ]
