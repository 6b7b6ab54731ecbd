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
3. An own commit that moves positions saw everything up to its ``read_version``: behind one that is on the line nothing
   older is looked at. One that replaces a range (delta_loader/tables/replace.py) moves none and saw nothing.
   What lies between the two it did not see: rows may have been loaded *over* a RESTORE by a transaction that had begun
   before it. An own commit that ``answers`` has seen what it answers.
4. DELETE, UPDATE, MERGE, TRUNCATE and an overwrite change rows that were loaded. That is their owner's right, and it is
   no reason to load them again.
5. A topic that was recreated (common/tables/transactions.py) has another generation, whose positions say nothing about
   those of the old one. What went back is told of the newest generation that lost something; what an older one lost
   with it is of a topic that is gone, and is told beside it.
6. The log is read down to the newest own commit, however many others have made since. (`FARTHEST` bounds it.) Where
   the log ends before one is met, whether the table went back since the last load is *unknown*, and a chain is held as
   soon as there is something to load. Unless nothing was loaded by the commits that are gone: all that is staged below
   the table's position, but for what an operator made, is younger than the oldest commit that is there.
7. A chain without a txn action is new only if that is proved: the newest own commit names all chains that the table has
   (common/tables/commit_metadata.py) and not this one, or all of the log is there, or the chain's first marker is
   younger than the oldest commit that is there, or than the newest `MOST_COMMITS`. (So a stage that is younger than all
   that is left of the log is a new stream's.) Else that is unknown too; commits that are made meanwhile say so of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from common.spans import Position, Span
from common.stage.markers import Marker, Origin
from common.tables.history import LoggedCommit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from common.spans import TopicPartition

    Generation = tuple[TopicPartition, int]
    """A Kafka partition's chain: the partition, and its generation."""

MOST_COMMITS = 2_000
"""How far an answer is given the commit that brought what expired, and what is asked for people is looked for."""
FARTHEST = 100_000
_SKEW_MS = 3_600_000
"""How far the clocks of writers and committers may differ."""


class Kind(StrEnum):
    """In which way a table is not what was loaded."""

    RESTORED = "table_restored"
    REPLACED = "table_replaced"
    RECREATED = "table_recreated"
    EXPIRED = "txn_expired"
    UNKNOWN = "history_unknown"


@dataclass(frozen=True, slots=True)
class Rollback:
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
    generations: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of the chains that the positions are of; one that is not here has generation 0."""
    gone: tuple[tuple[TopicPartition, Span], ...] = ()
    """What was lost of older generations too (rule 5): Kafka has none of it."""
    is_unplaced: bool = False
    """Of `Kind.UNKNOWN`: the table has no txn action for these chains, and may have had (rule 7)."""


@dataclass(slots=True)
class _Line:
    """What is known of the table's line while its commits are read from the newest down."""

    next_version: int | None = None
    """The next version on the line; None before the first."""
    cause: LoggedCommit | None = None
    over: tuple[int, ...] = ()
    floor: int | None = None
    """Versions up to here were seen by an own commit on the line; None while none was met."""
    here: dict[Generation, Position] = field(default_factory=dict)
    """By chain, what the newest own commit on the line that names it brought it to."""
    lost: dict[Generation, tuple[Position, Position]] = field(default_factory=dict)
    """By chain, the lowest start and the newest end, over the own commits off the line."""
    replaced: list[tuple[int, TopicPartition, Position]] = field(default_factory=list)
    """Where ranges end that were replaced after the cause, with the version that did it."""

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
        if commit.metadata.replaced:
            self._note_replaced(commit)
        elif on_line:
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
        for chain, (_, end) in _brought(commit).items():
            self.here.setdefault(chain, end)

    def _lose(self, commit: LoggedCommit) -> None:
        for chain, (start, end) in _brought(commit).items():
            lowest, newest = self.lost.get(chain, (start, end))
            self.lost[chain] = min(lowest, start), newest

    def _note_replaced(self, commit: LoggedCommit) -> None:
        if self.cause is None and commit.metadata is not None:
            self.replaced += [(commit.version, one, found.span.end) for one, found in commit.metadata.replaced.items()]

    def rows_again(self, positions: Mapping[TopicPartition, Position]) -> tuple[int, ...]:
        """The versions that brought rows after the cause which loading from these positions on would bring again."""
        beyond = {version for version, source, end in self.replaced if source in positions and end > positions[source]}
        return tuple(sorted(beyond.union(self.over), reverse=True))

    def done(self, version: int) -> bool:
        """Whether nothing below a version can matter any more (rule 3)."""
        if self.floor is None or version > self.floor + 1:
            return False
        return all(chain in self.here for chain in self.lost)


def _brought(commit: LoggedCommit) -> dict[Generation, tuple[Position, Position]]:
    """By chain, from where to where an own commit brought the stream."""
    metadata = commit.metadata
    if metadata is None:
        return {}
    counts = metadata.counts
    found = {
        source: (_first(span, counts[source].given_up if source in counts else ()), span.end)
        for source, span in metadata.spans.items()
    }
    if metadata.answers is not None:
        found |= {source: (position, position) for source, position in metadata.answers.positions.items()}
    return {(source, metadata.generation(source)): reach for source, reach in found.items()}


def _first(span: Span, given_up: Iterable[Span]) -> Position:
    """Where a commit's records begin: not among positions that were said to be done before it."""
    return next((given.end for given in given_up if given.start == span.start and given.end <= span.end), span.start)


def find_rollback(history: Iterable[LoggedCommit], app_id: str) -> Rollback | None:
    """What the newest commits say of a table (rules 1 to 3); ``history`` comes from the newest down, and lazily."""
    line = _Line()
    for number, commit in enumerate(history, 1):
        line.step(commit, app_id)
        if line.done(commit.version) or number >= FARTHEST:
            break
    if line.cause is None:
        return None
    begins = {chain: line.here.get(chain, start) for chain, (start, _) in line.lost.items()}
    short = sorted(chain for chain, begin in begins.items() if begin != line.lost[chain][1])
    if not short:
        return None
    newest = dict(short)  # the highest generation of each Kafka partition comes last
    gone = tuple(
        (chain[0], Span(begins[chain], end))
        for chain in short
        if chain[1] < newest[chain[0]] and begins[chain] < (end := line.lost[chain][1])
    )
    positions = {source: begins[source, generation] for source, generation in newest.items()}
    return Rollback(
        kind=Kind.REPLACED if line.cause.is_replace else Kind.RESTORED,
        cause=line.cause,
        positions=positions,
        lost_from={source: line.lost[source, generation][0] for source, generation in newest.items()},
        over=line.rows_again(positions),
        generations={source: generation for source, generation in newest.items() if generation},
        gone=gone,
    )


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

    positions: Mapping[Generation, Position]
    """Where own commits left each Kafka partition's chains."""
    last: Mapping[Generation, LoggedCommit]
    """The newest own commit that names a chain."""
    newest: LoggedCommit | None
    """The newest own commit."""
    first: LoggedCommit | None
    """The table's first commit, if the log still has it."""
    oldest: LoggedCommit | None = None
    """The oldest commit that was read."""
    names_all: LoggedCommit | None = None
    """The newest own commit that names all chains."""

    def may_have_loaded(self, chain: Generation, first_ms: int | None) -> bool:
        """Whether a chain that has no position may have been loaded before (rule 7).

        ``first_ms`` is when its first marker was made; None where it is unknown.
        """
        said = None if self.names_all is None else self.names_all.metadata
        if said is not None and chain not in said.unproved:
            return False
        if self.first is not None or self.oldest is None:
            return False
        return _is_older(first_ms, self.oldest)


def own_past(
    history: Iterable[LoggedCommit], app_id: str, wanted: Iterable[Generation] = (), since_ms: int | None = None
) -> OwnPast:
    """What own commits say, newest first, as far down as ``wanted`` and rules 6 and 7 make it necessary.

    Nothing that was staged before ``since_ms`` is asked for: older commits cannot have brought what lies in the
    stage. The same records may have been loaded out of another stage, though, so at least `MOST_COMMITS` are read.
    """
    positions: dict[Generation, Position] = {}
    last: dict[Generation, LoggedCommit] = {}
    newest = first = oldest = names_all = None
    for number, commit in enumerate(history, 1):
        oldest = commit
        metadata = commit.metadata
        if metadata is not None and metadata.app_id == app_id:
            newest = newest or commit
            for chain, (_, end) in _brought(commit).items():
                positions.setdefault(chain, end)
                last.setdefault(chain, commit)
            if metadata.positions and names_all is None:
                names_all = commit
                for source, position in metadata.positions.items():
                    positions.setdefault((source, metadata.generation(source)), position)
        if commit.version == 0:
            first = commit
        # An answer has to find the event that it was given about, while others' commits go on.
        named = names_all is not None and (
            number >= MOST_COMMITS or not any(chain in positions and chain not in last for chain in wanted)
        )
        is_old = since_ms is not None and number >= MOST_COMMITS and not _is_older(since_ms, commit)
        if named or is_old or number >= FARTHEST:
            break
    return OwnPast(positions, last, newest, first, oldest, names_all)


def unknown_since(history: Iterable[LoggedCommit], app_id: str) -> LoggedCommit | None:
    """The oldest commit of a log that ends before an own commit is met (rule 6); None where one is, or none is gone."""
    oldest: LoggedCommit | None = None
    for number, commit in enumerate(history, 1):
        if commit.version == 0 or (commit.metadata is not None and commit.metadata.app_id == app_id):
            return None
        oldest = commit
        if number >= FARTHEST:
            break
    return oldest


def unknown_positions(
    oldest: LoggedCommit,
    placed: Mapping[TopicPartition, tuple[Position, Iterable[Marker]]],
    generations: Mapping[TopicPartition, int],
) -> Rollback | None:
    """The chains whose position may be that of a table that went back (rule 6).

    ``oldest`` is what `unknown_since` says; ``placed`` are the table's positions, and what is staged near them.
    """
    positions = {
        source: position
        for source, (position, markers) in placed.items()
        if any(_was_loaded(marker, position, oldest) for marker in markers)
    }
    if not positions:
        return None
    named = {source: generations[source] for source in positions if generations.get(source)}
    return Rollback(Kind.UNKNOWN, oldest, positions, generations=named)


def _was_loaded(marker: Marker, position: Position, oldest: LoggedCommit) -> bool:
    """Whether a marker was loaded, as far as can be told, by a commit that is gone."""
    manifest = marker.manifest
    is_staged = manifest is not None and manifest.origin is Origin.FLUSH and marker.span.end <= position
    return manifest is not None and is_staged and _is_older(manifest.created_ms, oldest)


def _is_older(made_ms: int | None, commit: LoggedCommit) -> bool:
    """Whether something may be older than a commit."""
    return made_ms is None or commit.timestamp_ms is None or made_ms <= commit.timestamp_ms + _SKEW_MS


def without_txn(
    past: OwnPast,
    unplaced: Iterable[TopicPartition],
    rootless: Iterable[TopicPartition],
    generations: Mapping[TopicPartition, int],
    first_ms: Mapping[TopicPartition, int] | None = None,
) -> tuple[Rollback, ...]:
    """Why Kafka partitions that have markers have no txn action: those that expired, and those that never were.

    ``unplaced`` have none; of these, ``rootless`` have a chain whose beginning was settled, so that some table had it.
    ``first_ms`` is when the first markers of chains that have their beginning were made.
    A table without own commits that has all of its log is not the one that was loaded. ``generations`` are the chains'
    own (0 where none is given): what commits say of another one is about another topic.
    """
    chains = [(source, generations.get(source, 0)) for source in unplaced]
    expired = {chain: past.positions[chain] for chain in chains if chain in past.positions}
    found: list[Rollback] = []
    if expired:
        # Others' commits go on meanwhile, and an answer has to find the event that it was given about.
        causes = (past.last.get(chain) or _named_at(chain, past) for chain in expired)
        cause = max(causes, key=lambda commit: commit.version)
        found.append(_without(Kind.EXPIRED, cause, expired))
    lost = [(source, generations.get(source, 0)) for source in rootless]
    never = {chain: Position(0) for chain in lost if chain not in expired}
    if never and past.newest is None and past.first is not None:
        found.append(_without(Kind.RECREATED, past.first, never))
    rooted = [chain for chain in chains if chain not in expired and chain not in lost]
    unproved = [chain for chain in rooted if past.may_have_loaded(chain, (first_ms or {}).get(chain[0]))]
    if unproved and past.oldest is not None:
        unknown = _without(Kind.UNKNOWN, past.oldest, dict.fromkeys(unproved, Position(0)))
        found.append(replace(unknown, is_unplaced=True))
    return tuple(found)


def _named_at(chain: Generation, past: OwnPast) -> LoggedCommit:
    """What stands for the commit that brought a chain, where that is too far down: the same at each look."""
    return LoggedCommit(int(past.positions[chain]))


def _without(kind: Kind, cause: LoggedCommit, positions: Mapping[Generation, Position]) -> Rollback:
    return Rollback(
        kind,
        cause,
        {source: position for (source, _), position in positions.items()},
        generations={source: generation for source, generation in positions if generation},
    )


def described(url: str, back: Rollback) -> str:
    """What happened to the table at a URL: version, when, who, and where its records end."""
    cause = back.cause
    when = "" if cause.timestamp_ms is None else f" at {_moment(cause.timestamp_ms)}"
    who = f" by {cause.author}" if cause.author else ""
    positions = ", ".join(f"{source} up to {position}" for source, position in sorted(back.positions.items()))
    older = "".join(f"; {span} of an older topic {source} is gone with it" for source, span in back.gone)
    match back.kind:
        case Kind.RESTORED:
            to = "an older version" if cause.restored_version is None else f"version {cause.restored_version}"
            put_back = f"version {cause.version} of {url} put it back to {to}{when}{who}"
            return f"{put_back}: it has the records of {positions}{older}"
        case Kind.REPLACED:
            return (
                f"version {cause.version} of {url}, {cause.operation}{when}{who}, put another table there: what was "
                f"loaded before is gone, from {positions}{older}"
            )
        case Kind.RECREATED:
            return (
                f"the table {url} was recreated{when}{who}: no commit in its log loaded this stream, and the beginning "
                f"of what was staged is no longer there: {', '.join(str(source) for source in sorted(back.positions))}"
            )
        case Kind.EXPIRED:
            return (
                f"the table {url} forgot how far it is (delta.setTransactionRetentionDuration); by its own "
                f"commits it has the records of {positions}"
            )
        case Kind.UNKNOWN if back.is_unplaced:
            return (
                f"the table {url} has no position for {', '.join(map(str, sorted(back.positions)))}, and its log, "
                f"whose oldest commit is version {cause.version}, does not go back to when these were first staged: "
                "whether they were loaded before is unknown"
            )
        case Kind.UNKNOWN:
            return (
                f"the log of {url} begins with version {cause.version}, after this stream's last load: whether the "
                f"table was restored since (RESTORE) is unknown; its txn actions say that it has {positions}"
            )


def _moment(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
