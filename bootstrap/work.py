"""The commands' steps, in order: inspect, decide, show, and carry out.

Rules: everything is decided before anything is written; the store's conditional writes are tested before they are
relied on; changes are made while holding the repair lock (common/stage/repair_lock.py); the decisions themselves are in
bootstrap/plans/.
"""

import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar, assert_never

from bootstrap.accepting import Accepting, require_whole
from bootstrap.apply import stage as staging
from bootstrap.apply.kafka import KafkaView, with_chain
from bootstrap.apply.loaders import (
    require_loaded_alike,
    require_no_load_begun,
    require_no_loader,
    require_not_loaded,
    require_not_loading,
)
from bootstrap.apply.partition_state import partition_state, require_even
from bootstrap.apply.repair_lock import RepairLocks
from bootstrap.apply.tables import TableStates
from bootstrap.plans.accept import AcceptPlan
from bootstrap.plans.plan import StreamPlan, check_known, plan_partition
from bootstrap.plans.repair import RewindPlan, SkipPlan, loaded_ahead, plan_rewind, with_tables_ahead
from bootstrap.plans.restart import Restart, UnchangedPartition, plan_restart
from bootstrap.plans.sources import FromDelta, FromFile, FromGroup, PositionSource, parse_positions, unreadable_file
from bootstrap.plans.state import Author, Ends, PartitionState
from common.errors import UsageError
from common.http.pages import release
from common.ports import Clock, ObjectStore
from common.settings import FromTimestamp, Settings, StartAt, Stream
from common.settings.stores import stage_store
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.chain_origins import newest_origin
from common.stage.merged import ids_together, is_merged, kafka_partition, kafka_topic, topics_of
from common.stage.topic_owners import StageTopicOwners
from common.storage.store import prove_exclusive_create
from common.tables.commit_metadata import Decision
from common.tables.identity import NO_IDENTITY, TableIdentity
from common.tables.state import TableState
from common.tables.stream_history import StreamHistory, read_histories
from common.tables.transactions import TxnIds

_Repair = TypeVar("_Repair")
_WRITE = "bootstrap write"
_NO_TABLE = "check streams[].table, and that the stream's app_id is the one that loaded the table"


@dataclass(frozen=True, slots=True)
class Requested:
    """The positions from a source, and why it has none for a partition."""

    positions: Mapping[TopicPartition, Position]
    why_none: str = ""


