"""Where a Kafka offset is: a verdict from the table's history, its files, the stage and Kafka.

Rules:

1. The table's position decides first: an offset below it is done; from the position on, it is staged, held, or still to
   come.
2. Claims are limited to what was read: a row is reported in a file because the file's offset column was read. Where
   that was not possible (the file is gone, the stream has no such columns), the output says so and names the files that
   may contain it.
3. Information that the log no longer has is reported as unknown, never guessed.
"""

from dataclasses import dataclass
from enum import StrEnum

from common.spans import Position
from common.stage.markers import Marker, Origin
from delta_loader.inspect.explain.loaded import LoadedRange, RecordQuery
from delta_loader.plan.held import Held


class OffsetLocation(StrEnum):
    ROW = "row"
    DEAD_LETTER = "dead_letter"
    NO_ROW = "no_row"
    LOADED = "brought"
    """Done, but the file that has it cannot be determined."""
    GIVEN_UP = "given_up"
    TAKEN_BACK = "taken_back"
    OLDER_TOPIC = "older_topic"
    BEFORE_BEGINNING = "before_beginning"
    FORGOTTEN = "forgotten"
    """Done, but the log no longer has the details."""
    STAGED = "staged"
    HELD = "held"
    GAP = "gap"
    NOT_STAGED = "not_staged"
    NOT_IN_KAFKA = "not_in_kafka"


@dataclass(frozen=True, slots=True)
class Holder:
    """A file of the newest version that may contain the offset, by its statistics."""

    url: str
    path: str
    is_dead_letters: bool = False
    rows: int | None = None
    """How many rows of this very offset it has; None where it could not be read."""
    problem: str = ""
    """Why it could not be read."""
    deleted_rows: int = 0
    """How many rows of the file its deletion vector removes, possibly this one."""
    error: str = ""
    """For a dead letter, its class and message."""


@dataclass(frozen=True, slots=True)
class OffsetReport:
    query: RecordQuery
    table: str
    """The stream's main table."""
    position: Position | None
    """The next position that the table wants; None when it has none of the Kafka partition."""
    loaded: LoadedRange
    holders: tuple[Holder, ...] = ()
    kafka_columns: bool = True
    staged: Marker | None = None
    """The marker that covers it, if it is still in the stage."""
    staged_to: Position | None = None
    held: Held | None = None
    kafka_end: Position | None = None
    """None where Kafka did not answer in time."""
    lacked_by: tuple[str, ...] = ()
    """Tables that still lack their part of it."""

    @property
    def is_done(self) -> bool:
        """Whether the table's position is past it."""
        return self.position is not None and self.query.offset < self.position

    @property
    def place(self) -> OffsetLocation:
        return self._done() if self.is_done else self._to_come()

    def _done(self) -> OffsetLocation:
        loaded = self.loaded
        if any(holder.rows for holder in self.holders if not holder.is_dead_letters):
            return OffsetLocation.ROW
        if any(holder.rows for holder in self.holders):
            return OffsetLocation.DEAD_LETTER
        if loaded.commit is None and loaded.lost is not None:
            return OffsetLocation.TAKEN_BACK
        if loaded.commit is None:
            return self._unknown()
        metadata = loaded.commit.metadata
        counts = None if metadata is None else metadata.counts.get(self.query.partition)
        if counts is not None and any(span.start <= self.query.offset < span.end for span in counts.given_up):
            return OffsetLocation.GIVEN_UP
        not_inspected = any(holder.rows is None for holder in self.holders)
        return OffsetLocation.LOADED if not_inspected or not self.kafka_columns else OffsetLocation.NO_ROW

    def _unknown(self) -> OffsetLocation:
        if self.loaded.older is not None:
            return OffsetLocation.OLDER_TOPIC
        return OffsetLocation.BEFORE_BEGINNING if self.loaded.is_whole else OffsetLocation.FORGOTTEN

    def _to_come(self) -> OffsetLocation:
        if self.staged is not None:
            if self.staged.origin is not Origin.FLUSH:
                return OffsetLocation.GIVEN_UP
            return OffsetLocation.STAGED if self.held is None else OffsetLocation.HELD
        if self.kafka_end is not None and self.query.offset >= self.kafka_end:
            return OffsetLocation.NOT_IN_KAFKA
        is_gap = self.staged_to is not None and self.query.offset < self.staged_to
        return OffsetLocation.GAP if is_gap else OffsetLocation.NOT_STAGED
