"""When the loader loads, by hand-made times: the schedule, notifications, requests, pauses, a lost lease."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import structlog

from common.errors import StoreError
from common.metrics import Metrics
from common.ports import StoredObject
from common.stage.notifications import notification_folder, notification_path
from common.storage.store import FsspecStore
from delta_loader.load.report import StreamReport
from delta_loader.scheduling.load_trigger import (
    DueLoad,
    LoadRequest,
    LoadTrigger,
    RequestQueue,
    StreamTrigger,
    stream_triggers,
)
from delta_loader.scheduling.notifications import ControlTopicNotifications, PolledNotifications, StoredNotifications
from delta_loader.scheduling.pacing import Pace
from delta_loader.scheduling.schedule import Schedule
from tests.builders import settings_of
from tests.fakes.group import HandClock
from tests.fakes.stores import TrappedStore, failing

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
STREAMS = ("orders", "a/b=c")


class FakeNotifications:
    def __init__(self) -> None:
        self.streams: set[str] = set()
        self.takes = 0

    def take(self) -> frozenset[str]:
        self.takes += 1
        taken, self.streams = frozenset(self.streams), set()
        return taken


class World:
    """A load trigger whose clock the test moves."""

    set_back_s = 0.0

    def __init__(
        self, schedule: str = "on-marker", per_minute: int = 6, own: dict[str, StreamTrigger] | None = None
    ) -> None:
        self.clock = HandClock(0.0)
        self.notifications = FakeNotifications()
        self.requests = RequestQueue()
        streams = dict.fromkeys(STREAMS, StreamTrigger(Schedule(schedule), schedule == "on-marker", per_minute))
        streams |= own or {}
        notifications = self.notifications if any(stream.waits for stream in streams.values()) else None
        self.trigger = LoadTrigger(streams, self.requests, self.clock, Metrics(), notifications)

    @property
    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.clock.now_s - self.set_back_s)

    def look(self, after_s: float = 0.0, *, paused: bool = False) -> set[str] | str | None:
        """The streams loaded after ``after_s``, by a pass that takes no time and does not fail."""
        due = self.next(after_s, paused=paused)
        if due is None:
            return None
        app_ids = STREAMS if due.app_ids is None else sorted(due.app_ids)
        self.trigger.ended(due, [StreamReport(app_id) for app_id in app_ids], self.now)
        return "all" if due.app_ids is None else set(due.app_ids)

    def next(self, after_s: float = 0.0, *, paused: bool = False) -> DueLoad | None:
        self.clock.now_s += after_s
        return self.trigger.next(self.now, paused=paused)


def test_notified_stream_is_loaded_at_the_next_check_and_others_are_not() -> None:
    world = World()
    assert world.look() == "all"
    assert [world.look(1) for _ in range(10)] == [None] * 10
    world.notifications.streams.add("orders")
    assert world.look(1) == {"orders"}
    assert world.look(1) is None


def test_constant_notifications_are_loaded_at_an_even_pace() -> None:
    world = World(per_minute=6)
    world.look()
    loaded = []
    for second in range(1, 60):
        world.notifications.streams.add("orders")
        if world.look(1) is not None:
            loaded.append(second)
    assert loaded == [10, 20, 30, 40, 50]


def test_each_stream_has_its_own_pace() -> None:
    world = World()
    world.look()
    world.clock.now_s = 20
    world.notifications.streams.add("orders")
    assert world.look() == {"orders"}
    world.notifications.streams |= {"orders", "a/b=c"}
    assert world.look(1) == {"a/b=c"}
    assert [world.look(1) for _ in range(9)][-1] == {"orders"}


def test_stage_is_polled_once_a_second() -> None:
    stage, clock = FakeNotifications(), HandClock(0.0)

    def fetch() -> None:
        notifications.fetch()

    notifications = PolledNotifications(stage, clock, fetch)
    for tenth in range(100):
        clock.now_s = tenth / 10
        notifications.take()
    assert stage.takes == 10


def test_all_streams_are_checked_once_a_minute_without_notifications() -> None:
    world = World()
    assert [world.look(1) for _ in range(130)].count("all") == 3


HOURLY = {"orders": StreamTrigger(Schedule("1h"), waits=False, loads_per_minute=6)}


def test_stream_with_its_own_schedule_is_loaded_at_its_times() -> None:
    world = World("10s", own=HOURLY)
    assert world.look() == "all"
    assert [world.look(1) for _ in range(3590)] == ([None] * 9 + [{"a/b=c"}]) * 359
    loaded = [world.look(1) for _ in range(20)]
    assert [app_ids for app_ids in loaded if app_ids is not None] == ["all", {"a/b=c"}]


def test_only_on_marker_streams_are_loaded_by_notifications() -> None:
    world = World(own=HOURLY)
    world.look()
    for _ in range(3):
        world.notifications.streams |= set(STREAMS)
        assert world.look(15) == {"a/b=c"}


def test_on_marker_stream_does_not_make_scheduled_streams_wait_for_notifications() -> None:
    world = World("1h", own={"orders": StreamTrigger(Schedule("on-marker"), waits=True, loads_per_minute=6)})
    world.look()
    for _ in range(3):
        world.notifications.streams |= set(STREAMS)
        assert world.look(15) == {"orders"}


def test_stream_schedule_overrides_the_loaders() -> None:
    def stream(name: str, **keys: object) -> dict[str, object]:
        return {"app_id": name, "topics": [name], "table": f"memory://lake/{name}", "columns": "id BIGINT", **keys}

    settings = settings_of(
        stream("plain"),
        stream("fast", schedule="on-marker", max_commits_per_minute=60),
        stream("same", schedule="15m"),
        loader={"schedule": "15m", "max_commits_per_minute": 12},
    )
    triggers = stream_triggers(settings)
    assert triggers["plain"] == triggers["same"]
    assert {app_id: (trigger.waits, trigger.loads_per_minute) for app_id, trigger in triggers.items()} == {
        "plain": (False, 12),
        "fast": (True, 60),
        "same": (False, 12),
    }


def test_due_stream_does_not_wait_for_one_with_another_schedule() -> None:
    world = World("10s", own=HOURLY)
    due = world.next()
    assert due is not None
    assert not world.trigger.another_is_due(frozenset())
    world.clock.now_s = 10
    assert world.trigger.another_is_due(frozenset({"orders"}))
    assert not world.trigger.another_is_due(frozenset(STREAMS)), "it is being loaded, and would only be loaded again"
    world.trigger.ended(due, [StreamReport("a/b=c")], world.now)
    assert world.look() == {"a/b=c"}


def test_resumed_stream_is_loaded_at_once() -> None:
    world = World("10s", own=HOURLY)
    world.look()
    world.trigger.begin_again({"orders"})
    assert world.look(1) == {"orders"}


def test_clock_set_back_does_not_delay_the_full_check() -> None:
    world = World()
    assert world.look() == "all"
    world.set_back_s = 3_600.0
    assert [world.look(1) for _ in range(60)].count("all") == 1


def test_clock_set_back_during_a_pass_does_not_delay_the_full_check() -> None:
    world = World()
    due = world.next()
    assert due is not None
    world.clock.now_s += 5
    world.set_back_s = 3_600.0
    world.trigger.ended(due, [], world.now)
    assert [world.look(20.0) for _ in range(3)] == [None, None, "all"]


def test_failed_stream_is_retried_with_growing_delays() -> None:
    world = World()
    tried: list[float] = []
    for _ in range(5900):
        due = world.next(0.01)
        if due is not None:
            failed = StreamReport("orders", failure=StoreError("the store is away"))
            world.trigger.ended(due, [failed, StreamReport("a/b=c")], world.now)
            tried.append(round(world.clock.now_s))
    assert tried == [0, 5, 15, 35]
    pace = Pace(10)
    for _ in range(6):
        pace = pace.begun(100).ended(100, failed=True)
    assert pace.due_s == 160, "at least once a minute"
    assert pace.begun(160).ended(160, failed=False).begun(170).ended(170, failed=True).due_s == 175
    assert Pace(10).notified().due_s == 0, "the first load after a quiet time starts at once"


def test_notification_does_not_wait_for_another_stream_that_is_loading() -> None:
    world = World()
    world.look()
    world.clock.now_s = 20
    world.notifications.streams.add("orders")
    due = world.next()
    assert due is not None
    unfinished = frozenset({"orders"})
    world.notifications.streams |= {"orders"}
    world.clock.now_s += 15
    assert not world.trigger.another_is_due(unfinished), "its next load starts after this one"
    world.notifications.streams |= {"a/b=c"}
    assert world.trigger.another_is_due(unfinished)
    world.trigger.ended(due, [], world.now)
    assert world.look() == {"orders", "a/b=c"}


def test_notification_survives_a_load_that_was_cut_short() -> None:
    world = World()
    world.look()
    world.clock.now_s = 20
    world.notifications.streams.add("orders")
    due = world.next()
    assert due is not None
    world.trigger.ended(due, [], world.now, cut_short=True)
    assert [world.look(1) for _ in range(10)][-1] == {"orders"}
    world.clock.now_s = 40
    world.notifications.streams |= {"orders", "a/b=c"}
    both = world.next()
    assert both is not None
    world.trigger.ended(both, [StreamReport("orders")], world.now, cut_short=True)
    assert [world.look(1) for _ in range(10)] == [*[None] * 9, {"a/b=c"}], "the other one was loaded"


def test_failed_stream_is_not_requested_while_its_retry_runs() -> None:
    world = World()
    due = world.next()
    assert due is not None
    failed = StreamReport("orders", failure=StoreError("the store is away"))
    world.trigger.ended(due, [failed, StreamReport("a/b=c")], world.now)
    again = world.next(6)
    assert again is not None
    world.trigger.ended(again, [], world.now)
    assert [world.next(1) for _ in range(20)] == [None] * 20
    world.trigger.collected([failed])
    due_loads = [world.next(1) for _ in range(12)]
    assert [due.app_ids for due in due_loads if due is not None] == [frozenset({"orders"})]


def test_scheduled_streams_ignore_notifications() -> None:
    world = World("15m")
    world.notifications.streams.add("orders")
    assert [world.look(60) for _ in range(31)].count("all") == 3
    assert world.notifications.takes == 0


def test_scheduled_times_missed_during_a_pass_are_skipped() -> None:
    world = World("*/15 * * * *")
    due = world.next()
    assert due is not None
    world.clock.now_s += 40 * 60
    world.trigger.ended(due, [], world.now)
    assert world.next() is None
    assert world.next(4 * 60) is None
    assert world.next(60) is not None


def test_request_is_answered_by_a_load_that_starts_after_it() -> None:
    world = World("15m")
    repair_running = world.next()
    asked = world.requests.ask()
    assert repair_running is not None
    world.trigger.ended(repair_running, [], world.now)
    assert asked.wait(0) is None, "that load may have started before the requested markers were staged"
    due = world.next()
    assert due is not None
    world.trigger.ended(due, [StreamReport("orders", rows=3)], world.now)
    reports = asked.wait(0)
    assert reports is not None
    assert [report.rows for report in reports] == [3]
    assert world.look(1) is None


def test_request_that_cannot_be_served_is_answered_with_nothing() -> None:
    for end in ("cut short", "lease went"):
        world = World("15m")
        asked = world.requests.ask()
        if end == "cut short":
            due = world.next()
            assert due is not None
            world.trigger.ended(due, [], world.now, cut_short=True)
        else:
            world.trigger.give_up()
        assert _is_answered(asked)
        assert asked.wait(0) is None


def test_pause_stops_all_loads_and_resuming_loads_all_streams() -> None:
    world = World()
    world.look()
    world.notifications.streams.add("orders")
    assert [world.look(30, paused=True) for _ in range(5)] == [None] * 5
    assert world.notifications.streams == {"orders"}, "it stays for this loader or the next one"
    assert world.look(1) == "all"
    assert (world.look(1, paused=True), world.look(1)) == (None, "all"), "also after a short one"


def test_all_streams_are_loaded_after_the_lease_is_regained() -> None:
    world = World("15m")
    world.look()
    world.trigger.begin_again()
    assert world.look(1) == "all"


class Aging(FsspecStore):
    """The notifications of one stream are two hours old, those of another half an hour."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        ages_ms = {notification_folder("gone"): 7_200_000, notification_folder("another config's"): 1_800_000}
        for stored in super().list(prefix):
            age_ms = next((age_ms for folder, age_ms in ages_ms.items() if stored.path.startswith(folder)), 0)
            yield replace(stored, modified_ms=stored.modified_ms - age_ms)


