"""One Kafka partition's current state: Kafka's ends, the chain in the stage, and the table's position for it."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from bootstrap.apply.stage import staged_markers
from bootstrap.plans.state import Ends, PartitionState, without_emptied
from common.errors import UsageError
from common.ports import ObjectStore
from common.remedies import quoted
from common.settings import Stream
from common.spans import Position, Span, TopicPartition
from common.stage.chain_origins import ChainOrigin, is_superseded, newest_origin
from common.stage.merged import InputEnd, ends_at, id_of_input, inputs_of, is_merged, merged_position
from common.stage.put_aside import put_aside_manifests
from common.stage.task_files import outbox_folder
from common.tables.deferred_ranges import deferred_of
from common.tables.identity import NO_IDENTITY, TableChain, TableIdentity, overlap
from common.tables.state import TableState
from common.tables.transactions import TxnIds


def partition_state(
    store: ObjectStore,
    stream: Stream,
    partition: TopicPartition,
    *,
    ends: Ends,
    table: TableState | None,
    topic_id: str | None,
    identity_of: Callable[[str], TableIdentity] = lambda _app_id: NO_IDENTITY,
    repairs: int = 0,
    cut_off: bool = False,
) -> PartitionState:
    """A partition's state; the stage is read now, the rest was looked up before. Raises StoreError and MarkerError.

    ``identity_of`` says what the positions belong to that the table has under an app_id; ``repairs`` is the number of
    the partition's last repair lock, and ``cut_off`` says whether such a repair is to be finished.
    """
    identity = identity_of(stream.app_id)
    chain_origin = newest_origin(store, partition)
    transactions = {} if table is None else table.transactions
    ids = _ids(stream, partition, chain_origin, transactions, identity)
    generation = ids.generations[partition]
    deferred = deferred_of(ids, transactions, stream.secondary_tables, [partition])
    markers = staged_markers(store, partition)
    known = identity.chains.get(partition)
    older = tuple(
        staged for staged in markers if staged.marker is not None and is_superseded(staged.marker, chain_origin)
    )
    position = ids.position(transactions, partition)
    state = PartitionState(
        partition=partition,
        app_id=stream.app_id,
        start=stream.start,
        ends=ends,
        table=position,
        staged=without_emptied((staged for staged in markers if staged not in older), position, chain_origin),
        older=older,
        chain_origin=chain_origin,
        generation=generation,
        topic_id=topic_id,
        repairs=repairs,
        cut_off=cut_off,
        loaded=identity.loaded_in_its_place(partition) if known is None else known.position,
        deferred_from=min((missing.span.start for missing in deferred), default=None),
    )
    first = next(iter(state.chain.markers), None)
    if state.table is None and first is not None and first.previous is not None:
        state = replace(state, loaded_under=identity.other_stream(partition, generation))
    foreign = _foreign(state, stream, ids, identity)
    if foreign is None:
        return replace(state, put_aside=put_aside_manifests(store, partition)) if state.is_behind_tables else state
    return _apart(store, replace(state, foreign=foreign), stream, transactions, identity_of)


def _apart(
    store: ObjectStore,
    state: PartitionState,
    stream: Stream,
    transactions: Mapping[str, int],
    identity_of: Callable[[str], TableIdentity],
) -> PartitionState:
    """The state of a chain that is not the one of the table's positions."""
    inputs, unknown = _loaded_inputs(store, state, stream, identity_of)
    chains = identity_of(stream.app_id).chains.items()
    instead = [(other, known) for other, known in chains if overlap(other, state.partition)]
    return replace(
        state,
        table=None,  # Its content is about another chain.
        deferred_from=None,
        elsewhere=_loaded_elsewhere(state, stream, transactions, identity_of, inputs),
        unknown_inputs=unknown,
        unsent=next((other for other, _ in instead if other != state.partition and _has_outboxes(store, other)), None),
        replaced_generation=max((known.generation for _, known in instead), default=0),
    )


def _has_outboxes(store: ObjectStore, partition: TopicPartition) -> bool:
    """Whether records of a chain for Kafka topics wait: an outbox that its markers or its origin name is there."""
    manifests = [staged.marker.manifest for staged in staged_markers(store, partition) if staged.marker is not None]
    origin = newest_origin(store, partition)
    named = set(() if origin is None else origin.outboxes)
    named.update(path for manifest in manifests if manifest is not None for path in manifest.outboxes)
    return bool(named) and any(item.path in named for item in store.list(outbox_folder(partition)))


