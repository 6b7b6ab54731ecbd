"""Whether a table was rolled back behind its own txn actions: by RESTORE or a replacement, as pure functions.

A txn action says "loaded up to 1,000". Measured with Delta 4.4 and Spark 4.2:

| operation | rows | txn actions | table id |
| --- | --- | --- | --- |
| RESTORE to a version or a time | an older version's | stay | stays |
| REPLACE TABLE, CREATE OR REPLACE … AS SELECT, `writeTo().createOrReplace()` | others | stay | another |
| DROP, or the folder removed, and CREATE; a new shallow clone | others | gone | another, and version 0 again |
| CLONE over a table | refused unless that one is empty | | |
| DELETE, UPDATE, MERGE, TRUNCATE, INSERT OVERWRITE, `mode("overwrite")` | changed by DML | stay | stays |
| `delta.setTransactionRetentionDuration` is set | stay | those older than it are gone at the next read, and do not
come back when it is unset | stays |

A blind append whose transaction started before a RESTORE is committed after it, without a conflict. Its ``readVersion``
says which version it had read. A lower txn version can be committed, also -1, and stays.

Rules:

1. An *own* commit has the stream's metadata. Everything that the stream loaded is in own commits. The table has a
   commit's rows if the commit is on the table's *lineage*. The lineage starts at the newest version and goes down. At a
   RESTORE it continues with the version that was restored, and at a replacement it ends. Example: version 8 restored
   version 5, so the lineage is 8, 5, 4, … and the rows of 6 and 7 are gone.
2. The table was rolled back if an own commit off the lineage loaded positions that no own commit on the lineage loaded
   again. A RESTORE to a version after the last load is therefore harmless. So is a RESTORE that undoes another one.
3. An own commit that moves positions was made by a loader that saw everything up to the commit's ``read_version``.
   Nothing below the read version of such a commit on the lineage is checked again. The loader did not see the commits
   between the read version and its own commit. A transaction that started before a RESTORE may thus have loaded rows
   *over* the RESTORE. That can also be an older RESTORE than the one that is read first. Two kinds of commits differ:
   one that replaces a range (load/replace_ranges.py) moves no positions and saw nothing; an own commit that ``answers``
   has seen the event that it resolves.
4. DELETE, UPDATE, MERGE, TRUNCATE and an overwrite change rows that were loaded. The owner of the rows may do that, and
   it is no reason to load them again.
5. A recreated topic (common/tables/transactions.py) has another generation. Its positions say nothing about those of
   the old topic. A rollback is reported for the newest generation that lost something. Losses of an older generation
   belong to a topic that is gone, and are reported separately.
6. The log is read down to the newest own commit that moves positions or answers, past any number of other commits, and
   on to the version that this commit had read. (`FARTHEST` bounds the reading. A commit that notes that a deferred
   range is complete, load/catch_up.py, moves no positions.) If the log ends before that, it is *unknown* whether the
   table was rolled back since.
   - While it is unknown, nothing is settled, and a chain is held as soon as there is something to load. The stream's
     other chains are held too: a load of theirs would be such an own commit, and the log would then seem to have all
     loads since.
   - A chain is not held if the missing commits loaded nothing of it. This is so if everything that is staged below the
     table's position is younger than the oldest existing commit. (Markers that an operator made do not count.) The
     position is then another program's.
   - If the stage has a chain of another topic for the same app_id, the position may be that topic's. The chain is then
     held at once.
7. A chain without a txn action is new only if one of these facts proves it:
   - The newest own commit names all chains that the table has (common/tables/commit_metadata.py), and not this one.
   - All of the log exists.
   - The chain's first marker is younger than the oldest existing commit, or than the newest `MOST_COMMITS`. (A stage
     that is younger than all that is left of the log thus belongs to a new stream.)
   Otherwise it is unknown too whether the chain was loaded. Commits that are made in the meantime record the chain as
   unproved. If the log has no commit of the app_id (rule 6), they also record the chains that the stage has of other
   topics for the app_id, because the table's position may be theirs.
8. An older copy of a table's folder has the same id as the table. Its log is shorter, and nothing else shows that it is
   a copy. A copy of the main table is recognized by its positions, which are compared with the stage. The positions of
   a secondary table may lag, so they prove nothing. Every commit to the main table therefore records the newest own
   commit of each secondary table (commit_metadata.py, rule 8). A secondary table without an own commit of that version
   or a later one is a copy, until an own commit answers for the recorded version.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from common.remedies import CONFIG, MOST_COMMANDS, delta_table, quoted, replay
from common.sizes import counted, time_text
from common.spans import Partition, Position, Span, TopicPartition
from common.stage.markers import Manifest, Marker, Origin
from common.tables.commit_metadata import CommitMetadata, not_first
from common.tables.history import LoggedCommit, with_lineage

Generation = tuple[TopicPartition, int]
"""A Kafka partition's chain: the partition, and its generation."""

