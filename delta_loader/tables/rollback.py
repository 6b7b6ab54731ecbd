"""The loader's look at whether its tables went back, and how it obeys an operator's answer.

Rules:

1. Every look at the tables looks at their histories too. A stream with a table that went back is held as a whole:
   nothing is loaded and nothing is settled for it, until an answer lies in the stage (common/stage/answers.py).
2. An answer is obeyed by one commit to that table, which sets the txn actions back (`replay`) or leaves them (`go_on`),
   and says in its metadata which event it answers. So it is obeyed once, whoever tries it and however often.
3. Kafka partitions without a txn action are held one by one, when the history says that they had one, or when nothing
   but a table that is gone could have had the beginning of their chain.
4. How far a table's history was looked at is kept in memory only to save reading it again: of a table that others
   commit to, a stream that is idle reads what is new, and not all since its own last commit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from common.remedies import CONFIG, delta_table, quoted, repair
from common.stage.answers import Answer, answer_path
from common.tables.commit_metadata import Answered, CommitMetadata
from common.tables.history import Replayed
from common.tables.identity import KnownChain, TableIdentity, identity_of, with_transactions
from common.tables.rollback import (
    MOST_COMMITS,
    Kind,
    OwnPast,
    Rollback,
    described,
    find_rollback,
    own_past,
    unknown_positions,
    unknown_since,
    without_txn,
)
from delta_loader.core.commits import TableCommit, with_identity
from delta_loader.core.held import Held

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from common.settings import Stream
    from common.spans import Position, TopicPartition
    from common.stage.markers import Marker
    from common.tables.history import LoggedCommit
    from common.tables.transactions import TxnIds
    from delta_loader.core.commits import Target
    from delta_loader.ports import DeltaTables, NewId
    from delta_loader.stage.reading import Stage


@dataclass(frozen=True, slots=True)
class Examined:
    """What is known of a table's history: of what one stream loaded, for streams may share a table."""

    table_id: str
    version: int
    """Up to which nothing had gone back."""
    identity: TableIdentity
    unknown: LoggedCommit | None = None
    """The log's oldest commit, where it has none of the stream's (common/tables/rollback.py, rule 6)."""


Looked = dict[tuple[str, str], Examined]
"""By stream and table URL."""


