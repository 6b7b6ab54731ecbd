"""Collects the content of ``delta-loader status`` from the stage, the tables' logs, and Kafka. Needs no Spark.

Rule: a stream whose table cannot be read, or a Kafka that does not answer in time, never hides the other streams.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from common.errors import KafkaDeltaExpressError
from common.ports import ObjectStore
from common.settings import Stream
from common.settings.catalog import name_of_table
from common.spans import Position, Topic, TopicPartition
from common.stage.failures import LastFailure, last_failure
from common.stage.idle import HeldFact, IdleFact, stream_fact
from common.stage.markers import Marker, MarkerName
from common.stage.merged import ids_together, topics_of, with_chains
from common.stage.paused import StreamPart, pause_of
from common.stage.versions import Gained, latest
from common.tables.deferred_ranges import deferred_of
from common.tables.delta_log import read_table_state
from common.tables.identity import NO_IDENTITY, TableIdentity
from common.tables.state import TableState
from common.tables.stream_history import StreamHistory, read_histories
from common.tables.transactions import TxnIds
from common.tables.urls import comparable
from delta_loader.check_result import Check, Level
from delta_loader.checks.requirements import table_checks
from delta_loader.load.merged import repair_of
from delta_loader.load.rollback import held_by, held_chains
from delta_loader.load.settle import unknown_partitions
from delta_loader.plan.chain_positions import ChainPositions, is_foreign, undeclared_of, violations_of
from delta_loader.plan.held import (
    Held,
    gone_from_kafka,
    missing_file,
    staged_from,
    topic_recreated,
    topic_truncated,
    unknown_partition,
)
from delta_loader.plan.plan import NextRun, Overlap, Run
from delta_loader.ports import EndsOf, OpenStore
from delta_loader.stage.generations import unfinished_repair
from delta_loader.stage.identity import StreamIdentity
from delta_loader.stage.listed import Listed, Listing
from delta_loader.stage.reading import Stage
from delta_loader.status.values import Aside, PartitionStatus, StreamStatus
from delta_loader.tables.load_modes.load_mode import choose_load_mode
from delta_loader.tables.valid_through import valid_through_of

_LOOKS = 4  # at a stream with held partitions, at most
_WINDOW = 16  # unloaded markers read per Kafka partition: enough to determine why it does not move


TopicIds = Callable[[Collection[Topic]], Mapping[Topic, str | None]]
"""The ids of the topics that the broker has; empty when Kafka does not answer in time."""
Firsts = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, Position]]
"""The positions of the first records that Kafka still has, for the partitions where that is known."""


WriterReports = Callable[[], tuple[Mapping[TopicPartition, HeldFact], Sequence[IdleFact]]]


def stream_status(
    stream: Stream,
    stage: Stage,
    open_store: OpenStore,
    kafka_ends: EndsOf,
    topic_ids: TopicIds = lambda _topics: {},
    *,
    ends_now: EndsOf | None = None,
    firsts: Firsts = lambda _sources: {},
    left: Iterable[Check] = (),
    reports: WriterReports | None = None,
) -> StreamStatus:
    """The status of one stream; ``left`` is the result of `abandoned_topics` for it.

    ``kafka_ends`` may return what it has read earlier, for another stream. ``ends_now`` must not; by default it is
    the same function.

    ``reports`` is `Stage.held_by_writers`, or remembers what that has returned for another stream.
    """
    try:
        ends = kafka_ends(stream) or {}
        ids = topic_ids({topic for partition in ends for topic in topics_of(partition.topic)}) if ends else {}
        first = firsts(ends)

        def look() -> StreamStatus:
            kafka = KafkaSnapshot(ends, first, ids, cache(lambda: (ends_now or kafka_ends)(stream) or {}))
            return _stream_status(stream, stage, open_store, kafka, reports or stage.held_by_writers)

        status = _held_twice(look)
        pauses = [pause_of(stage.store, part, stream.app_id) for part in StreamPart]
        return replace(
            status,
            incompatible=(*status.incompatible, *left),
            pauses=tuple(pause for pause in pauses if pause is not None),
        )
    except KafkaDeltaExpressError as error:
        code, note = error.exit_code, _last_failure(stage, stream)
        return StreamStatus(
            stream.app_id, stream.table, None, None, (), failure=error.problem, failure_code=code, last_failure=note
        )


def _held_twice(look: Callable[[], StreamStatus]) -> StreamStatus:
    """A status whose held partitions were held at the same positions in the look before it.

    A loader may load and settle what is being read: its markers and files then seem to be missing.
    """
    status, held = look(), set[tuple[TopicPartition, Position | None]]()
    for _ in range(_LOOKS):
        before, held = held, {(each.partition, each.loaded_to) for each in status.partitions if each.held is not None}
        if held <= before:
            break
        status = look()
    return status


def _last_failure(stage: Stage, stream: Stream) -> LastFailure | None:
    try:
        return last_failure(stage.store, stream.app_id)
    except KafkaDeltaExpressError:
        return None  # the stage is unavailable, which is reported already


@dataclass(frozen=True, slots=True)
class KafkaSnapshot:
    ends: Mapping[TopicPartition, Position]
    firsts: Mapping[TopicPartition, Position]
    topic_ids: Mapping[Topic, str | None]
    ends_now: Callable[[], Mapping[TopicPartition, Position]]
    """Reads the ends again, once: records staged since the first answer are not ahead of Kafka."""


@dataclass(frozen=True, slots=True)
class _Tables:
    state: TableState | None
    """The main table's."""
    states: Mapping[str, TableState]
    """By URL, of those that exist."""
    histories: Mapping[str, StreamHistory]
    """By URL, of those that exist."""
    identities: Mapping[str, TableIdentity]

    @property
    def transactions(self) -> Mapping[str, int]:
        return {} if self.state is None else self.state.transactions


