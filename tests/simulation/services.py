"""The real services as processes of a simulated world: writers and loaders over its store, its Kafka and its tables."""

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Generic, cast

from common.errors import KafkaDeltaExpressError
from common.metrics import Metric, Metrics
from common.ports import ObjectStore
from common.settings import Settings
from common.stage.markers import Manifest, MarkerName, StagedTable
from common.stage.task_files import MarkedState
from delta_loader.lease.holder import LoaderLease
from delta_loader.load.ports import Ports
from delta_loader.load.replace_ranges import Replacements
from delta_loader.load.report import StreamReport
from delta_loader.ports import in_turn
from delta_loader.service import LoaderService
from delta_loader.stage.reading import Stage
from stage_writer.chains import StagedChains
from stage_writer.loop import StageWriter
from stage_writer.partitions.flush_decision import FlushLimits
from stage_writer.ports import FlushIdentity, Flushing, Item, Result
from stage_writer.runtime import Attachments, Runtime, WriterOptions
from stage_writer.stage.staging import ObjectStage
from stage_writer.stopping import Stopping
from stage_writer.telemetry import WriterTelemetry
from tests.simulation.delta_log import SimulatedTables
from tests.simulation.kafka import SESSION_MS, Broker, GroupMember
from tests.simulation.kinds import Kind
from tests.simulation.store import Bucket, SimulatedStore
from tests.simulation.world import Crash, Process, World, WorldClock

_STATE_KEEP_S = 1.0  # so that state files are cleaned in the middle of everything
_LIMITS = FlushLimits(flush_after_s=5.0, flush_bytes=10**9, flush_records=25, memory_bytes=10**9)
_LEASE_S = 15.0
_QUIET_PAUSE_S = 5.0


@dataclass(slots=True)
class RunningJob(Generic[Result]):
    """A `stage_writer.ports.Running`."""

    outcome: Result | None = None
    error: Exception | None = None
    has_ended: bool = False

    def done(self) -> bool:
        return self.has_ended

    def result(self) -> Result:
        if self.error is not None:
            raise self.error
        return cast("Result", self.outcome)


class Strands:
    """`stage_writer.ports.Workers` as background threads of the simulated writer."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def start(self, job: Callable[[], Result]) -> RunningJob[Result]:
        """Run it in the background of the loop."""
        if not self._process.alive:
            raise Crash
        running = RunningJob[Result]()

        def run() -> None:
            try:
                running.outcome = job()
            except Crash:
                return
            except Exception as error:  # noqa: BLE001 - raised in the loop, as with a Future
                running.error = error
            running.has_ended = True

        self._world.spawn(self._process, run)
        return running

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        return [function(item) for item in items]

    def wait(self, running: Collection[Flushing], timeout_s: float) -> None:
        until_ms = self._world.now_ms + ceil(timeout_s * 1000)  # down to 0, a loop would never end
        while not any(running.done() for running in running) and self._world.now_ms < until_ms:
            self._world.sleep_s(0.05)

    def close(self) -> None: ...


class WatchedChains(StagedChains):
    """Records in ``stale`` each claim by a writer whose partition the group has reassigned."""

    def __init__(self, store: ObjectStore, member: GroupMember, stale: list[str], kind: Kind) -> None:
        super().__init__(store)
        self._member, self._stale, self._kind = member, stale, kind

    def claim(self, name: MarkerName, data: bytes) -> bool:
        if self._member.expelled and not self._member.is_cut_off:
            self._stale.append(f"{self._member.process.name} claims {name.path}, and the group has given it up")
        self._kind.claims(self._member.process, name, data)
        return super().claim(name, data)


class WatchedStage(ObjectStage):
    def watch(self, chains: WatchedChains, kind: Kind) -> None:
        self.chains, self._kind = chains, kind

    def manifest(
        self,
        flush: FlushIdentity,
        tables: tuple[StagedTable, ...],
        state: MarkedState | None = None,
        outboxes: tuple[str, ...] = (),
    ) -> Manifest:
        return self._kind.manifest(self._writer, super().manifest(flush, tables, state, outboxes))


class Unmeasured(Metrics):
    """Metrics of a simulated process are never read, and cost as much as its work."""

    def add(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        """Nothing."""

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        """Nothing."""

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Nothing."""