class RollbackDetector:
    """What one pass over one stream sees of its tables' histories."""

    def __init__(self, stream: Stream, ids: TxnIds, tables: DeltaTables, stage: Stage, looked: Looked) -> None:
        """Touches nothing yet; ``looked`` is kept from pass to pass."""
        self._stream = stream
        self._app_id = stream.app_id
        self.ids = ids
        """Of the chains' newest generations, once they are known."""
        self._tables = tables
        self._stage = stage
        self._looked = looked
        self._pasts: dict[tuple[str, int], OwnPast] = {}

    def look(self, target: Target) -> tuple[Target, Rollback | None]:
        """The table with what its positions belong to, and how it went back, if it did. Raises TableError."""
        if target.version is None:
            return target, None
        place, known = (self._app_id, target.url), self._looked.get((self._app_id, target.url))
        if known is not None and known.table_id == target.table_id and known.version == target.version:
            return replace(target, identity=known.identity), None
        if known is not None and known.table_id == target.table_id and self._is_of_others(target, known.version):
            identity = with_transactions(known.identity, self._stream, self.ids, target.transactions)
            self._looked[place] = replace(known, version=target.version, identity=identity)
            return replace(target, identity=identity), None
        history = Replayed(self._history(target))
        back = find_rollback(history, self._app_id)
        identity = identity_of(history, self._stream, self.ids, target.transactions)
        if back is None:
            unknown = unknown_since(history, self._app_id)
            self._looked[place] = Examined(target.table_id, target.version, identity, unknown)
        return replace(target, identity=identity), back

    def _history(self, target: Target) -> Iterator[LoggedCommit]:
        """The table's; of one in which the stream has no position, no more than is read for what expired."""
        history = self._tables.history(target.url, target.version or 0)
        is_there = any(name.startswith(f"{self._app_id}-") for name in target.transactions)
        return history if is_there else islice(history, MOST_COMMITS)

    def _is_of_others(self, target: Target, version: int) -> bool:
        """Whether what came after a version that was looked at is of no consequence here: rows of others, or order."""
        for commit in self._tables.history(target.url, target.version or 0):
            if commit.version <= version:
                return commit.version == version
            is_own = commit.metadata is not None and commit.metadata.app_id == self._app_id
            if is_own or commit.is_restore or commit.is_replace:
                return False
        return False

    def landed(self, target: Target) -> None:
        """A commit of ours is in the table, right after the version that was looked at."""
        if target.version is not None:
            self._looked[self._app_id, target.url] = Examined(target.table_id, target.version, target.identity)

    def without_txn(
        self,
        target: Target,
        unplaced: Iterable[TopicPartition],
        rootless: Iterable[TopicPartition],
        first_ms: Mapping[TopicPartition, int],
    ) -> tuple[Rollback, ...]:
        """Why Kafka partitions that are staged have no position in the table (rule 3)."""
        unplaced = list(unplaced)
        if target.version is None or not unplaced:
            return ()
        key = target.url, target.version
        if key not in self._pasts:
            wanted = [(source, self.ids.generation_of(source)) for source in unplaced]
            since_ms = min(first_ms.values()) if {*unplaced} == first_ms.keys() else None
            history = self._tables.history(target.url, target.version)
            self._pasts[key] = own_past(history, self._app_id, wanted, since_ms)
        return without_txn(self._pasts[key], unplaced, rootless, self.ids.generations, first_ms)

    def unknown(
        self, target: Target, placed: Mapping[TopicPartition, tuple[Position, Sequence[Marker]]]
    ) -> Rollback | None:
        """The chains whose position may be that of a table that went back, where its log does not tell."""
        known = self._looked.get((self._app_id, target.url))
        if known is None or known.unknown is None:
            return None
        return unknown_positions(known.unknown, placed, self.ids.generations)

    def answer(self, target: Target, back: Rollback) -> Answer | None:
        """The operator's answer, if there is one. Raises UsageError, StoreError."""
        path = answer_path(self._app_id, target.table_id, back.cause.version)
        data = self._stage.object(path)
        return None if data is None else Answer.from_bytes(path, data)

    def obedience(self, target: Target, answer: Answer, new_id: NewId) -> TableCommit:
        """The commit that carries an answer out (rule 2)."""
        positions: Mapping[TopicPartition, Position] = answer.positions
        ids = target.ids(self.ids)
        advances = {
            ids.of(source, answer.generations.get(source, 0)): int(position) - 1
            for source, position in positions.items()
        }
        moved = {
            source: KnownChain(answer.generations.get(source, 0), position) for source, position in positions.items()
        }
        answered = Answered(answer.version, answer.decision, positions)
        metadata = CommitMetadata(new_id(), self._app_id, {}, None, answers=answered, generations=answer.generations)
        return TableCommit(
            target=target,
            app_id=self._app_id,
            files=(),
            expected={txn_id: target.transactions.get(txn_id) for txn_id in advances},
            advances=advances,
            metadata=with_identity(metadata, target, ids, moved) if target.identity.is_whole else metadata,
        )


def held_by(url: str, app_id: str, back: Rollback) -> Held:
    """Why a stream, or a Kafka partition, waits for an answer."""
    return Held(back.kind.value, described(url, back), _remedy(url, app_id, back))


def _remedy(url: str, app_id: str, back: Rollback) -> str:
    command = f"bootstrap accept {CONFIG} --stream {quoted(app_id)}"
    if back.kind is Kind.EXPIRED:
        return (
            f"unset the property (ALTER TABLE {delta_table(url)} UNSET TBLPROPERTIES "
            f"('delta.setTransactionRetentionDuration')), then `{command} --go-on --yes` sets these positions again"
        )
    if back.kind is Kind.UNKNOWN and back.is_unplaced:
        source = min(back.positions)
        return (
            f"say from which offset on its records are to be loaded: `{repair('restart', source)} --at OFFSET --yes`, "
            "where OFFSET is the first one that the table lacks (for every partition that is held so)"
        )
    if back.kind is Kind.UNKNOWN:
        return (
            f"compare the table's rows with these positions; if it has them, `{command} --go-on --yes`; if not, "
            f"`{repair('restart', min(back.positions))} --at OFFSET --yes` loads again from the first one that it lacks"
        )
    return (
        f"`{command} --replay` loads again what it lacks, `{command} --go-on` says that it is right as it is; both "
        "only show what they would do, until --yes is added"
    )
