"""One history: real writers and loaders in a hostile world, then peace, then the books are checked.

The checker knows nothing of markers or plans. It reads the files that the tables' commits added and compares them with
Kafka's logs: each record is in the table once, or in the dead letters once, or was a tombstone; and each txn action is
at its log's end.
"""

from __future__ import annotations

import io
import itertools
import uuid
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Generic

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from common.beginnings import begin_path, beginning_from_bytes
from common.errors import KafkaDeltaExpressError, TableError
from common.metrics import Metrics
from common.settings import Settings
from common.spans import Partition, Topic, TopicPartition
from delta_loader.core.commits import Conflicted
from delta_loader.lease import LoaderLease
from delta_loader.service import LoaderService, Ports
from delta_loader.stage import Stage
from stage_writer.core.flushing import Limits
from stage_writer.ports import Result
from stage_writer.service import StageWriter
from stage_writer.shell.staging import ObjectStage
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import in_turn
from tests.simulation.converter import BAD, GOOD, LEFT, RIGHT, ROUTES, PlainConverter, Registry
from tests.simulation.counting import COUNTED, KEYS, TOPOLOGY, CountBook, converter, wanted_rows
from tests.simulation.evolving import GAINING, EvolvingConverter, Values
from tests.simulation.kafka import SESSION_MS, Broker, GroupMember
from tests.simulation.operators import GivenUp, Operator, Repairs
from tests.simulation.store import Bucket, SimulatedStore
from tests.simulation.world import PROFILES, Chances, Crash, Fault, Process, World, WorldClock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from common.delta_log import TableState
    from common.markers import MarkerName
    from common.schema.evolution import Addition
    from common.settings import Stream
    from common.table_history import LoggedCommit
    from delta_loader.core.commits import CommitOutcome, TableCommit
    from delta_loader.core.plan import TableShape
    from delta_loader.core.ways.casting import Widening
    from stage_writer.ports import Converter, Flushing, Item, Runs

STAGE, TABLE, DEAD_LETTERS = "memory://stage", "memory://orders", "memory://orders_dead_letters"


def _settings(**routing: object) -> Settings:
    stream = {"app_id": "orders", "topics": ["orders"], "table": TABLE, "columns": "n BIGINT", **routing}
    return Settings.model_validate(
        {
            "kafka": {"bootstrap.servers": "nowhere:1"},
            "stage": {"url": STAGE},
            "loader": {"marker_retention": 0, "max_files": 20},
            "streams": [stream],
        }
    )


_PLAIN = _settings()
_EVOLVING = _settings(unknown_fields="evolve")
_COUNTING = _settings(**TOPOLOGY)
_ROUTED = _settings(route="CAST(n AS VARCHAR)", routes={"2": LEFT, "3": RIGHT})
_STATE_KEEP_S = 1.0  # so that state files are cleaned in the middle of everything
_LIMITS = Limits(flush_after_s=5.0, flush_bytes=10**9, flush_records=25, memory_bytes=10**9)
_VALUES = (GOOD, GOOD, GOOD, GOOD, BAD, None)
_EVOLVING_VALUES = (GOOD, *GAINING, *GAINING, BAD, None)
_ROUTED_VALUES = (GOOD, GOOD, *ROUTES, *ROUTES, BAD, None)
_MOST_STEPS_IN_PEACE = 30_000
Place = tuple[int, int, int]
"""Of a record: its partition, offset and time, in milliseconds. A topic that is made anew uses its offsets again."""
_LEASE_S = 15.0
_SILENT = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(50), processors=[])


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a history ended."""

    seed: int
    problems: tuple[str, ...]
    faults: Counter[Fault]
    records: int
    story: tuple[str, ...]


@dataclass(slots=True)
class Flight(Generic[Result]):
    """A `stage_writer.ports.Running`."""

    outcome: Result | None = None
    error: Exception | None = None

    def done(self) -> bool:
        """Whether it has ended."""
        return self.outcome is not None or self.error is not None

    def result(self) -> Result:
        """How it ended."""
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        return self.outcome


class Strands:
    """`stage_writer.ports.Workers` as strands of the writer's process."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def start(self, job: Runs[Result]) -> Flight[Result]:
        """Run it beside the loop."""
        if not self._process.alive:
            raise Crash
        flight = Flight[Result]()

        def run() -> None:
            try:
                flight.outcome = job.run()
            except Crash:
                return
            except Exception as error:  # noqa: BLE001 - it is the loop's, as with a Future
                flight.error = error

        self._world.spawn(self._process, run)
        return flight

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        return [function(item) for item in items]

    def wait(self, running: Collection[Flushing], timeout_s: float) -> None:
        """Wait until one of them has ended."""
        until_ms = self._world.now_ms + ceil(timeout_s * 1000)  # down to 0, a loop would never end
        while not any(flight.done() for flight in running) and self._world.now_ms < until_ms:
            self._world.sleep_s(0.05)

    def close(self) -> None:
        """Nothing is kept."""


