"""What a topology's tasks have in the stage, and how a marker refers to it: states, their changes, and outboxes.

Rules:

1. A task's state consists of layered files: a snapshot of everything, and the changes of each flush since. Each is
   written before the marker that names it, under a unique name, and never changed.
2. A flush's marker names the files of the state at its end, and those of the state at its start: the chain's last
   marker is therefore all that a new owner needs, and a chain that is rewound to the start of a marker has its state.
3. A name says which flush it was written for; only markers say whether that flush was ever sealed.
4. A *later snapshot* has the state that a marker names. It is written when the messages that the marker names in a
   topic get old. Its name is derived from that state's mark, so a reader that finds it may read it instead.
5. The changes of a flush may be in a Kafka topic instead. They are cut into pieces, each a message of the topic, and
   written before the marker that names them, by their offsets: other messages in the topic, such as the pieces of a
   lost claim, are ignored. The content must be verified: the marker has the digest of all pieces, and the id of their
   topic.
6. An outbox has a flush's records for Kafka topics, until they are delivered. It is written before the marker of its
   flush and named by it, and never changed. It is deleted once its records are in their topics: a marker may name a
   deleted outbox.
7. A marker names all outboxes of its chain that are not known to be delivered, the oldest first. The chain's last
   marker is therefore all that a new owner needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from common.spans import Position, Span, TopicPartition
from common.stage.merged import ChainPaths
from common.stage.stored import Count
from common.stored_types import StoredAs, StoredSpan, with_partition

OUTBOX = "outbox"
_FLUSH = r"(?P<start>\d{20})-(?P<generation>\d{1,10})-(?P<unique>[0-9A-Za-z-]{1,64})"
_OUTBOX_PATHS = ChainPaths(OUTBOX, rf"{_FLUSH}\.records")
outbox_folder = _OUTBOX_PATHS.folder


@dataclass(frozen=True, slots=True)
class OutboxName:
    partition: TopicPartition
    start: Position
    """The start of the flush that it was written for."""
    generation: int
    unique: str

    @property
    def path(self) -> str:
        return f"{outbox_folder(self.partition)}{self.start:020d}-{self.generation}-{self.unique}.records"

    @classmethod
    def parse(cls, path: str) -> OutboxName | None:
        parsed = _OUTBOX_PATHS.parse(path)
        if parsed is None:
            return None
        partition, match = parsed
        name = cls(partition, Position(int(match["start"])), int(match["generation"]), match["unique"])
        return name if name.path == path else None


def require_own_outboxes(partition: TopicPartition, paths: Iterable[str]) -> None:
    for path in paths:
        name = OutboxName.parse(path)
        if name is None or name.partition != partition:
            raise ValueError(f"{path!r} is not an outbox of {partition}")


_DIGEST_BYTES = 16
_DIGEST = rf"^[0-9a-f]{{{2 * _DIGEST_BYTES}}}$"


def changes_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class TopicChanges:
    place: TopicPartition
    """The Kafka partition that contains them."""
    topic_id: str | None
    """The broker's id of that topic; None if it has none."""
    spans: Annotated[tuple[StoredSpan, ...], Field(alias="pieces", min_length=1)]
    """The offsets of the pieces: ascending, one run after the other."""
    size_bytes: Annotated[Count, Field(alias="bytes")]
    digest: Annotated[str, Field(pattern=_DIGEST)]
    """`changes_digest` of all pieces concatenated."""
    written_ms: int
    """The time of the write, by the writer's clock."""

    def __post_init__(self) -> None:
        if any(span.end >= other.start for span, other in pairwise(self.spans)):
            msg = f"the pieces {', '.join(map(str, self.spans))} in {self.place} do not come one after the other"
            raise ValueError(msg)

    @property
    def pieces(self) -> int:
        return sum(span.positions for span in self.spans)

    @property
    def mark(self) -> str:
        """A string that identifies these changes."""
        return f"{self.place}@{self.spans[0].start}:{self.digest}"


def spans_of(offsets: Iterable[int]) -> tuple[Span, ...]:
    """Ascending offsets as runs. Raises ValueError for others."""
    spans: list[Span] = []
    for offset in offsets:
        if spans and spans[-1].end > offset:
            raise ValueError(f"offset {offset} comes after {spans[-1].last_offset}")
        if spans and spans[-1].end == offset:
            spans[-1] = Span(spans[-1].start, Position(offset + 1))
        else:
            spans.append(Span(Position(offset), Position(offset + 1)))
    return tuple(spans)


StoredChanges = Annotated[TopicChanges, with_partition(TopicChanges, "place")]
"""With the fields ``topic`` and ``partition``, and other names for some."""


STATE = "state"
_PATHS = ChainPaths(STATE, rf"{_FLUSH}\.(?P<kind>changes|snapshot)")
state_folder = _PATHS.folder


