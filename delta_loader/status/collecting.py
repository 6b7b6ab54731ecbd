"""Collects the content of ``delta-loader status`` from the stage, the tables' logs, and Kafka. Needs no Spark.

Rule: a stream whose table cannot be read, or a Kafka that does not answer in time, never hides the other streams.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from common.errors import KafkaDeltaExpressError
from common.settings.catalog import name_of_table
from common.stage.evolved import latest
from common.stage.failures import last_failure
from common.stage.idle import stream_fact
from common.stage.markers import Marker
from common.stage.merged import ids_together, topics_of, with_chains
from common.stage.paused import StreamPart, pause_of
from common.tables.deferred_ranges import deferred_of
from common.tables.delta_log import read_table_state
from common.tables.identity import NO_IDENTITY
from common.tables.stream_history import StreamHistory, read_stream_history
from common.tables.transactions import TxnIds
from common.tables.urls import comparable
from delta_loader.check_result import Check, Level
from delta_loader.checks.requirements import table_checks
from delta_loader.load.merged import repair_of
from delta_loader.load.rollback import held_by
from delta_loader.load.settle import unknown_partitions
from delta_loader.plan.held import (
    gone_from_kafka,
    held,
    missing_file,
    staged_from,
    topic_recreated,
    topic_truncated,
    unknown_partition,
)
from delta_loader.plan.partition_progress import undeclared_of, violations_of
from delta_loader.plan.plan import ForeignMarker, MissingOrigin, Overlap, Run, next_run, require_splittable
from delta_loader.stage.identity import StreamIdentity
from delta_loader.status.values import Aside, PartitionStatus, StreamStatus
from delta_loader.tables.load_modes.load_mode import choose_load_mode
from delta_loader.tables.valid_through import valid_through_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from common.settings import Stream
    from common.spans import Position, Topic, TopicPartition
    from common.stage.chain_origins import ChainOrigin
    from common.stage.evolved import Gained
    from common.stage.failures import LastFailure
    from common.stage.markers import MarkerName
    from common.tables.state import TableState
    from delta_loader.plan.held import Held
    from delta_loader.plan.plan import AnyMarker, NextRun
    from delta_loader.ports import EndsOf, OpenStore
    from delta_loader.stage.listed import Listed, Listing
    from delta_loader.stage.reading import Stage

_WINDOW = 16  # unloaded markers read per Kafka partition: enough to determine why it does not move


TopicIds: TypeAlias = "Callable[[Collection[Topic]], Mapping[Topic, str | None]]"
"""The ids of the topics that the broker has; empty when Kafka does not answer in time."""
Firsts: TypeAlias = "Callable[[Collection[TopicPartition]], Mapping[TopicPartition, Position]]"
"""The positions of the first records that Kafka still has, for the partitions where that is known."""


def _no_topic_ids(_topics: Collection[Topic]) -> Mapping[Topic, str | None]:
    return {}


def _no_first_positions(_sources: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
    return {}


def stream_status(
    stream: Stream,
    stage: Stage,
    open_store: OpenStore,
    kafka_ends: EndsOf,
    topic_ids: TopicIds = _no_topic_ids,
    *,
    firsts: Firsts = _no_first_positions,
    left: Iterable[Check] = (),
) -> StreamStatus:
    """The status of one stream; ``left`` is the result of `abandoned_topics` for it."""
    try:
        ends = kafka_ends(stream) or {}
        ids = topic_ids({topic for partition in ends for topic in topics_of(partition.topic)}) if ends else {}
        kafka = KafkaSnapshot(ends, firsts(ends), ids, lambda: kafka_ends(stream) or {})
        status = _stream_status(stream, stage, open_store, kafka)
        pauses = [pause_of(stage.store, part, stream.app_id) for part in StreamPart]
        return replace(
            status, unfit=(*status.unfit, *left), pauses=tuple(pause for pause in pauses if pause is not None)
        )
    except KafkaDeltaExpressError as error:
        code, note = error.exit_code, _last_failure(stage, stream)
        return StreamStatus(
            stream.app_id, stream.table, None, None, (), failure=error.problem, failure_code=code, last_failure=note
        )


def _waits(
    stage: Stage,
    partition: TopicPartition,
    positions: Mapping[TopicPartition, Position | None],
    listing: Listing,
    waiting: Mapping[TopicPartition, Held],
) -> Held | None:
    start = listing[partition].names[0].start
    return waiting.get(partition) or repair_of(stage.store, partition, positions[partition], start)


def _last_failure(stage: Stage, stream: Stream) -> LastFailure | None:
    try:
        return last_failure(stage.store, stream.app_id)
    except KafkaDeltaExpressError:
        return None  # the stage is unavailable, which is reported already


@dataclass(frozen=True, slots=True)
class KafkaSnapshot:
    """Kafka's information about a stream's partitions."""

    ends: Mapping[TopicPartition, Position]
    firsts: Mapping[TopicPartition, Position]
    topic_ids: Mapping[Topic, str | None]
    ends_now: Callable[[], Mapping[TopicPartition, Position]]
    """Reads the ends again: records staged since the first answer are not ahead of Kafka."""


def _stream_status(stream: Stream, stage: Stage, open_store: OpenStore, kafka: KafkaSnapshot) -> StreamStatus:
    listing, stream = stage.listing(stream), stage.appeared(stream)  # in this order, as a loader does
    ends = with_chains(kafka.ends, listing)
    state = read_table_state(open_store(stream.table))
    known = sorted({*listing, *ends})
    transactions = {} if state is None else state.transactions
    histories, identities = {}, {}
    for url in stream.tables:
        table = state if url == stream.table else read_table_state(open_store(url))
        if table is not None:
            histories[url] = read_stream_history(stream, table, open_store(url))
            identities[url] = histories[url].identity(table.transactions)
    origins = stage.origins(stream)
    begun = {partition: origin.generation for partition, origin in origins.items()}
    own = identities.get(stream.table, NO_IDENTITY)
    ids = TxnIds(stream.app_id, stream.several_topics, plain_topic=own.plain_topic).at(begun, transactions, known)
    positions = {partition: ids.position(transactions, partition) for partition in known}
    wanted = {partition: _wanted(listed, positions[partition]) for partition, listed in listing.items()}
    tables = {comparable(url): url for url in reversed(stream.tables)}
    read = stage.read(listing, [name for names in wanted.values() for name in names], tables)
    identity = StreamIdentity(stream, ids, origins, identities, transactions)
    markers_of = {
        partition: identity.younger(partition, (marker for name in names for marker in read.get(name, ())))
        for partition, names in wanted.items()
    }
    outcomes = {
        partition: _outcome(stream, positions[partition], markers_of.get(partition, []), origins.get(partition))
        for partition in known
    }
    lacking = _lacking_a_file(stream, stage, open_store, outcomes, positions)
    waiting = _waiting_for_resolution(stream, state, histories, ids, markers_of)
    unknown = {
        partition: unknown_partition(partition, _paths(markers_of[partition], listing[partition]))
        for partition in unknown_partitions(markers_of, stream_fact(stream.app_id, 0, ends))
    }
    partitions = tuple(
        _partition_status(
            partition,
            listed=listing.get(partition),
            position=None if _has_foreign(markers_of.get(partition, ())) else positions[partition],
            near_markers=markers_of.get(partition, []),
            kafka_end=ends.get(partition),
            ends_now=kafka.ends_now,
            why=unknown.get(partition)
            or (_waits(stage, partition, positions, listing, waiting) if partition in listing else None)
            or held(partition, outcomes[partition], stream.table if state is None else None)
            or lacking.get(partition),
            topic_id=ids_together(partition.topic, kafka.topic_ids),
            first=kafka.firsts.get(partition),
        )
        for partition in known
    )
    return StreamStatus(
        app_id=stream.app_id,
        last_failure=_last_failure(stage, stream),
        table=stream.table,
        version=None if state is None else state.version,
        load_mode=None if state is None else choose_load_mode(state, stream.load),
        partitions=partitions,
        aside=Aside(*stage.aside(stream)),
        deferred=deferred_of(ids, transactions, stream.side_tables, known),
        unfit=tuple(_unfit(stream, state, open_store)),
        gained=_gained(stream, stage),
        appeared=stage.routes(stream),
        valid_through_ms=None if state is None else valid_through_of(histories[stream.table].commits, stream.app_id),
        undeclared=undeclared_of(marker for markers in markers_of.values() for marker in markers),
        violations=violations_of(marker for markers in markers_of.values() for marker in markers),
        drops_on_purpose=stream.record.drops_on_purpose,
        name=name_of_table(stream.catalog_tables, stream.table),
    )


def _paths(markers: Iterable[AnyMarker], listed: Listed) -> Iterator[str]:
    return (path for marker in markers for path in listed.paths(marker.name))


def _gained(stream: Stream, stage: Stage) -> tuple[Gained, ...]:
    evolved = latest(stage.store, stream.app_id) if stream.evolves else None
    return () if evolved is None else evolved.gained


def _has_foreign(markers: Iterable[AnyMarker]) -> bool:
    """Whether staged markers belong to something other than the table's position."""
    return any(isinstance(marker, ForeignMarker) for marker in markers)


