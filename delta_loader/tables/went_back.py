"""The loader's look at whether its tables went back, and how it obeys an operator's answer.

Rules:

1. Every look at the tables looks at their histories too. A stream with a table that went back is held as a whole:
   nothing is loaded and nothing is settled for it, until an answer lies in the stage (common/stage/answers.py).
2. An answer is obeyed by one commit to that table, which sets the txn actions back (`replay`) or leaves them (`go_on`),
   and says in its metadata which event it answers. So it is obeyed once, whoever tries it and however often.
3. Kafka partitions without a txn action are held one by one, when the history says that they had one, or when nothing
   but a table that is gone could have had the beginning of their chain.
4. How far a table's history was looked at is kept in memory only to save reading it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from common.remedies import CONFIG, quoted
from common.stage.answers import Answer, answer_path
from common.tables.commit_metadata import Answered, CommitMetadata, Decision
from common.tables.identity import KnownChain, TableIdentity, identity_of
from common.tables.went_back import Kind, OwnPast, WentBack, described, own_past, went_back, without_txn
from delta_loader.core.commits import TableCommit, with_identity
from delta_loader.core.held import Held

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from common.settings import Stream
    from common.spans import Position, TopicPartition
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


Looked = dict[tuple[str, str], Examined]
"""By stream and table URL."""


class LookBack:
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

    def look(self, target: Target) -> tuple[Target, WentBack | None]:
        """The table with what its positions belong to, and how it went back, if it did. Raises TableError."""
        if target.version is None:
            return target, None
        place, known = (self._app_id, target.url), self._looked.get((self._app_id, target.url))
        if known is not None and known.table_id == target.table_id and known.version == target.version:
            return replace(target, identity=known.identity), None
        back = went_back(self._tables.history(target.url, target.version), self._app_id)
        history = self._tables.history(target.url, target.version)
        identity = identity_of(history, self._stream, self.ids, target.transactions)
        if back is None:
            self._looked[place] = Examined(target.table_id, target.version, identity)
        return replace(target, identity=identity), back

    def landed(self, target: Target) -> None:
        """A commit of ours is in the table, right after the version that was looked at."""
        if target.version is not None:
            self._looked[self._app_id, target.url] = Examined(target.table_id, target.version, target.identity)

    def without_txn(
        self, target: Target, unplaced: Iterable[TopicPartition], rootless: Iterable[TopicPartition]
    ) -> tuple[WentBack, ...]:
        """Why Kafka partitions that are staged have no position in the table (rule 3)."""
        unplaced = list(unplaced)
        if target.version is None or not unplaced:
            return ()
        key = target.url, target.version
        if key not in self._pasts:
            self._pasts[key] = own_past(self._tables.history(target.url, target.version), self._app_id)
        return without_txn(self._pasts[key], unplaced, rootless, self.ids.generations)

    def answer(self, target: Target, back: WentBack) -> Answer | None:
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
            metadata=with_identity(metadata, target, ids, moved),
        )


def held_by(url: str, app_id: str, back: WentBack) -> Held:
    """Why a stream, or a Kafka partition, waits for an answer."""
    return Held(back.kind.value, described(url, back), _remedy(app_id, back))


def _remedy(app_id: str, back: WentBack) -> str:
    command = f"bootstrap accept {CONFIG} --stream {quoted(app_id)}"
    if back.kind is Kind.EXPIRED:
        return (
            f"unset the property (ALTER TABLE … UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration')), then "
            f"`{command} --{Decision.GO_ON.value.replace('_', '-')}` sets these positions again"
        )
    return (
        f"`{command} --replay` loads again what it lacks, `{command} --go-on` says that it is right as it is; both "
        "only show what they would do, until --yes is added"
    )
