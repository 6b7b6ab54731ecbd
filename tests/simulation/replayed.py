"""Records that are converted again, from Kafka or from their dead letters, and replace their rows in the tables.

The config changes from time to time where records of some values go: to another table, to the dead letters, or nowhere.
Writers see it after their next restart; `stage-writer replay` sees it at once, for some offsets.

Rules of the final check in addition to those of every world:

1. A commit that replaces rows leaves each record of its range in at least one table, if it was in one before.
2. At the end no request is left, and each record is where the last request that replaced its row in the main table puts
   it.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa

from bootstrap.plans.repair import RewindPlan, loaded_ahead, with_tables_ahead
from bootstrap.plans.state import PartitionState
from common.errors import StoreError, TableError
from common.spans import Position, Span, TopicPartition
from common.stage.markers import Marker
from common.stage.replacements import REPLACE
from common.tables.commit_metadata import CommitMetadata
from delta_loader.load.replace_ranges import Replacer
from delta_loader.load.replace_steps import Request, RequestStep, txn_id
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import TableCommit, Target
from stage_writer.convert_by_table import RecordConverter
from stage_writer.decode.batch import MessageBatch
from stage_writer.parquet.buffer import StagedRows
from stage_writer.ports import Result
from stage_writer.replay.dead_letters import DeadLetterExport
from stage_writer.replay.records import Range, Records, Replay
from stage_writer.replay.records import Replayed as Counted
from tests.simulation.converter import BAD, GOOD, LEFT, RIGHT, ROUTES, PlainConverter
from tests.simulation.delta_log import DeltaLog, Place, SimulatedTables, places_of
from tests.simulation.invariants import StageInvariants
from tests.simulation.kafka import Broker
from tests.simulation.kafka import Record as Sent
from tests.simulation.kinds import DEAD_LETTERS, STAGE, TABLE, Context, Routed, Wanted
from tests.simulation.operators import Operator
from tests.simulation.store import Bucket, SimulatedStore
from tests.simulation.world import Fault, Process, World, WorldClock

_ODD = b'{"n": 4}'
_PLACES: Mapping[bytes, tuple[str | None, ...]] = {
    GOOD: (TABLE, TABLE, TABLE),
    BAD: (DEAD_LETTERS, DEAD_LETTERS, TABLE),
    _ODD: (DEAD_LETTERS, TABLE, None),
    **dict(zip(ROUTES, ((LEFT, RIGHT, LEFT), (RIGHT, TABLE, None)), strict=True)),
}
"""By value: the table of its records, or None, for each edition of the config."""
_EDITIONS = 3
_EDITED = 0.01
"""How often the config is edited, for each step."""
_AGAIN = 0.5
"""How often a range is the one that was replayed last."""
_AT_A_TIME = 5


class EditionConverter(PlainConverter):
    edition = 0

    def _convert(self, batch: MessageBatch) -> StagedRows:
        values = batch.values.to_pylist()
        urls = [None if value is None else _PLACES[value][self.edition] for value in values]

        def rows(url: str, schema: pa.Schema) -> pa.Table:
            indexes = [index for index, staged_url in enumerate(urls) if staged_url == url]
            return self.table(batch, indexes, [self.row(batch, index, values[index]) for index in indexes], schema)

        filtered = [value is not None and url is None for value, url in zip(values, urls, strict=True)]
        return StagedRows(
            batch.end,
            len(batch),
            values.count(None),
            {"not_exact": urls.count(DEAD_LETTERS)} if DEAD_LETTERS in urls else {},
            batch.timestamp_bounds_ms(),
            tuple(rows(table.url, table.arrow_schema) for table in self.formats),
            filtered_offsets=batch.offsets[np.array(filtered, np.bool_)],
            routed=tuple(
                (table, rows(table.url, table.arrow_schema)) for table in self.routed.values() if table.url in urls
            ),
        )


@dataclass(frozen=True, slots=True)
class Swap:
    """A commit that replaced a table's rows of a range."""

    request: Request
    step: RequestStep
    places: tuple[Place, ...]
    """The rows of the range that the table has from then on."""

    def covers(self, place: Place) -> bool:
        content = self.request.content
        runs = content.only or (content.span,)
        is_inside = any(run.start <= place.offset < run.end for run in runs)
        return is_inside and place.partition == self.request.name.topic_partition.partition

    def leaves_out(self, place: Place) -> bool:
        """Whether the request has no row of a record, because of the stream's condition."""
        return any(run.start <= place.offset < run.end for run in self.request.content.filtered)


