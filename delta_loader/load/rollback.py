"""Detects whether tables were rolled back, and carries out an operator's resolution.

Rules:

1. Each time the tables are read, their histories are read too. A stream with a rolled-back table is held as a whole:
   nothing of it is loaded or settled until the stage has a resolution (common/stage/resolutions.py).
2. A resolution is carried out by one commit to that table. The commit sets the txn actions back (`replay`) or leaves
   them (`go_on`), and names the event that it resolves in its metadata. A resolution is therefore carried out once, no
   matter which loader tries it and how often.
3. Kafka partitions without a txn action are held individually, in two cases: the history says that they had one, or
   only a table that is gone could have had the start of their chain.
4. The loader keeps in memory how far it has read a table's history, only to avoid reading it again. If other writers
   commit to the table, an idle stream thus reads only the new commits, not everything since its own last commit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from common.remedies import CONFIG, delta_table, quoted, repair
from common.settings import Stream
from common.sizes import time_text
from common.spans import Position, TopicPartition
from common.stage.marker_contents import chains_of_other_topics, partitions_of_other_topics
from common.stage.markers import Marker
from common.stage.resolutions import Resolution, resolution_path
from common.tables.commit_metadata import CommitMetadata, Resolved
from common.tables.history import LoggedCommit
from common.tables.identity import TableChain, TableIdentity, with_transactions
from common.tables.rollback import (
    MOST_COMMITS,
    Rollback,
    RollbackKind,
    described,
    own_history,
    remedy_of_secondary,
    unknown_positions,
    without_txn,
)
from common.tables.stream_history import StreamHistory
from common.tables.transactions import TxnIds
from delta_loader.plan.chain_positions import ChainPositions, UnplacedChains
from delta_loader.plan.held import Held
from delta_loader.ports import DeltaTables, NewId
from delta_loader.stage.reading import Stage
from delta_loader.tables.commits import TableCommit, Target, with_identity


@dataclass(frozen=True, slots=True)
class Examined:
    """The known history of a table for one stream (streams may share a table)."""

    table_id: str
    version: int
    identity: TableIdentity
    unknown: LoggedCommit | None = None
    """The log's oldest commit, if the log has none of the stream's commits (common/tables/rollback.py, rule 6)."""


ExaminedTables = dict[tuple[str, str], Examined]


class RollbackDetector:
    """The histories of a stream's tables, as one pass reads them."""

    def __init__(
        self, stream: Stream, ids: TxnIds, tables: DeltaTables, stage: Stage, examined: ExaminedTables
    ) -> None:
        """``examined`` is kept from pass to pass."""
        self._stream = stream
        self._app_id = stream.app_id
        self.ids = ids
        """With the chains' newest generations, once they are known."""
        self._tables = tables
        self._stage = stage
        self._examined = examined

    def inspect(self, target: Target, recorded: int | None) -> tuple[Target, Rollback | None]:
        """The table with its positions' identities, and its rollback, if there was one. Raises TableError.

        ``recorded`` is a secondary table's newest own version by the main table's log (common/tables/rollback.py).
        """
        key, known = (self._app_id, target.url), self._examined.get((self._app_id, target.url))
        if known is not None and known.table_id == target.table_id and known.version == target.version:
            return replace(target, identity=known.identity), None
        if known is not None and known.table_id == target.table_id and self._is_of_others(target, known.version):
            identity = with_transactions(known.identity, self._stream, self.ids, target.transactions)
            self._examined[key] = replace(known, version=target.version, identity=identity)
            return replace(target, identity=identity), None
        history = StreamHistory(self._stream, self._history(target), recorded)
        identity = history.identity(target.transactions)
        if history.rollback is None:
            self._examined[key] = Examined(target.table_id, target.version, identity, history.unknown_since)
        return replace(target, identity=identity), history.rollback

    def _history(self, target: Target) -> Iterator[LoggedCommit]:
        """The table's history. Where the stream has no position, only as much as is read to find expired commits."""
        history = self._tables.history(target.url, target.version)
        is_there = any(name.startswith(f"{self._app_id}-") for name in target.transactions)
        return history if is_there else islice(history, MOST_COMMITS)

    def _is_of_others(self, target: Target, version: int) -> bool:
        """Whether the commits after an examined version do not matter: they are others', or replace or move rows."""
        for commit in self._tables.history(target.url, target.version):
            if commit.version <= version:
                return commit.version == version
            if commit.moves_positions_of(self._app_id) or commit.is_turning_point:
                return False
        return False

    def record_commit(self, target: Target, metadata: CommitMetadata) -> None:
        """Record that our commit is in the table, right after the examined version."""
        key = self._app_id, target.url
        known = None if metadata.moves_positions else self._examined.get(key)
        unknown = None if known is None else known.unknown
        self._examined[key] = Examined(target.table_id, target.version, target.identity, unknown)

    def without_txn(self, target: Target, unplaced: UnplacedChains) -> tuple[Rollback, ...]:
        """Why Kafka partitions that are staged have no position in the table (rule 3)."""
        partitions, first_ms = unplaced.partitions, unplaced.first_ms
        if not partitions:
            return ()
        wanted = [(partition, self.ids.generation_of(partition)) for partition in partitions]
        since_ms = min(first_ms.values()) if {*partitions} == first_ms.keys() else None
        past = own_history(self._tables.history(target.url, target.version), self._app_id, wanted, since_ms)
        return without_txn(past, partitions, unplaced.without_origin, self.ids.generations, first_ms)

    def unknown(
        self, target: Target, placed: Mapping[TopicPartition, tuple[Position, Sequence[Marker]]], *, loads: bool
    ) -> Rollback | None:
        """The chains whose position may not be theirs, where the table's log cannot tell (`unknown_positions`)."""
        oldest = self._unknown_since(target)
        if oldest is None:
            return None
        others = partial(partitions_of_other_topics, self._stage.store, self._stream)
        return unknown_positions(oldest, placed, self.ids.generations, others, loads=loads)

    def of_other_topics(self, target: Target) -> tuple[Rollback, ...]:
        """The chains of other topics that a position without a topic's name may belong to (rollback.py, rule 7)."""
        oldest = self._unknown_since(target)
        if oldest is None:
            return ()
        chains = chains_of_other_topics(self._stage.store, self._stream)
        positions = dict.fromkeys(chains, Position(0))
        return (Rollback(RollbackKind.UNKNOWN, oldest, positions, generations=chains, is_unplaced=True),)

    def _unknown_since(self, target: Target) -> LoggedCommit | None:
        return self._examined[self._app_id, target.url].unknown

    def resolution(self, target: Target, back: Rollback) -> Resolution | None:
        """The operator's resolution, if there is one. Raises UsageError, StoreError."""
        path = resolution_path(self._app_id, target.table_id, back.cause.version)
        data = self._stage.store.read(path)
        return None if data is None else Resolution.from_bytes(path, data)

    def resolution_commit(self, target: Target, resolution: Resolution, new_id: NewId) -> TableCommit:
        """The commit that carries out a resolution (rule 2)."""
        positions: Mapping[TopicPartition, Position] = resolution.positions
        ids = target.ids(self.ids)
        advances = {
            ids.of(partition, resolution.generations.get(partition, 0)): int(position) - 1
            for partition, position in positions.items()
        }
        moved = {
            partition: TableChain(resolution.generations.get(partition, 0), position)
            for partition, position in positions.items()
        }
        answered = Resolved(resolution.version, resolution.decision, positions)
        metadata = CommitMetadata(
            new_id(),
            self._app_id,
            {},
            None,
            answers=answered,
            generations=resolution.generations,
            merged_by=target.identity.merged_by,
        )
        return TableCommit(
            target=target,
            app_id=self._app_id,
            files=(),
            expected={txn_id: target.transactions.get(txn_id) for txn_id in advances},
            advances=advances,
            metadata=with_identity(metadata, target, ids, moved) if target.identity.is_whole else metadata,
        )


