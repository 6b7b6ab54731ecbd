"""Histories of an operator who edits configs between any two steps, over stages and tables that others use too.

One or two pipelines run, each by its own config: the Kafka cluster and topics, app_id, stage, table and columns. An
edit changes one of these; running processes see it at their next restart, some at once and some later. Clusters have
the same topic names and different topic ids. Tables are shared: others commit to them, restore them, clean their logs,
and let txn actions expire.

Rules of the final check, which uses no positions:

1. Nothing comes a second time under one app_id, or out of one data file, at any commit (shared_log.py).
2. A marker is settled only when its tables have had all rows of its files, or its copy is below ``stray/``. A data file
   that a table or an unsettled marker names is not deleted.
3. At the end each record that a config names is in a table of its pipeline, or its Kafka partition is held, by the
   loader or by the writer, for a reason that one of the pipeline's edits explains.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from random import Random
from typing import Any

from bootstrap.accepting import require_whole
from bootstrap.apply import stage as staging
from bootstrap.apply.partition_state import partition_state, require_even
from bootstrap.apply.repair_lock import RepairLocks
from bootstrap.plans.restart import Restart, plan_restart
from bootstrap.plans.state import Author, Ends
from common.errors import KafkaDeltaExpressError
from common.settings import Settings, Stream
from common.spans import Partition, Topic, TopicPartition
from common.stage.merged import inputs_of, topics_of
from common.tables.identity import NO_IDENTITY, TableIdentity, identity_of
from common.tables.stream_history import StreamHistory, histories_of
from common.tables.transactions import TxnIds
from delta_loader.tables.commits import TableCommit
from stage_writer.partitions.flush_decision import FlushLimits
from stage_writer.ports import Converter
from tests.builders import settings_of
from tests.fakes.delta_tables import MemoryTable
from tests.simulation.converter import BAD, GOOD, PlainConverter, Registry
from tests.simulation.delta_log import Place, SimulatedTables
from tests.simulation.history import Verdict
from tests.simulation.invariants import Objects
from tests.simulation.kafka import Broker, Record
from tests.simulation.kinds import Context, Kind
from tests.simulation.operators import GivenUpPositions
from tests.simulation.row_invariants import RowInvariants
from tests.simulation.services import Services
from tests.simulation.shared_log import Entry, SharedLog
from tests.simulation.store import Bucket
from tests.simulation.world import Chances, Crash, Fault, Process, World

TOPICS = ("orders", "payments", "orders_v2")
STAGES = ("memory://stage", "memory://stage2")
TABLES = ("memory://orders", "memory://orders2")
APP_IDS = ("loads", "loads2")
COLUMNS = ("n BIGINT", "n BIGINT, m BIGINT", "n STRING")
LAYOUTS: tuple[tuple[str, ...], ...] = ((), ("n",))
_VALUES: dict[str, tuple[Any, ...]] = {
    "app_id": APP_IDS,
    "stage": STAGES,
    "table": TABLES,
    "columns": COLUMNS,
    "partition_by": LAYOUTS,
}
_GOES = 0.6
"""One of several topics is removed."""

_HOUR_MS = 3_600_000
_COMMITS, _RESTORE, _CLEAN, _EXPIRE = 0.2, 0.5, 0.7, 0.9
"""What others do with a table, chosen at random."""
_MAX_QUIET_STEPS = 8_000
_STEPS_BETWEEN_CHECKS = 200
_LIMITS = FlushLimits(flush_after_s=1.0, flush_bytes=10**9, flush_records=8, memory_bytes=10**9)
_PAUSES_S = (0.3, 1.0, 3.0)  # so that something is loaded between two edits
_OUTDATED_ENDS = 0.01
"""For each step: a process with an outdated config is restarted."""

CALM = Chances(
    edited=0.006,
    crash=0.001,
    pause=0.001,
    stall=0.003,
    refused=0.003,
    lost_answer=0.003,
    clock_jump=0.0,
    rival=0.05,
    given_up=0.001,
    duplicate=0.003,
)
"""Little but edits."""
TENDED = replace(CALM, edited=0.001, tended=0.01, weekend=0.003)
"""Others use the tables."""
RENAMED = replace(CALM, edits=("topic", "topics"))
"""Only the topics are edited."""
MOVED = replace(CALM, edits=("cluster", "stage"))
"""The cluster and the stage."""
CALLED = replace(CALM, edits=("app_id",))
"""The app_id."""
ROUGH = Chances(edited=0.005, tended=0.003)
"""All fields."""
EDITORS = (CALM, RENAMED, TENDED, ROUGH, CALM, MOVED, TENDED, CALLED)


@dataclass(frozen=True, slots=True)
class Config:
    cluster: int = 0
    stage: str = STAGES[0]
    app_id: str = APP_IDS[0]
    topics: tuple[str, ...] = TOPICS[:1]
    table: str = TABLES[0]
    columns: str = COLUMNS[0]
    partition_by: tuple[str, ...] = ()
    topology: str | None = None

    def edited(self, what: str, rng: Random) -> Config:
        """Another config, which differs in the field ``what``."""
        match what:
            case "topic":
                kept = list(self.topics)
                kept[rng.randrange(len(kept))] = rng.choice(TOPICS)
                return replace(self, topics=tuple(dict.fromkeys(kept)))
            case "topics":
                gone = rng.choice(self.topics) if len(self.topics) > 1 and rng.random() < _GOES else None
                topics = (*self.topics, rng.choice(TOPICS)) if gone is None else self.topics
                return replace(self, topics=tuple(topic for topic in dict.fromkeys(topics) if topic != gone))
            case "cluster":
                return replace(self, cluster=1 - self.cluster, stage=rng.choice((self.stage, *STAGES)))
            case _:
                others = [value for value in _VALUES[what] if value != getattr(self, what)]
                return replace(self, **{what: rng.choice(others)})


FIELDS = ("topic", "topics", "cluster", "app_id", "stage", "table", "columns", "partition_by")


@lru_cache(4096)
def settings_for(config: Config) -> Settings:
    stream = {"app_id": config.app_id, "topics": list(config.topics), "table": config.table, "columns": config.columns}
    return settings_of(
        {**stream, "partition_by": list(config.partition_by), "topology": config.topology},
        stage={"url": config.stage},
        kafka={"bootstrap.servers": f"cluster{config.cluster}:1"},
        loader={"marker_retention": 0, "max_files": 20},
    )


class GroupBroker(Broker):
    """A pipeline's group in one cluster, whose topics have ids of their own."""

    cluster = 0

    def _id_of(self, topic: str) -> str:
        return f"{topic}-of-cluster-{self.cluster}"