class StateKind(StrEnum):
    CHANGES = "changes"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class StateFileName:
    partition: TopicPartition
    start: Position
    """The start of the flush that it was written for."""
    generation: int
    unique: str
    kind: StateKind

    @property
    def path(self) -> str:
        return f"{state_folder(self.partition)}{self.start:020d}-{self.generation}-{self.unique}.{self.kind}"

    @classmethod
    @lru_cache(maxsize=10_000)  # each marker of a chain names nearly the same files as the one before
    def parse(cls, path: str) -> StateFileName | None:
        parsed = _PATHS.parse(path)
        if parsed is None:
            return None
        partition, match = parsed
        kind = StateKind(match["kind"])
        name = cls(partition, Position(int(match["start"])), int(match["generation"]), match["unique"], kind)
        return name if name.path == path else None


Change = str | StoredChanges
"""Where the changes of one flush are: a file's path, or messages of a topic."""


@dataclass(frozen=True, slots=True)
class StateFiles:
    snapshot: str | None = None
    changes: tuple[Change, ...] = ()
    """On top of the snapshot, or of nothing; the oldest first."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths in the stage, in the order in which they are read."""
        changes = tuple(change for change in self.changes if isinstance(change, str))
        return changes if self.snapshot is None else (self.snapshot, *changes)

    @property
    def in_topics(self) -> tuple[TopicChanges, ...]:
        """The changes in topics, the oldest first."""
        return tuple(change for change in self.changes if not isinstance(change, str))

    @property
    def mark(self) -> str:
        """A string that identifies this state: no two files have one name, no two messages one offset."""
        if not self.changes:
            return self.snapshot or ""
        last = self.changes[-1]
        return last if isinstance(last, str) else last.mark

    def with_changes(self, change: Change) -> StateFiles:
        return StateFiles(self.snapshot, (*self.changes, change))


EMPTY_STATE = StateFiles()


@dataclass(frozen=True, slots=True)
class MarkedState:
    """The record of a task's state in a flush's marker (rule 2)."""

    files: StateFiles
    before: StateFiles

    @property
    def is_in_topics(self) -> bool:
        """Whether a part of it is in a Kafka topic."""
        return bool(self.files.in_topics or self.before.in_topics)

    def needs(self, name: StateFileName) -> bool:
        """Whether a file is a part of it, or its later snapshot (rule 4)."""
        both = (self.files, self.before)
        later_snapshots = (_unique_of(files) for files in both if files.in_topics)
        return any(name.path in files.paths for files in both) or name.unique in later_snapshots


def later_snapshot_name(
    partition: TopicPartition, start: Position, generation: int, files: StateFiles
) -> StateFileName:
    """The name of the later snapshot of a state (rule 4), for a marker that starts there."""
    return StateFileName(partition, start, generation, _unique_of(files), StateKind.SNAPSHOT)


def with_later_snapshot(files: StateFiles, there: Iterable[str]) -> StateFiles:
    """The state with its later snapshot, if that is in ``there`` and makes a topic unnecessary; otherwise unchanged."""
    if not files.in_topics:
        return files
    wanted = (_unique_of(files), StateKind.SNAPSHOT)
    names = (StateFileName.parse(path) for path in there)
    paths = (name.path for name in names if name is not None and (name.unique, name.kind) == wanted)
    path = next(paths, None)
    return files if path is None else StateFiles(path)


def _unique_of(files: StateFiles) -> str:
    return f"of-{hashlib.sha256(files.mark.encode()).hexdigest()[:32]}"


def require_own_state(partition: TopicPartition, files: StateFiles) -> None:
    """Raises ValueError for files that are not this task's."""
    for path in files.paths:
        name = StateFileName.parse(path)
        wanted = StateKind.SNAPSHOT if path == files.snapshot else StateKind.CHANGES
        if name is None or name.partition != partition or name.kind is not wanted:
            raise ValueError(f"the state file {path!r} is not a {wanted} file of {partition}")


@dataclass(frozen=True, slots=True)
class _StoredState:
    """The stored form of `MarkedState`; ``before`` is null where it is the state without the last changes."""

    snapshot: str | None
    changes: tuple[Change, ...]
    before: StateFiles | None = None


def _state_from_stored(stored: _StoredState) -> MarkedState:
    files = StateFiles(stored.snapshot, stored.changes)
    return MarkedState(files, _without_last(files) if stored.before is None else stored.before)


def _state_to_stored(state: MarkedState) -> _StoredState:
    before = None if state.before == _without_last(state.files) else state.before
    return _StoredState(state.files.snapshot, state.files.changes, before)


StoredState = Annotated[MarkedState, StoredAs(_StoredState, _state_from_stored, _state_to_stored)]


def _without_last(files: StateFiles) -> StateFiles:
    return StateFiles(files.snapshot, files.changes[:-1])
