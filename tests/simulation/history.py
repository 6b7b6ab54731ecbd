"""One history: real writers and loaders in a hostile world, then a quiet phase without faults, then the final check.

The check uses no markers and no plans. It reads the files that the tables' commits added and compares them with Kafka's
logs: each record is in the table once, or in the dead letters once, or was a tombstone; and each txn action is at its
log's end.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from operator import methodcaller

from common.settings import Stream
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.merged import inputs_of
from common.tables.transactions import TxnIds
from tests.simulation.delta_log import Place, SimulatedTables
from tests.simulation.invariants import StageInvariants, newest
from tests.simulation.kafka import Broker
from tests.simulation.kinds import STAGE, Context, Kind
from tests.simulation.operators import GivenUpPositions, Operator, Repairs
from tests.simulation.services import Services
from tests.simulation.store import Bucket
from tests.simulation.world import PROFILES, Chances, Fault, Process, World
from tests.simulation.worlds import Worlds, kind_of

_MAX_QUIET_STEPS = 30_000
_INJECTIONS = 2
"""For each step: most of them are polls that take a while."""
_STEPS_BETWEEN_CHECKS, _STEPS_BETWEEN_LATER_CHECKS = 50, 400
_STEPS_BETWEEN_LOOKS, _STEPS_BETWEEN_REMEDIES = 300, 1500
"""Steps of the quiet phase until operators check held partitions, and until they check again what they remedied."""
_MAX_UNCHANGED_STEPS = 8_000
"""Problems that stay the same for so many quiet steps are final; the longest that ended took 5,300."""
_MAX_UNCHANGED_LOADED_STEPS = 4_000
"""The same once all positions are loaded: the longest that ended took 50, or two checks by operators.

A recreated topic may end where the chain of the old one does.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    seed: int
    problems: tuple[str, ...]
    faults: Counter[Fault]
    records: int
    trace: tuple[str, ...]
    crashed: bool
    """Whether a service met an unexpected error: a bug, or a broken rule whose code does not run."""