MOST_COMMITS = 2_000
"""How far the log is read for the commit that loaded expired chains, and for searches shown to people."""
FARTHEST = 100_000
_SKEW_MS = 3_600_000
"""How far the clocks of writers and committers may differ."""


class RollbackKind(StrEnum):
    RESTORED = "table_restored"
    REPLACED = "table_replaced"
    RECREATED = "table_recreated"
    EXPIRED = "txn_expired"
    UNKNOWN = "history_unknown"


@dataclass(frozen=True, slots=True)
class Rollback:
    """A table lacks records that were loaded into it."""

    kind: RollbackKind
    cause: LoggedCommit
    positions: Mapping[TopicPartition, Position]
    """By Kafka partition, the position up to which the table really has the records; only affected partitions."""
    lost_from: Mapping[TopicPartition, Position] = field(default_factory=dict)
    """The first position that was rolled back, by Kafka partition; a dead-letter table may have none for long before.
    """
    over: tuple[int, ...] = ()
    """Own commits whose transaction had started before the cause and that came after it: their rows are in the table.
    """
    generations: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The generations of the positions' chains; 0 if missing."""
    gone: tuple[tuple[TopicPartition, Span], ...] = ()
    """Lost ranges of older generations (rule 5): Kafka no longer has their records."""
    is_unplaced: bool = False
    """For `RollbackKind.UNKNOWN`: the table has no txn action for these chains, and may have had (rule 7)."""
    new_from_ms: int | None = None
    """For `RollbackKind.UNKNOWN`: from when on a chain that is started is known to be new; None for at once (rule 7).
    """

    @property
    def has_selected_rows(self) -> bool:
        """Whether the table was replaced by the result of a query, which may have selected the stream's own rows."""
        return self.kind is RollbackKind.REPLACED and self.cause.operation.endswith("AS SELECT")

    @property
    def is_older_copy(self) -> bool:
        """Whether the table is an older copy, whose log lacks ``cause`` (rule 8)."""
        return self.kind is RollbackKind.RESTORED and not self.cause.is_restore