@dataclass(frozen=True, slots=True)
class Replaced:
    """A request whose rows are in the main table."""

    swap: Swap
    urls: Mapping[Place, list[str]]
    """By record, the tables that it has rows for."""


class ReplacedLog(DeltaLog):
    def __init__(self, bucket: Bucket, stage_url: str) -> None:
        super().__init__(bucket, stage_url)
        self.swaps: dict[str, dict[int, Swap]] = {}
        """By table and version."""
        self.replaced: list[Replaced] = []
        """In the order of their commits to the main table."""
        self.problems: list[str] = []

    def places(self, url: str) -> Iterator[Place]:
        """The origin of each row that a table has now."""
        return iter(self.at(url, None))

    def at(self, url: str, version: int | None) -> list[Place]:
        places: list[Place] = []
        commits = self.tables[url].commits[:version] if url in self.tables else []
        for number, commit in enumerate(commits, 1):
            swap = self.swaps.get(url, {}).get(number)
            kept = places if swap is None else [place for place in places if not swap.covers(place)]
            places = [*kept, *(self.places_of(url, commit) if swap is None else swap.places)]
        return places

    def staged(self, request: Request, url: str) -> list[Place]:
        table = request.content.of(url)
        files = () if table is None else table.files
        return [place for file in files for place in places_of(self.read(f"{STAGE}/{file.path}"))]

    def swap(self, swap: Swap, url: str, metadata: str) -> None:
        table, known = self.tables[url], CommitMetadata.from_json(metadata)
        assert known is not None
        before = {place for table in self.tables for place in self.places(table) if swap.covers(place)}
        target = Target(url, table.table_id, TableShape(table.schema, table.partition_by), {}, 0)
        advances = {txn_id(swap.request.name.request): int(swap.step)}
        table.commits.append(TableCommit(target, "orders", (), dict.fromkeys(advances), advances, known))
        table.transactions |= advances
        self.swaps.setdefault(url, {})[self.version(url)] = swap
        if url == TABLE:
            request = swap.request
            urls = ((place, table.url) for table in request.content.tables for place in self.staged(request, table.url))
            self.replaced.append(Replaced(swap, {place: [url] for place, url in urls}))
        gone = {place for place in before.difference(*map(self.places, self.tables)) if not swap.leaves_out(place)}
        if gone:
            self.problems.append(f"{swap.request.name.path} leaves {min(gone)} in no table, by step {swap.step!r}")


@dataclass(frozen=True, slots=True)
class SimulatedReplacer:
    """A `delta_loader.load.replace_ranges.Replacer`: rows are read as of one version, and committed later."""

    world: World
    log: ReplacedLog
    tables: SimulatedTables

    def unnamed(self, _request: Request, _urls: tuple[str, ...]) -> int:
        return 0  # every table's rows name their records

    def lost(self, request: Request, urls: tuple[str, ...]) -> int:
        """How many records of the range some tables have and the request does not."""
        filtered = [offset for run in request.content.filtered for offset in range(run.start, run.end)]

        def count_lost() -> int:
            staged = {place.offset for url in urls for place in self.log.staged(request, url)}
            have = {place.offset for url in urls for place in self._inside(request, url, None)}
            return len(have.difference(staged, filtered))

        return self._asked(f"read {urls[0]}", urls[0], count_lost)

    def replace(self, request: Request, url: str, step: RequestStep, *, keep_stale: bool, metadata: str) -> bool:
        """One commit, of a transaction that began between reading the rows and now."""
        read = self._asked(f"read {url}", url, lambda: self.log.version(url))
        begun = self._asked(f"begin at {url}", url, lambda: self.log.version(url))

        def commit() -> bool:
            now = self.log.version(url)
            if self.world.is_late and now != begun:
                return False  # the version that it would be is taken
            if self.log.tables[url].transactions.get(txn_id(request.name.request), 0) >= step:
                return True  # as Delta skips a write that it has already seen
            if any(begun < number for number in self.log.swaps.get(url, ())):
                return False  # ConcurrentAppendException
            kept = self._stale(request, url, read) if keep_stale else []
            self.log.swap(Swap(request, step, (*self.log.staged(request, url), *kept)), url, metadata)
            return True

        if not self.world.faults_ended and self.world.rng.random() < self.world.chances.foreign:
            self.world.faults[Fault.FOREIGN_COMMIT] += 1
            return False
        return self._asked(f"commit to {url}", url, commit, changes=True)

    def _asked(self, name: str, url: str, call: Callable[[], Result], *, changes: bool = False) -> Result:
        self.tables.require_working(url)
        try:
            return self.world.effect(name, call, changes=changes)
        except StoreError as error:
            raise TableError(error.problem, "") from error

    def deletes(self, request: Request, url: str, step: RequestStep) -> bool:
        old = self._stale if step is RequestStep.DROP else self._inside
        return bool(old(request, url, None))

    def _inside(self, request: Request, url: str, version: int | None) -> list[Place]:
        whole = Swap(request, RequestStep.ROWS, ())
        return [place for place in self.log.at(url, version) if whole.covers(place)]

    def _stale(self, request: Request, url: str, version: int | None) -> list[Place]:
        new = {place.offset for place in self.log.staged(request, url)}
        return [place for place in self._inside(request, url, version) if place.offset not in new]