def _loaded_inputs(
    store: ObjectStore, state: PartitionState, stream: Stream, identity_of: Callable[[str], TableIdentity]
) -> tuple[Mapping[TopicPartition, Position], TopicPartition | None]:
    """How far the table has each Kafka partition of a chain by chains that have others too, or not all of them.

    And a chain of several topics, if any, of which that is unknown: no marker in the stage ends at its position.
    """
    partition = state.partition
    chains = [
        (other, known.position, known.topic_id)
        for app_id in (stream.app_id, *_others(state, stream))
        for other, known in identity_of(app_id).chains.items()
        if other != partition and overlap(other, partition)
    ]
    if chains and state.table is not None:  # the chain was there before the one that is in its place
        chains.append((partition, state.table, state.chain_topic_id))
    loaded: dict[TopicPartition, Position] = {}
    unknown = None
    for chain, position, topic_ids in chains:
        ends = _ends_of(store, chain, position)
        unknown = unknown if ends else chain
        for end in ends:
            topic = end.partition.topic
            ids = (id_of_input(chain.topic, topic, topic_ids), id_of_input(partition.topic, topic, state.topic_id))
            if end.partition in inputs_of(partition) and (None in ids or ids[0] == ids[1]):
                loaded[end.partition] = max(end.position, loaded.get(end.partition, end.position))
    return loaded, unknown


def _ends_of(store: ObjectStore, chain: TopicPartition, position: Position) -> tuple[InputEnd, ...]:
    """The position of each Kafka partition at a position of which a table knows only the sum."""
    if not is_merged(chain.topic):
        return ends_at(chain, position)
    markers = (staged.marker for staged in staged_markers(store, chain) if staged.marker is not None)
    return next((ends_at(chain, marker.span.end) for marker in markers if marker.span.end == position), ())


def _loaded_elsewhere(
    state: PartitionState,
    stream: Stream,
    transactions: Mapping[str, int],
    identity_of: Callable[[str], TableIdentity],
    inputs: Mapping[TopicPartition, Position],
) -> Position | None:
    """How far the table has the chain's topic; ``inputs`` is how far it has its Kafka partitions by other chains."""
    identity = identity_of(stream.app_id)
    known = identity.chains.get(state.partition)
    loaded = [state.table] if _is_of_its_topic(state, stream, identity) else []
    if inputs and is_merged(state.partition.topic):
        lows = ends_at(state.partition, state.ends.low)
        loaded.append(
            merged_position(
                InputEnd(low.partition, max(low.position, inputs.get(low.partition, low.position))) for low in lows
            )
        )
    elif inputs:
        loaded += inputs.values()
    if known is not None and known.grew_since(state.chain_origin):
        loaded.append(known.position)
    for app_id in _others(state, stream):
        ids = _ids_under(app_id, state, stream, identity_of(app_id))
        loaded.append(ids.position(transactions, state.partition))
    return max((position for position in loaded if position is not None), default=None)


def require_even(
    state: PartitionState,
    stream: Stream,
    table: TableState | None,
    others: Mapping[str, TableState],
    identity_of: Callable[[str, str], TableIdentity],
) -> None:
    """Raise UsageError where the tables have different records under an app_id that the chain was staged for.

    Another one has more than the main table where a load was interrupted between two commits, and less where it could
    not take its part of one. Only a loader of that app_id completes either; where the table has another topic in place
    of the chain's, it has to read both. ``others`` are the stream's secondary tables, by URL; ``identity_of`` says what
    the positions in the table at a URL belong to under an app_id.
    """
    own = () if state.foreign is None else (stream.app_id,)
    for app_id in (*_others(state, stream), *own):
        is_own = app_id == stream.app_id
        completing = "let one config read all topics of its table" if is_own else f"restore the app_id {quoted(app_id)}"
        ids = _ids_under(app_id, state, stream, identity_of(stream.table, app_id))
        transactions = {} if table is None else table.transactions
        for missing in deferred_of(ids, transactions, stream.secondary_tables, [state.partition]):
            place, url = f"{missing.span} of {state.partition}", missing.url
            msg = f"under the app_id {app_id}, {stream.table} has {place}, and {url} lacks its part of that"
            raise UsageError(
                msg, f"{completing} until its loader has completed that; with --give-up, {url} never gets these records"
            )
        loaded = ids.position(transactions, state.partition)
        for url, other in others.items():
            ids = _ids_under(app_id, state, stream, identity_of(url, app_id))
            position = ids.position(other.transactions, state.partition)
            if position is None or (loaded is not None and position <= loaded):
                continue
            msg = (
                f"under the app_id {app_id}, {url} has {state.partition} up to {position}, and {stream.table} up to "
                f"{loaded or 'its beginning'}: a load was interrupted between the two"
            )
            raise UsageError(
                msg,
                f"{completing} until its loader has completed that; with --give-up, {url} gets some of its records a "
                "second time",
            )