def held_chains(chains: ChainPositions, events: Iterable[Rollback]) -> dict[TopicPartition, Held]:
    """The chains that rollbacks of the main table hold; the first of these says why."""
    waiting: dict[TopicPartition, Held] = {}
    for back in events:
        reason = held_by(chains.stream.table, chains.stream, back, {})
        waiting = dict.fromkeys(chains.waiting_for(back), reason) | waiting
    return waiting


def held_by(url: str, stream: Stream, back: Rollback, main: Mapping[TopicPartition, Position | None]) -> Held:
    """Why a stream, or a Kafka partition, waits for a resolution; ``main`` are the main table's positions."""
    is_main, app_id = url == stream.table, stream.app_id
    remedy = _remedy(url, app_id, back) if is_main else remedy_of_secondary(url, app_id, back, main)
    return Held(back.kind.value, described(url, back), remedy)


def _remedy(url: str, app_id: str, back: Rollback) -> str:
    command = f"bootstrap accept {CONFIG} --stream {quoted(app_id)}"
    if back.kind is RollbackKind.EXPIRED:
        return (
            f"remove the property (ALTER TABLE {delta_table(url)} UNSET TBLPROPERTIES "
            f"('delta.setTransactionRetentionDuration')), then `{command} --go-on --yes` sets these positions again"
        )
    if back.is_unplaced:
        partition = min(back.positions)
        return (
            f"state from which offset its records are to be loaded: `{repair('restart', partition)} --at OFFSET "
            "--give-up --yes`, where OFFSET is the first one that the table lacks (for every partition that is held "
            f"so){_not_before(back)}"
        )
    if back.kind is RollbackKind.UNKNOWN:
        return (
            f"compare the table's rows with these positions; if it has them, `{command} --go-on --yes`; if not, "
            f"`{repair('restart', min(back.positions))} --at OFFSET --give-up --yes` loads again from the first one "
            f"that it lacks, also what is staged from there on{_not_before(back)}"
        )
    lacking = "everything again, also rows that the query has kept" if back.has_selected_rows else "what it lacks again"
    return (
        f"`{command} --replay` loads {lacking}, `{command} --go-on` accepts it as it is; both "
        "only show their plan until --yes is added"
    )


def _not_before(back: Rollback) -> str:
    """The earliest time at which the command helps, as the end of a sentence; empty for at once."""
    from_ms = back.new_from_ms
    return "" if from_ms is None else f"; not before {time_text(from_ms)}, or the new chain is held for the same reason"
