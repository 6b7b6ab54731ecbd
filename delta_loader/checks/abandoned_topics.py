"""Chains in the stage of topics that their stream no longer takes: records that are not loaded unless an operator acts.

Rules:

1. A topic that is removed from `topics` leaves the stream. Another topic in its place has its own chain and txn ids,
   and starts at its own start (common/tables/transactions.py, rule 3).
2. Markers of the removed topic that are not in all of the stream's tables stay: nothing settles them, and `clean`
   removes no file that they name. They are reported until they are loaded or deleted.
3. A marker names the stream that it was staged for. Markers of streams of other configs, which may share the stage,
   belong to them; markers that do not name it, such as those made by hand, are ignored.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from common.errors import KafkaDeltaExpressError
from common.remedies import CONFIG
from common.stage.markers import DONE
from common.stage.merged import topics_of
from common.tables.deferred_ranges import DeferredRanges
from common.tables.delta_log import read_table_state
from common.tables.stream_history import read_identity
from common.tables.transactions import TxnIds
from delta_loader.check_result import Check, Level

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from common.settings import Stream
    from common.spans import TopicPartition
    from common.stage.markers import Manifest
    from delta_loader.ports import OpenStore
    from delta_loader.stage.listed import Listed
    from delta_loader.stage.reading import Stage


def abandoned_topics(
    stage: Stage, streams: Sequence[Stream], open_store: OpenStore, app_id: str | None = None
) -> Iterator[Check]:
    """An error for each topic with waiting markers, of all streams or one. Raises StoreError for the stage.

    ``streams`` are all of the config.
    """
    chains = list(stage.of_no_stream(streams))
    for stream in streams:
        own = [(listed, manifest) for listed, manifest in chains if manifest.app_id == stream.app_id]
        if own and app_id in {None, stream.app_id}:
            with suppress(KafkaDeltaExpressError):  # a table that cannot be read is reported by its own check
                yield from _checks(stream, own, open_store)


def _checks(stream: Stream, chains: Iterable[tuple[Listed, Manifest]], open_store: OpenStore) -> Iterator[Check]:
    store = open_store(stream.table)
    state = read_table_state(store)
    identity = read_identity(stream, state, store)
    transactions = {} if state is None else state.transactions
    ids = TxnIds(stream.app_id, several_topics=True, plain_topic=identity.plain_topic)
    deferred = DeferredRanges.read(transactions)
    waiting: dict[str, dict[TopicPartition, int]] = {}
    for listed, newest in chains:
        known = identity.chains.get(listed.partition)
        if known is not None and known.generation > newest.generation:
            continue  # of a deleted topic: strays
        current_ids = replace(ids, generations={listed.partition: newest.generation})
        position = current_ids.position(transactions, listed.partition)
        if position is not None:
            position = deferred.floor(current_ids, stream.side_tables, listed.partition, position)
        if position is None or newest.span.end > position:
            waiting.setdefault(str(listed.partition.topic), {})[listed.partition] = max(1, listed.waiting(position))
    for topic, markers in waiting.items():
        yield _check(stream, topic, markers)


def _check(stream: Stream, topic: str, markers: Mapping[TopicPartition, int]) -> Check:
    first, count = min(markers), sum(markers.values())
    more = f" and {len(markers) - 1:,} more" if len(markers) > 1 else ""
    named = ", ".join(
        [*stream.topics, *(chain_input for chain_input in topics_of(topic) if chain_input not in stream.topics)]
    )
    return Check(
        "topics",
        Level.ERROR,
        f"{stream.app_id}: {count:,} markers of {first}{more} were staged for it and are not in its tables yet, but "
        f"its topics are {', '.join(stream.topics)}, so they are never loaded",
        f"set topics: [{named}] until `delta-loader status {CONFIG}` shows no lag of {topic}; or, to give up its "
        f"records, delete {DONE}/{topic}/ from the stage",
        stream.app_id,
    )