def _read_tables(stream: Stream, open_store: OpenStore) -> _Tables:
    states = {url: read_table_state(open_store(url)) for url in stream.tables}
    there = {url: state for url, state in states.items() if state is not None}
    histories = read_histories(stream, there, open_store)
    identities = {url: histories[url].identity(state.transactions) for url, state in there.items()}
    return _Tables(states[stream.table], there, histories, identities)


@dataclass(frozen=True, slots=True)
class _Chains:
    listing: Listing
    ends: Mapping[TopicPartition, Position]
    """By Kafka partition, the position that the next record will have."""
    ids: TxnIds
    positions: Mapping[TopicPartition, Position | None]
    """The main table's; also of Kafka partitions without a chain."""
    staged: ChainPositions
    outcomes: Mapping[TopicPartition, NextRun]
    older: frozenset[TopicPartition]
    """The chains that still have markers from before their origin."""
    writers_hold: Mapping[TopicPartition, HeldFact]
    """The writers' last reports."""
    idle: Sequence[IdleFact]
    """Where writers had nothing new."""

    def held_by_writers(self, partition: TopicPartition, staged_to: Position | None) -> Held | None:
        """Why a writer holds a Kafka partition, by its own report."""
        fact, origin = self.writers_hold.get(partition), self.staged.origins.get(partition)
        end = origin.position if staged_to is None and origin is not None else staged_to
        if fact is None or not fact.holds(end, self.ids.generation_of(partition), self.idle):
            return None
        return Held(fact.reason, fact.problem, fact.remedy)


def _read_chains(
    stream: Stream,
    stage: Stage,
    tables: _Tables,
    listing: Listing,
    ends: Mapping[TopicPartition, Position],
    *,
    reports: WriterReports,
) -> _Chains:
    origins, transactions, known = stage.origins(stream), tables.transactions, sorted({*listing, *ends})
    begun = {partition: origin.generation for partition, origin in origins.items()}
    own = tables.identities.get(stream.table, NO_IDENTITY)
    ids = TxnIds(stream.app_id, stream.several_topics, plain_topic=own.plain_topic).at(begun, transactions, known)
    positions = {partition: ids.position(transactions, partition) for partition in known}
    wanted = {partition: _wanted(listed, positions[partition]) for partition, listed in listing.items()}
    urls = {comparable(url): url for url in reversed(stream.tables)}
    read = stage.read(listing, [name for names in wanted.values() for name in names], urls)
    identity = StreamIdentity(stream, ids, origins, tables.identities, transactions)
    read_of = {
        partition: [marker for name in names for marker in read.get(name, ())] for partition, names in wanted.items()
    }
    markers_of = {partition: identity.younger(partition, markers) for partition, markers in read_of.items()}
    older = frozenset(partition for partition, markers in read_of.items() if len(markers) > len(markers_of[partition]))

    def position_in(url: str, partition: TopicPartition) -> Position | None:
        if url not in tables.states:
            return None
        return ids.in_table(tables.identities[url].plain_topic).position(tables.states[url].transactions, partition)

    staged = ChainPositions(stream, markers_of, origins, tables.states.keys(), position_in)
    outcomes = {partition: staged.outcome(partition) for partition in known}
    return _Chains(listing, ends, ids, positions, staged, outcomes, older, *reports())


