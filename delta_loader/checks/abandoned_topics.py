"""Chains in the stage of topics that their stream no longer takes: records that are not loaded unless an operator acts.

Rules:

1. A topic that is removed from `topics` leaves the stream. Another topic in its place has its own chain and txn ids,
   and starts at its own start (common/tables/transactions.py, rule 3).
2. Where the table's log has lost the stream's commits, a position that names no topic may be the removed topic's. As a
   new chain its records would be in the table twice, so the loader holds it (common/tables/rollback.py, rule 7), and
   only a look at the table tells.
3. Markers of the removed topic that are not in all of the stream's tables stay: nothing settles them, and `clean`
   removes no file that they name. They are reported until they are loaded or deleted.
4. A marker names the stream that it was staged for. Markers of streams of other configs, which may share the stage,
   belong to them; markers that do not name it, such as those made by hand, are ignored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from common.errors import KafkaDeltaExpressError
from common.remedies import CONFIG
from common.settings import Stream
from common.settings.load import in_line
from common.sizes import agreeing, counted
from common.spans import TopicPartition
from common.stage.markers import DONE, Manifest
from common.stage.merged import topics_of
from common.tables.deferred_ranges import DeferredRanges
from common.tables.delta_log import read_table_state
from common.tables.identity import NO_IDENTITY
from common.tables.stream_history import read_stream_history
from common.tables.transactions import TxnIds
from delta_loader.check_result import Check, StreamChecks
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
    history = None if state is None else read_stream_history(stream, state, store)
    identity = NO_IDENTITY if history is None or state is None else history.identity(state.transactions)
    is_cut = history is not None and history.unknown_since is not None
    transactions = {} if state is None else state.transactions
    ids = TxnIds(stream.app_id, several_topics=True, plain_topic=identity.plain_topic)
    deferred = DeferredRanges.read(transactions)
    waiting: dict[tuple[str, bool], dict[TopicPartition, int]] = {}
    for listed, newest in chains:
        known = identity.chains.get(listed.partition)
        if known is not None and known.generation > newest.generation:
            continue  # of a deleted topic: strays
        current_ids = replace(ids, generations={listed.partition: newest.generation})
        position = current_ids.position(transactions, listed.partition)
        if position is not None:
            position = deferred.floor(current_ids, stream.secondary_tables, listed.partition, position)
        if position is None or newest.span.end > position:
            is_unproved = is_cut or (listed.partition, newest.generation) in identity.unproved
            of_topic = waiting.setdefault((str(listed.partition.topic), position is None and is_unproved), {})
            of_topic[listed.partition] = max(1, listed.waiting(position))
    for (topic, may_be_loaded), markers in waiting.items():
        yield _check(stream, topic, markers, may_be_loaded=may_be_loaded)


def _check(stream: Stream, topic: str, markers: Mapping[TopicPartition, int], *, may_be_loaded: bool) -> Check:
    first, count = min(markers), sum(markers.values())
    more = f" and {len(markers) - 1:,} more" if len(markers) > 1 else ""
    named = in_line(_topics_with(stream, topic))
    load = f"set topics: {named} until `delta-loader status {CONFIG}` shows no lag of {topic}"
    give_up = f"delete {DONE}/{topic}/ from the stage"
    state = f"{agreeing(count, 'is', 'are')} not in its tables yet"
    remedy = f"{load}; or, if no other config reads {topic} and its records may be given up, {give_up}"
    if may_be_loaded:
        state = "may be in its tables or not: their log no longer says which"
        remedy = (
            f"look for its last records in {stream.table}: if they are there, {give_up}; if not, {load}, and start it "
            "with the command that is shown there"
        )
    text = (
        f"{counted(count, 'marker')} of {first}{more} {agreeing(count, 'was', 'were')} staged for it and {state}, but "
        f"its topics are {', '.join(stream.topics)}, so {agreeing(count, 'it is', 'they are')} not loaded"
    )
    return StreamChecks(stream.app_id).error("topics", text, remedy)


def _topics_with(stream: Stream, chain: str) -> list[str]:
    """The `topics` that take the chain's topics too: names, or one regular expression."""
    missing = [topic for topic in topics_of(chain) if not stream.reads(topic)]
    if stream.pattern is None:
        return [*stream.topics, *missing]
    exact = ("^" + topic.replace(".", r"\.") + "$" for topic in missing)  # nothing else in a name means anything else
    return ["|".join([*stream.topics, *exact])]
