"""Operators who pause and resume streams, and single processes, by command and by HTTP.

Rules of the final check in addition to those of every world:

1. A process that started while a stream was paused stages, or loads, none of its records for as long as the pause
   lasts.
2. A writer that knows of a pause stages no record that came to Kafka later; a loader that knows of one begins no load,
   and ends the load in progress: it commits to each table at most once more.
3. With all pauses ended, everything is staged and loaded.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from common import metrics as all_metrics
from common.errors import StoreError
from common.http.pages import Pausing
from common.metrics import Metrics
from common.stage.markers import marker_from_bytes
from common.stage.merged import inputs_of
from common.stage.paused import FOLDER, Pause, StreamPart, pause, pause_path, resume
from common.stage.paused_streams import REFRESH_EVERY_S, PausedStreams
from tests.simulation.world import SILENT, Crash, Fault, WorldClock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from threading import Lock

    from common.stage.markers import MarkerName
    from delta_loader.tables.commits import TableCommit
    from tests.simulation.kafka import Broker
    from tests.simulation.kinds import Context
    from tests.simulation.store import SimulatedStore
    from tests.simulation.world import Process, World

_ENDS = 0.6
"""The fraction of operators' actions on paused streams that resume them."""
_RESUMED_FOR_S = 90
"""How long operators watch in the quiet phase for pauses by requests that were still in progress."""


class StrandLock:
    def __init__(self, world: World) -> None:
        self._world = world
        self._is_held = False

    def __enter__(self) -> None:
        while self._is_held:
            self._world.sleep_s(0.01)
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False


class WatchedPauses(PausedStreams):
    """The pauses that one process knows, and since when."""

    def watch(self, world: World) -> None:
        self._world = world
        self._lock = cast("Lock", StrandLock(world))
        self.since_ms: dict[str, int] = {}

    def _set_pauses(self, pauses: Mapping[str, Pause]) -> None:
        super()._set_pauses(pauses)
        self.since_ms = {app_id: self.since_ms.get(app_id, self._world.now_ms) for app_id in pauses}


@dataclass(slots=True)
class ProcessPauses:
    """The pauses that one process knows; none in worlds without pauses."""

    pausing: Pausing | None = None
    paused: WatchedPauses | None = None
    process: Process | None = None
    started_ms: int = 0
    pass_ms: int = 0
    """When a loader's newest pass began."""
    commits: dict[str, set[str]] = field(default_factory=dict)
    """The tables of each stream to which a loader committed since it knows that the stream is paused."""

    def begin(self, world: World) -> None:
        if self.paused is None or self.process is None:
            return
        paused = self.paused
        paused.run()

        def keep() -> None:
            with suppress(Crash):
                while True:
                    world.sleep_s(REFRESH_EVERY_S)
                    paused.run()

        world.spawn(self.process, keep)

    def may_load(self, app_id: str) -> bool:
        return self.paused is None or not self.paused.is_paused(app_id)

    @property
    def is_on(self) -> bool:
        return self.pausing is not None and self.pausing.is_on


