"""A Delta table's history: its commits from the newest to the oldest, from its log. Read without a JVM.

Rules:

1. Of each commit its ``commitInfo`` is read, which Delta writes as the first line. A commit without one (other writers
   may leave it out) is a commit of which nothing is known.
2. `CommitLines` returns the log's files: over a store (`store_lines`), or over Spark's own log store. The same
   functions parse them.
3. A RESTORE to a time does not name the version (Delta 4.4 writes ``version: null`` and the time without its time
   zone). It is found by the files: going down, it is the version from which on the table's files changed by exactly
   what the RESTORE restored. Of several such versions, the newest; they differ in nothing that a RESTORE changes.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from common.json_value import members_of
from common.ports import ObjectStore
from common.tables.commit_metadata import CommitMetadata
from common.tables.log_files import commit_path, parsing

_RESTORE = "RESTORE"


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """One commit, as its ``commitInfo`` describes it."""

    version: int
    operation: str = ""
    restored_version: int | None = None
    """For a RESTORE, the version whose content the table has again; None where that cannot be determined."""
    read_version: int | None = None
    """The version that the transaction had read; it may be older than the one just before."""
    timestamp_ms: int | None = None
    author: str = ""
    """The author by the log: a user's name, or else the program."""
    metadata: CommitMetadata | None = None
    """The loader's metadata; None for other programs' commits."""

    @classmethod
    def of(cls, version: int, info: Mapping[str, object], **more: Any) -> Self:  # noqa: ANN401 - the fields of a subclass
        """The commit with this ``commitInfo``; the version that a RESTORE restored is known where it is named."""
        operation, metadata = str(info.get("operation") or ""), info.get("userMetadata")
        named = members_of(info.get("operationParameters")).get("version")
        return cls(
            version=version,
            operation=operation,
            restored_version=_number(named) if operation == _RESTORE else None,
            read_version=_number(info.get("readVersion")),
            timestamp_ms=_number(info.get("timestamp")),
            author=str(info.get("userName") or info.get("engineInfo") or ""),
            # delta-rs writes the value as an object next to the operation; Spark writes a string.
            metadata=CommitMetadata.from_json(metadata) if isinstance(metadata, str) else None,
            **more,
        )

    @property
    def is_restore(self) -> bool:
        """Whether the table got an older version's content."""
        return self.operation == _RESTORE

    @property
    def is_replace(self) -> bool:
        """Whether the table was replaced by another one under its URL; false for the very first commit."""
        return self.version > 0 and ("REPLACE TABLE" in self.operation or self.operation == "CLONE")

    @property
    def is_turning_point(self) -> bool:
        """Whether what the table has does not come from the commit right before this one."""
        return self.is_restore or self.is_replace

    @property
    def seen_version(self) -> int:
        """The version that its transaction had read; the one before it where that is not known."""
        return self.version - 1 if self.read_version is None else self.read_version

    def moves_positions_of(self, app_id: str) -> bool:
        """Whether a stream made it to move the table's positions: then it had seen them."""
        return self.metadata is not None and self.metadata.app_id == app_id and self.metadata.moves_positions


CommitLines = Callable[[int], Iterable[str] | None]
"""Returns the lines of a commit's file in the log, in order; None if the file does not exist."""


def store_lines(store: ObjectStore) -> CommitLines:
    """The log below a table's root."""

    def lines(version: int) -> Iterable[str] | None:
        data = store.read(commit_path(version))
        return None if data is None else data.decode("utf-8").splitlines()

    return lines


class ReadOnce:
    """A history that is read once, lazily, and may be iterated again."""

    def __init__(self, commits: Iterator[LoggedCommit]) -> None:
        self._left = commits
        self._read: list[LoggedCommit] = []

    def __iter__(self) -> Iterator[LoggedCommit]:
        yield from self._read
        for commit in self._left:
            self._read.append(commit)
            yield commit


def read_history(newest: int, lines: CommitLines) -> Iterator[LoggedCommit]:
    """The commits from a version down, until the log ends: older ones were cleaned up. Lazy.

    Raises StoreError, and TableError for a damaged commit.
    """
    for version in range(newest, -1, -1):
        commit = lines(version)
        if commit is None:
            return
        with parsing(commit_path(version)):
            logged = _logged(version, commit, lines)
        yield logged


def with_lineage(history: Iterable[LoggedCommit]) -> Iterator[tuple[LoggedCommit, bool]]:
    """Each commit, from the newest down, and whether it is on the table's lineage: whether the table has its rows.

    A RESTORE continues at the version that it restored. A replacement ends the lineage, and so does a RESTORE to an
    unknown version.
    """
    next_version: int | None = None
    for commit in history:
        is_on_lineage = next_version is None or commit.version == next_version
        if is_on_lineage:
            next_version = commit.version - 1
            if commit.is_turning_point:
                restored = commit.restored_version if commit.is_restore else None
                next_version = -1 if restored is None else restored
        yield commit, is_on_lineage


def _logged(version: int, commit: Iterable[str], lines: CommitLines) -> LoggedCommit:
    logged = LoggedCommit.of(version, _commit_info(commit))
    if logged.is_restore and logged.restored_version is None:
        return replace(logged, restored_version=_by_files(version, lines))
    return logged


def _commit_info(commit: Iterable[str]) -> Mapping[str, object]:
    for line in commit:
        if line.replace(" ", "", 2).startswith('{"commitInfo"'):
            return members_of(members_of(json.loads(line)).get("commitInfo"))
    return {}


def _by_files(version: int, lines: CommitLines) -> int | None:
    """The version that a RESTORE restored, by the files that it changed (rule 3)."""
    added, removed = _files(lines(version) or ())
    came: set[str] = set()
    went: set[str] = set()
    for candidate in range(version - 1, -1, -1):
        if (came, went) == (removed, added):
            return candidate
        commit = lines(candidate)
        if commit is None:
            return None
        new, old = _files(commit)
        # The changes from before this commit until the RESTORE: a file that was added and removed is no change.
        came, went = (came - old) | (new - went), (went - new) | (old - came)
    return None


def _files(commit: Iterable[str]) -> tuple[set[str], set[str]]:
    sets: dict[str, set[str]] = {"add": set(), "remove": set()}
    for line in commit:
        action = members_of(json.loads(line))
        for name, files in sets.items():
            if name in action:
                content = members_of(action[name])
                files.add(json.dumps([content.get("path"), content.get("deletionVector")], sort_keys=True))
    return sets["add"], sets["remove"]


def _number(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() else None