class Work:
    """The commands over a configured stage, with a view of Kafka."""

    def __init__(self, settings: Settings, clock: Clock, *, take_over: int | None = None) -> None:
        """``take_over`` is the lock of a process that is gone.

        Raises ConfigError if the stage's URL cannot be used, and StoreError and MarkerError for its topic owners.
        """
        self._settings = settings
        self._store: ObjectStore = stage_store(settings)
        self._tables = TableStates(settings, self._store)
        self._owners = StageTopicOwners(settings, self._store, make=False)
        self._owners.read_all()
        self._clock = clock
        self._author = Author(f"bootstrap {release()} on {socket.gethostname()}", clock.wall_ms())
        self._locks = RepairLocks(self._store, self._author, uuid.uuid4().hex, take_over=take_over)

    # plan and write

    def plan(self, source: PositionSource, app_id: str | None) -> tuple[StreamPlan, ...]:
        """The plan for one stream, or for all of them."""
        group = source.name if isinstance(source, FromGroup) else None
        with closing(KafkaView(self._settings, self._owners.require, group)) as kafka:
            return tuple(self._plan_stream(kafka, stream, source) for stream in self._streams(app_id))

    def write(self, plans: Sequence[StreamPlan]) -> int:
        """Create the markers of the plans. Returns how many. Raises UsageError, and then has written nothing."""
        markers = [marker for plan in plans for marker in plan.markers]
        beginnings = [origin for plan in plans for origin in plan.beginnings]
        self._prove()
        planned = (each.partition for plan in plans for each in plan.partitions)
        partitions = {
            *(marker.name.topic_partition for marker in markers),
            *(origin.partition for origin in beginnings),
            *(partition for partition in planned if self._locks.is_cut_off(partition, _WRITE)),
        }
        with ExitStack() as locks:
            stores = {
                partition: locks.enter_context(self._locks.locked(partition, _WRITE))
                for partition in sorted(partitions)
            }
            made: list[str] = []
            for marker in markers:
                try:
                    staging.make(stores[marker.name.topic_partition], marker)
                except UsageError as error:
                    done = f"; created before it: {', '.join(made)}" if made else ""
                    raise UsageError(f"{error.problem}{done}", error.remedy) from None
                made.append(marker.name.path)
            for begin_chain in beginnings:
                staging.begin(stores[begin_chain.partition], begin_chain.partition, begin_chain.chain_origin)
        return len(made) + len(beginnings)

    def _plan_stream(self, kafka: KafkaView, stream: Stream, source: PositionSource) -> StreamPlan:
        _require_plain(stream, "bootstrap plan")
        partitions = kafka.partitions(stream)
        ends = kafka.ends(partitions)
        table = self._tables.main(stream)
        requested = self._requested(kafka, stream, source, ends, table)
        topic_ids = kafka.topic_ids(partition.topic for partition in partitions)
        states = (
            self._state(stream, end, partition, table, topic_ids[partition.topic]) for partition, end in ends.items()
        )
        return StreamPlan(
            stream.app_id,
            tuple(
                plan_partition(state, requested.positions.get(state.partition), requested.why_none, self._author)
                for state in states
            ),
        )

    def _requested(
        self,
        kafka: KafkaView,
        stream: Stream,
        source: PositionSource,
        ends: Mapping[TopicPartition, Ends],
        table: TableState | None,
    ) -> Requested:
        match source:
            case StartAt.EARLIEST:
                return Requested({partition: end.low for partition, end in ends.items()})
            case StartAt.LATEST:
                return Requested({partition: end.high for partition, end in ends.items()})
            case FromTimestamp(timestamp_ms):
                return Requested(kafka.positions_at(ends, timestamp_ms))
            case FromGroup(name):
                return _from_group(kafka.committed(list(ends)), stream, name)
            case FromDelta():
                beginnings = {partition: newest_origin(self._store, partition) for partition in ends}
                begun = {
                    partition: chain_origin.generation
                    for partition, chain_origin in beginnings.items()
                    if chain_origin is not None
                }
                return from_table(table, stream, list(ends), begun, self._tables.identity(stream, table))
            case FromFile():
                return _from_file(source, list(ends))
            case _:
                assert_never(source)

    def _prove(self) -> None:
        """Be ready to write: test the store, and make the owners of shared topics what the plans took them for.

        Raises UsageError if another program has decided otherwise since.
        """
        prove_exclusive_create(self._store)
        expected = self._settings.owners.expected
        owners = StageTopicOwners(self._settings, self._store, make=True)
        owners.read_all()
        owners.require(expected)
        differs = [topic for topic, owner in expected.items() if self._settings.owners.by_topic[topic] != owner]
        if differs:
            msg = f"another program has decided concurrently which stream owns the chains of the topic {differs[0]!r}"
            raise UsageError(msg, "run the command again")

    # skip, rewind and restart

    def repair(self, topic: str, partition: int, decide: Callable[[PartitionState, Author], _Repair]) -> _Repair:
        (state,) = self._inspect(topic, partition)
        return decide(state, self._author)

    def plan_rewind(
        self, topic: str, partition: int, to: Position, *, below_table: bool = False, give_up: bool = False
    ) -> RewindPlan:
        """A rewind of one Kafka partition. Raises UsageError."""
        (state,) = self._inspect(topic, partition)
        return self._rewind_of(state, to, below_table=below_table, give_up=give_up)

    def _rewind_of(
        self, state: PartitionState, to: Position, *, below_table: bool = False, give_up: bool = False
    ) -> RewindPlan:
        plan = plan_rewind(state, to, self._author, below_table=below_table, give_up=give_up)
        highest = self._tables.highest_position(self._stream_of(state.partition.topic), state.partition)
        return with_tables_ahead(plan, state.table, highest)

    def plan_rewinds(self, starts: Mapping[TopicPartition, Position]) -> tuple[RewindPlan, ...]:
        """Rewinds that stage these partitions again from a position on, or from the table's if that is higher.

        Raises UsageError, before anything is changed, where one of them cannot be repaired.
        """
        topics = dict.fromkeys(partition.topic for partition in starts)
        states = [state for topic in topics for state in self._inspect(topic, None) if state.partition in starts]
        return tuple(
            self._rewind_of(state, max(starts[state.partition], state.table or Position(0))) for state in states
        )

    def plan_restart(
        self,
        topic: str,
        partition: int | None,
        *,
        give_up: bool,
        at: Position | None = None,
        say: Callable[[str], None] = lambda _line: None,
    ) -> tuple[Restart | UnchangedPartition, ...]:
        """The plan for a topic that was recreated, or that the table does not know, or for one of its partitions.

        ``say`` gets the reason when it waits. Raises UsageError, also while a loader loads it under another app_id.
        """
        states = self._inspect(topic, partition)
        others = {app_id for state in states for app_id in state.staged_for} - {state.app_id for state in states}
        if others:
            topics = frozenset({topic, *topics_of(topic)})
            lease_s = self._settings.loader.lease_s
            require_no_loader(self._store, self._clock, lease_s, dict.fromkeys(others, topics), say=say)
            states = self._inspect(topic, partition)  # such a loader may have added to the table
        stream = self._stream_of(topic)
        if not give_up:
            tables = self._tables.all_of(stream)

            def histories(of_stream: Stream) -> dict[str, StreamHistory]:
                return read_histories(of_stream, tables, self._tables.open)

            def identity_of(url: str, app_id: str) -> TableIdentity:
                return self._tables.identity(stream, tables.get(url), app_id, url)

            require_whole(stream, histories, sorted(others))
            secondary = {url: table for url, table in tables.items() if url != stream.table}
            for state in states:
                require_even(state, stream, tables.get(stream.table), secondary, identity_of)
        return tuple(plan_restart(state, give_up=give_up, at=at) for state in states)

    def restart(self, plans: Sequence[Restart | UnchangedPartition], flags: Sequence[str] = ()) -> None:
        """Carry restarts out; the repair locks say with which ``flags`` the command was called."""
        self._prove()
        for plan in plans:
            if isinstance(plan, Restart):
                with self._locks.locked(plan.partition, " ".join(["bootstrap restart", *flags])) as store:
                    staging.restart(store, plan)

    def _inspect(self, topic: str, partition: int | None) -> tuple[PartitionState, ...]:
        self._owners.require([] if is_merged(topic) else [kafka_topic(topic)])
        stream = self._stream_of(topic)
        with closing(KafkaView(self._settings, self._owners.require)) as kafka:
            known = with_chain(kafka.partitions(stream), topic)
            if not known:
                raise UsageError(f"Kafka has no topic {topic!r}", "fix --topic")
            if partition is not None and TopicPartition(Topic(topic), Partition(partition)) not in known:
                msg = f"the topic {topic!r} has no partition {partition}"
                raise UsageError(msg, f"use one of 0 to {known[-1].partition}")
            ends = kafka.ends([chain for chain in known if partition in (None, chain.partition)])
            topic_id = ids_together(Topic(topic), kafka.topic_ids(topics_of(topic)))
        table = self._tables.main(stream)
        return tuple(
            self._state(stream, end, topic_partition, table, topic_id) for topic_partition, end in ends.items()
        )

    def skip(self, plan: SkipPlan) -> None:
        self._prove()
        name, span = plan.marker.name, plan.marker.span
        with self._locks.locked(name.topic_partition, f"bootstrap skip --to {span.end}") as store:
            staging.make(store, plan.marker)

    def rewind(self, plan: RewindPlan, flags: Sequence[str] = ()) -> tuple[str, ...]:
        """Carry a rewind out. Returns the paths of markers that were added meanwhile and moved as well.

        The repair lock says with which ``flags`` the command was called.
        """
        self._prove()
        stream, partition = self._stream_of(plan.partition.topic), plan.partition
        highest_position = partial(self._tables.highest_position, stream, partition)
        command = " ".join([f"bootstrap rewind --to {plan.requested}", *flags])
        with self._locks.locked(partition, command) as store:
            require_not_loading(store, plan, partial(self._tables.position, stream, partition))
            require_no_load_begun(plan, highest_position)
            late = staging.rewind(store, plan)
            require_not_loaded(plan, highest_position)
            lacking = partial(self._tables.lacking_in_others, stream, partition)
            require_loaded_alike(plan, lacking, partial(self._loaded_ahead, plan, stream))
            return late

    def _loaded_ahead(self, plan: RewindPlan, stream: Stream) -> Span | None:
        # In this order: the main table comes last in each load, and so is not taken for one that lacks records.
        highest = self._tables.highest_position(stream, plan.partition)
        return loaded_ahead(plan, self._tables.position(stream, plan.partition), highest)

    # accept

    def accept(
        self, app_id: str, decision: Decision, *, give_up: bool, do_it: bool
    ) -> tuple[Accepting, tuple[AcceptPlan, ...]]:
        """Plan the resolution for a stream whose tables were rolled back; with ``do_it``, carry it out."""
        (stream,) = self._streams(app_id)
        _require_plain(stream, "bootstrap accept")
        with closing(KafkaView(self._settings, self._owners.require)) as kafka:
            ends = kafka.ends(kafka.partitions(stream))
            topic_ids = kafka.topic_ids(partition.topic for partition in ends)
        tables = self._tables.all_of(stream)
        accepting = Accepting(
            stream=stream,
            open_store=self._tables.open,
            stage_url=self._settings.stage.url,
            state_of=lambda partition, table: self._state(
                stream, ends[partition], partition, table, topic_ids[partition.topic]
            ),
            partitions=tuple(ends),
            author=self._author,
        )
        plans = accepting.plan(tables, decision, give_up=give_up)
        if do_it:
            self._prove()
            accepting.carry_out(self._store, self._locks, plans)
        return accepting, plans

    # looking

    def _stream_of(self, topic: str) -> Stream:
        stream = self._settings.stream_of(topic)
        if stream is None:
            named = ", ".join(stream.chain_of(name) for stream in self._settings.streams for name in stream.topics)
            msg = f"no stream of the config reads the topic {topic!r}"
            raise UsageError(msg, f"use one of {named}, or another config")
        return stream

    def _streams(self, app_id: str | None) -> tuple[Stream, ...]:
        streams = tuple(stream for stream in self._settings.streams if app_id in (None, stream.app_id))
        if not streams:
            known = ", ".join(stream.app_id for stream in self._settings.streams)
            raise UsageError(f"the config has no stream {app_id!r}", f"use one of {known}")
        return streams

    def _state(
        self, stream: Stream, ends: Ends, partition: TopicPartition, table: TableState | None, topic_id: str | None
    ) -> PartitionState:
        repairs = self._locks.read_last(partition)  # before the chain is read: this is how a stale plan is detected
        return partition_state(
            self._store,
            stream,
            partition,
            ends=ends,
            table=table,
            topic_id=topic_id,
            identity_of=partial(self._tables.identity, stream, table),
            repairs=repairs,
            cut_off=self._locks.finishes(partition),
        )