class Operators:
    def __init__(self, context: Context, stage: str, app_ids: tuple[str, ...]) -> None:
        self._world = context.world
        self._broker: Broker = context.broker
        self._bucket = context.bucket
        self._around = context
        self._stage = stage
        self._app_ids = app_ids
        self._since_ms: dict[str, int] = {}
        """Since when each pause is in the stage."""
        self._processes: dict[str, tuple[StreamPart, ProcessPauses]] = {}
        self.problems: list[str] = []

    # Faults.

    def of(self, process: Process, store: SimulatedStore) -> ProcessPauses:
        is_writer = process.name.startswith("writer")
        part = StreamPart.STAGING if is_writer else StreamPart.LOADING
        all_of_it = all_metrics.WRITER_PAUSED_BY_REQUEST if is_writer else all_metrics.LOADER_PAUSED_BY_REQUEST
        each = all_metrics.WRITER_STREAM_PAUSED if is_writer else all_metrics.LOADER_STREAM_PAUSED
        clock, metrics = WorldClock(self._world, process), Metrics()
        paused = WatchedPauses(store, part, self._app_ids, clock=clock, log=SILENT, metrics=metrics, metric=each)
        paused.watch(self._world)
        pauses = ProcessPauses(Pausing(clock, SILENT, metrics, all_of_it), paused, process, self._world.now_ms)
        self._processes[process.name] = part, pauses
        return pauses

    def inject_faults(self, store: SimulatedStore) -> None:
        rng, world = self._world.rng, self._world
        part, app_id = rng.choice(list(StreamPart)), rng.choice(self._app_ids)
        here = [pauses for _, pauses in self._alive(part)]
        waits = pause_path(part, app_id) in self._since_ms or any(pauses.is_on for pauses in here)
        ends = rng.random() < _ENDS if waits else rng.random() < 0.1
        world.faults[Fault.PAUSED] += not ends
        if here and rng.random() < 0.3:
            pausing = rng.choice(here).pausing
            assert pausing is not None
            (pausing.resume if ends else pausing.pause)()
        elif here and rng.random() < 0.5:
            self._call(rng.choice(here), app_id, ends=ends)
        else:
            self._around.spawn("pauses", lambda: self._command(store, part, app_id, ends=ends))

    def on_faults_ended(self, store: SimulatedStore) -> None:
        for _, pauses in self._processes.values():
            if pauses.pausing is not None:
                pauses.pausing.resume()

        def resume_all() -> None:
            until_ms = self._world.now_ms + _RESUMED_FOR_S * 1000
            while self._world.now_ms < until_ms or self._since_ms:
                for part in StreamPart:
                    for app_id in self._app_ids:
                        self._command(store, part, app_id, ends=True)
                self._world.sleep_s(10)

        self._around.spawn("resumes", resume_all)

    def _command(self, store: SimulatedStore, part: StreamPart, app_id: str, *, ends: bool) -> None:
        """`pause` and `resume` of either service."""
        with suppress(StoreError):
            if ends:
                resume(store, part, app_id)
            else:
                pause(store, Pause(app_id, part, self._world.now_ms, "an operator"))

    def _call(self, pauses: ProcessPauses, app_id: str, *, ends: bool) -> None:
        """``POST /pause?stream=…`` to one process, which handles it in a thread of its own."""

        process, paused = pauses.process, pauses.paused
        assert process is not None
        assert paused is not None

        def run() -> None:
            with suppress(Crash, StoreError):
                if ends:
                    paused.resume(app_id)
                else:
                    paused.pause(app_id, "someone")

        self._world.spawn(process, run)

    def _alive(self, part: StreamPart) -> list[tuple[str, ProcessPauses]]:
        return [
            (name, pauses)
            for name, (its, pauses) in self._processes.items()
            if its is part and pauses.process is not None and pauses.process.alive
        ]

    # Invariants.

    def put(self, path: str) -> None:
        """An object is about to be written."""
        below = path.removeprefix(f"{self._stage}/")
        if below.startswith(f"{FOLDER}/"):
            self._since_ms.setdefault(below, self._world.now_ms)

    def delete(self, path: str) -> None:
        self._since_ms.pop(path.removeprefix(f"{self._stage}/"), None)

    def claims(self, process: str, name: MarkerName, data: bytes) -> None:
        """A writer requests a claim (rules 1 and 2)."""
        marker = marker_from_bytes(name, data)
        if process not in self._processes or marker.manifest is None:
            return
        (part, pauses), app_id = self._processes[process], marker.manifest.app_id
        problem = self._started_paused(part, app_id, pauses)
        since_ms = None if pauses.paused is None else pauses.paused.since_ms.get(app_id)
        if since_ms is not None and not self._broker.past:
            (partition,) = inputs_of(name.topic_partition)
            log = self._broker.logs[partition]
            late = [
                record.offset
                for record in log
                if name.start <= record.offset < marker.span.end and record.timestamp_ms > since_ms
            ]
            problem = problem or (f"it knows of a pause, and offset {late[0]} came after that" if late else "")
        if problem:
            self.problems.append(f"{process} claims {name.path}: {problem}")

    def committed(self, commit: TableCommit) -> None:
        process = commit.metadata.commit_id.rpartition("-")[0]
        if self._world.is_late or process not in self._processes:
            return
        (part, pauses), app_id = self._processes[process], commit.metadata.app_id
        problem = self._started_paused(part, app_id, pauses)
        since_ms = None if pauses.paused is None else pauses.paused.since_ms.get(app_id)
        if since_ms is None:
            pauses.commits.pop(app_id, None)
        else:
            tables = pauses.commits.setdefault(app_id, set())
            if pauses.pass_ms > since_ms:
                problem = problem or "it knew of a pause when it began to load"
            elif commit.target.url in tables:
                problem = problem or "it knew of a pause at its last commit to this table"
            tables.add(commit.target.url)
        if problem:
            self.problems.append(f"{process} commits {commit.metadata.commit_id}: {problem}")

    def _started_paused(self, part: StreamPart, app_id: str, pauses: ProcessPauses) -> str:
        since_ms = self._since_ms.get(pause_path(part, app_id))
        is_before = since_ms is not None and since_ms < pauses.started_ms
        return f"{app_id} is paused since before the process started" if is_before else ""
