"""How long staged markers have waited to be loaded, by the stage's listing and the tables' positions."""

from collections.abc import Collection, Mapping

from common.settings import Stream
from common.spans import Offset, position_after
from common.tables.deferred_ranges import DeferredRanges
from common.tables.identity import NO_IDENTITY, TableIdentity
from common.tables.state import TableState
from common.tables.transactions import TxnIds
from common.tables.urls import comparable
from delta_loader.stage.reading import Stage


def oldest_waiting_ms(
    stage: Stage, stream: Stream, state: TableState | None, identity: TableIdentity = NO_IDENTITY
) -> int | None:
    """When the oldest marker was written that not all of the stream's tables have, or None.

    ``state`` is that of the stream's main table, ``identity`` that of its positions. Raises StoreError.
    """
    listing, transactions = stage.listing(stream), {} if state is None else state.transactions
    ids = TxnIds(stream.app_id, stream.several_topics, plain_topic=identity.plain_topic)
    ids = ids.at(stage.generations(stream), transactions, listing)
    deferred = DeferredRanges.read(transactions)
    written: list[int] = []
    for partition, listed in listing.items():
        position = ids.position(transactions, partition)
        position = None if position is None else deferred.floor(ids, stream.secondary_tables, partition, position)
        written += [listed.modified_ms[name] for name in listed.names if position is None or name.start >= position]
    return min(written, default=None)


def oldest_of_no_stream_ms(
    stage: Stage, streams: Collection[Stream], url: str, transactions: Mapping[str, int]
) -> int | None:
    """When the oldest marker with files for the table was written, in chains that none of the streams takes.

    These are chains of removed streams, or of another config. Only chains whose newest marker has files for the table
    count. Raises StoreError.
    """
    written: list[int] = []
    for listed, newest in stage.of_no_stream(streams):
        if comparable(url) in {comparable(table.url) for table in newest.tables}:
            ids = TxnIds(newest.app_id, several_topics=False, generations={listed.partition: newest.generation})
            last = max((transactions[name] for name in ids.names(listed.partition) if name in transactions), default=-1)
            position = position_after(Offset(last))
            written += [ms for name, ms in listed.modified_ms.items() if name.start >= position]
    return min(written, default=None)
