"""Which commit brought a Kafka offset into a table, by the table's history: a pure search from the newest commit down.

Rules:

1. Only commits on the table's *line* count (common/tables/rollback.py): a RESTORE continues at the version that it put
   back, and a replacement of the table ends the line. So an offset that a RESTORE took away is not said to be there,
   and one that was loaded again afterwards is told with the commit that did.
2. Of several commits on the line that speak of an offset the newest is the one whose rows are there. A commit that
   replaced a range (`stage-writer replay`) is told beside it: it wrote the rows again that another one had brought.
3. The log may have been cleaned up. What is older than its oldest commit is not known, and that is what is said.
4. The offsets of a topic that was recreated start over: commits of the generation that is asked for count, and what an
   older one brought is told as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from common.spans import Offset, Position, TopicPartition
    from common.tables.commit_metadata import CommitMetadata
    from common.tables.history import LoggedCommit


@dataclass(frozen=True, slots=True)
class Asked:
    """The offset that is asked for."""

    app_id: str
    source: TopicPartition
    offset: Offset
    generation: int = 0


@dataclass(frozen=True, slots=True)
class LoadedRange:
    """What a history says of an offset."""

    brought: LoggedCommit | None = None
    """The commit on the line whose span has it."""
    replaced: LoggedCommit | None = None
    """The newest commit on the line that wrote its rows again."""
    lost: LoggedCommit | None = None
    """A commit off the line that had it; only where none on the line has."""
    taken_by: LoggedCommit | None = None
    """What took that one off it."""
    older: LoggedCommit | None = None
    """A commit that brought this offset of an older topic of that name."""
    oldest_version: int | None = None
    """The oldest commit that was looked at; None for an empty history."""
    begins_at: Position | None = None
    """Where the oldest commit that speaks of the Kafka partition began."""

    @property
    def is_whole(self) -> bool:
        """Whether the history reaches back to the table's beginning."""
        return self.oldest_version == 0


def find_loading_commit(history: Iterable[LoggedCommit], asked: Asked) -> LoadedRange:
    """Search a history, which comes from the newest commit down and is read as far as needed."""
    brought = replaced = lost = taken_by = turn = older = oldest = None
    begins_at: Position | None = None
    next_version: int | None = None
    for commit in history:
        oldest = commit.version
        on_line = next_version is None or commit.version == next_version
        if on_line and (commit.is_restore or commit.is_replace):
            turn = commit
            next_version = commit.restored_version if commit.is_restore else None
            next_version = -1 if next_version is None else next_version
            continue
        if on_line:
            next_version = commit.version - 1
        metadata = commit.metadata
        if metadata is None or metadata.app_id != asked.app_id:
            continue
        if on_line and replaced is None and _replaced(metadata, asked):
            replaced = commit
        span = metadata.spans.get(asked.source)
        if span is None:
            continue
        if metadata.generation(asked.source) != asked.generation:
            older = older or (commit if on_line and _has(metadata, asked) else None)
            continue
        begins_at = span.start
        if _has(metadata, asked):
            if on_line:
                brought = commit
                break
            lost, taken_by = (commit, turn) if lost is None else (lost, taken_by)
    return LoadedRange(brought, replaced, lost if brought is None else None, taken_by, older, oldest, begins_at)


def _has(metadata: CommitMetadata, asked: Asked) -> bool:
    span = metadata.spans.get(asked.source)
    return span is not None and span.start <= asked.offset < span.end


def _replaced(metadata: CommitMetadata, asked: Asked) -> bool:
    found = metadata.replaced.get(asked.source)
    if found is None or metadata.generation(asked.source) != asked.generation:
        return False
    return found.span.start <= asked.offset < found.span.end
