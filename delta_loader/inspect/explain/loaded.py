"""Which commit loaded a Kafka offset into a table: a pure search of the table's history from the newest commit down.

Rules:

1. Only commits on the table's *lineage* count (common/tables/rollback.py): a RESTORE continues at the version that it
   restored, and a replacement of the table ends the lineage. An offset that a RESTORE removed is therefore not reported
   as present, and one that was loaded again afterwards is reported with the commit that loaded it again.
2. If several commits on the lineage contain an offset, the newest one's rows are in the table. A commit that replaced a
   range (`stage-writer replay`) is reported in addition: it rewrote rows that another commit had loaded.
3. The log may have been cleaned up. Anything older than its oldest commit is reported as unknown.
4. The offsets of a recreated topic start over: commits of the requested generation count, and loads of an older one are
   reported as such.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from common.spans import Offset, Position, TopicPartition
from common.tables.commit_metadata import CommitMetadata
from common.tables.history import LoggedCommit, with_lineage


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
