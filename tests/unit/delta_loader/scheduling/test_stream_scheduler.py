"""Many streams in one loader: several at a time; one that hangs, fails or has much to load holds none of the others."""

import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import Event, Lock, get_ident

import pytest
import structlog

from common.clock import SystemClock
from common.errors import TableError
from common.settings import Settings
from common.spans import MAX_POSITION, Topic
from common.stage.idle import StreamFact
from common.tables.state import TableState
from delta_loader.commands.parts import OwnPools
from delta_loader.load.ports import Ports
from delta_loader.load.report import StreamReport
from delta_loader.load.valid_through import ValidThrough
from delta_loader.ports import ParallelMap
from delta_loader.scheduling.stream_scheduler import StreamScheduler
from delta_loader.service import LoaderService
from delta_loader.tables.commits import CommitOutcome, TableCommit
from delta_loader.tables.valid_through import PROPERTY
from tests import builders
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import ports_for
from tests.fakes.staging import OneOfMany
from tests.waiting import until

NAMES = [f"stream{number}" for number in range(6)]
LONG_S = 180.0
"""Longer than anything takes on a machine that is not stuck."""


@dataclass
class Watched:
    """Counts how many streams run at once; a stream named in ``hangs`` waits for its event."""

    hangs: dict[str, Event] = field(default_factory=dict)
    slices: dict[str, int] = field(default_factory=dict)
    """How many slices a stream needs."""
    story: list[str] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    lock: Lock = field(default_factory=Lock)

    def run(self, app_id: str, should_yield: Callable[[], bool], /) -> bool:
        with self.lock:
            self.story.append(app_id)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        if app_id in self.hangs:
            self.hangs[app_id].wait(LONG_S)
        time.sleep(0.01)
        with self.lock:
            self.running -= 1
            self.slices[app_id] = self.slices.get(app_id, 1) - 1
            return self.slices[app_id] > 0 and should_yield()

    def progress(self, app_id: str, /) -> object:
        return self.story.count(app_id)


class Patient(StreamScheduler):
    """A second passes with each clock reading while all running streams hang: no slow machine makes a stream late."""

    def __init__(self) -> None:
        self.hangs: Mapping[str, Event] = {}
        self._seconds = 0.0
        super().__init__(2, patience_s=3.0, slice_s=0.0, monotonic_s=self._monotonic_s)

    def _monotonic_s(self) -> float:
        with self._changed:
            hanging = {name for name, event in self.hangs.items() if not event.is_set()}
            if self._running and self._running.keys() <= hanging and not (self._line and self._free() > 0):
                self._seconds += 1
            return self._seconds


@pytest.fixture
def scheduler() -> Iterator[Patient]:
    made = Patient()
    yield made
    made.close(LONG_S)


def test_concurrent_streams_are_limited_to_the_slots(scheduler: Patient) -> None:
    watched = Watched()
    for _ in range(3):
        assert scheduler(watched, NAMES) == frozenset()
    assert watched.most_running == 2
    assert sorted(watched.story) == sorted(NAMES * 3)


def test_hanging_streams_free_their_slots_and_run_once_more_afterwards(scheduler: Patient) -> None:
    hangs = {name: Event() for name in NAMES[:3]}  # more than there are slots
    watched = Watched(hangs)
    scheduler.hangs = hangs
    assert scheduler(watched, NAMES) == frozenset(NAMES[:3])
    assert scheduler(watched, NAMES) == frozenset(NAMES[:3])
    assert [watched.story.count(name) for name in NAMES] == [1, 1, 1, 2, 2, 2]
    for event in hangs.values():
        event.set()
    assert scheduler(watched, NAMES, to_the_end=True) == frozenset()
    assert [watched.story.count(name) for name in NAMES] == [2, 2, 2, 3, 3, 3]


def test_stream_with_a_large_backlog_yields_to_waiting_streams() -> None:
    scheduler, watched = StreamScheduler(1, patience_s=LONG_S, slice_s=0.0), Watched(slices={"large": 3})
    assert scheduler(watched, ["large", "small", "other"], to_the_end=True) == frozenset()
    assert watched.story == ["large", "small", "other", "large"]  # by then no other stream waits
    scheduler.close(LONG_S)


def test_pass_that_hurries_ends_before_its_slow_streams() -> None:
    scheduler, hang, seen = StreamScheduler(2, patience_s=LONG_S), Event(), list[frozenset[str]]()
    watched = Watched({"slow": hang})

    def another_is_due(unfinished: frozenset[str], /) -> bool:
        seen.append(unfinished)
        return "quick" not in unfinished

    assert scheduler(watched, ["slow", "quick"], another_is_due=another_is_due) == {"slow"}
    assert scheduler(watched, ["quick"]) == {"slow"}
    assert scheduler(watched, ["slow"], another_is_due=another_is_due) == {"slow"}, (
        "it is still running, and runs once more afterward"
    )
    assert scheduler(watched, []) == {"slow"}
    hang.set()
    while scheduler(watched, []):
        time.sleep(0.01)
    assert [watched.story.count(name) for name in ("slow", "quick")] == [2, 2]
    scheduler.close(LONG_S)


