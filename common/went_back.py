"""Whether a table went back behind its own txn actions: RESTORE, and whatever replaces a table, as pure functions.

A txn action says "loaded up to 1,000". Measured with Delta 4.4 and Spark 4.2:

| operation | rows | txn actions | table id |
| --- | --- | --- | --- |
| RESTORE to a version or a moment | an older version's | stay | stays |
| REPLACE TABLE, CREATE OR REPLACE … AS SELECT, `writeTo().createOrReplace()` | others | stay | another |
| DROP, or the folder removed, and CREATE; a new shallow clone | others | gone | another, and version 0 again |
| CLONE over a table | refused unless that one is empty | | |
| DELETE, UPDATE, MERGE, TRUNCATE, INSERT OVERWRITE, `mode("overwrite")` | changed by DML | stay | stays |
| `delta.setTransactionRetentionDuration` is set | stay | those older than it are gone at the next look, and do not
come back when it is unset | stays |

And a blind append whose transaction began before a RESTORE is committed after it, without a conflict; its
``readVersion`` says what it had looked at. A lower txn version, and -1, can be committed, and stay.

Rules:

1. An *own* commit carries the stream's metadata. All that the stream loaded lies in own commits, and the table has a
   commit's rows if that commit is on the table's *line*: from the newest version down, where a RESTORE continues at the
   version that it put back, and a replacement ends.
2. The table went back when an own commit off the line brought positions that no own commit on the line brought again.
   So a RESTORE to a version after the last load is harmless, and so is one that undoes another.
3. An own commit saw everything up to its ``read_version``: behind one that is on the line nothing older is looked at.
   What lies between the two it did not see: rows may have been loaded *over* a RESTORE by a transaction that had begun
   before it. An own commit that ``answers`` has seen what it answers.
4. DELETE, UPDATE, MERGE, TRUNCATE and an overwrite change rows that were loaded. That is their owner's right, and it is
   no reason to load them again.
5. At most `MOST_COMMITS` are read. The newest is usually our own, so that one is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from common.spans import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from common.spans import Span, TopicPartition
    from common.table_history import LoggedCommit

MOST_COMMITS = 2_000


class Kind(StrEnum):
    """In which way a table is not what was loaded."""

    RESTORED = "table_restored"
    REPLACED = "table_replaced"
    RECREATED = "table_recreated"
    EXPIRED = "txn_expired"


@dataclass(frozen=True, slots=True)
class WentBack:
    """A table lacks what was loaded into it."""

    kind: Kind
    cause: LoggedCommit
    """The commit that did it."""
    positions: Mapping[TopicPartition, Position]
    """By Kafka partition, up to where the table really has the records; only those that it concerns."""
    lost_from: Mapping[TopicPartition, Position] = field(default_factory=dict)
    """The first position that was taken back, by Kafka partition; a dead-letter table may have none for long before."""
    over: tuple[int, ...] = ()
    """Own commits whose transaction had begun before the cause and that came after it: their rows are there."""


@dataclass(slots=True)
class _Line:
    """What is known of the table's line while its commits are read from the newest down."""

    next_version: int | None = None
    """The next version on the line; None before the first."""
    cause: LoggedCommit | None = None
    over: tuple[int, ...] = ()
    floor: int | None = None
    """Versions up to here were seen by an own commit on the line; None while none was met."""
    here: dict[TopicPartition, Position] = field(default_factory=dict)
    """By partition, what the newest own commit on the line that names it brought it to."""
    lost: dict[TopicPartition, tuple[Position, Position]] = field(default_factory=dict)
    """By partition, the lowest start and the newest end, over the own commits off the line."""

    def step(self, commit: LoggedCommit, app_id: str) -> None:
        """Take the next older commit in."""
        on_line = self.next_version is None or commit.version == self.next_version
        if on_line and (commit.is_restore or commit.is_replace):
            self._turn(commit)
            return
        if on_line:
            self.next_version = commit.version - 1
        if commit.metadata is None or commit.metadata.app_id != app_id:
            return
        if on_line:
            self._keep(commit)
        elif self.floor is None or commit.version > self.floor:
            self._lose(commit)

    def _turn(self, commit: LoggedCommit) -> None:
        if self.cause is None:
            self.cause = commit
            # What the line had so far came after the cause.
            self.floor = None
            self.here.clear()
        restored = commit.restored_version if commit.is_restore else None
        self.next_version = -1 if restored is None else restored

    def _keep(self, commit: LoggedCommit) -> None:
        if self.floor is None:
            self.floor = commit.version - 1 if commit.read_version is None else commit.read_version
        if self.cause is None:
            self.over += (commit.version,)
        for source, (_, end) in _brought(commit).items():
            self.here.setdefault(source, end)

    def _lose(self, commit: LoggedCommit) -> None:
        for source, (start, end) in _brought(commit).items():
            lowest, newest = self.lost.get(source, (start, end))
            self.lost[source] = min(lowest, start), newest

    def done(self, version: int) -> bool:
        """Whether nothing below a version can matter any more (rule 3)."""
        if self.floor is None or version > self.floor + 1:
            return False
        return all(source in self.here for source in self.lost)


