"""When the loader loads, by hand-made times: the schedule, notifications, requests, pauses, a lease that went."""

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
from delta_loader.scheduling.load_trigger import DueLoad, LoadTrigger, StreamTrigger
from delta_loader.scheduling.notifications import ControlTopicNotifications, PolledNotifications, StoredNotifications
from delta_loader.scheduling.pacing import Pace
from delta_loader.scheduling.requests import LoadRequest, RequestQueue
from delta_loader.scheduling.schedule import Schedule
from delta_loader.scheduling.wiring import stream_triggers
from tests.builders import settings_of
from tests.fakes.group import HandClock
from tests.fakes.stores import TrappedStore, failing

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
STREAMS = ("orders", "a/b=c")


class Said:
    def __init__(self) -> None:
        self.streams: set[str] = set()
        self.looks = 0

    def take(self) -> frozenset[str]:
        self.looks += 1
        taken, self.streams = frozenset(self.streams), set()
        return taken


class World:
    """Turns in a time that a test moves."""

    set_back_s = 0.0

    def __init__(
        self, schedule: str = "on-marker", per_minute: int = 6, own: dict[str, StreamTrigger] | None = None
    ) -> None:
        self.clock = HandClock(0.0)
        self.notifications = Said()
        self.requests = RequestQueue()
        streams = dict.fromkeys(STREAMS, StreamTrigger(Schedule(schedule), schedule == "on-marker", per_minute))
        streams |= own or {}
        notifications = self.notifications if any(stream.waits for stream in streams.values()) else None
        self.turns = LoadTrigger(streams, self.requests, self.clock, Metrics(), notifications)

    @property
    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.clock.now_s - self.set_back_s)

    def look(self, after_s: float = 0.0, *, paused: bool = False) -> set[str] | str | None:
        """What is loaded after some time, by a pass that takes none and fails nowhere."""
        turn = self.next(after_s, paused=paused)
        if turn is None:
            return None
        app_ids = STREAMS if turn.app_ids is None else sorted(turn.app_ids)
        self.turns.ended(turn, [StreamReport(app_id) for app_id in app_ids], self.now)
        return "all" if turn.app_ids is None else set(turn.app_ids)

    def next(self, after_s: float = 0.0, *, paused: bool = False) -> DueLoad | None:
        self.clock.now_s += after_s
        return self.turns.next(self.now, paused=paused)


def test_news_is_loaded_at_the_next_look_and_nothing_without_it() -> None:
    world = World()
    assert world.look() == "all"
    assert [world.look(1) for _ in range(10)] == [None] * 10
    world.notifications.streams.add("orders")
    assert world.look(1) == {"orders"}
    assert world.look(1) is None


def test_news_that_never_ends_is_loaded_at_an_even_pace() -> None:
    world = World(per_minute=6)
    world.look()
    loaded = []
    for second in range(1, 60):
        world.notifications.streams.add("orders")
        if world.look(1) is not None:
            loaded.append(second)
    assert loaded == [10, 20, 30, 40, 50]


def test_streams_have_their_own_pace() -> None:
    world = World()
    world.look()
    world.clock.now_s = 20
    world.notifications.streams.add("orders")
    assert world.look() == {"orders"}
    world.notifications.streams |= {"orders", "a/b=c"}
    assert world.look(1) == {"a/b=c"}
    assert [world.look(1) for _ in range(9)][-1] == {"orders"}


def test_the_stage_is_looked_at_once_a_second() -> None:
    stage, clock = Said(), HandClock(0.0)

    def fetch() -> None:
        notifications.fetch()

    notifications = PolledNotifications(stage, clock, fetch)
    for tenth in range(100):
        clock.now_s = tenth / 10
        notifications.take()
    assert stage.looks == 10


def test_all_streams_are_checked_once_a_minute_without_any_message() -> None:
    world = World()
    assert [world.look(1) for _ in range(130)].count("all") == 3


HOURLY = {"orders": StreamTrigger(Schedule("1h"), waits=False, loads_per_minute=6)}


def test_a_stream_with_a_schedule_of_its_own_is_loaded_at_its_times() -> None:
    world = World("10s", own=HOURLY)
    assert world.look() == "all"
    assert [world.look(1) for _ in range(3590)] == ([None] * 9 + [{"a/b=c"}]) * 359
    found = [world.look(1) for _ in range(20)]
    assert [one for one in found if one is not None] == ["all", {"a/b=c"}]


def test_only_streams_on_marker_are_loaded_by_notifications() -> None:
    world = World(own=HOURLY)
    world.look()
    for _ in range(3):
        world.notifications.streams |= set(STREAMS)
        assert world.look(15) == {"a/b=c"}


def test_a_stream_that_waits_for_notifications_does_not_make_others_do_so() -> None:
    world = World("1h", own={"orders": StreamTrigger(Schedule("on-marker"), waits=True, loads_per_minute=6)})
    world.look()
    for _ in range(3):
        world.notifications.streams |= set(STREAMS)
        assert world.look(15) == {"orders"}


