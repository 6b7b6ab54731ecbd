"""Where the state of a topology's tasks is in the stage, and how a marker refers to it.

Rules:

1. A task's state consists of layered files: a snapshot of everything, and the changes of each flush since. Each is
   written before the marker that names it, under a unique name, and never changed. The changes of a flush may also be
   in a Kafka topic (common/stage/changelogs.py).
2. A flush's marker names the files of the state at its end, and those of the state at its start: the chain's last
   marker is therefore all that a new owner needs, and a chain that is rewound to the start of a marker has its state.
3. A name says which flush it was written for; only markers say whether that flush was ever sealed.
4. A *later snapshot* has the state that a marker names. It is written when the messages that the marker names in a
   topic get old. Its name is derived from that state's mark, so a reader that finds it may read it instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from common.spans import Position, TopicPartition
from common.stage.changelogs import StoredChanges, TopicChanges
from common.stage.paths import ChainPaths
from common.stored_types import StoredAs

STATE = "state"
_PATHS = ChainPaths(
    STATE, r"(?P<start>\d{20})-(?P<generation>\d{1,10})-(?P<unique>[0-9A-Za-z-]{1,64})\.(?P<kind>changes|snapshot)"
)
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
