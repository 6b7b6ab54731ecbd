"""How long staged markers have waited to be loaded, by the stage's listing and the tables' positions."""

from common.settings import Stream
from common.tables.deferred_ranges import DeferredRanges
from common.tables.identity import NO_IDENTITY, TableIdentity
from common.tables.state import TableState
from common.tables.transactions import TxnIds
from delta_loader.stage.reading import Stage


def oldest_waiting_ms(
    stage: Stage, stream: Stream, state: TableState | None, identity: TableIdentity = NO_IDENTITY
) -> int | None:
    """When the oldest marker was written that not all of the stream's tables have; None when there is none.

    ``state`` is that of the stream's main table, ``identity`` that of its positions. Raises StoreError.
    """
    listing, transactions = stage.listing(stream), {} if state is None else state.transactions
    ids = TxnIds(stream.app_id, stream.several_topics, plain_topic=identity.plain_topic)
    ids = ids.at(stage.generations(stream), transactions, listing)
    deferred = DeferredRanges.read(transactions)
    written: list[int] = []
    for partition, listed in listing.items():
        position = ids.position(transactions, partition)
        position = None if position is None else deferred.floor(ids, stream.side_tables, partition, position)
        written += [listed.modified_ms[name] for name in listed.names if position is None or name.start >= position]
    return min(written, default=None)