@dataclass(frozen=True, slots=True)
class LogRecords:
    world: World
    broker: Broker

    def batches(self, partition: TopicPartition, span: Span) -> Iterator[MessageBatch]:
        inside = [record for record in self.broker.logs[partition] if span.start <= record.offset < span.end]
        for first in range(0, len(inside), _AT_A_TIME):
            part = inside[first : first + _AT_A_TIME]
            yield self.world.effect("fetch", lambda part=part: _batch(partition, part))  # type: ignore[misc]


def _batch(partition: TopicPartition, records: list[Sent]) -> MessageBatch:
    return MessageBatch(
        partition,
        np.array([record.offset for record in records], np.int64),
        np.array([record.timestamp_ms for record in records], np.int64),
        pa.array([record.value for record in records], pa.binary()),
        pa.array([record.key for record in records], pa.binary()),
        None,
    )


class ReplayedInvariants(StageInvariants):
    """An edited config moves records between tables: a stray names tables that do not get its span."""

    def _lacking(self, marker: Marker) -> list[str]:
        return [url for url in StageInvariants._lacking(self, marker) if url == TABLE]


class ReplayOperator(Operator):
    """An operator who follows the notes of a rewind."""

    def __init__(self, world: World, broker: Broker, *, replay: Callable[[Range], None], **more: Any) -> None:  # noqa: ANN401
        super().__init__(world, broker, **more)
        self._note = replay

    def _with_tables_ahead(self, state: PartitionState, plan: RewindPlan) -> RewindPlan:
        return with_tables_ahead(plan, state.table, self._position(plan.partition, self._stream.tables))

    def _loaded_ahead(self, plan: RewindPlan) -> Span | None:
        highest = self._position(plan.partition, self._stream.tables)
        span = loaded_ahead(plan, self._position(plan.partition, [self._stream.table]), highest)
        if span is not None:
            self._replay(plan.partition, span)
        return span

    def _replay(self, partition: TopicPartition, span: Span) -> None:
        self._note(Range(partition, span))