class ColumnsConverter(PlainConverter):
    def __init__(self, stream: Stream, registry: Registry) -> None:
        super().__init__(stream, registry)
        rows, dead_letters = self.formats
        self.formats = (replace(rows, partition_by=stream.layout.partition_by), dead_letters)
        self._number: object = "1" if stream.record.columns == COLUMNS[2] else 1

    def fields(self, value: bytes) -> dict[str, object]:
        del value
        return {"n": self._number}


class Pipeline(Kind):
    """What one config says, over the tables of the world."""

    values = (GOOD, GOOD, GOOD, BAD, None)

    def __init__(self, context: Context, config: Config, log: SharedLog) -> None:
        super().__init__(context)
        self.config = config
        self.settings = settings_for(config)
        self.log = log

    def converter(self, process: Process) -> Converter:
        del process
        return ColumnsConverter(self.stream, self.registry)


@dataclass(slots=True)
class Watch:
    stages: list[RowInvariants]

    @property
    def problems(self) -> list[str]:
        return [problem for stage in self.stages for problem in stage.problems]

    def first_ms(self, stage: str, partition: TopicPartition) -> int:
        return next(sighting for sighting in self.stages if sighting.stage == stage).first_ms[partition]

    def stage_of(self, path: str) -> str | None:
        return next((stage.stage for stage in self.stages if stage.has_staged(path)), None)

    def put(self, objects: Objects, path: str, data: bytes) -> None:
        for stage in self.stages:
            stage.put(objects, path, data)

    def delete(self, objects: Objects, path: str, process: str, *, is_late: bool) -> None:
        for stage in self.stages:
            stage.delete(objects, path, process, is_late=is_late)

    def committed(self, table: MemoryTable, commit: TableCommit) -> None:
        self.stages[0].committed(table, commit)