def _brought(commit: LoggedCommit) -> dict[TopicPartition, tuple[Position, Position]]:
    """By partition, from where to where an own commit brought the stream."""
    if commit.metadata is None:
        return {}
    counts = commit.metadata.counts
    found = {
        source: (_first(span, counts[source].given_up if source in counts else ()), span.end)
        for source, span in commit.metadata.spans.items()
    }
    if commit.metadata.answers is not None:
        found |= {source: (position, position) for source, position in commit.metadata.answers.positions.items()}
    return found


def _first(span: Span, given_up: Iterable[Span]) -> Position:
    """Where a commit's records begin: not among positions that were said to be done before it."""
    return next((given.end for given in given_up if given.start == span.start and given.end <= span.end), span.start)


def went_back(history: Iterable[LoggedCommit], app_id: str) -> WentBack | None:
    """What the newest commits say of a table (rules 1 to 3); ``history`` comes from the newest down, and lazily."""
    line = _Line()
    for number, commit in enumerate(history, 1):
        line.step(commit, app_id)
        if line.done(commit.version) or number >= MOST_COMMITS:
            break
    if line.cause is None:
        return None
    positions = {
        source: line.here.get(source, start)
        for source, (start, end) in line.lost.items()
        if line.here.get(source, start) != end
    }
    if not positions:
        return None
    kind = Kind.REPLACED if line.cause.is_replace else Kind.RESTORED
    lost_from = {source: line.lost[source][0] for source in positions}
    return WentBack(kind, line.cause, positions, lost_from, line.over)


def turning_points(history: Iterable[LoggedCommit], after: int) -> tuple[LoggedCommit, ...]:
    """The commits newer than ``after`` that put a table back, or another one in its place; newest first."""
    found: list[LoggedCommit] = []
    for commit in history:
        if commit.version <= after:
            break
        if commit.is_restore or commit.is_replace:
            found.append(commit)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class OwnPast:
    """What the log tells of a stream, whatever its txn actions say."""

    positions: Mapping[TopicPartition, Position]
    """Where own commits left each Kafka partition."""
    newest: LoggedCommit | None
    """The newest own commit."""
    first: LoggedCommit | None
    """The table's first commit, if the log still has it."""


def own_past(history: Iterable[LoggedCommit], app_id: str) -> OwnPast:
    """What own commits say, newest first, over as much of the log as rule 5 allows."""
    positions: dict[TopicPartition, Position] = {}
    newest = first = None
    for number, commit in enumerate(history, 1):
        if commit.metadata is not None and commit.metadata.app_id == app_id:
            newest = newest or commit
            for source, (_, end) in _brought(commit).items():
                positions.setdefault(source, end)
        if commit.version == 0:
            first = commit
        if number >= MOST_COMMITS:
            break
    return OwnPast(positions, newest, first)


def without_txn(
    past: OwnPast, unplaced: Iterable[TopicPartition], rootless: Iterable[TopicPartition]
) -> tuple[WentBack, ...]:
    """Why Kafka partitions that have markers have no txn action: those that expired, and those that never were.

    ``unplaced`` have none; of these, ``rootless`` have a chain whose beginning was settled, so that some table had it.
    A table without own commits that has all of its log is not the one that was loaded.
    """
    expired = {source: past.positions[source] for source in unplaced if source in past.positions}
    found: list[WentBack] = []
    if expired and past.newest is not None:
        found.append(WentBack(Kind.EXPIRED, past.newest, expired))
    lost = {source: Position(0) for source in rootless if source not in expired}
    if lost and past.newest is None and past.first is not None:
        found.append(WentBack(Kind.RECREATED, past.first, lost))
    return tuple(found)


def described(url: str, back: WentBack) -> str:
    """What happened to the table at a URL: version, when, who, and where its records end."""
    cause = back.cause
    when = "" if cause.timestamp_ms is None else f" at {_moment(cause.timestamp_ms)}"
    who = f" by {cause.author}" if cause.author else ""
    positions = ", ".join(f"{source} up to {position}" for source, position in sorted(back.positions.items()))
    match back.kind:
        case Kind.RESTORED:
            to = "an older version" if cause.restored_version is None else f"version {cause.restored_version}"
            return f"version {cause.version} of {url} put it back to {to}{when}{who}: it has the records of {positions}"
        case Kind.REPLACED:
            return (
                f"version {cause.version} of {url}, {cause.operation}{when}{who}, put another table there: what was "
                f"loaded before is gone, from {positions}"
            )
        case Kind.RECREATED:
            return (
                f"the table {url} was made anew{when}{who}: no commit in its log loaded this stream, and the beginning "
                f"of what was staged is no longer there: {', '.join(str(source) for source in sorted(back.positions))}"
            )
        case Kind.EXPIRED:
            return (
                f"the table {url} forgot how far it is (delta.setTransactionRetentionDuration); by its commits up to "
                f"version {cause.version} it has the records of {positions}"
            )


def _moment(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
