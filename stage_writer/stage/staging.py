"""The stage, and a flush from buffer to marker.

Rules:

1. Data files are written first, each under a name of its own, and with them the state of a topology's task, in the
   stage or in a Kafka topic. Then the marker is made, by exclusive create. A writer that loses the claim leaves its
   files in place, for VACUUM. An earlier attempt at the same claim may have succeeded without a response, been loaded
   and been settled; the table then has those very files.
2. A job may be run again after a StoreError or a BrokerError. What is encoded stays encoded, what is uploaded stays
   uploaded, and the marker's bytes are the same. A claim whose response was lost is therefore recognized as our own.
3. A claim that did not continue the chain is lost, or seals a chain that has moved (stage_writer/chains.py).
4. Right before a claim, after every other request, a guard is called. After a pause that may have cost the group
   membership, the guard makes the job wait. It also keeps records that may come from a recreated topic out of the old
   topic's chain.
5. No claim is made once the flush's first file is older than `LONGEST_FLUSH_S`. A clean-up removes old files that no
   marker names, and one that has listed these files may remove them after the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from common.errors import StoreError
from common.ports import Clock, ObjectStore
from common.schema import StructType, schema_to_json
from common.settings import Stream
from common.spans import Position, Span, TopicPartition
from common.stage.chain_origins import ChainOrigin
from common.stage.data_files import LONGEST_FLUSH_S, DataFileName, waiting_path
from common.stage.idle import HeldFact, IdleFact, StreamFact, facts_to_bytes, idle_path
from common.stage.markers import Manifest, Marker, MarkerName, Origin, StagedFile, StagedTable, manifest_to_bytes
from common.stage.merged import ends_at
from common.stage.notifications import notification_path
from common.stage.stored import beyond_bounds
from common.stage.task_files import EMPTY_STATE, MarkedState, OutboxName, StateFileName, StateFiles, StateKind
from common.stage.versions import Evolved, latest
from common.storage.chunks import ByteChunks
from stage_writer.chain_end import Tail
from stage_writer.chains import StagedChains
from stage_writer.outbox.records import Outgoing, outgoing_to_chunks
from stage_writer.parquet.buffer import Buffer, EncodedFile, TableFormat
from stage_writer.ports import (
    NO_CHANGELOG,
    Changelog,
    ClaimGuard,
    ClaimVerdict,
    FlushIdentity,
    FlushOutcome,
    Incompatible,
    LostClaim,
    OtherTopic,
    Outdated,
    Postponed,
    Sealed,
    StateChange,
)
from stage_writer.stage.gaining import continued_columns, gain_columns
from stage_writer.stage.state_cleaning import KEEP_S, StateCleaning
from stage_writer.stage.state_files import StageState, state_at, state_of_origin
from stage_writer.stage.table_compatibility import TableCompatibility

_NOTHING = ByteChunks()


class ObjectStage:
    """The stage and the tables' folders. Raises StoreError, and MarkerError for an unreadable marker."""

    def __init__(
        self,
        store: ObjectStore,
        tables: Callable[[str], ObjectStore],
        clock: Clock,
        unique: Callable[[], str],
        writer: str,
        *,
        compatibility: TableCompatibility | None = None,
        state_keep_s: float = KEEP_S,
        changelog: Changelog = NO_CHANGELOG,
    ) -> None:
        """``tables`` opens the store at a table's URL, ``unique`` makes a new UUID, ``writer`` names this process.

        Without ``compatibility`` no table is checked before rows for it are staged.
        """
        self._compatibility = compatibility
        self._store = store
        self.chains = StagedChains(store)
        self._tables = tables
        self._clock = clock
        self._unique = unique
        self._writer = writer
        self.states = StageState(store, changelog)
        self.state_cleaning = StateCleaning(store, state_keep_s)

    def state_at(self, partition: TopicPartition, tail: Tail | None, origin: ChainOrigin | None = None) -> StateFiles:
        """The state of a partition's task at its chain's end, or at the origin of a chain without a marker.

        Raises StateError where it is unknown.
        """
        if tail is not None:
            return state_at(self._store, partition, tail)
        return EMPTY_STATE if origin is None else state_of_origin(self._store, partition, origin)

    def put_idle(
        self, facts: Collection[IdleFact], streams: Collection[StreamFact], held: Collection[HeldFact] = ()
    ) -> None:
        """Record which partitions exist, which had nothing new, and which are held, replacing the previous record."""
        self._store.write(idle_path(self._writer), facts_to_bytes(facts, streams, held))

    def put_notification(self, app_id: str) -> None:
        self._store.write(notification_path(app_id, self._writer), b"")

    def flush_job(self, flush: FlushIdentity, guard: ClaimGuard) -> Job:
        """A job that seals the buffer as the marker after its tail, if the guard permits it."""
        return Job(self, flush, guard)

    def incompatible(self, start: Position, tables: Sequence[TableFormat]) -> Incompatible | None:
        """Why rows for these tables can never be loaded; None where they can be, or where it is unknown."""
        incompatibility = None if self._compatibility is None else self._compatibility.find(tables)
        return (
            None
            if incompatibility is None
            else Incompatible(start, tuple(tables), incompatibility.problem, incompatibility.remedy)
        )

    # The stage as the jobs need it; jobs run in threads, and nothing here has state.

    def new_file(self, partition: TopicPartition, buffer: Buffer, table: TableFormat, file: EncodedFile) -> NewFile:
        mixed = file.values is None
        values = () if file.values is None else tuple(zip(table.partition_by, file.values, strict=True))
        name = DataFileName(partition, buffer.start, self._unique(), values, file.codec)
        path = waiting_path(table.url, name) if mixed else name.path
        staged = StagedFile(path, None if mixed else dict(values), file.data.size_bytes, file.rows, file.statistics)
        return NewFile(table, staged, file.data)

    def upload(self, file: NewFile) -> None:
        """Write a data file below its table's root, or where files wait for Spark."""
        store = self._store if file.staged.is_mixed else self._tables(file.table.url)
        store.upload(file.staged.path, file.data)

    def write_state(self, flush: FlushIdentity, change: StateChange) -> MarkedState:
        def name(kind: StateKind) -> StateFileName:
            return StateFileName(flush.partition, flush.buffer.start, flush.lineage.generation, self._unique(), kind)

        return change.write(self.states.of(flush.stream), name)

    def write_outbox(self, flush: FlushIdentity) -> tuple[str, ...]:
        """Write a flush's records for Kafka topics. Returns the outboxes its marker must name. Raises BrokerError."""
        buffer, outlet = flush.buffer, flush.outlet
        if outlet is None:
            return () if flush.tail is None else flush.tail.outboxes
        pending = outlet.pending()
        if not buffer.outgoing:
            return pending
        name = OutboxName(flush.partition, buffer.start, flush.lineage.generation, self._unique())
        ends = ends_at(flush.partition, buffer.end)
        outgoing = Outgoing(flush.partition, flush.lineage.generation, ends, pa.concat_tables(buffer.outgoing))
        self._store.upload(name.path, outgoing_to_chunks(outgoing))
        return (*pending, name.path)

    def manifest(
        self,
        flush: FlushIdentity,
        tables: tuple[StagedTable, ...],
        state: MarkedState | None = None,
        outboxes: tuple[str, ...] = (),
    ) -> Manifest:
        buffer, by_route = flush.buffer, flush.stream.gains_by_table
        offered = schema_to_json(buffer.offered) if buffer.offered.fields else None
        return Manifest(
            span=Span(buffer.start, buffer.end),
            previous=None if flush.tail is None else flush.tail.marker,
            app_id=flush.stream.app_id,
            origin=Origin.FLUSH,
            writer=self._writer,
            created_ms=self._clock.wall_ms(),
            records=buffer.records,
            tombstones=buffer.tombstones,
            filtered=buffer.filtered,
            exploded=buffer.exploded,
            dead_letters=dict(buffer.dead_letters),
            lowest_timestamp_ms=buffer.lowest_timestamp_ms,
            highest_timestamp_ms=buffer.highest_timestamp_ms,
            tables=tables,
            topic_id=flush.lineage.topic_id,
            generation=flush.lineage.generation,
            offered=None if by_route else offered,
            offered_by_route=offered if by_route else None,
            state=state,
            outboxes=outboxes,
            last_record=buffer.last_record,
            undeclared=None if buffer.sample is None else buffer.sample.undeclared_fields(),
            violations=dict(buffer.violations),
            chain_origin=flush.lineage.origin,
            previous_digest=None if flush.tail is None else flush.tail.digest,
        )

    def gained(self, app_id: str, *, by_route: bool) -> Evolved | None:
        """The columns that a stream has gained, as last published, or None."""
        return latest(self._store, app_id, by_route=by_route)

    def continued(self, stream: Stream) -> Evolved | None:
        """The columns that a stream has gained, when a writer starts: also those from settings that it had before."""
        return continued_columns(self._store, self._tables, self._clock, stream)

    def gain(self, stream: Stream, offers: Mapping[str, StructType]) -> Evolved:
        """Agree with the stream's other writers on columns for fields that records offer.

        ``offers`` are by the path of the marker that comes with them. What cannot be a column is left out.
        """
        return gain_columns(self._store, self._tables, self._clock, stream, offers)

    def now_s(self) -> float:
        return self._clock.monotonic_s()