@dataclass(slots=True)
class Operated:
    name: str
    configs: list[Config]
    """The newest is the last."""
    groups: dict[int, GroupBroker] = field(default_factory=dict)
    """By cluster."""
    running: dict[str, tuple[Process, Config]] = field(default_factory=dict)
    """By role, with the config that it was started with."""
    edited: set[str] = field(default_factory=set)

    @property
    def config(self) -> Config:
        return self.configs[-1]


class EditedHistory:
    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        self.seed = seed
        self.world = World(seed, chances or EDITORS[seed % len(EDITORS)])
        self.bucket = Bucket()
        self.log = SharedLog(self.world, self.bucket, STAGES[0])
        rng, self._names = self.world.rng, itertools.count(1)
        self._services = Services(self.world, self.bucket, self._names, rng.random() < 0.5, _LIMITS, _PAUSES_S)
        self._places: set[tuple[int, int, int]] = set()
        self._clusters: list[dict[TopicPartition, list[Record]]] = [
            {TopicPartition(Topic(topic), Partition(number)): [] for topic in TOPICS for number in range(many)}
            for many in (rng.randrange(1, 3), rng.randrange(1, 3))
        ]
        self._pipelines = [Operated("one", [Config()])]
        if rng.random() < 0.4:
            self._pipelines.append(Operated("two", [self._second(rng)]))
        self._edits = self.world.chances.edits or rng.sample(FIELDS, rng.choice([1, 1, 2, 3]))
        self._idle = {partition for logs in self._clusters for partition in logs if rng.random() < 0.3}
        self.invariants = Watch([self._invariants(stage) for stage in STAGES])
        self.bucket.invariants = self.log.invariants = self.invariants
        self.log.stage_of, self.log.first_ms = self.invariants.stage_of, self.invariants.first_ms
        self.world.find_rival = self._find_rival
        self._given_up = GivenUpPositions()
        self._begun: set[TopicPartition] = set()
        """Chains that operators have restarted."""
        self._operators: list[Process] = []
        """Those that have restarted a chain, or do now."""
        self._unwatched: set[Place] = set()
        """Rows that a RESTORE removed and that no program checks."""

    def _second(self, rng: Random) -> Config:
        """Another pipeline, which shares something with the first one."""
        first, topics = Config(), (rng.choice(TOPICS[1:]),)
        return rng.choice(
            [
                replace(first, stage=STAGES[1], topics=topics),
                replace(first, topics=topics, app_id=APP_IDS[1], table=TABLES[1]),
                replace(first, stage=STAGES[1], topics=topics, app_id=APP_IDS[1]),
                replace(first, topics=topics, app_id=APP_IDS[1]),
            ]
        )

    def _invariants(self, stage: str) -> RowInvariants:
        stream = settings_for(Config()).streams[0]
        world = self.world
        return RowInvariants(
            stage,
            stream,
            lambda: self.log.tables,
            log=self.log,
            is_late=lambda: world.is_late,
            sent_ms=lambda: world.sent_ms,
        )

    def run(self) -> Verdict:
        for _ in self.world.steps():
            self._step(produce=0.25)
            if self._found():
                break
        self.world.end_faults()
        self._services.reports.clear()
        problems: tuple[str, ...] = ("unfinished",)
        for step in range(_MAX_QUIET_STEPS):
            self._step(produce=0.0)
            if problems := tuple(self._found()):
                break
            if step % _STEPS_BETWEEN_CHECKS == _STEPS_BETWEEN_CHECKS - 1 and not (problems := self.problems()):
                break
        self.world.close()
        records = sum(len(log) for logs in self._clusters for log in logs.values())
        crashed = bool(self.world.crashes)
        return Verdict(self.seed, problems, self.world.faults, records, tuple(self.world.trace), crashed)

    def _found(self) -> list[str]:
        return [*self.world.crashes, *self.invariants.problems, *self.log.problems, *self._services.stale_claims]

    # The world's steps.

    def _step(self, produce: float) -> None:
        world, rng = self.world, self.world.rng
        for pipeline in self._pipelines:
            for role in ("writer-0", "writer-1", "loader-0"):
                self._keep_running(pipeline, f"{pipeline.name}-{role}" if role[0] == "l" else f"{role}-{pipeline.name}")
        if rng.random() < produce:
            cluster = rng.choice([pipeline.config.cluster for pipeline in self._pipelines] * 2 + [0, 1])
            topics = [topic for pipeline in self._pipelines for topic in pipeline.config.topics] * 2 + list(TOPICS)
            topic = rng.choice(topics)
            logs = self._clusters[cluster]
            partitions = [partition for partition in logs if partition.topic == topic]
            awake = [partition for partition in partitions if partition not in self._idle]
            partition = rng.choice(awake or partitions)
            self._group(self._pipelines[0], cluster).append(partition, rng.choice(Pipeline.values))
        if not world.faults_ended:
            self._happens()
        for group in [group for pipeline in self._pipelines for group in pipeline.groups.values()]:
            group.expel_silent()
            if not world.faults_ended and group.members and rng.random() < world.chances.shuffle:
                world.faults[Fault.REBALANCE] += 1
                group.rebalance(sticky=False)
        world.step()

    def _happens(self) -> None:
        chances, rng = self.world.chances, self.world.rng
        if rng.random() < chances.edited:
            self._edit(rng.choice(self._pipelines))
        if rng.random() < chances.tended and self.log.tables:
            self._tend(rng.choice(sorted(self.log.tables)))
        if rng.random() < chances.weekend and self.log.tables:
            self._weekend(rng.choice(sorted(self.log.tables)))
        if rng.random() < chances.edited * 4:
            self._restart(rng.choice(self._pipelines))

    def _keep_running(self, pipeline: Operated, role: str) -> None:
        world, rng = self.world, self.world.rng
        process, config = pipeline.running.get(role, (None, pipeline.config))
        is_outdated = config != pipeline.config and (world.faults_ended or rng.random() < _OUTDATED_ENDS)
        if process is not None and process.alive and is_outdated:
            world.crash(process)
        if (process is None or not process.alive) and (world.faults_ended or rng.random() < 0.1):
            self._start(pipeline, role)

    def _start(self, pipeline: Operated, role: str) -> None:
        config, services = pipeline.config, self._services
        process = Process(f"{role}#{next(self._names)}", last_heartbeat_ms=self.world.now_ms)
        pipeline.running[role] = process, config
        self.world.note(f"{process.name} starts with {config}")
        group = self._group(pipeline, config.cluster)
        kind = self._kind(Context(self.world, group, self.bucket, self._given_up), config)
        if role.startswith("writer"):
            self.world.spawn(process, lambda: services.write(process, kind, group))
        else:
            self.world.spawn(process, lambda: services.load(process, kind))

    def _kind(self, context: Context, config: Config) -> Pipeline:
        return Pipeline(context, config, self.log)

    def _group(self, pipeline: Operated, cluster: int) -> GroupBroker:
        if cluster not in pipeline.groups:
            group = GroupBroker(self.world, eager=False, logs=self._clusters[cluster], places=self._places)
            group.cluster = cluster
            pipeline.groups[cluster] = group
        return pipeline.groups[cluster]

    def _find_rival(self, process: Process) -> bool:
        for group in [group for pipeline in self._pipelines for group in pipeline.groups.values()]:
            member = next((member for member in group.members if member.process is process), None)
            if member is not None and len(group.members) > 1:
                member.is_cut_off = True
                group.expel(member)
                return True
        return False

    # What operators do.

    def _edit(self, pipeline: Operated) -> None:
        rng = self.world.rng
        if len(pipeline.configs) > 1 and rng.random() < 0.3:
            config = rng.choice(pipeline.configs[:-1])  # back to what it was
        else:
            field = rng.choice(self._edits)
            config = pipeline.config.edited(field, rng)
        begins_again = any(operator.alive for operator in self._operators)
        if config == pipeline.config or (begins_again and config.app_id != pipeline.config.app_id):
            return  # an operator who begins a chain behind another app_id's stops that one (`_is_alone`)
        self.world.faults[Fault.EDITED] += 1
        pipeline.edited |= {
            name for name in config.__slots__ if getattr(config, name) != getattr(pipeline.config, name)
        }
        pipeline.configs.append(config)
        self.world.note(f"the config of pipeline {pipeline.name} is edited: {config}")
        for process, _ in list(pipeline.running.values()):
            if process.alive and rng.random() < 0.7:
                self.world.crash(process)

    def _weekend(self, url: str) -> None:
        """Nothing runs for days; later processes find what was done with a table meanwhile."""
        world, rng = self.world, self.world.rng
        world.faults[Fault.WEEKEND] += 1
        world.note("nothing runs for days")
        for process in [
            process for pipeline in self._pipelines for process, _ in pipeline.running.values() if process.alive
        ]:
            world.crash(process)
        before = [what for what in (_COMMITS, _RESTORE) if rng.random() < 0.5]
        after = [what for what in (_COMMITS, _CLEAN, _EXPIRE) if rng.random() < 0.6]
        for what in before:
            self._tend(url, what)
        if not world.leap(72 * _HOUR_MS):  # an operator is at work
            return
        for what in after:
            self._tend(url, what)
        self._idle -= set(rng.sample(sorted(self._idle), rng.randint(0, len(self._idle))))

    def _tend(self, url: str, what: float | None = None) -> None:
        """What others do with a table; chosen at random where ``what`` is not given."""
        world, rng = self.world, self.world.rng
        what = rng.random() if what is None else what
        if what < 0.4:
            count = rng.choice([1, 3, 30])
            world.faults[Fault.FOREIGN_COMMIT] += 1
            self.log.commit_of_others(url, count)
            world.note(f"others commit to {url} {count} times")
        elif what < 0.6 and self.log.restorable(url):
            version = rng.choice(self.log.restorable(url))
            world.faults[Fault.RESTORED] += 1
            lost = list(self.log.lost_by_restore(url, version))
            self.log.restore(url, version)
            world.note(f"{url} is put back to version {version}")
            self._not_missed(lost)
        elif what < 0.8:
            world.faults[Fault.CLEANED] += 1
            self.log.clean(url, world.now_ms - 24 * _HOUR_MS)
            world.note(f"the log of {url} is cleaned")
        else:
            world.faults[Fault.EXPIRED] += 1
            count = self.log.expire(url, world.now_ms - 24 * _HOUR_MS)
            world.note(f"{count} txn actions of {url} expire")

    def _not_missed(self, lost: list[Entry]) -> None:
        """Rows loaded under an app_id that no config has any more, once new chains have begun behind it.

        No program checks them (docs/internals/guarantees.md, G18).
        """
        watched = {pipeline.config.app_id for pipeline in self._pipelines}
        for entry in lost:
            if entry.commit is not None and entry.commit.app_id not in watched:
                partitions = {
                    int(partition.partition) for partition in self._begun.intersection(entry.commit.metadata.spans)
                }
                self._unwatched |= {place for place in entry.loaded if place.partition in partitions}

    def _restart(self, pipeline: Operated) -> None:
        """The remedy for a chain of another stream or topic: `bootstrap restart`, as the command plans it."""
        held = [
            partition
            for partition, reason in self._held(pipeline).items()
            if reason in ("other_stream", "other_topic") and self._is_alone(pipeline.config, partition)
            if inputs_of(partition)[0] in self._clusters[pipeline.config.cluster]  # which may have fewer partitions
        ]
        if not held:
            return
        process, partition = Process(f"operator#{next(self._names)}"), self.world.rng.choice(held)
        self._operators.append(process)

        def run() -> None:
            try:
                self._begin_again(pipeline, partition)
            except KafkaDeltaExpressError as error:
                self.world.note(f"an operator reads: {error.problem}")
                self._refused(partition, error)
            except Crash:
                return
            process.alive = False

        self.world.spawn(process, run)

    def _refused(self, partition: TopicPartition, error: KafkaDeltaExpressError) -> None:
        """A restart was refused."""

    def _is_alone(self, config: Config, partition: TopicPartition) -> bool:
        """Whether no process works on a chain under another app_id, and no request of such a process is pending.

        A load after this check would load twice: an operator stops that process first, and waits.
        """
        return not self.world.has_late_requests and not any(
            process.alive
            and other.app_id != config.app_id
            and other.stage == config.stage
            and not {*topics_of(partition.topic)}.isdisjoint(other.topics)
            for pipeline in self._pipelines
            for process, other in pipeline.running.values()
        )

    def _begin_again(self, pipeline: Operated, partition: TopicPartition) -> None:
        config, world = pipeline.config, self.world
        stream, store = settings_for(config).streams[0], self._services.store(config.stage)
        group = self._group(pipeline, config.cluster)
        table = SimulatedTables(world, self.log).state(config.table)

        def known_at(url: str, app_id: str) -> TableIdentity:
            state = self.log.state(url)
            if state is None:
                return NO_IDENTITY
            ids = TxnIds(app_id, stream.several_topics)
            return identity_of(self.log.history(url, state.version), stream, ids, state.transactions)

        known_of = partial(known_at, config.table)

        locks = RepairLocks(
            store, Author("operator", world.now_ms), f"{world.rng.getrandbits(128):032x}", take_over=None
        )
        repairs = locks.read_last(partition)
        ends, topic_id = Ends(group.begin(partition), group.end(partition)), group.id_of(partition.topic)
        state = partition_state(
            store,
            stream,
            partition,
            ends=ends,
            table=table,
            topic_id=topic_id,
            identity_of=known_of,
            repairs=repairs,
        )
        require_whole(stream, self._histories, [app_id for app_id in state.staged_for if app_id != stream.app_id])
        others = {url: other for url in stream.secondary_tables if (other := self.log.state(url)) is not None}
        require_even(state, stream, table, others, known_at)
        plan = plan_restart(state, give_up=False)
        if isinstance(plan, Restart):
            self._begun.add(partition)
            world.faults[Fault.RESTARTED] += 1
            world.note(f"an operator begins a new chain of {partition}: {plan.chain_origin} {plan.notes}")
            with locks.locked(partition, "restart") as guarded:
                staging.restart(guarded, plan)

    def _histories(self, stream: Stream) -> dict[str, StreamHistory]:
        states = {url: self.log.state(url) for url in stream.tables}
        there = {url: state for url, state in states.items() if state is not None}
        return histories_of(stream, there, self.log.history)

    # The final check.

    def _held(self, pipeline: Operated) -> dict[TopicPartition, str]:
        """The Kafka partitions of a pipeline that wait for a person, each with the reason; all of them for a failed
        pass."""
        reasons: dict[TopicPartition, str] = {}
        for role, (process, config) in pipeline.running.items():
            if not process.alive or config != pipeline.config:
                continue
            if role.startswith("writer"):
                service = self._services.writers.get(process.name)
                held = {} if service is None else service.snapshot().held
                reasons |= {partition: f"writer: {why.reason}" for partition, why in held.items()}
                continue
            reasons |= self._held_by(process, config)
        return reasons

    def _held_by(self, loader: Process, config: Config) -> dict[TopicPartition, str]:
        reasons: dict[TopicPartition, str] = {}
        for report in self._services.reports.get(loader.name, ()):
            reasons |= {partition: held.reason for partition, held in report.held.items()}
            if report.failure is not None:
                failed = type(report.failure).__name__
                reasons |= {
                    partition: failed
                    for partition in self._clusters[config.cluster]
                    if partition.topic in config.topics
                }
        return reasons

    def problems(self) -> tuple[str, ...]:
        """Records that no table of their pipeline has and that nothing holds; empty if all is well."""
        problems: list[str] = []
        for pipeline in self._pipelines:
            config, held = pipeline.config, self._held(pipeline)
            for other in self._pipelines:  # whose loader may have the lease of both
                if (other.config.stage, other.config.app_id) == (config.stage, config.app_id):
                    held = self._held(other) | held
            tables = {url for config in pipeline.configs for url in (config.table, f"{config.table}_dead_letters")}
            places = self._unwatched | {place for url in tables for place in self.log.places(url)}
            for partition, log in self._clusters[config.cluster].items():
                if partition.topic not in config.topics:
                    continue
                reason = held.get(partition)
                lacking = [
                    record for record in log if record.value is not None and Place.of(partition, record) not in places
                ]
                if reason is None and lacking and (config.table, config.app_id, partition) not in self.log.forgotten:
                    problems.append(
                        f"{pipeline.name}: {partition} lacks {lacking[0].offset} and {len(lacking) - 1} more"
                    )
        return tuple(problems)