def test_stored_notifications_are_consumed_once_and_old_ones_of_removed_streams_deleted() -> None:
    store = Aging(f"memory://{uuid.uuid4().hex}")
    notifications = StoredNotifications(store, STREAMS, structlog.get_logger())
    assert notifications.take() == frozenset()
    for app_id in ("a/b=c", "gone", "another config's"):
        for writer in ("w/1", "w-2"):
            store.write(notification_path(app_id, writer), b"")
    assert notifications.take() == {"a/b=c"}
    assert notifications.take() == frozenset()
    left = {stored.path for stored in store.list("news/")}
    assert left == {notification_path("another config's", writer) for writer in ("w/1", "w-2")}


def test_unreachable_store_has_no_notifications() -> None:
    store = TrappedStore("memory://x", before=failing("list", StoreError("away")))
    assert StoredNotifications(store, STREAMS, structlog.get_logger()).take() == frozenset()


def test_notifications_for_another_loaders_streams_are_left() -> None:
    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    for app_id in ("orders", "a/b=c", "another config's"):
        store.write(notification_path(app_id, "w"), b"")
    notifications = StoredNotifications(store, STREAMS, structlog.get_logger(), lambda app_id: app_id == "orders")
    assert notifications.take() == {"orders"}
    assert StoredNotifications(store, ["another config's"], structlog.get_logger()).take() == {"another config's"}
    assert StoredNotifications(store, STREAMS, structlog.get_logger()).take() == {"a/b=c"}