def test_resumed_stream_takes_its_slot_back() -> None:
    """It hung and another stream took its slot. When that stream has ended, the third one still waits."""
    now_s, begun, goes_on, polls = [0.0], list[str](), {name: Event() for name in "ab"}, itertools.count()
    moved, at_a_time = [0], list[set[str]]()

    class Work(Watched):
        def run(self, app_id: str, _should_yield: Callable[[], bool], /) -> bool:
            with self.lock:
                begun.append(app_id)
                at_a_time.append({*begun} - {*self.story})
            if app_id in goes_on:
                goes_on[app_id].wait(LONG_S)
            with self.lock:
                self.story.append(app_id)
            return False

        def progress(self, app_id: str, /) -> object:
            return moved[0] if app_id == "a" else 0

    def another_is_due(unfinished: frozenset[str], /) -> bool:
        if begun == ["a"]:
            now_s[0] = 2 * LONG_S
        elif "b" in unfinished and "b" in begun:
            moved[0] = 1
            if next(polls) > 1:  # the scheduler has seen the progress
                goes_on["b"].set()
        elif "b" not in unfinished and next(polls) > 5:
            goes_on["a"].set()
        return False

    scheduler = StreamScheduler(1, patience_s=LONG_S, monotonic_s=lambda: now_s[0])
    assert scheduler(Work(), ["a", "b", "c"], to_the_end=True, another_is_due=another_is_due) == frozenset()
    assert at_a_time == [{"a"}, {"a", "b"}, {"c"}]
    scheduler.close(LONG_S)


def test_pass_to_the_end_waits_for_late_streams(scheduler: Patient) -> None:
    hang = Event()
    scheduler.hangs = {"stream0": hang}
    watched = Watched({"stream0": hang})
    assert scheduler(watched, ["stream0"]) == {"stream0"}
    hang.set()
    assert scheduler(watched, ["stream0"], to_the_end=True) == frozenset()


def test_close_waits_for_running_streams_up_to_its_timeout(scheduler: Patient) -> None:
    hang = Event()
    scheduler.hangs = {"stream0": hang}
    scheduler(Watched({"stream0": hang}), ["stream0"])
    assert scheduler.close(0.05) == ("stream0",)
    hang.set()
    assert scheduler.close(LONG_S) == ()


# The service over real markers, with tables in memory.


class BrokenTables(MemoryDeltaTables):
    """One table whose commit hangs, and one whose state cannot be read."""

    def __init__(self, hangs: str, broken: str) -> None:
        super().__init__()
        self.goes_on = Event()
        self._hangs, self._broken = hangs, broken

    def commit(self, commit: TableCommit) -> CommitOutcome:
        if commit.target.url == self._hangs:
            self.goes_on.wait(LONG_S)
        return super().commit(commit)

    def state(self, url: str) -> TableState | None:
        if url == self._broken:
            raise TableError("the store is away", "wait")
        return super().state(url)


def many() -> dict[str, OneOfMany]:
    root = f"memory://{uuid.uuid4().hex}"
    return {name: OneOfMany(f"{root}/{name}", topic=name) for name in NAMES}


def settings_of(stagings: Mapping[str, OneOfMany], **stream: object) -> Settings:
    (stage_url, *_) = (staging.stage_url for staging in stagings.values())
    streams = [
        {"app_id": name, "topics": [name], "table": staging.table, "columns": "id BIGINT", **stream}
        for name, staging in stagings.items()
    ]
    return builders.settings_of(*streams, stage={"url": stage_url})


def ports_of(staging: OneOfMany, tables: MemoryDeltaTables, parallel: ParallelMap) -> Ports:
    return ports_for(staging.store(staging.stage_url), tables, staging.store, parallel=parallel)


def service_of(stagings: Mapping[str, OneOfMany], ports: Ports) -> LoaderService:
    settings = settings_of(stagings)
    return LoaderService(settings.streams, settings.loader, ports)


class HangingProperties:
    """The properties of one table cannot be set: the store hangs until the test releases it."""

    def __init__(self, hangs: str) -> None:
        self.hangs = hangs
        self.goes_on = Event()
        self.loop = get_ident()
        self.threads: dict[str, int] = {}

    def set_property(self, url: str, key: str, value: str) -> None:
        assert (key, bool(value)) == (PROPERTY, True)
        self.threads[url] = get_ident()
        if url == self.hangs and get_ident() != self.loop:
            assert self.goes_on.wait(LONG_S)