def test_each_stream_has_the_schedule_that_it_names_or_that_of_the_loader() -> None:
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


def test_a_stream_that_is_due_does_not_wait_for_one_with_another_schedule() -> None:
    world = World("10s", own=HOURLY)
    turn = world.next()
    assert turn is not None
    assert not world.turns.hurries(frozenset())
    world.clock.now_s = 10
    assert world.turns.hurries(frozenset({"orders"}))
    assert not world.turns.hurries(frozenset(STREAMS)), "it is being loaded, and would only be loaded again"
    world.turns.ended(turn, [StreamReport("a/b=c")], world.now)
    assert world.look() == {"a/b=c"}


def test_a_stream_that_is_resumed_is_loaded_at_once() -> None:
    world = World("10s", own=HOURLY)
    world.look()
    world.turns.begin_again({"orders"})
    assert world.look(1) == {"orders"}


def test_a_date_that_is_set_back_delays_no_look_at_everything() -> None:
    world = World()
    assert world.look() == "all"
    world.set_back_s = 3_600.0
    assert [world.look(1) for _ in range(60)].count("all") == 1


def test_a_date_that_is_set_back_during_a_pass_delays_no_look_at_everything() -> None:
    world = World()
    turn = world.next()
    assert turn is not None
    world.clock.now_s += 5
    world.set_back_s = 3_600.0
    world.turns.ended(turn, [], world.now)
    assert [world.look(20.0) for _ in range(3)] == [None, None, "all"]


def test_a_stream_that_failed_is_tried_again_by_itself_and_less_and_less() -> None:
    world = World()
    tried: list[float] = []
    for _ in range(5900):
        turn = world.next(0.01)
        if turn is not None:
            failed = StreamReport("orders", failure=StoreError("the store is away"))
            world.turns.ended(turn, [failed, StreamReport("a/b=c")], world.now)
            tried.append(round(world.clock.now_s))
    assert tried == [0, 5, 15, 35]
    pace = Pace(10)
    for _ in range(6):
        pace = pace.begun(100).ended(100, failed=True)
    assert pace.due_s == 160, "at least once a minute"
    assert pace.begun(160).ended(160, failed=False).begun(170).ended(170, failed=True).due_s == 175


def test_news_of_one_stream_does_not_wait_for_another_that_is_at_it() -> None:
    world = World()
    world.look()
    world.clock.now_s = 20
    world.notifications.streams.add("orders")
    turn = world.next()
    assert turn is not None
    unfinished = frozenset({"orders"})
    world.notifications.streams |= {"orders"}
    world.clock.now_s += 15
    assert not world.turns.hurries(unfinished), "its own turn comes after that one"
    world.notifications.streams |= {"a/b=c"}
    assert world.turns.hurries(unfinished)
    world.turns.ended(turn, [], world.now)
    assert world.look() == {"orders", "a/b=c"}


def test_news_of_a_turn_that_was_cut_short_is_not_forgotten() -> None:
    world = World()
    world.look()
    world.clock.now_s = 20
    world.notifications.streams.add("orders")
    turn = world.next()
    assert turn is not None
    world.turns.ended(turn, [], world.now, cut_short=True)
    assert [world.look(1) for _ in range(10)][-1] == {"orders"}
    world.clock.now_s = 40
    world.notifications.streams |= {"orders", "a/b=c"}
    both = world.next()
    assert both is not None
    world.turns.ended(both, [StreamReport("orders")], world.now, cut_short=True)
    assert [world.look(1) for _ in range(10)] == [*[None] * 9, {"a/b=c"}], "the other one was loaded"


def test_a_stream_that_failed_and_is_at_it_again_is_not_asked_for_meanwhile() -> None:
    world = World()
    turn = world.next()
    assert turn is not None
    failed = StreamReport("orders", failure=StoreError("the store is away"))
    world.turns.ended(turn, [failed, StreamReport("a/b=c")], world.now)
    again = world.next(6)
    assert again is not None
    world.turns.ended(again, [], world.now)
    assert [world.next(1) for _ in range(20)] == [None] * 20
    world.turns.collected([failed])
    found = [world.next(1) for _ in range(12)]
    assert [turn.app_ids for turn in found if turn is not None] == [frozenset({"orders"})]


def test_a_schedule_without_news_loads_at_its_times_only() -> None:
    world = World("15m")
    world.notifications.streams.add("orders")
    assert [world.look(60) for _ in range(31)].count("all") == 3
    assert world.notifications.looks == 0


def test_times_that_passed_while_a_pass_lasted_are_not_made_up_for() -> None:
    world = World("*/15 * * * *")
    turn = world.next()
    assert turn is not None
    world.clock.now_s += 40 * 60
    world.turns.ended(turn, [], world.now)
    assert world.next() is None
    assert world.next(4 * 60) is None
    assert world.next(60) is not None