def test_notifications_are_fetched_in_the_background_at_most_once_a_second() -> None:
    fake, clock, asked = FakeNotifications(), HandClock(0.0), 0

    def ask() -> None:
        nonlocal asked
        asked += 1

    notifications = PolledNotifications(fake, clock, ask)
    fake.streams = {"orders"}
    assert (notifications.take(), fake.takes, asked) == (frozenset(), 0, 1), "take() does not wait for the store"
    notifications.fetch()
    assert notifications.take() == {"orders"}
    assert (notifications.take(), asked) == (frozenset(), 1), "once a second"
    clock.now_s = 1.0
    notifications.take()
    assert asked == 2


class Topic(FakeNotifications):
    """A control topic that the test writes to."""

    is_connected = True


def test_stage_is_polled_rarely_while_the_control_topic_is_connected() -> None:
    topic, stored, clock = Topic(), FakeNotifications(), HandClock(0.0)
    notifications = ControlTopicNotifications(topic, stored, clock)
    notified: list[tuple[float, set[str]]] = []
    topic.streams, stored.streams = {"orders"}, {"a/b=c"}
    for tenth in range(300):
        clock.now_s = tenth / 10
        if tenth == 50:
            topic.streams.add("orders")
            stored.streams.add("a/b=c")
        if app_ids := notifications.take():
            notified.append((clock.now_s, set(app_ids)))
    assert notified == [(0.0, {"orders", "a/b=c"}), (5.0, {"orders"}), (10.0, {"a/b=c"})]
    assert stored.takes == 3
    topic.is_connected = False
    for tenth in range(300, 400):
        clock.now_s = tenth / 10
        notifications.take()
    assert 12 <= stored.takes <= 14, "each second"


def test_notification_after_an_idle_minute_is_loaded_at_once() -> None:
    world = World()
    world.look()
    assert world.look(30) is None
    world.notifications.streams.add("orders")
    assert world.look(0.01) == {"orders"}


def _is_answered(asked: LoadRequest) -> bool:
    return asked._ended.is_set()


def test_streams_of_several_fetches_are_kept_until_they_are_taken() -> None:
    fake, clock = FakeNotifications(), HandClock(0)
    notifications = PolledNotifications(fake, clock, lambda: None)
    for app_id in ("orders", "returns"):
        fake.streams = {app_id}
        notifications.fetch()
    assert notifications.take() == {"orders", "returns"}


def test_no_fetch_is_requested_during_another() -> None:
    clock, asked = HandClock(0), list[float]()

    class Slow:
        def take(self) -> frozenset[str]:
            for _ in range(5):
                clock.now_s += 1
                notifications.take()
            return frozenset()

    notifications = PolledNotifications(Slow(), clock, lambda: asked.append(clock.now_s))
    notifications.take()
    notifications.fetch()
    assert asked == [0]
    notifications.take()
    assert asked == [0, 5]