@dataclass(slots=True)
class _Lineage:
    """The table's lineage, collected while its commits are read from the newest down."""

    cause: LoggedCommit | None = None
    floor: int | None = None
    """Versions up to here were seen by an own commit on the lineage; None while none was found."""
    turned: int = 0
    """The lowest turning point on the lineage that no own commit above it had seen."""
    kept: list[int] = field(default_factory=list)
    """The own commits on the lineage."""
    here: dict[Generation, Position] = field(default_factory=dict)
    """By chain, the end position in the newest own commit on the lineage that names it."""
    lost: dict[Generation, tuple[Position, Position]] = field(default_factory=dict)
    """By chain, the lowest start and the newest end, over the own commits off the lineage."""
    replaced: list[tuple[int, TopicPartition, Position]] = field(default_factory=list)
    """The ends of ranges that were replaced on the lineage, with the version of the replacement."""

    def step(self, commit: LoggedCommit, app_id: str, *, on_line: bool) -> None:
        if on_line and commit.is_turning_point:
            self._turn(commit)
            return
        if commit.metadata is None or commit.metadata.app_id != app_id:
            return
        if commit.metadata.replaced:
            if on_line:
                self.replaced += [
                    (commit.version, partition, replaced.span.end)
                    for partition, replaced in commit.metadata.replaced.items()
                ]
        elif on_line:
            self._keep(commit)
        elif self.floor is None or commit.version > self.floor:
            self._note_lost(commit)

    def _turn(self, commit: LoggedCommit) -> None:
        self.cause = self.cause or commit
        if self.floor is None or commit.version > self.floor:
            # The commits on the lineage so far came after it, and had not seen it.
            self.turned = commit.version
            self.floor = None
            self.here.clear()

    def _keep(self, commit: LoggedCommit) -> None:
        if self.floor is None:
            self.floor = commit.seen_version
        self.kept.append(commit.version)
        for chain, (_, end) in _loaded_ranges(commit).items():
            self.here.setdefault(chain, end)

    def _note_lost(self, commit: LoggedCommit) -> None:
        for chain, (start, end) in _loaded_ranges(commit).items():
            lowest, newest = self.lost.get(chain, (start, end))
            self.lost[chain] = min(lowest, start), newest

    def rows_again(self, positions: Mapping[TopicPartition, Position]) -> tuple[int, ...]:
        """The versions above a turning point that they had not seen, whose rows a load from there would load again."""
        beyond = {
            version
            for version, partition, end in self.replaced
            if partition in positions and end > positions[partition]
        }
        return tuple(sorted((v for v in beyond.union(self.kept) if v > self.turned), reverse=True))

    def done(self, version: int) -> bool:
        """Whether nothing below a version can matter anymore (rule 3)."""
        if self.floor is None or version > self.floor + 1:
            return False
        return all(chain in self.here for chain in self.lost)


def _loaded_ranges(commit: LoggedCommit) -> dict[Generation, tuple[Position, Position]]:
    """The start and end of what an own commit loaded, by chain."""
    metadata = commit.metadata
    if metadata is None:
        return {}
    counts = metadata.counts
    ranges = {
        partition: (_first(span, counts[partition].given_up if partition in counts else ()), span.end)
        for partition, span in metadata.spans.items()
    }
    if metadata.answers is not None:
        ranges |= {partition: (position, position) for partition, position in metadata.answers.positions.items()}
    return {(partition, metadata.generation(partition)): reach for partition, reach in ranges.items()}


def _first(span: Span, given_up: Iterable[Span]) -> Position:
    """The start of a commit's records, without positions that were declared done before it."""
    return next((given.end for given in given_up if given.start == span.start and given.end <= span.end), span.start)


def find_rollback(history: Iterable[LoggedCommit], app_id: str) -> Rollback | None:
    """How the newest commits show a rollback (rules 1 to 3); ``history`` is from the newest down, and lazy."""
    line = _Lineage()
    for number, (commit, on_line) in enumerate(with_lineage(history), 1):
        line.step(commit, app_id, on_line=on_line)
        if line.done(commit.version) or number >= FARTHEST:
            break
    if line.cause is None:
        return None
    starts = {chain: line.here.get(chain, start) for chain, (start, _) in line.lost.items()}
    short = sorted(chain for chain, begin in starts.items() if begin != line.lost[chain][1])
    if not short:
        return None
    newest = dict(short)  # the highest generation of each Kafka partition comes last
    gone = tuple(
        (chain[0], Span(starts[chain], end))
        for chain in short
        if chain[1] < newest[chain[0]] and starts[chain] < (end := line.lost[chain][1])
    )
    positions = {partition: starts[partition, generation] for partition, generation in newest.items()}
    return Rollback(
        kind=RollbackKind.REPLACED if line.cause.is_replace else RollbackKind.RESTORED,
        cause=line.cause,
        positions=positions,
        lost_from={partition: line.lost[partition, generation][0] for partition, generation in newest.items()},
        over=line.rows_again(positions),
        generations={partition: generation for partition, generation in newest.items() if generation},
        gone=gone,
    )