class WatchedStage(ObjectStage):
    """A writer's stage; who asks for a claim after the group gave it up is written down."""

    def watch(self, member: GroupMember, stale: list[str]) -> None:
        """``stale`` gets what should not be."""
        self._member, self._stale = member, stale

    def claim(self, name: MarkerName, data: bytes) -> bool:
        """The real one."""
        if self._member.expelled:
            self._stale.append(f"{self._member.process.name} claims {name.path}, and the group has given it up")
        return super().claim(name, data)


class SimulatedTables:
    """`delta_loader.ports.DeltaTables`, reached through the world."""

    def __init__(self, world: World, tables: MemoryDeltaTables, broken: Mapping[str, int] | None = None) -> None:
        """``broken`` are tables that do not work, until a time."""
        self._world = world
        self._tables = tables
        self._broken = broken or {}

    def _check(self, url: str) -> None:
        if not self._world.healed and self._broken.get(url, 0) > self._world.now_ms:
            msg = f"{url} is broken"
            raise TableError(msg, "")

    def state(self, url: str) -> TableState | None:
        """What a snapshot says."""
        self._check(url)
        return self._world.effect(f"look at {url}", lambda: self._tables.state(url))

    def history(self, url: str, newest: int) -> Iterator[LoggedCommit]:
        """Its commits, newest first."""
        return self._tables.history(url, newest)

    def create(self, url: str, shape: TableShape) -> None:
        """An empty table."""
        self._check(url)
        self._world.effect(f"create {url}", lambda: self._tables.create(url, shape), changes=True)

    def add_columns(self, url: str, added: Sequence[Addition]) -> None:
        """An ALTER TABLE."""
        self._world.effect(f"alter {url}", lambda: self._tables.add_columns(url, added), changes=True)

    def widen(self, url: str, widening: Widening) -> None:
        """Another one."""
        self._world.effect(f"widen {url}", lambda: self._tables.widen(url, widening), changes=True)

    def commit(self, commit: TableCommit) -> CommitOutcome:
        """Atomic, as Delta's commit is; a foreign writer's may come between, so that it has to be planned anew."""
        self._check(commit.target.url)
        return self._world.effect(f"commit to {commit.target.url}", lambda: self._commit(commit), changes=True)

    def _commit(self, commit: TableCommit) -> CommitOutcome:
        if not self._world.healed and self._world.rng.random() < self._world.chances.foreign:
            self._world.faults[Fault.FOREIGN_COMMIT] += 1
            return Conflicted("a foreign writer's commit came between")
        return self._tables.commit(commit)


