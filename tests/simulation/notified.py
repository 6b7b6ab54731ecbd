"""Loaders that load when writers notify them, by a control topic that loses and delays notifications, or is away.

Rules:

1. A notification has one of three fates for each loader: it arrives, arrives much later, or never. That continues in
   the quiet phase: with the last notification lost, only the scan of all streams finds the markers.
2. While the topic is away, a writer learns of it some seconds after it sent, and a loader hears nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from common.errors import StoreError
from common.metrics import Metrics
from delta_loader.load.report import StreamReport
from delta_loader.scheduling.load_trigger import LoadTrigger, RequestQueue, StreamTrigger
from delta_loader.scheduling.notifications import ControlTopicNotifications, StoredNotifications
from delta_loader.scheduling.schedule import Schedule
from delta_loader.service import LoaderService
from stage_writer.notifications.notifier import LoaderNotifier, Notifier
from stage_writer.stage.staging import ObjectStage
from tests.simulation.kinds import Context, Kind, Loads
from tests.simulation.store import SimulatedStore
from tests.simulation.world import SILENT, Fault, World, WorldClock

_LATE = 0.2
_AWAY = 0.005
_NOTICED_AFTER_MS = 5_000


@dataclass(slots=True)
class Topic:
    world: World
    app_ids: frozenset[str]
    away_until_ms: int = 0
    consumers: list[ControlTopicConsumer] = field(default_factory=list)

    @property
    def is_away(self) -> bool:
        """Whether nothing is delivered now."""
        return not self.world.faults_ended and self.world.now_ms < self.away_until_ms

    def inject_faults(self) -> None:
        """It goes away for a while."""
        if self.world.rng.random() < _AWAY:
            self.world.faults[Fault.NO_CONTROL] += 1
            self.away_until_ms = self.world.now_ms + self.world.rng.choice([1_000, 30_000, 120_000])

    def deliver(self, app_id: str) -> None:
        """To all loaders that listen (rule 1)."""
        rng = self.world.rng
        for consumer in self.consumers:
            dice, lost = rng.random(), self.world.chances.sign_lost
            self.world.faults[Fault.SIGN_LOST] += dice < lost
            if dice >= lost:
                delay_ms = rng.randrange(300_000) if dice < lost + _LATE else 0
                consumer.arriving.append((self.world.now_ms + delay_ms, app_id))


@dataclass(slots=True)
class ControlTopicConsumer:
    """A loader's `delta_loader.scheduling.notifications.ControlTopic`."""

    topic: Topic
    arriving: list[tuple[int, str]] = field(default_factory=list)
    was_away: bool = True

    @property
    def is_connected(self) -> bool:
        return not self.topic.is_away

    def take(self) -> frozenset[str]:
        """The app_ids that have arrived; all of them when it was away."""
        now_ms, was_away = self.topic.world.now_ms, self.was_away
        self.was_away = self.topic.is_away
        if self.was_away:
            return frozenset()
        come = frozenset(app_id for at_ms, app_id in self.arriving if at_ms <= now_ms)
        self.arriving = [(at_ms, app_id) for at_ms, app_id in self.arriving if at_ms > now_ms]
        return self.topic.app_ids if was_away else come


@dataclass(slots=True)
class ControlTopicProducer:
    """A writer's `stage_writer.notifications.notifier.ControlTopic`."""

    topic: Topic
    failed: list[tuple[int, str]] = field(default_factory=list)
    problem: str | None = None

    def send(self, app_id: str) -> bool:
        now_ms, relied_on = self.topic.world.now_ms, self.problem is None
        if not self.topic.is_away:
            try:
                self.topic.world.effect("say", lambda: self.topic.deliver(app_id), changes=True)
            except StoreError:
                pass  # refused, or its answer was lost
            else:
                self.problem = None
                return relied_on
        if relied_on:
            self.failed.append((now_ms + _NOTICED_AFTER_MS, app_id))
        return relied_on

    def undelivered(self) -> frozenset[str]:
        """The failures known by now (rule 2)."""
        now_ms = self.topic.world.now_ms
        failed_ids = frozenset(app_id for at_ms, app_id in self.failed if at_ms <= now_ms)
        self.failed = [(at_ms, app_id) for at_ms, app_id in self.failed if at_ms > now_ms]
        self.problem = "away" if failed_ids else self.problem
        return failed_ids

    def end(self, within_s: float) -> frozenset[str]:
        del within_s
        return frozenset(app_id for _, app_id in self.failed)


class Notified(Kind):
    """Plain records, and loaders that wait for notifications."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._topic = Topic(context.world, frozenset({self.stream.app_id}))

    def inject_faults(self) -> None:
        """The topic goes away."""
        self._topic.inject_faults()

    def notifier(self, stage: ObjectStage) -> Notifier:
        return LoaderNotifier(
            stage, WorldClock(self.context.world), SILENT, Metrics(), ControlTopicProducer(self._topic)
        )

    def loads(self, service: LoaderService, store: SimulatedStore) -> Loads:
        clock, app_ids = WorldClock(self.context.world), self._topic.app_ids
        consumers = ControlTopicConsumer(self._topic)
        self._topic.consumers.append(consumers)
        notifications = ControlTopicNotifications(consumers, StoredNotifications(store, app_ids, SILENT), clock)
        streams = dict.fromkeys(app_ids, StreamTrigger(Schedule("on-marker"), waits=True, loads_per_minute=30))
        trigger = LoadTrigger(streams, RequestQueue(), clock, Metrics(), notifications)

        def now() -> datetime:
            return datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)

        def load(stop: Callable[[], bool]) -> Sequence[StreamReport]:
            if stop():
                trigger.begin_again()
                return ()
            due = trigger.next(now())
            if due is None:
                return ()
            reports = service.run_pass(stop, due.app_ids)
            trigger.ended(due, reports, now(), cut_short=stop())
            return reports

        return load