def test_a_request_is_answered_by_a_load_that_begins_after_it() -> None:
    world = World("15m")
    repair_running = world.next()
    asked = world.requests.ask()
    assert repair_running is not None
    world.turns.ended(repair_running, [], world.now)
    assert asked.wait(0) is None, "that load may have passed over what the asker means"
    turn = world.next()
    assert turn is not None
    world.turns.ended(turn, [StreamReport("orders", rows=3)], world.now)
    reports = asked.wait(0)
    assert reports is not None
    assert [report.rows for report in reports] == [3]
    assert world.look(1) is None


def test_who_asked_is_told_when_it_comes_to_nothing() -> None:
    for end in ("cut short", "lease went"):
        world = World("15m")
        asked = world.requests.ask()
        if end == "cut short":
            turn = world.next()
            assert turn is not None
            world.turns.ended(turn, [], world.now, cut_short=True)
        else:
            world.turns.give_up()
        assert _is_answered(asked)
        assert asked.wait(0) is None


def test_a_pause_stops_everything_and_its_end_loads_everything() -> None:
    world = World()
    world.look()
    world.notifications.streams.add("orders")
    assert [world.look(30, paused=True) for _ in range(5)] == [None] * 5
    assert world.notifications.streams == {"orders"}, "it stays where the loader, or another one, will find it"
    assert world.look(1) == "all"
    assert (world.look(1, paused=True), world.look(1)) == (None, "all"), "also after a short one"


def test_after_the_lease_came_back_everything_is_loaded() -> None:
    world = World("15m")
    world.look()
    world.turns.begin_again()
    assert world.look(1) == "all"


class Aging(FsspecStore):
    """In which the signs of one stream are two hours old."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for found in super().list(prefix):
            age_ms = 7_200_000 if notification_folder("gone") in found.path else 0
            yield replace(found, modified_ms=found.modified_ms - age_ms)


def test_signs_are_taken_from_the_stage_once_with_old_ones_of_streams_that_are_no_more() -> None:
    store = Aging(f"memory://{uuid.uuid4().hex}")
    notifications = StoredNotifications(store, STREAMS, structlog.get_logger())
    assert notifications.take() == frozenset()
    for app_id in ("a/b=c", "gone"):
        for writer in ("w/1", "w-2"):
            store.write(notification_path(app_id, writer), b"")
    assert notifications.take() == {"a/b=c"}
    assert notifications.take() == frozenset()
    assert list(store.list("news/")) == []


def test_a_store_that_is_away_has_no_news() -> None:
    store = TrappedStore("memory://x", before=failing("list", StoreError("away")))
    assert StoredNotifications(store, STREAMS, structlog.get_logger()).take() == frozenset()


def test_signs_of_a_stream_that_another_loader_loads_stay_for_it() -> None:
    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    for app_id in ("orders", "a/b=c", "another config's"):
        store.write(notification_path(app_id, "w"), b"")
    notifications = StoredNotifications(store, STREAMS, structlog.get_logger(), lambda app_id: app_id == "orders")
    assert notifications.take() == {"orders"}
    assert StoredNotifications(store, ["another config's"], structlog.get_logger()).take() == {"another config's"}
    assert StoredNotifications(store, STREAMS, structlog.get_logger()).take() == {"a/b=c"}


def test_another_thread_looks_for_news_only_while_it_is_taken() -> None:
    said, clock, asked = Said(), HandClock(0.0), 0

    def ask() -> None:
        nonlocal asked
        asked += 1

    notifications = PolledNotifications(said, clock, ask)
    said.streams = {"orders"}
    assert (notifications.take(), said.looks, asked) == (frozenset(), 0, 1), "it waits for no store"
    notifications.fetch()
    assert notifications.take() == {"orders"}
    assert (notifications.take(), asked) == (frozenset(), 1), "once a second"
    clock.now_s = 1.0
    notifications.take()
    assert asked == 2


class Topic(Said):
    """A control topic that a test speaks in."""

    is_connected = True


def test_while_a_control_topic_is_heard_the_stage_is_looked_at_seldom() -> None:
    topic, stored, clock = Topic(), Said(), HandClock(0.0)
    notifications = ControlTopicNotifications(topic, stored, clock)
    told: list[tuple[float, set[str]]] = []
    topic.streams, stored.streams = {"orders"}, {"a/b=c"}
    for tenth in range(300):
        clock.now_s = tenth / 10
        if tenth == 50:
            topic.streams.add("orders")
            stored.streams.add("a/b=c")
        if found := notifications.take():
            told.append((clock.now_s, set(found)))
    assert told == [(0.0, {"orders", "a/b=c"}), (5.0, {"orders"}), (10.0, {"a/b=c"})]
    assert stored.looks == 3
    topic.is_connected = False
    for tenth in range(300, 400):
        clock.now_s = tenth / 10
        notifications.take()
    assert 12 <= stored.looks <= 14, "each second"


def test_a_notification_is_taken_at_once() -> None:
    world = World()
    world.look()
    assert world.look(30) is None
    world.notifications.streams.add("orders")
    assert world.look(0.01) == {"orders"}


def _is_answered(asked: LoadRequest) -> bool:
    return asked._ended.is_set()