def test_hanging_table_property_does_not_stop_other_streams() -> None:
    stagings = many()
    hanging, *well = stagings.values()
    tables, properties, parallel = MemoryDeltaTables(), HangingProperties(hanging.table), OwnPools(2)
    scheduler = StreamScheduler(2, patience_s=0.5)
    streams = settings_of(stagings, valid_through_property="1s").streams
    valid_through = ValidThrough(streams, properties, SystemClock(), structlog.get_logger())
    ports = replace(ports_of(hanging, tables, parallel), run_streams=scheduler, valid_through=valid_through)
    ports = replace(
        ports,
        partitions=lambda stream: StreamFact(stream.app_id, MAX_POSITION, {Topic(topic): 1 for topic in stream.topics}),
    )
    service = service_of(stagings, ports)
    for staging in stagings.values():
        staging.flush(0, 0, 10)
    reports: list[str] = []

    def all_are_set() -> bool:
        reports.extend(report.app_id for report in service.run_pass())
        return {staging.table for staging in stagings.values()} == properties.threads.keys()

    until(all_are_set, within_s=5 * LONG_S)
    assert NAMES[0] not in reports
    assert all(len(tables.tables[staging.table].commits) == 1 for staging in well)
    assert properties.loop not in properties.threads.values(), "the scheduling loop waits for no table"
    properties.goes_on.set()
    assert service.run_pass(to_the_end=True)
    assert scheduler.close(LONG_S) == ()
    parallel.close()


def test_stream_of_another_loader_is_inspected_but_not_loaded() -> None:
    stagings = many()
    other, broken, *own = stagings.values()
    tables, parallel, scheduler = BrokenTables("", broken.table), OwnPools(2), StreamScheduler(2)
    elsewhere = {NAMES[0], NAMES[1]}
    ports = replace(
        ports_of(other, tables, parallel), run_streams=scheduler, may_load=lambda app_id: app_id not in elsewhere
    )
    service = service_of(stagings, ports)
    for staging in stagings.values():
        staging.flush(0, 0, 10)
    assert {report.app_id for report in service.run_pass(to_the_end=True)} == {*NAMES} - elsewhere
    assert tables.tables.keys() == {staging.table for staging in own}

    service.inspect(elsewhere)

    def are_known() -> bool:
        assert service.collect() == [], "an inspection is not a load"
        return all(service.stats.entries[name].is_known for name in elsewhere)

    until(are_known)
    seen = service.stats.entries[NAMES[0]].seen[other.source(0)]
    assert (seen.lag, seen.waiting) == (10, 1)
    assert service.stats.entries[NAMES[1]].failure is not None
    assert service.problems == ()
    assert tables.tables.keys() == {staging.table for staging in own}

    elsewhere.clear()  # the other loader stopped
    service.run_pass(to_the_end=True)
    assert service.stats.entries[NAMES[0]].seen[other.source(0)].lag == 0
    assert scheduler.close(LONG_S) == ()
    parallel.close()


def test_hanging_commit_and_broken_table_do_not_stop_other_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    stagings = many()
    hanging, broken, *well = stagings.values()
    tables, parallel = BrokenTables(hanging.table, broken.table), OwnPools(2)
    scheduler = StreamScheduler(2, patience_s=3.0)
    service = service_of(stagings, replace(ports_of(hanging, tables, parallel), run_streams=scheduler))
    for begin in (0, 10, 20):
        for staging in stagings.values():
            staging.flush(0, begin, begin + 10)
        reports: dict[str, StreamReport] = {}

        def are_done(loads: int = begin // 10 + 1) -> bool:
            reports.update({report.app_id: report for report in service.run_pass()})  # noqa: B023 - called at once
            done = [len(tables.tables[staging.table].commits) for staging in well if staging.table in tables.tables]
            return done == [loads] * len(well) and NAMES[1] in reports  # noqa: B023

        until(are_done, within_s=5 * LONG_S)
        assert NAMES[0] not in reports
        assert reports[NAMES[1]].failure is not None
    monkeypatch.setattr("delta_loader.load.load_stats.STUCK_S", 0.1)
    assert [NAMES[0] in problem for problem in service.problems] == [False, True]

    tables.goes_on.set()
    (hung, *_) = service.run_pass(to_the_end=True)
    assert hung.rows == 30, "the load that hung, and the records that were staged in the meantime"
    assert service.collect() == []
    assert scheduler.close(LONG_S) == ()
    parallel.close()
