"""Where the state of a topology's tasks lies in the stage, and what a marker says of it.

Rules:

1. A task's state is made of files, one over the other: a snapshot of everything, and the changes of each flush since.
   Each is written before the marker that names it, under a name of its own, and never changed.
2. A flush's marker names the files that make the state at its end, and those that made it at its beginning: so the
   chain's last marker is all that a new owner needs, and a chain that is rewound to where a marker began has its state.
3. A name says what it was written for; whether that flush was ever sealed, only markers say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from common.merged import CHAIN_TOPIC
from common.spans import MAX_POSITION, Partition, Position, Topic, TopicPartition
from common.stored import Stored

STATE = "state"
_NAME = re.compile(
    rf"state/(?P<topic>{CHAIN_TOPIC})/(?P<partition>\d{{1,10}})/"
    r"(?P<start>\d{20})-(?P<generation>\d{1,10})-(?P<unique>[0-9A-Za-z-]{1,64})\.(?P<kind>changes|snapshot)",
    re.ASCII,
)


class StateKind(StrEnum):
    """What a state file holds."""

    CHANGES = "changes"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class StateFileName:
    """The name of one state file."""

    source: TopicPartition
    start: Position
    """Where the flush began that it was written for."""
    generation: int
    """That of the chain."""
    unique: str
    kind: StateKind

    @property
    def path(self) -> str:
        """The object's path below the stage's root."""
        return f"{state_folder(self.source)}{self.start:020d}-{self.generation}-{self.unique}.{self.kind}"

    @classmethod
    def parse(cls, path: str) -> StateFileName | None:
        """The inverse of `path`; None for any other path."""
        match = _NAME.fullmatch(path)
        if match is None or int(match["start"]) >= MAX_POSITION:
            return None
        source = TopicPartition(Topic(match["topic"]), Partition(int(match["partition"])))
        kind = StateKind(match["kind"])
        found = cls(source, Position(int(match["start"])), int(match["generation"]), match["unique"], kind)
        return found if found.path == path else None


def state_folder(source: TopicPartition) -> str:
    """The folder of a task's state files, with the closing slash."""
    return f"{STATE}/{source.topic}/{source.partition}/"


@dataclass(frozen=True, slots=True)
class StateFiles:
    """The files that make a state."""

    snapshot: str | None = None
    changes: tuple[str, ...] = ()
    """On top of the snapshot, or of nothing; the oldest first."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All of them, in the order in which they are read."""
        return self.changes if self.snapshot is None else (self.snapshot, *self.changes)

    @property
    def mark(self) -> str:
        """What tells this state from every other one: no two files have one name."""
        return self.paths[-1] if self.paths else ""

    def with_changes(self, path: str) -> StateFiles:
        """The state once more has changed."""
        return StateFiles(self.snapshot, (*self.changes, path))


EMPTY_STATE = StateFiles()


@dataclass(frozen=True, slots=True)
class MarkedState:
    """What a flush's marker says of its task's state (rule 2)."""

    files: StateFiles
    before: StateFiles


class StoredFiles(Stored):
    """The stored form of `StateFiles`."""

    snapshot: str | None
    changes: list[str]


class StoredState(StoredFiles):
    """The stored form of `MarkedState`; ``before`` is left out where it is the state without the last changes."""

    before: StoredFiles | None = None


def state_to_stored(state: MarkedState) -> dict[str, object]:
    """The stored form, before JSON."""
    before = None if state.before == _without_last(state.files) else _files_to_stored(state.before)
    return {**_files_to_stored(state.files), "before": before}


def state_from_stored(source: TopicPartition, stored: StoredState) -> MarkedState:
    """The inverse of `state_to_stored`. Raises ValueError for files that are not this task's."""
    files = _files_from_stored(source, stored)
    before = _without_last(files) if stored.before is None else _files_from_stored(source, stored.before)
    return MarkedState(files, before)


def _without_last(files: StateFiles) -> StateFiles:
    return StateFiles(files.snapshot, files.changes[:-1])


def _files_to_stored(files: StateFiles) -> dict[str, object]:
    return {"snapshot": files.snapshot, "changes": list(files.changes)}


def _files_from_stored(source: TopicPartition, stored: StoredFiles) -> StateFiles:
    files = StateFiles(stored.snapshot, tuple(stored.changes))
    for path in files.paths:
        name = StateFileName.parse(path)
        wanted = StateKind.SNAPSHOT if path == files.snapshot else StateKind.CHANGES
        if name is None or name.source != source or name.kind is not wanted:
            msg = f"the state file {path!r} is no {wanted} of {source}"
            raise ValueError(msg)
    return files