@dataclass(slots=True)
class History:
    seed: int
    chances: Chances | None = None
    """One of `PROFILES` by the seed when absent."""
    worlds: Worlds = Worlds.PLAIN
    world: World = field(init=False)
    broker: Broker = field(init=False)
    bucket: Bucket = field(default_factory=Bucket)
    kind: Kind = field(init=False)
    invariants: StageInvariants = field(init=False)
    _names: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _running: dict[str, Process] = field(default_factory=dict)
    _given_up: GivenUpPositions = field(default_factory=GivenUpPositions)
    _repairs: Repairs = field(default_factory=Repairs)
    _services: Services = field(init=False)
    _loaded: dict[TopicPartition, Position | None] = field(default_factory=dict)
    _repairing: dict[TopicPartition, list[Process]] = field(default_factory=dict)
    _remedied: dict[TopicPartition, int] = field(default_factory=dict)
    """The quiet step at which an operator last did."""

    def __post_init__(self) -> None:
        self.world = World(self.seed, self.chances or PROFILES[self.seed % len(PROFILES)])
        rng = self.world.rng
        self.broker = Broker(self.world, eager=rng.random() < 0.3)
        self._services = Services(self.world, self.bucket, self._names, leased=rng.random() < 0.5)
        context = Context(self.world, self.broker, self.bucket, self._given_up)
        self.kind = kind_of(self.worlds, context)
        self.invariants = self.kind.invariants()
        self.invariants.is_given_up = self._given_up.has
        self.invariants.is_late, self.invariants.sent_ms = lambda: self.world.is_late, lambda: self.world.sent_ms
        self.bucket.invariants = self.kind.log.invariants = self.invariants
        self.world.find_rival = self._find_rival
        several = len(self.kind.topics) > 1
        self.broker.together, self.broker.eager = several, several or self.broker.eager
        self.broker.places = set() if several else None
        for topic, partition in itertools.product(self.kind.topics, range(rng.randrange(1, 4))):
            self.broker.logs[TopicPartition(Topic(topic), Partition(partition))] = []

    def run(self) -> Verdict:
        rng = self.world.rng
        roles = [f"writer-{index}" for index in range(rng.choice([1, 2, 2, 2, 3, 3, 3]))]
        roles += [f"loader-{index}" for index in range(rng.randrange(1, 3))]
        for _ in self.world.steps():
            self._step(roles, produce=0.25)
            if self._is_wrong():
                break
            if rng.random() < 0.002 and len(self._writers()) > 1:
                self._scale(roles)
        self.world.end_faults()
        self.kind.on_faults_ended()
        problems: tuple[str, ...] = ("unfinished",)
        since = 0
        for step in range(_MAX_QUIET_STEPS):
            self._step(roles, produce=0.0)
            if self._is_wrong():
                problems = (*self.world.crashes, *self.invariants.problems)
                break
            if step % (_STEPS_BETWEEN_CHECKS if step - since < 1_000 else _STEPS_BETWEEN_LATER_CHECKS) == 0:
                before, waiting = problems, tuple(self._positions())
                problems = waiting or self.problems()  # the rows, once all is loaded
                since = since if problems == before else step
                if not problems or step - since >= (_MAX_UNCHANGED_STEPS if waiting else _MAX_UNCHANGED_LOADED_STEPS):
                    break
            follows_remedies = self.world.chances.operator or self.broker.past or self.kind.follows_remedies
            if follows_remedies and step % _STEPS_BETWEEN_LOOKS == _STEPS_BETWEEN_LOOKS - 1:
                self._follow_remedies(step)
        self.world.close()
        self.kind.close()
        records = sum(len(log) for log in self.broker.logs.values())
        return Verdict(
            self.seed, problems, self.world.faults, records, tuple(self.world.trace), bool(self.world.crashes)
        )

    def _is_wrong(self) -> bool:
        """Whether something is wrong regardless of the final check."""
        return bool(self.world.crashes or self.invariants.problems)

    def problems(self) -> tuple[str, ...]:
        problems = (
            *self._missing_or_duplicated(),
            *self._positions(),
            *self._repairs.problems(),
            *self._services.stale_claims,
        )
        return (*problems, *self.kind.problems())

    # The world's steps.

    def _step(self, roles: list[str], produce: float) -> None:
        world, rng = self.world, self.world.rng
        for role in roles:
            process = self._running.get(role)
            if (process is None or not process.alive) and (world.faults_ended or rng.random() < 0.05):
                self._start(role)
        self.broker.expel_silent()
        if world.faults_ended:
            world.step()
            return
        if rng.random() < produce:
            partition = rng.choice(sorted(self.broker.logs))
            self.broker.append(partition, *self.kind.record(partition))
        for _ in range(_INJECTIONS):
            self._inject_faults()
        world.step()

    def _inject_faults(self) -> None:
        world, rng, chances = self.world, self.world.rng, self.world.chances
        if rng.random() < chances.recreated:
            self._recreate()
        self._break_a_table()
        self.kind.inject_faults()
        if self.broker.members and rng.random() < chances.shuffle:
            world.faults[Fault.REBALANCE] += 1
            self.broker.rebalance(sticky=False)
        if rng.random() < chances.operator:
            partition = rng.choice(self.kind.chains())
            self._operate(partition, lambda operator: operator.repair(partition))

    def _recreate(self) -> None:
        """The topic is deleted and created again; every other time it already has records when clients see it."""
        rng, broker = self.world.rng, self.broker
        self.world.faults[Fault.RECREATED] += 1
        self.world.note("the topic is deleted and created again")
        ends = {partition: broker.end(partition) + rng.randrange(1, 20) for partition in broker.logs}
        broker.recreate()
        if rng.random() < 0.5:
            for partition, end in ends.items():
                while broker.end(partition) < end:
                    broker.append(partition, *self.kind.record(partition))

    def _break_a_table(self) -> None:
        """One of the stream's secondary tables does not work for a while."""
        if not self.kind.stream.routing.route_settings or self.world.rng.random() >= self.world.chances.broken_table:
            return
        self.world.faults[Fault.BROKEN_TABLE] += 1
        url = self.world.rng.choice(self._stream.secondary_tables)
        self._services.broken[url] = self.world.now_ms + self.world.rng.choice([1_000, 30_000, 120_000])
        self.world.note(f"{url} is broken for {self._services.broken[url] - self.world.now_ms} ms")

    @property
    def _stream(self) -> Stream:
        return self.kind.stream

    def _operate(self, partition: TopicPartition, work: Callable[[Operator], None]) -> None:
        """Someone repairs a Kafka partition, maybe while others do."""
        others = self._repairing.setdefault(partition, [])
        others[:] = [process for process in others if process.alive]
        process = Process(f"operator#{next(self._names)}")
        tables = SimulatedTables(self.world, self.kind.log)
        store = self._services.store(STAGE)
        operator = self.kind.operator(
            self.world,
            self.broker,
            stream=self.kind.stream_of(partition),
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

    def _follow_remedies(self, step: int) -> None:
        """What the docs ask of operators: check held partitions, and follow the loader's remedy."""
        problems = cache(self.problems)  # all rows are compared: only where a chain is stuck
        for partition in self.kind.chains():
            loaded, again = self._position(partition), partition in self._remedied
            is_stuck = partition in self._loaded and self._loaded[partition] == loaded
            inputs = tuple(f"{name} " for name in (partition, *inputs_of(partition)))
            is_due = step - self._remedied.get(partition, -_STEPS_BETWEEN_REMEDIES) >= _STEPS_BETWEEN_REMEDIES
            if is_stuck and is_due and any(problem.startswith(inputs) for problem in problems()):
                self._remedied[partition] = step
                self._operate(partition, methodcaller("follow_remedy", partition=partition, give_up=again))
            self._loaded[partition] = loaded

    def _find_rival(self, process: Process) -> bool:
        """The group takes the partition from a writer that is about to claim: another claims the same position."""
        member = next((member for member in self.broker.members if member.process is process), None)
        if member is None or len(self.broker.members) == 1:
            return False
        member.is_cut_off = True
        self.broker.expel(member)
        return True

    def _scale(self, roles: list[str]) -> None:
        """One writer more or less; the group rebalances."""
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
        self.world.note(f"{process.name} starts")
        services, kind = self._services, self.kind
        kind.starts(process)
        if role.startswith("writer"):
            self.world.spawn(process, lambda: services.write(process, kind, self.broker))
        else:
            self.world.spawn(process, lambda: services.load(process, kind))

    # The final check.

    def _missing_or_duplicated(self) -> list[str]:
        by_url = {url: Counter(self.kind.log.places(url)) for url in self.kind.urls()}
        problems: list[str] = []
        known: set[Place] = set()
        for partition, log, deleted in self.kind.context.logs():
            for record in log:
                place = Place.of(partition, record)
                known.add(place)
                have = {url: offsets[place] for url, offsets in by_url.items() if offsets[place]}
                if not self.kind.is_in_order(partition, record, have, deleted=deleted):
                    problems.append(f"{partition} offset {record.offset} of {record.value!r}: {have}")
        everything = set[Place]().union(*by_url.values())
        problems += [f"rows for {place}, which Kafka never had" for place in everything if place not in known]
        return problems

    def _positions(self) -> list[str]:
        positions = {partition: self._position(partition) for partition in self.kind.chains()}
        return [
            f"{partition} is loaded to {position}, its log ends at {self.broker.end(partition)}"
            for partition, position in positions.items()
            if position != self.broker.end(partition) and (position is not None or self.broker.has_records(partition))
        ]

    def _position(self, partition: TopicPartition) -> Position | None:
        stream = self.kind.stream_of(partition)
        table = self.kind.log.tables.get(stream.table)
        origin = newest(self.bucket.objects, STAGE, partition)
        generation = 0 if origin is None else origin.generation
        ids = TxnIds(stream.app_id, stream.several_topics, {partition: generation})
        return None if table is None else ids.position(table.transactions, partition)
