"""One Kafka partition as the tool finds it: Kafka's ends, the chain in the stage, and the table's position for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bootstrap.core.state import PartitionState
from bootstrap.shell.stage import beginning_of, staged_markers
from common.tables.debts import debts_of
from common.tables.transactions import TxnIds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bootstrap.core.state import Ends
    from common.ports import ObjectStore
    from common.settings import Stream
    from common.spans import Position, TopicPartition
    from common.stage.beginnings import Beginning
    from common.tables.delta_log import TableState


def partition_state(
    store: ObjectStore,
    stream: Stream,
    source: TopicPartition,
    *,
    ends: Ends,
    table: TableState | None,
    topic_id: str | None,
) -> PartitionState:
    """The stage is read here and now; the rest was looked up before. Raises StoreError and MarkerError."""
    beginning = beginning_of(store, source)
    transactions = {} if table is None else table.transactions
    ids = _ids(stream, source, beginning, transactions)
    generation = ids.generations[source]
    debts = debts_of(ids, transactions, stream.side_tables, [source])
    markers = staged_markers(store, source)
    older = tuple(found for found in markers if found.marker is not None and found.marker.is_older_than(generation))
    return PartitionState(
        source=source,
        app_id=stream.app_id,
        start=stream.start,
        ends=ends,
        table=ids.position(transactions, source),
        staged=tuple(found for found in markers if found not in older),
        older=older,
        beginning=beginning,
        generation=generation,
        topic_id=topic_id,
        owed_from=min((debt.owed.start for debt in debts), default=None),
    )


def table_position(
    store: ObjectStore, stream: Stream, source: TopicPartition, table: TableState | None
) -> Position | None:
    """The next position that the table wants. Raises StoreError and MarkerError."""
    transactions = {} if table is None else table.transactions
    return _ids(stream, source, beginning_of(store, source), transactions).position(transactions, source)


def _ids(
    stream: Stream, source: TopicPartition, beginning: Beginning | None, transactions: Mapping[str, int]
) -> TxnIds:
    begun = {} if beginning is None else {source: beginning.generation}
    return TxnIds(stream.app_id, stream.several_topics).at(begun, transactions, [source])