def _unfit(stream: Stream, state: TableState | None, open_store: OpenStore) -> Iterator[Check]:
    """The incompatibilities of the stream's main table, and of those that have their own columns."""
    others = dict.fromkeys(url for url, _ in stream.routing.sections.values())
    tables = [(stream.table, state), *((url, read_table_state(open_store(url))) for url in others)]
    return (
        check
        for url, table_state in tables
        for check in table_checks(stream, table_state, url)
        if check.level is Level.ERROR
    )


def _wanted(listed: Listed, position: Position | None) -> Sequence[MarkerName]:
    window = list(listed.window_at(position, _WINDOW))
    return window if listed.names[-1] in window else [*window, listed.names[-1]]


def _outcome(
    stream: Stream, position: Position | None, markers: Sequence[AnyMarker], origin: ChainOrigin | None
) -> NextRun:
    outcome = next_run(position, markers, None if origin is None else origin.position)
    return require_splittable(outcome, stream.row_tables, kafka_columns=stream.kafka_columns)


def _lacking_a_file(
    stream: Stream,
    stage: Stage,
    open_store: OpenStore,
    outcomes: Mapping[TopicPartition, NextRun],
    positions: Mapping[TopicPartition, Position | None],
) -> Mapping[TopicPartition, Held]:
    """Kafka partitions whose next marker lacks a file that the main table needs, as the loader holds them.

    A secondary table may have had its part already, and what happened to those files then does not matter.
    """
    following = {
        partition: outcome.markers[0] for partition, outcome in outcomes.items() if isinstance(outcome, Run | Overlap)
    }
    files = {
        partition: [file for table in marker.tables if table.url == stream.table for file in table.files]
        for partition, marker in following.items()
    }
    gone = stage.lacking(files, open_store(stream.table))
    return {
        partition: missing_file(
            partition, following[partition].span.start, path, stream.table if positions[partition] is None else None
        )
        for partition, path in gone.items()
    }