def _stream_status(
    stream: Stream, stage: Stage, open_store: OpenStore, kafka: KafkaSnapshot, reports: WriterReports
) -> StreamStatus:
    listing, stream = stage.listing(stream), stage.appeared(stream)  # in this order, as a loader does
    tables = _read_tables(stream, open_store)
    chains = _read_chains(stream, stage, tables, listing, with_chains(kafka.ends, listing), reports=reports)
    state, waiting = tables.state, _held(stream, stage, open_store, tables, chains)
    every_marker = [marker for markers in chains.staged.markers.values() for marker in markers]
    return StreamStatus(
        app_id=stream.app_id,
        last_failure=_last_failure(stage, stream),
        table=stream.table,
        version=None if state is None else state.version,
        load_mode=None if state is None else choose_load_mode(state, stream.load),
        partitions=tuple(
            _partition_status(partition, chains, waiting.get(partition), kafka) for partition in chains.positions
        ),
        aside=Aside(*stage.aside(stream)),
        deferred=deferred_of(chains.ids, tables.transactions, stream.secondary_tables, chains.positions),
        incompatible=tuple(_incompatibilities(stream, tables)),
        gained=_gained(stream, stage),
        appeared=stage.routes(stream),
        valid_through_ms=(
            None if state is None else valid_through_of(tables.histories[stream.table].commits, stream.app_id)
        ),
        undeclared=undeclared_of(every_marker),
        violations=violations_of(every_marker),
        drops_on_purpose=stream.record.drops_on_purpose,
        name=name_of_table(stream.catalog_tables, stream.table),
    )


def _held(
    stream: Stream, stage: Stage, open_store: OpenStore, tables: _Tables, chains: _Chains
) -> dict[TopicPartition, Held]:
    """Why Kafka partitions wait, as the loader holds them."""
    listing, markers_of = chains.listing, chains.staged.markers
    unknown = {
        partition: unknown_partition(
            partition, [path for marker in markers_of[partition] for path in listing[partition].paths(marker.name)]
        )
        for partition in unknown_partitions(markers_of, stream_fact(stream.app_id, 0, chains.ends))
    }
    resolutions = _waiting_for_resolution(stream, tables, chains, stage.store)
    lacking = _lacking_a_file(stream, stage, open_store, chains)
    reasons = {
        partition: unknown.get(partition)
        or (_waits(stage, chains, partition, resolutions) if partition in listing else None)
        or chains.staged.held(partition, outcome)
        or lacking.get(partition)
        for partition, outcome in chains.outcomes.items()
    }
    return {partition: reason for partition, reason in reasons.items() if reason is not None}


def _waits(
    stage: Stage, chains: _Chains, partition: TopicPartition, resolutions: Mapping[TopicPartition, Held]
) -> Held | None:
    if partition in resolutions:
        return resolutions[partition]
    if partition in chains.older:
        return unfinished_repair(stage.store, partition)
    return repair_of(stage.store, partition, chains.positions[partition], chains.listing[partition].names[0].start)


def _gained(stream: Stream, stage: Stage) -> tuple[Gained, ...]:
    by_route = stream.gains_by_table
    evolved = latest(stage.store, stream.app_id, by_route=by_route) if stream.record.evolves else None
    return () if evolved is None else evolved.gained