def _require_plain(stream: Stream, command: str) -> None:
    """Raise UsageError for a stream whose topology may join its topics: positions of each alone do not name its chains.

    Such a chain continues only from where each topic's position is known: the end of one of its markers, or its origin.
    """
    if stream.may_merge:
        msg = f"{command} works topic by topic, but the topology of {stream.app_id!r} may read several together"
        raise UsageError(msg, "set streams[].start before its first writer starts")


def _from_group(committed: Mapping[TopicPartition, Position], stream: Stream, name: str) -> Requested:
    if not committed:
        msg = f"the consumer group {name!r} has no committed offsets for the topics of stream {stream.app_id!r}"
        raise UsageError(msg, "check the group's name; its commits may also have expired")
    return Requested(committed, f"the group {name!r} has no commit")


def from_table(
    table: TableState | None,
    stream: Stream,
    partitions: Sequence[TopicPartition],
    begun: Mapping[TopicPartition, int],
    identity: TableIdentity = NO_IDENTITY,
) -> Requested:
    """The positions of the table's txn actions for the existing chains; ``begun`` are their generations."""
    if table is None:
        msg = f"there is no Delta table at {stream.table}"
        raise UsageError(msg, f"{_NO_TABLE}; if another stream of this config is meant, select it with --stream")
    ids = TxnIds(stream.app_id, stream.several_topics, plain_topic=identity.plain_topic)
    ids = ids.at(begun, table.transactions, partitions)
    at_table = {partition: ids.position(table.transactions, partition) for partition in partitions}
    positions = {partition: position for partition, position in at_table.items() if position is not None}
    if not positions:
        others = ", ".join(sorted(table.transactions)[:5]) or "none at all"
        msg = f"the table {stream.table} has no txn action such as {ids.of(partitions[0])!r}; it has {others}"
        raise UsageError(msg, _NO_TABLE)
    return Requested(positions, "the table has no txn action")


def _from_file(source: FromFile, partitions: Sequence[TopicPartition]) -> Requested:
    try:
        text = Path(source.path).read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable_file(source.path, error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise unreadable_file(source.path, "it is not UTF-8 text") from None
    chains = {kafka_partition(chain): chain for chain in partitions}
    topics = sorted({partition.topic for partition in chains})
    positions = parse_positions(text, source.path, topics, last_offsets=source.last_offsets)
    check_known(positions, list(chains), source.path)
    return Requested(
        {chains[partition]: position for partition, position in positions.items()}, f"{source.path} does not name it"
    )