def _partition_status(
    partition: TopicPartition,
    *,
    listed: Listed | None,
    position: Position | None,
    near_markers: Sequence[AnyMarker],
    kafka_end: Position | None,
    ends_now: Callable[[], Mapping[TopicPartition, Position]],
    why: Held | None,
    topic_id: str | None,
    first: Position | None,
) -> PartitionStatus:
    markers = [marker for marker in near_markers if isinstance(marker, Marker)]
    staged_to = max((marker.span.end for marker in markers), default=None)
    # A marker made by hand may be ahead of Kafka: a writer waits there.
    flushed_to = max((marker.span.end for marker in markers if marker.manifest is not None), default=None)
    lost = None
    if kafka_end is not None and flushed_to is not None and kafka_end < flushed_to:
        lost = topic_truncated(partition, flushed_to, ends_now().get(partition))
    return PartitionStatus(
        partition=partition,
        staged_to=staged_to,
        loaded_to=position,
        kafka_end=kafka_end,
        waiting_markers=0 if listed is None else listed.waiting(position),
        held=why,
        writers_hold=topic_recreated(partition, staged_from(near_markers), topic_id)
        or lost
        or gone_from_kafka(partition, staged_to, first),
    )


def _waiting_for_resolution(
    stream: Stream,
    state: TableState | None,
    histories: Mapping[str, StreamHistory],
    ids: TxnIds,
    markers_of: Mapping[TopicPartition, Sequence[AnyMarker]],
) -> Mapping[TopicPartition, Held]:
    """Kafka partitions that wait because a table was rolled back, as the loader holds them."""
    for url, history in histories.items():
        if history.rollback is not None:
            return dict.fromkeys(ids.generations, held_by(url, stream.app_id, history.rollback))
    if state is None:
        return {}
    own = histories[stream.table]
    staged = [partition for partition in ids.generations if markers_of.get(partition)]
    unplaced = [
        partition
        for partition in staged
        if ids.position(state.transactions, partition) is None and not _has_foreign(markers_of[partition])
    ]
    unknown = own.unknown(_placed(state, ids, markers_of), ids.generations)
    events = [] if unknown is None else [unknown]
    if unplaced:
        without_origin = [
            partition for partition in unplaced if isinstance(next_run(None, markers_of[partition]), MissingOrigin)
        ]
        first_ms = {
            partition: first.manifest.created_ms
            for partition in unplaced
            if isinstance(first := markers_of[partition][0], Marker) and first.manifest is not None
        }
        events += own.without_txn(unplaced, without_origin, ids.generations, first_ms)
    return {partition: held_by(stream.table, stream.app_id, back) for back in events for partition in back.positions}


def _placed(
    state: TableState, ids: TxnIds, markers_of: Mapping[TopicPartition, Sequence[AnyMarker]]
) -> dict[TopicPartition, tuple[Position, list[Marker]]]:
    """Chains that have something to load: their positions, and the markers near them."""
    placed: dict[TopicPartition, tuple[Position, list[Marker]]] = {}
    for partition, markers in markers_of.items():
        position = ids.position(state.transactions, partition)
        if position is not None and isinstance(next_run(position, markers), Run | Overlap):
            placed[partition] = position, [marker for marker in markers if isinstance(marker, Marker)]
    return placed