def find_older_copy(history: Iterable[LoggedCommit], app_id: str, recorded: int) -> Rollback | None:
    """How a secondary table's log shows that it is an older copy (rule 8).

    ``recorded`` is the version of its newest own commit, as the main table's log names it.
    """
    top: LoggedCommit | None = None
    newest: LoggedCommit | None = None
    placed: CommitMetadata | None = None
    for number, commit in enumerate(history, 1):
        top = top or commit
        metadata = commit.metadata
        if metadata is not None and metadata.app_id == app_id:
            if commit.version >= recorded or (metadata.answers is not None and metadata.answers.version == recorded):
                return None
            newest = newest or commit
            placed = placed or (metadata if metadata.positions else None)
        if number >= MOST_COMMITS:
            break
    if top is None or (newest is None and top.version >= recorded):
        return None
    positions = {} if placed is None else placed.positions
    generations = {} if placed is None else not_first(placed.generations)
    return Rollback(RollbackKind.RESTORED, LoggedCommit(recorded), positions, positions, generations=generations)


def turning_points(history: Iterable[LoggedCommit], after: int) -> tuple[LoggedCommit, ...]:
    """The commits newer than ``after`` that rolled a table back, or replaced it; newest first."""
    commits: list[LoggedCommit] = []
    for commit in history:
        if commit.version <= after:
            break
        if commit.is_turning_point:
            commits.append(commit)
    return tuple(commits)


@dataclass(frozen=True, slots=True)
class OwnHistory:
    """The stream's past according to the log, regardless of its txn actions."""

    positions: Mapping[Generation, Position]
    """The position of each chain after its own commits."""
    last: Mapping[Generation, LoggedCommit]
    """The newest own commit that names a chain."""
    newest: LoggedCommit | None
    first: LoggedCommit | None
    """The table's first commit, if the log still has it."""
    oldest: LoggedCommit | None = None
    """The oldest commit that was read."""
    names_all: LoggedCommit | None = None
    """The newest own commit that names all chains."""

    def may_have_loaded(self, chain: Generation, first_ms: int | None) -> bool:
        """Whether a chain that has no position may have been loaded before (rule 7).

        ``first_ms`` is when its first marker was made; None if unknown.
        """
        stated = None if self.names_all is None else self.names_all.metadata
        if stated is not None and chain not in stated.unproved:
            return False
        if self.first is not None or self.oldest is None:
            return False
        return _is_older(first_ms, self.oldest)


def own_history(
    history: Iterable[LoggedCommit], app_id: str, wanted: Iterable[Generation] = (), since_ms: int | None = None
) -> OwnHistory:
    """The own commits, newest first, as far down as ``wanted`` and rules 6 and 7 require.

    Nothing staged before ``since_ms`` is needed: older commits cannot have loaded what the stage has. The same records
    may have been loaded from another stage, though, so at least `MOST_COMMITS` are read.
    """
    positions: dict[Generation, Position] = {}
    last: dict[Generation, LoggedCommit] = {}
    newest = first = oldest = names_all = None
    for number, commit in enumerate(history, 1):
        oldest = commit
        metadata = commit.metadata
        if metadata is not None and metadata.app_id == app_id:
            newest = newest or commit
            for chain, (_, end) in _loaded_ranges(commit).items():
                positions.setdefault(chain, end)
                last.setdefault(chain, commit)
            if metadata.positions and names_all is None:
                names_all = commit
                for partition, position in metadata.positions.items():
                    positions.setdefault((partition, metadata.generation(partition)), position)
        if commit.version == 0:
            first = commit
        # A resolution has to find the event that it is about, while others' commits continue.
        named = names_all is not None and (
            number >= MOST_COMMITS or not any(chain in positions and chain not in last for chain in wanted)
        )
        is_old = since_ms is not None and number >= MOST_COMMITS and not _is_older(since_ms, commit)
        if named or is_old or number >= FARTHEST:
            break
    return OwnHistory(positions, last, newest, first, oldest, names_all)


def unknown_since(history: Iterable[LoggedCommit], app_id: str) -> LoggedCommit | None:
    """The oldest commit of a log that ends before all of rule 6's commits are found; None if they are there."""
    oldest: LoggedCommit | None = None
    seen: int | None = None
    for number, commit in enumerate(history, 1):
        if seen is None and commit.moves_positions_of(app_id):
            seen = commit.seen_version
        if commit.version == 0 or (seen is not None and commit.version <= seen + 1):
            return None
        oldest = commit
        if number >= FARTHEST:
            break
    return oldest