def _ids_under(app_id: str, state: PartitionState, stream: Stream, identity: TableIdentity) -> TxnIds:
    """The ids for the chain's generation under another app_id.

    The topic that txn actions do not name may be another one under that app_id.
    """
    begun = 0 if state.chain_origin is None else state.chain_origin.generation
    return TxnIds(app_id, stream.several_topics, {state.partition: begun}, identity.plain_topic)


def _others(state: PartitionState, stream: Stream) -> tuple[str, ...]:
    return tuple(app_id for app_id in state.staged_for if app_id != stream.app_id)


def _is_of_its_topic(state: PartitionState, stream: Stream, identity: TableIdentity) -> bool:
    """Whether the table's own position is about the topic that Kafka has."""
    known = identity.chains.get(state.partition)
    if known is None or known.generation != state.generation:
        return False
    if known.topic_id is None or state.topic_id is None:
        return bool(_others(state, stream))  # a marker of another app_id says nothing against the position
    return known.topic_id == state.topic_id


def _foreign(state: PartitionState, stream: Stream, ids: TxnIds, identity: TableIdentity) -> str | None:
    """Why the staged records, or those to stage, are not of the stream and topic of the table's positions."""
    partition = state.partition
    others = _others(state, stream)
    if others:
        was = "loaded under" if others[0] == state.loaded_under else "staged for"
        return f"it was {was} the app_id {others[0]}, and the stream's is {stream.app_id}"
    generation, several = ids.generation_of(partition), stream.several_topics
    other = identity.in_its_place(partition, generation, several_topics=several, origin=state.chain_origin)
    if other is not None:
        position = identity.chains[other].position
        return f"the table {stream.table} has the positions of {other.topic} ({other} up to {position}) in its place"
    known = identity.chains.get(partition)
    return None if known is None else _other_records(known, state, stream)


def _other_records(known: TableChain, state: PartitionState, stream: Stream) -> str | None:
    """Why the chain of that name in the table is not the one in the stage."""
    begun = 0 if state.chain_origin is None else state.chain_origin.generation
    if known.grew_since(state.chain_origin):
        return (
            f"since its chain was started, the table {stream.table} has got records of it up to {known.position} by "
            f"generation {known.generation}, from another stage"
        )
    if begun < known.generation:
        return f"the table {stream.table} has generation {known.generation} of it, which this stage has not started"
    staged_id = state.chain_topic_id or state.topic_id
    if begun == known.generation and None not in {known.topic_id, staged_id} and known.topic_id != staged_id:
        return f"its topic has the id {staged_id}, but the table {stream.table} has one with the id {known.topic_id}"
    return None


def lacking_in_others(
    store: ObjectStore,
    stream: Stream,
    partition: TopicPartition,
    table: TableState | None,
    identity: TableIdentity = NO_IDENTITY,
) -> Span | None:
    """From the first record to the last that the main table has and another lacks. Raises StoreError, MarkerError."""
    transactions = {} if table is None else table.transactions
    ids = _ids(stream, partition, newest_origin(store, partition), transactions, identity)
    spans = [missing.span for missing in deferred_of(ids, transactions, stream.secondary_tables, [partition])]
    return Span(min(span.start for span in spans), max(span.end for span in spans)) if spans else None


def table_position(
    store: ObjectStore,
    stream: Stream,
    partition: TopicPartition,
    table: TableState | None,
    identity: TableIdentity = NO_IDENTITY,
) -> Position | None:
    """The next position that the table wants. Raises StoreError and MarkerError."""
    transactions = {} if table is None else table.transactions
    return _ids(stream, partition, newest_origin(store, partition), transactions, identity).position(
        transactions, partition
    )


def _ids(
    stream: Stream,
    partition: TopicPartition,
    chain_origin: ChainOrigin | None,
    transactions: Mapping[str, int],
    identity: TableIdentity,
) -> TxnIds:
    begun = {} if chain_origin is None else {partition: chain_origin.generation}
    ids = TxnIds(stream.app_id, stream.several_topics, plain_topic=identity.plain_topic)
    return ids.at(begun, transactions, [partition])