@dataclass(frozen=True, slots=True)
class NewFile:
    table: TableFormat
    staged: StagedFile
    data: ByteChunks
    """Empty once it is uploaded."""


class Job:
    """A flush from buffer to marker; `run` may be called again after a StoreError."""

    def __init__(self, stage: ObjectStage, flush: FlushIdentity, guard: ClaimGuard) -> None:
        self._stage = stage
        self._flush = flush
        self._guard = guard
        self._memory_bytes = flush.buffer.memory_bytes
        self._files: list[NewFile] | None = None
        self._uploaded = 0
        self._began_s: float | None = None
        """When the first request for a file was made, by the monotonic clock."""
        self._state: MarkedState | None = None
        self._outboxes: tuple[str, ...] | None = None
        self._marker: tuple[Marker, bytes] | None = None

    @property
    def memory_bytes(self) -> int:
        """The buffer's memory when the flush started; after encoding, the bytes left to upload. Includes the state."""
        files, state = self._files, self._flush.state
        held = self._memory_bytes if files is None else sum(file.data.size_bytes for file in files)
        return held if state is None else held + state.memory_bytes

    def run(self) -> FlushOutcome:
        """Encode, upload, call the guard, claim; the first two once, even if this is called again (rule 2)."""
        buffer = self._flush.buffer
        refused = self._stage.incompatible(buffer.start, [rows.table for rows in buffer.tables if rows.arrow_bytes])
        if refused is not None and self._files is None:
            return refused
        files = self._encode()
        if self._began_s is None:
            self._began_s = self._stage.now_s()
        for index in range(self._uploaded, len(files)):
            self._stage.upload(files[index])
            files[index] = replace(files[index], data=_NOTHING)
            self._uploaded += 1
        self._write_state()
        if self._outboxes is None:
            self._outboxes = self._stage.write_outbox(self._flush)
        marker, data = self._seal(files)
        if self._flush.tail is None and not self._begins_here(marker.name):
            return LostClaim()
        match self._guard():
            case ClaimVerdict.CLAIM:
                is_old = self._stage.now_s() - self._began_s > LONGEST_FLUSH_S
                return Outdated() if is_old else self._claim(marker, data, files)
            case ClaimVerdict.WAIT:
                return Postponed()
            case OtherTopic() as other:
                return other

    def _claim(self, marker: Marker, data: bytes, files: list[NewFile]) -> FlushOutcome:
        tail = self._flush.tail
        if not self._stage.chains.claim(marker.name, data):
            return LostClaim()
        is_there = self._begins_here(marker.name) if tail is None else self._stage.chains.is_there(tail)
        moved = not is_there or not self._stage.chains.is_last(marker.name, self._flush.lineage)
        if tail is not None and moved and self._stage.chains.withdraw_if_rewound(marker.name, data, tail):
            return LostClaim()
        if not moved and self._state is not None and self._state.files.snapshot != self._state.before.snapshot:
            self._stage.state_cleaning.clean(marker.name.topic_partition)
        return Sealed(marker, len(files), sum(file.staged.size_bytes for file in files), moved)

    def _begins_here(self, name: MarkerName) -> bool:
        return self._stage.chains.has_origin_at(name.topic_partition, name.start, self._flush.lineage, name.path)

    def _encode(self) -> list[NewFile]:
        if self._files is None:
            flush = self._flush
            self._files = [
                self._stage.new_file(flush.partition, flush.buffer, rows.table, file)
                for rows in flush.buffer.tables
                for file in rows.finish()
            ]
        return self._files

    def _write_state(self) -> None:
        change = self._flush.state
        if change is not None and self._state is None:
            self._state = self._stage.write_state(self._flush, change)

    def _seal(self, files: list[NewFile]) -> tuple[Marker, bytes]:
        if self._marker is None:
            flush = self._flush
            tables = tuple(_staged_table(rows.table, files) for rows in flush.buffer.tables)
            manifest = self._stage.manifest(flush, tables, self._state, self._outboxes or ())
            name = MarkerName(flush.partition, flush.buffer.start)
            self._marker = sealed(name, manifest)
        return self._marker


def sealed(name: MarkerName, manifest: Manifest) -> tuple[Marker, bytes]:
    """A marker and its bytes, without its files' statistics where it would be too large to read back.

    Raises StoreError where that does not help: an unreadable marker is never written.
    """
    data = manifest_to_bytes(name.topic_partition, manifest)
    if beyond_bounds(data) is not None:
        manifest = replace(manifest, tables=tuple(map(_without_statistics, manifest.tables)))
        data = manifest_to_bytes(name.topic_partition, manifest)
        problem = beyond_bounds(data)
        if problem is not None:
            msg = f"the marker {name.path} was not written, because it {problem}"
            raise StoreError(
                msg, "make flushes smaller: lower writer.flush_records, or use fewer tables in streams[].routes"
            )
    return Marker(name, manifest), data


def _without_statistics(table: StagedTable) -> StagedTable:
    files = tuple(replace(file, statistics=f'{{"numRecords":{file.rows}}}') for file in table.files)
    return replace(table, files=files)


def _staged_table(table: TableFormat, files: list[NewFile]) -> StagedTable:
    staged = tuple(file.staged for file in files if file.table is table)
    return StagedTable(table.url, table.kind, table.schema, table.partition_by, staged, table.merge, table.place)