@dataclass(slots=True)
class Services:
    """Starts the processes of one history, and has their last results."""

    world: World
    bucket: Bucket
    names: Iterator[int]
    leased: bool
    """Whether loaders have a lease."""
    limits: FlushLimits = _LIMITS
    pauses_s: tuple[float, ...] = (1, 5, 30)
    """Between a loader's passes."""
    broken: dict[str, int] = field(default_factory=dict)
    """Tables that do not work, until a time."""
    stale_claims: list[str] = field(default_factory=list)
    """Claims requested after the group had reassigned the writer's partition."""
    writers: dict[str, StageWriter] = field(default_factory=dict)
    """By the names of their processes."""
    reports: dict[str, Sequence[StreamReport]] = field(default_factory=dict)
    """Of each loader's newest pass, by the names of their processes."""

    def store(self, url: str) -> SimulatedStore:
        return SimulatedStore(self.world, self.bucket, url)

    def write(self, process: Process, kind: Kind, broker: Broker) -> None:
        try:
            self._writer(process, kind, broker).run(until_caught_up=False)
        except Crash:
            return
        except KafkaDeltaExpressError as error:
            self.world.note(f"{process.name} ends: {error.problem}")
        process.alive = False

    def _writer(self, process: Process, kind: Kind, broker: Broker) -> StageWriter:
        clock, rng, stage_url = WorldClock(self.world, process), self.world.rng, kind.settings.stage.url
        settings = kind.read_settings(process)
        owners = kind.owners(settings, self.store(stage_url))
        if owners is not None:
            owners.read_all()
        member = GroupMember(self.world, broker, process)
        stage = WatchedStage(
            self.store(stage_url),
            self.store,
            clock,
            lambda: str(uuid.UUID(int=rng.getrandbits(128))),
            process.name,
            state_keep_s=_STATE_KEEP_S,
            changelog=kind.changelog(process),
        )
        stage.watch(WatchedChains(self.store(stage_url), member, self.stale_claims, kind), kind)
        metrics = Unmeasured()
        telemetry = WriterTelemetry(clock, self.world.log, metrics)
        pauses = kind.pauses(process, self.store(stage_url))
        service = self.writers[process.name] = StageWriter(
            kind.converters(process, settings),
            WriterOptions(self.limits, 20.0, session_s=SESSION_MS / 1000, file_policy=kind.file_policy),
            source=kind.source(member, settings),
            stage=stage,
            workers=Strands(self.world, process),
            runtime=Runtime(clock, self.world.log, metrics, telemetry, Stopping(clock.monotonic_s, 20.0)),
            attachments=Attachments(
                pauses.pausing,
                pauses.paused,
                notifier=kind.notifier(stage),
                outlets=kind.outlets(process, self.store(stage_url)),
            ),
        )
        return service

    def load(self, process: Process, kind: Kind) -> None:
        tables, stage_url = SimulatedTables(self.world, kind.log, self.broken), kind.settings.stage.url

        def new_id() -> str:
            return f"{process.name}-{next(self.names)}"

        settings = kind.read_settings(process)
        replacer, pauses = kind.replacer(tables), kind.pauses(process, self.store(stage_url))
        ports = Ports(
            stage=Stage(self.store(stage_url), in_turn, kind.owners(settings, self.store(stage_url))),
            tables=tables,
            refusing=kind.refusing(tables),
            sends_refused=kind.sends_refused(tables, self.store(stage_url)),
            open_store=self.store,
            parallel=in_turn,
            clock=WorldClock(self.world, process),
            new_id=new_id,
            log=self.world.log,
            metrics=Unmeasured(),
            may_load=pauses.may_load,
            replacements=None
            if replacer is None
            else Replacements(self.store(stage_url), tables, replacer, new_id, self.world.log, Unmeasured()),
        )
        service = LoaderService(settings.streams, settings.loader, ports)
        lease = self._lease(process, ports, settings) if self.leased else None
        problems_noted, loads = "", kind.loads(service, self.store(stage_url))
        try:
            pauses.begin(self.world)
            while True:
                pauses.pass_ms = self.world.now_ms
                reports = loads(lambda: pauses.is_on or (lease is not None and not lease.held()))
                self.reports[process.name] = reports
                problems_noted = self._note_result(process, problems_noted, reports)
                self.world.sleep_s(_QUIET_PAUSE_S if self.world.faults_ended else self.world.rng.choice(self.pauses_s))
        except Crash:
            return

    def _note_result(self, process: Process, problems_before: str, reports: Iterable[StreamReport]) -> str:
        """Record the result of a loader's pass if it is new."""
        problems = [held.problem for report in reports for held in report.held.values()]
        problems += [str(report.failure) for report in reports if report.failure is not None]
        if problems and str(problems) != problems_before:
            self.world.note(f"{process.name} says {'; '.join(problems)}")
        return str(problems)

    def _lease(self, process: Process, ports: Ports, settings: Settings) -> LoaderLease:
        streams = {stream.app_id: stream.topics for stream in settings.streams}
        store = self.store(settings.stage.url)
        lease = LoaderLease(
            store, ports.clock, process.name, _LEASE_S, streams, log=self.world.log, metrics=ports.metrics
        )

        def keep() -> None:
            try:
                lease.contend()
                while True:
                    self.world.sleep_s(lease.step())
            except Crash:
                return

        self.world.spawn(process, keep)
        return lease