def unknown_positions(
    oldest: LoggedCommit,
    placed: Mapping[TopicPartition, tuple[Position, Iterable[Marker]]],
    generations: Mapping[TopicPartition, int],
    of_other_topics: Callable[[], Container[Partition]],
    *,
    loads: bool = True,
) -> Rollback | None:
    """The chains whose position may be that of a rolled-back table, or of another topic (rule 6).

    ``oldest`` is the result of `unknown_since`; ``placed`` are the table's positions, and the markers near them;
    ``of_other_topics`` the partitions of other topics that the stage has for the stream; ``loads`` says whether
    something is to be loaded.
    """
    positions: dict[TopicPartition, Position] = {}
    for partition, (position, markers) in placed.items():
        below = [manifest for marker in markers if (manifest := _flushed_below(marker, position)) is not None]
        may_be_loaded = loads and any(_is_older(manifest.created_ms, oldest) for manifest in below)
        is_plain = bool(below) and not generations.get(partition)
        if may_be_loaded or (is_plain and partition.partition in of_other_topics()):
            positions[partition] = position
    if not positions:
        return None
    named = {partition: generations[partition] for partition in positions if generations.get(partition)}
    return Rollback(RollbackKind.UNKNOWN, oldest, positions, generations=named, new_from_ms=_younger_from_ms(oldest))


def _flushed_below(marker: Marker, position: Position) -> Manifest | None:
    manifest = marker.manifest
    is_flushed = manifest is not None and manifest.origin is Origin.FLUSH
    return manifest if is_flushed and marker.span.start < position else None


def _is_older(made_ms: int | None, commit: LoggedCommit) -> bool:
    younger_from_ms = _younger_from_ms(commit)
    return made_ms is None or younger_from_ms is None or made_ms < younger_from_ms


def _younger_from_ms(commit: LoggedCommit) -> int | None:
    return None if commit.timestamp_ms is None else commit.timestamp_ms + _SKEW_MS + 1


def without_txn(
    past: OwnHistory,
    unplaced: Iterable[TopicPartition],
    without_origin: Iterable[TopicPartition],
    generations: Mapping[TopicPartition, int],
    first_ms: Mapping[TopicPartition, int] | None = None,
) -> tuple[Rollback, ...]:
    """Why Kafka partitions that have markers have no txn action: those that expired, and those that never were.

    ``unplaced`` have none; of these, ``without_origin`` have a chain whose start was settled, so some table had it.
    ``first_ms`` is when the first markers of chains with their start were made. A table without own commits that has
    all of its log is not the one that was loaded. ``generations`` are the chains' own (0 where none is given): commits
    of another generation are about another topic.
    """
    chains = [(partition, generations.get(partition, 0)) for partition in unplaced]
    expired = {chain: past.positions[chain] for chain in chains if chain in past.positions}
    rollbacks: list[Rollback] = []
    if expired:
        # Others' commits continue in the meantime, and a resolution has to find the event that it is about.
        causes = (past.last.get(chain) or _named_at(chain, past) for chain in expired)
        cause = max(causes, key=lambda commit: commit.version)
        rollbacks.append(_without(RollbackKind.EXPIRED, cause, expired))
    lost = [(partition, generations.get(partition, 0)) for partition in without_origin]
    never = {chain: Position(0) for chain in lost if chain not in expired}
    if never and past.newest is None and past.first is not None:
        rollbacks.append(_without(RollbackKind.RECREATED, past.first, never))
    rooted = [chain for chain in chains if chain not in expired and chain not in lost]
    unproved = [chain for chain in rooted if past.may_have_loaded(chain, (first_ms or {}).get(chain[0]))]
    if unproved and past.oldest is not None:
        unknown = _without(RollbackKind.UNKNOWN, past.oldest, dict.fromkeys(unproved, Position(0)))
        # A commit that names all chains does not name one that is started after it.
        new_from_ms = _younger_from_ms(past.oldest) if past.names_all is None else None
        rollbacks.append(replace(unknown, is_unplaced=True, new_from_ms=new_from_ms))
    return tuple(rollbacks)


