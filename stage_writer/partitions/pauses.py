"""The partitions that an operator has paused: all of this process (common/http/pages.py), or those of some streams.

Rules:

1. What is paused keeps its partitions, reads nothing more, and what was read is flushed on time.
2. The pauses of streams (common/stage/paused.py) are read in the background, so a store that hangs delays no other
   stream.
3. Messages of a paused stream still arrive where they were fetched before, and after each assignment. They are dropped,
   and read again from the buffer's end when the stream is resumed; until then, the end that Kafka reports for the
   partition does not count.
"""

from collections.abc import Iterable

from common.http.pages import Pausing
from common.ports import Clock
from common.settings import Stream
from common.spans import TopicPartition
from common.stage.paused_streams import REFRESH_EVERY_S, PausedStreams
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.ports import RecordSource, Running, Workers


class Pauses:
    def __init__(
        self,
        pausing: Pausing | None,
        paused: PausedStreams | None,
        source: RecordSource,
        workers: Workers,
        clock: Clock,
    ) -> None:
        """``pausing`` is the whole process's; what is None is never paused."""
        self._pausing = pausing
        self._paused = paused
        self._source = source
        self._workers = workers
        self._clock = clock
        self._refresh: Running[None] | None = None
        self._refreshed_s = 0.0

    def read(self, streams: Iterable[Stream]) -> list[Stream]:
        """The streams that are not paused now, for a run that has an end. Raises StoreError."""
        if self._paused is not None:
            self._paused.refresh()
        return [stream for stream in streams if not self.is_paused(stream.app_id)]

    def refresh(self) -> None:
        now_s = self._clock.monotonic_s()
        is_first = self._refresh is None
        if self._paused is None or not (is_first or now_s - self._refreshed_s >= REFRESH_EVERY_S):
            return
        if self._refresh is None or self._refresh.done():
            self._refreshed_s, self._refresh = now_s, self._workers.start(self._paused.run)

    def is_paused(self, app_id: str) -> bool:
        return self._paused is not None and self._paused.is_paused(app_id)

    def among(self, partitions: Iterable[AssignedPartition]) -> frozenset[TopicPartition]:
        everything = self._pausing is not None and self._pausing.is_on
        if self._paused is None and not everything:
            return frozenset()
        return frozenset(
            assigned.partition
            for assigned in partitions
            if everything or self.is_paused(assigned.converter.stream.app_id)
        )

    def drops(self, assigned: AssignedPartition) -> bool:
        """Whether messages of a partition that have arrived are dropped (rule 3)."""
        if not self.is_paused(assigned.converter.stream.app_id):
            return False
        assigned.skipped = assigned.paused = True
        self._source.pause([assigned.partition])
        return True

    def read_again(self, partitions: Iterable[AssignedPartition]) -> None:
        """These partitions are about to be resumed."""
        for assigned in partitions:
            if assigned.skipped:
                assigned.skipped = False
                self._source.seek(assigned.partition, assigned.buffer.end)

    def not_paused(self, partitions: Iterable[AssignedPartition]) -> list[AssignedPartition]:
        return [assigned for assigned in partitions if not self.is_paused(assigned.converter.stream.app_id)]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(note for part in (self._pausing, self._paused) if part is not None for note in part.notes)