@dataclass(slots=True)
class History:
    """A world with writers and loaders in it."""

    seed: int
    chances: Chances | None = None
    """One of `PROFILES` by the seed when absent."""
    counting: bool = False
    """Whether the stream has a topology, whose tasks have state."""
    world: World = field(init=False)
    broker: Broker = field(init=False)
    bucket: Bucket = field(default_factory=Bucket)
    tables: MemoryDeltaTables = field(default_factory=MemoryDeltaTables)
    _names: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _running: dict[str, Process] = field(default_factory=dict)
    _given_up: GivenUp = field(default_factory=GivenUp)
    _repairs: Repairs = field(default_factory=Repairs)
    _stale_claims: list[str] = field(default_factory=list)
    _places: dict[str, list[Place]] = field(default_factory=dict)
    _leased: bool = False
    _loaded: dict[TopicPartition, int | None] = field(default_factory=dict)
    _repairing: dict[TopicPartition, list[Process]] = field(default_factory=dict)
    _mended: set[TopicPartition] = field(default_factory=set)
    _routed: bool = False
    _evolving: bool = False
    _values: Values = field(init=False)
    _counts: CountBook = field(init=False)
    _broken: dict[str, int] = field(default_factory=dict)
    _registry: Registry = field(init=False)

    def __post_init__(self) -> None:
        self.world = World(self.seed, self.chances or PROFILES[self.seed % len(PROFILES)])
        rng = self.world.rng
        self._registry = Registry(self.world)
        self._values = Values(self.bucket, _EVOLVING.streams[0].rescue_column)
        self.broker = Broker(self.world, eager=rng.random() < 0.3)
        self._leased = rng.random() < 0.5
        self._routed = not self.counting and rng.random() < 0.4
        self._evolving = not self.counting and not self._routed and rng.random() < 0.4
        self._counts = CountBook(self.bucket)
        for partition in range(rng.randrange(1, 4)):
            self.broker.logs[TopicPartition(Topic("orders"), Partition(partition))] = []

    def run(self) -> Verdict:
        """War, then peace, then the books."""
        rng = self.world.rng
        roles = [f"writer-{index}" for index in range(rng.randrange(1, 4))]
        roles += [f"loader-{index}" for index in range(rng.randrange(1, 3))]
        for _ in range(rng.randrange(200, 1200)):
            self._turn(roles, produce=0.25)
            if rng.random() < 0.002 and len(self._writers()) > 1:
                self._scale(roles)
        self.world.heal()
        problems: tuple[str, ...] = ("unfinished",)
        for step in range(_MOST_STEPS_IN_PEACE):
            self._turn(roles, produce=0.0)
            if step % 50 == 0:
                problems = self.problems()
                if not problems:
                    break
            if (self.world.chances.operator or self.broker.past) and step % 1500 == 1499:
                self._mend()
        for process in self._running.values():
            self.world.crash(process)
        records = sum(len(log) for log in self.broker.logs.values())
        return Verdict(self.seed, problems, self.world.faults, records, tuple(self.world.story))

    def problems(self) -> tuple[str, ...]:
        """What the books say against it; empty when all is in order."""
        books = (*self._missing_or_twice(), *self._positions(), *self._repairs.problems(), *self._stale_claims)
        if self.counting:
            logs = (*self.broker.past, self.broker.logs)
            return (*books, *self._counts.problems(TABLE, self.tables.tables.get(TABLE), logs, self._given_up.has))
        if not self._evolving:
            return books
        return (*books, *self._values.problems(TABLE, self.tables.tables.get(TABLE), self._sent()))

    def _sent(self) -> dict[Place, bytes]:
        """The records that are rows, as they were sent."""
        return {
            (int(source.partition), record.offset, record.timestamp_ms): record.value
            for logs in (*self.broker.past, self.broker.logs)
            for source, log in logs.items()
            for record in log
            if record.value is not None and record.value != BAD
        }

    # The world's turns.

    def _turn(self, roles: list[str], produce: float) -> None:
        rng = self.world.rng
        for role in roles:
            process = self._running.get(role)
            if (process is None or not process.alive) and (self.world.healed or rng.random() < 0.05):
                self._start(role)
        if rng.random() < produce:
            key = rng.choice(KEYS) if self.counting else None
            self.broker.append(rng.choice(sorted(self.broker.logs)), rng.choice(self._sendable), key)
        if not self.world.healed and rng.random() < self.world.chances.recreated:
            self.world.faults[Fault.RECREATED] += 1
            self.world.tell("the topic is deleted and created again")
            self.broker.recreate()
        if self._routed and not self.world.healed and rng.random() < self.world.chances.broken_table:
            self._break_a_table()
        self.broker.expel_silent()
        if not self.world.healed and self.broker.members and rng.random() < self.world.chances.shuffle:
            self.world.faults[Fault.REBALANCE] += 1
            self.broker.rebalance(sticky=False)
        if not self.world.healed and rng.random() < self.world.chances.operator:
            source = rng.choice(sorted(self.broker.logs))
            self._operate(source, lambda operator: operator.repair(source))
        self.world.step()

    def _break_a_table(self) -> None:
        """One of the stream's tables, but its own, does not work for a while."""
        self.world.faults[Fault.BROKEN_TABLE] += 1
        url = self.world.rng.choice(self._settings.streams[0].side_tables)
        self._broken[url] = self.world.now_ms + self.world.rng.choice([1_000, 30_000, 120_000])
        self.world.tell(f"{url} is broken for {self._broken[url] - self.world.now_ms} ms")

    @property
    def _sendable(self) -> Sequence[bytes | None]:
        """The values that producers send."""
        if self.counting:
            return COUNTED
        return _ROUTED_VALUES if self._routed else _EVOLVING_VALUES if self._evolving else _VALUES

    @property
    def _settings(self) -> Settings:
        if self.counting:
            return _COUNTING
        return _ROUTED if self._routed else _EVOLVING if self._evolving else _PLAIN

    def _operate(self, source: TopicPartition, work: Callable[[Operator], None]) -> None:
        """Someone repairs a Kafka partition, maybe while others do."""
        others = self._repairing.setdefault(source, [])
        others[:] = [process for process in others if process.alive]
        process = Process(f"operator#{next(self._names)}")
        tables = SimulatedTables(self.world, self.tables)
        store = self._store(STAGE)
        operator = Operator(
            self.world,
            self.broker,
            stream=self._settings.streams[0],
            store=store,
            tables=tables,
            given_up=self._given_up,
            repairs=self._repairs,
            alone=lambda: not any(other.alive for other in others if other is not process),
        )
        others.append(process)

        def run() -> None:
            work(operator)
            process.alive = False

        self.world.spawn(process, run)

    def _mend(self) -> None:
        """What the documents ask of operators: look where a partition is held, and do what the loader says."""
        problems = self.problems()
        for source in sorted(self.broker.logs):
            loaded = self._position(source)
            stands = source in self._loaded and self._loaded[source] == loaded
            if stands and any(problem.startswith(f"{source} ") for problem in problems):
                again = source in self._mended
                self._mended.add(source)
                self._operate(source, partial(Operator.mend, source=source, give_up=again))
            self._loaded[source] = loaded

    def _scale(self, roles: list[str]) -> None:
        """A writer more, or one less; the group is assigned anew."""
        self.world.faults[Fault.REBALANCE] += 1
        writers = self._writers()
        if self.world.rng.random() < 0.5:
            roles.append(f"writer-{next(self._names)}x")
        elif writers:
            victim = self.world.rng.choice(writers)
            roles.remove(victim.name.partition("#")[0])
            self.world.crash(victim)

    def _writers(self) -> list[Process]:
        return [process for role, process in self._running.items() if role.startswith("writer") and process.alive]

    def _start(self, role: str) -> None:
        process = Process(f"{role}#{next(self._names)}", last_heartbeat_ms=self.world.now_ms)
        self._running[role] = process
        self.world.tell(f"{process.name} starts")
        run = self._writer if role.startswith("writer") else self._loader
        self.world.spawn(process, lambda: run(process))

    def _store(self, url: str) -> SimulatedStore:
        return SimulatedStore(self.world, self.bucket, url)

    def _writer(self, process: Process) -> None:
        clock, rng = WorldClock(self.world), self.world.rng
        member = GroupMember(self.world, self.broker, process)
        stage = WatchedStage(
            self._store(STAGE),
            self._store,
            clock,
            lambda: str(uuid.UUID(int=rng.getrandbits(128))),
            process.name,
            state_keep_s=_STATE_KEEP_S,
        )
        stage.watch(member, self._stale_claims)
        stream = self._settings.streams[0]
        service = StageWriter(
            converters=[self._converter(stream, clock)],
            limits=_LIMITS,
            revoke_timeout_s=20.0,
            report_positions=False,
            source=member,
            stage=stage,
            workers=Strands(self.world, process),
            clock=clock,
            log=_SILENT,
            metrics=Metrics(),
            session_s=SESSION_MS / 1000,
        )
        try:
            service.run(until_caught_up=False)
        except Crash:
            return
        except KafkaDeltaExpressError as error:
            self.world.tell(f"{process.name} ends: {error.problem}")
        process.alive = False

    def _converter(self, stream: Stream, clock: WorldClock) -> Converter:
        if self.counting:
            return converter(stream, clock.wall_ms)
        return (EvolvingConverter if self._evolving else PlainConverter)(stream, self._registry)

    def _loader(self, process: Process) -> None:
        tables = SimulatedTables(self.world, self.tables, self._broken)
        ports = Ports(
            stage=Stage(self._store(STAGE), in_turn),
            tables=tables,
            columns=tables if self._evolving else None,
            open_store=self._store,
            parallel=in_turn,
            clock=WorldClock(self.world),
            new_id=lambda: f"{process.name}-{next(self._names)}",
            log=_SILENT,
            metrics=Metrics(),
        )
        service = LoaderService(self._settings.streams, self._settings.loader, ports)
        lease = self._lease(process, ports) if self._leased else None
        try:
            while True:
                if lease is None or lease.held():
                    service.run_pass(lambda: lease is not None and not lease.held())
                self.world.sleep_s(self.world.rng.choice([1, 5, 30]))
        except Crash:
            return

    def _lease(self, process: Process, ports: Ports) -> LoaderLease:
        lease = LoaderLease(self._store(STAGE), ports.clock, process.name, _LEASE_S, log=_SILENT, metrics=ports.metrics)

        def keep() -> None:
            try:
                lease.contend()
                while True:
                    self.world.sleep_s(lease.step())
            except Crash:
                return

        self.world.spawn(process, keep)
        return lease

    # The books.

    def _missing_or_twice(self) -> list[str]:
        found = {url: self._offsets(url) for url in (TABLE, DEAD_LETTERS, *ROUTES.values())}
        problems: list[str] = []
        known: set[Place] = set()
        for logs in (*self.broker.past, self.broker.logs):
            for source, record in ((source, record) for source, log in logs.items() for record in log):
                place = (int(source.partition), record.offset, record.timestamp_ms)
                known.add(place)
                have = {url: offsets[place] for url, offsets in found.items() if offsets[place]}
                wanted = self._wanted(record.value)
                # What nobody had staged of a topic that was deleted is gone with it.
                may_lack = logs is not self.broker.logs or self._given_up.has(source, record.offset)
                if have != wanted and not (may_lack and not have):
                    problems.append(f"{source} offset {record.offset}: {have} instead of {wanted}")
        everything = set[Place]().union(*found.values())
        problems += [f"rows for {place}, which Kafka never had" for place in everything if place not in known]
        return problems

    def _wanted(self, value: bytes | None) -> dict[str, int]:
        """How many rows a record has in each table."""
        if self.counting:
            return wanted_rows(value, TABLE, DEAD_LETTERS)
        places = {GOOD: TABLE, BAD: DEAD_LETTERS, **ROUTES, **dict.fromkeys(GAINING, TABLE)}
        return {} if value is None else {places[value]: 1}

    def _offsets(self, url: str) -> Counter[Place]:
        table = self.tables.tables.get(url)
        offsets: Counter[Place] = Counter()
        for path, start in table.parts if table is not None else []:
            offsets.update(place for place in self._places_in(f"{url}/{path}") if place[1] >= start)
        return offsets

    def _places_in(self, path: str) -> list[Place]:
        """The rows of a data file. A file of this name never changes."""
        stored = self.bucket.objects.get(path)
        if stored is None:
            return []  # shows as missing rows
        if path not in self._places:
            file = pq.ParquetFile(io.BytesIO(stored[0]))
            found = file.read(["_kafka_partition", "_kafka_offset", "_kafka_timestamp"], use_threads=False)
            times_ms = [time_us // 1000 for time_us in found[2].cast(pa.int64()).to_pylist()]
            self._places[path] = list(zip(found[0].to_pylist(), found[1].to_pylist(), times_ms, strict=True))
        return self._places[path]

    def _positions(self) -> list[str]:
        return [
            f"{source} is loaded to {self._position(source)}, its log ends at {log[-1].offset}"
            for source, log in self.broker.logs.items()
            if log and self._position(source) != log[-1].offset
        ]

    def _position(self, source: TopicPartition) -> int | None:
        """The last offset of the partition's newest chain that the table has."""
        table = self.tables.tables.get(TABLE)
        path, stored = begin_path(source), self.bucket.objects.get(f"{STAGE}/{begin_path(source)}")
        generation = 0 if stored is None else beginning_from_bytes(path, stored[0]).generation
        made_anew = f"@{generation}" if generation else ""
        return None if table is None else table.transactions.get(f"orders-{source.partition}{made_anew}")