def _incompatibilities(stream: Stream, tables: _Tables) -> Iterator[Check]:
    """The incompatibilities of the stream's main table, and of those that have their own columns."""
    urls = [stream.table, *dict.fromkeys(url for url, _ in stream.routing.sections.values())]
    states = {comparable(url): state for url, state in tables.states.items()}
    checks = (check for url in urls for check in table_checks(stream, states.get(comparable(url)), url))
    return (check for check in checks if check.level is Level.ERROR)


def _wanted(listed: Listed, position: Position | None) -> Sequence[MarkerName]:
    window = list(listed.window_at(position, _WINDOW))
    return window if listed.names[-1] in window else [*window, listed.names[-1]]


def _lacking_a_file(
    stream: Stream, stage: Stage, open_store: OpenStore, chains: _Chains
) -> Mapping[TopicPartition, Held]:
    """Kafka partitions whose next marker lacks a file that a table needs.

    A secondary table may have had its part already, and what happened to those files then does not matter.
    """
    following = {
        partition: outcome.markers[0]
        for partition, outcome in chains.outcomes.items()
        if isinstance(outcome, Run | Overlap)
    }

    def is_without(url: str, partition: TopicPartition) -> bool:
        position = chains.staged.position_in(url, partition)
        return url == stream.table or position is None or position <= following[partition].span.start

    files = {
        partition: [
            (stage.store if file.is_mixed else open_store(table.url), file)
            for table in marker.tables
            if is_without(table.url, partition)
            for file in table.files
        ]
        for partition, marker in following.items()
    }
    gone = stage.lacking(files)
    positions = chains.positions
    return {
        partition: missing_file(
            partition, following[partition].span.start, path, damage, position=positions[partition], table=stream.table
        )
        for partition, (path, damage) in gone.items()
    }


def _partition_status(
    partition: TopicPartition, chains: _Chains, why: Held | None, kafka: KafkaSnapshot
) -> PartitionStatus:
    near_markers, listed = chains.staged.markers.get(partition, ()), chains.listing.get(partition)
    kafka_end = chains.ends.get(partition)
    position = None if is_foreign(near_markers) else chains.positions[partition]
    markers = [marker for marker in near_markers if isinstance(marker, Marker)]
    staged_to = max((marker.span.end for marker in markers), default=None)
    # A marker made by hand may be ahead of Kafka: a writer waits there.
    flushed_to = max((marker.span.end for marker in markers if marker.manifest is not None), default=None)
    lost = None
    if kafka_end is not None and flushed_to is not None and kafka_end < flushed_to:
        end_now = kafka.ends_now().get(partition)
        lost = topic_truncated(partition, flushed_to, end_now)
        kafka_end = kafka_end if end_now is None else end_now
    # No writer has a partition that the new topic lacks: once it is loaded, there is nothing to do.
    topic_id = ids_together(partition.topic, kafka.topic_ids) if kafka_end is not None else None
    return PartitionStatus(
        partition=partition,
        staged_to=staged_to,
        loaded_to=position,
        kafka_end=kafka_end,
        waiting_markers=0 if listed is None else listed.waiting(position),
        held=why,
        writers_hold=topic_recreated(partition, staged_from(near_markers), topic_id)
        or lost
        or gone_from_kafka(partition, staged_to, kafka.firsts.get(partition))
        or chains.held_by_writers(partition, staged_to),
    )


def _waiting_for_resolution(
    stream: Stream, tables: _Tables, chains: _Chains, stage: ObjectStore
) -> Mapping[TopicPartition, Held]:
    """Kafka partitions that wait because a table was rolled back."""
    generations = chains.ids.generations
    for url, history in tables.histories.items():
        if history.rollback is not None:
            return dict.fromkeys(generations, held_by(url, stream, history.rollback, chains.positions))
    if tables.state is None:
        return {}
    own = tables.histories[stream.table]
    markers_of = {partition: markers for partition, markers in chains.staged.markers.items() if markers}
    staged = replace(chains.staged, markers=markers_of)
    unplaced = staged.unplaced()
    events = own.without_txn(unplaced.partitions, unplaced.without_origin, generations, unplaced.first_ms)
    unknown = own.unknown(staged.placed(), generations, stage, loads=bool(staged.loadable()))
    return held_chains(staged, events if unknown is None else (*events, unknown))