class Replayed(Routed):
    """Several tables, configs that are edited, and replays."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        world = context.world
        world.chances = replace(world.chances, recreated=0.0)
        self.values = (*_PLACES, None)
        self.log: ReplacedLog = ReplacedLog(context.bucket, STAGE)
        self._edition = world.rng.randrange(_EDITIONS)
        self._last: Range | None = None
        self._noted: list[Range] = []
        self.operator = partial(ReplayOperator, replay=self._note)

    def invariants(self) -> ReplayedInvariants:
        return ReplayedInvariants(STAGE, self.stream, lambda: self.log.tables)

    def converter(self, process: Process | None = None) -> EditionConverter:
        """By the current config."""
        del process
        converter = EditionConverter(self.stream, self.registry)
        converter.edition = self._edition
        return converter

    def replacer(self, tables: SimulatedTables) -> Replacer:
        return SimulatedReplacer(self.context.world, self.log, tables)

    def wanted(self, value: bytes | None) -> Wanted:
        return ({},) if value is None else tuple({url: 1} if url else {} for url in _PLACES[value])

    def inject_faults(self) -> None:
        world = self.context.world
        if world.rng.random() < _EDITED:
            world.faults[Fault.EDITED] += 1
            self._edition = world.rng.randrange(_EDITIONS)
            world.note(f"the config is edited: edition {self._edition}")
        if world.rng.random() < world.chances.replayed:
            world.faults[Fault.REPLAYED] += 1
            self.context.spawn("replay", self._replay_dead_letters if world.rng.random() < 0.4 else self._replay_range)

    def on_faults_ended(self) -> None:
        """Operators follow the notes of rewinds; no process dies before they are done."""
        for noted in self._noted:
            self._replay_noted(noted)

    def _note(self, noted: Range) -> None:
        if self.context.world.faults_ended:
            self._replay_noted(noted)
        else:
            self._noted.append(noted)

    def _replay_noted(self, noted: Range) -> None:
        world, broker = self.context.world, self.context.broker
        self.context.spawn("replay", lambda: self._note_result(self._work(LogRecords(world, broker)).stage(noted)))

    def _replay_range(self) -> None:
        """`stage-writer replay --from --to`."""
        world, broker = self.context.world, self.context.broker
        partition = world.rng.choice(sorted(broker.logs))
        if broker.end(partition) < 1:
            return
        if self._last is None or world.rng.random() >= _AGAIN:
            start = world.rng.randrange(broker.end(partition))
            end = min(broker.end(partition), start + world.rng.choice([1, 3, 10, 50]))
            self._last = Range(partition, Span(Position(start), Position(end)))
        self._note_result(self._work(LogRecords(world, broker)).stage(self._last))

    def _replay_dead_letters(self) -> None:
        """`stage-writer replay --letters`, of all dead letters of the table."""
        world = self.context.world
        places = set(world.effect("export", lambda: list(self.log.places(DEAD_LETTERS))))
        sent = [
            (partition, record)
            for partition, log, _ in self.context.logs()
            for record in log
            if Place.of(partition, record) in places
        ]
        if not sent:
            return
        table = pa.table(
            {
                "_kafka_topic": pa.array([str(partition.topic) for partition, _ in sent]),
                "_kafka_partition": pa.array([int(partition.partition) for partition, _ in sent], pa.int32()),
                "_kafka_offset": pa.array([record.offset for _, record in sent], pa.int64()),
                "_kafka_timestamp": pa.array([record.timestamp_ms for _, record in sent], pa.timestamp("ms", "UTC")),
                "key": pa.array([record.key for _, record in sent], pa.binary()),
                "value": pa.array([record.value for _, record in sent], pa.binary()),
            }
        )
        letters = DeadLetterExport(table, _AT_A_TIME)
        fitting = letters.without_inconvertible([self._work(letters).count(part) for part in letters.ranges("orders")])
        for asked in fitting.requests("orders"):
            self._note_result(self._work(fitting).stage(asked))

    def _work(self, records: Records) -> Replay:
        world = self.context.world
        return Replay(
            cast("RecordConverter", self.converter()),
            records,
            SimulatedStore(world, self.context.bucket, STAGE),
            WorldClock(world, world.process),
            lambda: f"{world.rng.getrandbits(128):032x}",
            writer=world.process.name,
            file_bytes=world.rng.choice([1, 10**9]),
            longest_s=math.inf,
        )

    def _note_result(self, replayed: Counted) -> None:
        self.context.world.note(f"an operator replays {replayed.range.words}: {replayed.rows} rows, {replayed.path}")

    def problems(self) -> Iterator[str]:
        """Requests that are left, and records that are not where the last request puts them (rule 2)."""
        yield from self.log.problems
        yield from (f"{path} is left" for path in self.context.bucket.objects if path.startswith(f"{STAGE}/{REPLACE}/"))
        have: dict[Place, list[str]] = {}
        for url in self.urls():
            for place in self.log.places(url):
                have.setdefault(place, []).append(url)
        for partition, log, _ in self.context.logs():
            for record in log:
                place = Place.of(partition, record)
                swap = next((replaced for replaced in reversed(self.log.replaced) if replaced.swap.covers(place)), None)
                wanted = [] if swap is None else swap.urls.get(place, [])
                if swap is not None and have.get(place, []) != wanted:
                    path = swap.swap.request.name.path
                    yield f"{partition} offset {record.offset} is in {have.get(place)}, and {path} has it in {wanted}"
