"""Tells of partitions that have nothing new (common/stage/idle.py), every minute, with one question and one object.

Rules:

1. A partition is idle when all that was read of it is staged, and Kafka says that its end, open transactions included,
   is where reading has come to.
2. That holds of one without a chain too, from where its chain would begin: it may have nothing but what aborted
   transactions left behind.
3. The topic's id is asked for after that: the end of another topic of the same name says nothing.
4. A failure is of no consequence; it is tried again a minute later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import BrokerError, StoreError
from common.stage.idle import MARGIN_MS, IdleFact
from stage_writer.partitions.places import is_other

if TYPE_CHECKING:
    from collections.abc import Collection

    from structlog.typing import FilteringBoundLogger

    from common.ports import Clock
    from stage_writer.partitions.partition import Owned
    from stage_writer.ports import RecordSource, Stage

TELL_EVERY_S = 60.0


class Idling:
    """One writer's facts."""

    def __init__(self, source: RecordSource, stage: Stage, clock: Clock, log: FilteringBoundLogger) -> None:
        self._source = source
        self._stage = stage
        self._clock = clock
        self._log = log
        self._told_s = clock.monotonic_s()

    def tell(self, owned: Collection[Owned]) -> None:
        """Ask and tell, if it is time."""
        now_s = self._clock.monotonic_s()
        if now_s - self._told_s < TELL_EVERY_S:
            return
        self._told_s = now_s
        quiet = [one for one in owned if one.flight is None and one.buffer.is_empty]
        try:
            facts = self._facts(quiet) if quiet else []
            if facts:
                self._stage.tell_idle(facts)
        except (StoreError, BrokerError) as error:
            self._log.debug("idle partitions not told", problem=error.problem)

    def _facts(self, quiet: Collection[Owned]) -> list[IdleFact]:
        time_ms = self._clock.wall_ms() - MARGIN_MS
        ends = self._source.high_watermarks([one.source for one in quiet])
        ids = self._source.topic_ids({one.source.topic for one in quiet})
        return [
            IdleFact(one.source, one.buffer.end, time_ms, one.lineage.generation)
            for one in quiet
            if one.source in ends
            and ends[one.source] == max(one.buffer.end, one.read_to)
            and not is_other(one.lineage, ids.get(one.source.topic))
        ]
