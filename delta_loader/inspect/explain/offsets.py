"""Where a Kafka offset is: a verdict from the table's history, its files, the stage and Kafka.

Rules:

1. The table's position decides first: an offset below it is done; from the position on, it is staged, held, or still to
   come.
2. Claims are limited to what was read: a row is reported in a file because the file's offset column was read. Where
   that was not possible (the file is gone, the stream has no such columns), the output says so and names the files that
   may contain it.
3. Information that the log no longer has is reported as unknown, never guessed.
4. Which commit loaded an offset is searched from the newest commit down. Only commits on the table's *lineage* count
   (common/tables/rollback.py): a RESTORE continues at the version that it restored, and a replacement of the table ends
   the lineage. An offset that a RESTORE removed is therefore not reported as present, and one that was loaded again
   afterward is reported with the commit that loaded it again.
5. If several commits on the lineage contain an offset, the newest one's rows are in the table. A commit that replaced a
   range (`stage-writer replay`) is reported in addition: it rewrote rows that another commit had loaded.
6. The offsets of a recreated topic start over: commits of the requested generation count, and loads of an older one are
   reported as such.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from common.spans import Offset, Position, TopicPartition
from common.stage.markers import Marker, Origin
from common.tables.commit_metadata import CommitMetadata
from common.tables.history import LoggedCommit, with_lineage
from delta_loader.plan.held import Held


@dataclass(frozen=True, slots=True)
class RecordQuery:
    app_id: str
    partition: TopicPartition
    offset: Offset
    generation: int = 0


@dataclass(frozen=True, slots=True)
class LoadedRange:
    commit: LoggedCommit | None = None
    """The commit on the lineage whose span has it."""
    replaced: LoggedCommit | None = None
    """The newest commit on the lineage that rewrote its rows."""
    lost: LoggedCommit | None = None
    """A commit off the lineage that had it; only set if no commit on it has."""
    taken_by: LoggedCommit | None = None
    """The commit that took ``lost`` off the lineage."""
    older: LoggedCommit | None = None
    """A commit that loaded this offset of an older topic of that name."""
    oldest_version: int | None = None
    """The oldest commit that was read; None for an empty history."""
    has_origin_at: Position | None = None
    """The start of the oldest commit that contains the Kafka partition."""

    @property
    def is_whole(self) -> bool:
        """Whether the history reaches back to the table's first version."""
        return self.oldest_version == 0


def find_loading_commit(history: Iterable[LoggedCommit], query: RecordQuery) -> LoadedRange:
    """Search a history, which is ordered from the newest commit down and is read as far as needed."""
    loading = replaced = lost = taken_by = previous = older = oldest = None
    has_origin_at: Position | None = None
    for commit, on_line in with_lineage(history):
        oldest = commit.version
        if on_line and commit.is_turning_point:
            previous = commit
            continue
        metadata = commit.metadata
        if metadata is None or metadata.app_id != query.app_id:
            continue
        if on_line and replaced is None and _replaced(metadata, query):
            replaced = commit
        span = metadata.spans.get(query.partition)
        if span is None:
            continue
        if metadata.generation(query.partition) != query.generation:
            older = older or (commit if on_line and _has(metadata, query) else None)
            continue
        has_origin_at = span.start
        if _has(metadata, query):
            if on_line:
                loading = commit
                break
            lost, taken_by = (commit, previous) if lost is None else (lost, taken_by)
    return LoadedRange(loading, replaced, lost if loading is None else None, taken_by, older, oldest, has_origin_at)


def _has(metadata: CommitMetadata, query: RecordQuery) -> bool:
    span = metadata.spans.get(query.partition)
    return span is not None and span.start <= query.offset < span.end


def _replaced(metadata: CommitMetadata, query: RecordQuery) -> bool:
    replaced = metadata.replaced.get(query.partition)
    if replaced is None or metadata.generation(query.partition) != query.generation:
        return False
    return replaced.span.start <= query.offset < replaced.span.end


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