def _named_at(chain: Generation, past: OwnHistory) -> LoggedCommit:
    """A substitute for the commit that loaded a chain, where that one is too old to be read: the same at each read."""
    return LoggedCommit(int(past.positions[chain]))


def _without(kind: RollbackKind, cause: LoggedCommit, positions: Mapping[Generation, Position]) -> Rollback:
    return Rollback(
        kind,
        cause,
        {partition: position for (partition, _), position in positions.items()},
        generations={partition: generation for partition, generation in positions if generation},
    )


def remedy_of_secondary(url: str, app_id: str, back: Rollback, own: Mapping[TopicPartition, Position | None]) -> str:
    """How a secondary table gets back what it lost while the main table, at the positions ``own``, has its part."""
    if back.is_older_copy:
        undo = "put the table's newest folder back"
    else:
        undo = f"RESTORE TABLE {delta_table(url)} TO VERSION AS OF {back.cause.version - 1}"
    # The log of a copy names no position of a chain that it has nothing of.
    lacking = [
        replay(partition, start, end)
        for partition, end in sorted(own.items())
        if end is not None and (start := back.lost_from.get(partition, 0 if back.is_older_copy else end)) < end
    ]
    shown = [f"`{command}`" for command in lacking[:MOST_COMMANDS]]
    left = len(lacking) - len(shown)
    more = [f"a replay of what {counted(left, 'other partition')} may lack"] if left else []
    go_on = f"`bootstrap accept {CONFIG} --stream {quoted(app_id)} --go-on --yes`"
    return f"{undo}; or {', then '.join([go_on, ', '.join([*shown, *more])])}"


def described(url: str, back: Rollback) -> str:
    """The rollback of the table at a URL, as text: version, time, author, and where its records end."""
    cause = back.cause
    when = "" if cause.timestamp_ms is None else f" at {time_text(cause.timestamp_ms)}"
    who = f" by {cause.author}" if cause.author else ""
    positions = ", ".join(f"{partition} up to {position}" for partition, position in sorted(back.positions.items()))
    older = "".join(f"; {span} of an older topic {partition} is gone with it" for partition, span in back.gone)
    match back.kind:
        case RollbackKind.RESTORED:
            to = "an older version" if cause.restored_version is None else f"version {cause.restored_version}"
            put_back = f"version {cause.version} of {url} put it back to {to}{when}{who}"
            if back.is_older_copy:
                put_back = f"{url} is an older copy of the table, without version {cause.version} of this stream"
            return f"{put_back}: it has the records of {positions or 'no partition'}{older}"
        case RollbackKind.REPLACED:
            kept = " (but for the rows that it selected)" if back.has_selected_rows else ""
            return (
                f"version {cause.version} of {url}, {cause.operation}{when}{who}, put another table in its place: what "
                f"was loaded before is gone{kept}, from {positions}{older}"
            )
        case RollbackKind.RECREATED:
            return (
                f"the table {url} was recreated{when}{who}: no commit in its log loaded this stream, and the beginning "
                f"of what was staged is no longer there: {', '.join(map(str, sorted(back.positions)))}"
            )
        case RollbackKind.EXPIRED:
            return (
                f"the table {url} lost its positions (delta.setTransactionRetentionDuration); by its own "
                f"commits it has the records of {positions}"
            )
        case RollbackKind.UNKNOWN if back.is_unplaced:
            return (
                f"the table {url} has no position for {', '.join(map(str, sorted(back.positions)))}, and its log, "
                f"whose oldest commit is version {cause.version}, does not go back to when these were first staged: "
                "whether they were loaded before is unknown"
            )
        case RollbackKind.UNKNOWN:
            return (
                f"the log of {url} begins with version {cause.version}, after this stream's last load began: whether "
                "the table was restored since (RESTORE), or the topic renamed in the config, is unknown; its txn "
                f"actions say that it has {positions}"
            )
