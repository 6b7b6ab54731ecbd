"""The services' status pages, from the real services with stages on a disk."""

import http.client
import json
import urllib.request
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import cast

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from common import metrics as all_metrics
from common.clock import SystemClock
from common.errors import BrokerError, BrokerRefusedError, ConfigError, KafkaDeltaExpressError, TableError
from common.http.pages import Pausing
from common.lagging.history import EndHistory
from common.metrics import Metrics
from common.pages.model import Lag, ProblemLevel, State, Status
from common.pages.samples import Samples
from common.ports import Clock
from common.settings.values import StartAt
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.paused import StreamPart
from common.stage.undeclared import UndeclaredFields
from delta_loader.check_result import Check, StreamChecks
from delta_loader.checks.readiness import ReadinessCheck
from delta_loader.lease.holder import LoaderLease
from delta_loader.load.load_stats import STUCK_S
from delta_loader.load.report import StreamReport
from delta_loader.loader import Loader
from delta_loader.scheduling.jobs import Jobs
from delta_loader.scheduling.listening import Listener
from delta_loader.scheduling.load_trigger import LoadRequest, LoadTrigger, RequestQueue, StreamTrigger
from delta_loader.scheduling.schedule import Schedule
from delta_loader.scheduling.stream_scheduler import StreamScheduler
from delta_loader.spark.checkpoint_threads import BackgroundCheckpoints, DueCheckpoint
from delta_loader.status.writers import IdleWriter, KafkaAnswers
from delta_loader.tables.commits import CommitOutcome, TableCommit
from delta_loader.web.serving import LoaderServing
from delta_loader.web.view import LoaderView, WritersView
from stage_writer.chain_end import Tail
from stage_writer.decode.dependency import Dependency
from stage_writer.notifications.notifier import LoaderNotifier
from stage_writer.outbox.ports import Outlets
from stage_writer.partitions.flush_decision import FlushReason
from stage_writer.partitions.partition import AssignedPartition, InFlightFlush, StartingPartition
from stage_writer.stage.staging import Job, ObjectStage
from stage_writer.web import serving as writer_serving
from stage_writer.web.serving import WriterServing
from stage_writer.web.view import WriterView
from stage_writer.web.worker_pool_pages import merged_status, status_from_json
from tests.builders import required
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.group import HandClock
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.pauses import paused_streams
from tests.fakes.staging import Staging
from tests.fakes.status import writer_status
from tests.unit.stage_writer.test_service import FIRST, SECOND, World


def as_json(status: Status) -> Status:
    return status_from_json(json.dumps(status.to_json()))


def test_hand_written_json_of_a_row_is_complete() -> None:
    [row] = writer_status(0).partitions[:1]
    assert row.to_json() == asdict(row)


def rows(status: Status) -> dict[str, tuple[State, tuple[int | None, ...], Lag]]:
    return {f"{row.topic}/{row.partition}": (row.state, row.positions, row.lag) for row in status.partitions}


def gauges(metrics: Metrics, name: str) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        sample.labels.get("partition", sample.labels.get("reason", "")): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


class WriterPage:
    """A writer's page, in a world with a stopped clock."""

    def __init__(self, folder: Path, ends: dict[TopicPartition, int]) -> None:
        self.world = World(folder, ends)
        self.metrics, self.history = Metrics(), EndHistory()
        clock = self.world.clock
        self.pausing = Pausing(clock, structlog.get_logger(), self.metrics, all_metrics.WRITER_PAUSED_BY_REQUEST)
        self.paused = paused_streams(part=StreamPart.STAGING, metrics=self.metrics)
        self.view = WriterView(
            self.history, clock, self.metrics, self.pausing, flush_after_s=lambda _app_id: 1.0, paused=self.paused
        )

    def look(self) -> Status:
        self.history.observe({partition: Position(end) for partition, end in self.world.group.ends.items()}, self.now_s)
        snapshot = self.world.writer.snapshot()
        self.view.refresh(snapshot)
        return as_json(self.view.status(snapshot))

    @property
    def now_s(self) -> float:
        return self.world.clock.now_s


def test_writer_shows_read_and_staged_positions_and_its_lag(tmp_path: Path) -> None:
    page = WriterPage(tmp_path, {FIRST: 10, SECOND: 0})
    page.world.steps(1)
    status = page.look()
    assert rows(status)["orders/0"][1] == (0, 10, 10)
    assert gauges(page.metrics, "stage_writer_lag_records") == {"0": 10, "1": 0}, "until it is staged"
    page.world.steps(8)
    status = page.look()
    assert rows(status) == {
        "orders/0": (State.WELL, (10, 10, 10), Lag(0, 0.0)),
        "orders/1": (State.WELL, (0, 0, 0), Lag(0, 0.0)),
    }
    [event] = status.events
    assert (event.what, event.rows, event.note) == ("orders/0 [0, 10)", 10, "age")
    assert status.problems == ()
    page.world.group.ends[FIRST] = 25
    page.world.clock.now_s += 7
    status = page.look()
    assert rows(status)["orders/0"][2] == Lag(15, 7.0)
    assert status.streams[0].stops[2].lag == Lag(0, 7.0)
    assert gauges(page.metrics, "stage_writer_lag_records") == {"0": 15, "1": 0}
    assert gauges(page.metrics, "stage_writer_lag_seconds") == {"0": 7, "1": 0}
    assert gauges(page.metrics, "stage_writer_kafka_end_position") == {"0": 25, "1": 0}


def test_writer_shows_its_newest_flush_first(tmp_path: Path) -> None:
    page = WriterPage(tmp_path, {FIRST: 10})
    page.world.steps(8)
    page.world.group.ends[FIRST] = 25
    page.world.steps(8)
    assert [event.what for event in page.look().events] == ["orders/0 [10, 25)", "orders/0 [0, 10)"]


def test_end_of_a_partition_is_never_before_what_was_read(tmp_path: Path) -> None:
    page = WriterPage(tmp_path, {FIRST: 10})
    page.history.observe({FIRST: Position(4)}, page.now_s)
    page.world.steps(1)
    assert rows(page.view.status(page.world.writer.snapshot()))["orders/0"][1] == (0, 10, 10)


def test_partition_whose_chain_is_being_read_is_shown(tmp_path: Path) -> None:
    page = WriterPage(tmp_path, {FIRST: 10})
    page.world.steps(1)
    snapshot = page.world.writer.snapshot()
    (assigned,) = snapshot.assigned
    starting = replace(snapshot, assigned=(), starting={FIRST: cast("StartingPartition", assigned)})
    (row,) = page.view.status(starting).partitions
    assert (row.stream, row.state, row.note) == ("orders", State.WAITING, "its chain is being read")


def test_partition_that_another_writer_has_is_no_longer_measured(tmp_path: Path) -> None:
    page = WriterPage(tmp_path, {FIRST: 10, SECOND: 0})
    page.world.steps(1)
    page.look()
    page.world.writer.revoked([SECOND])
    page.look()
    for name in ("lag_records", "lag_seconds", "kafka_end_position"):
        assert gauges(page.metrics, f"stage_writer_{name}").keys() == {"0"}


def test_writers_pages_know_its_latency_its_readiness_and_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    histories: list[EndHistory] = []

    def watch(*_: object, history: EndHistory, **__: object) -> object:
        histories.append(history)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(writer_serving, "EndWatch", watch)
    page = WriterPage(tmp_path, {FIRST: 10})
    world = World(tmp_path, {FIRST: 10}, flush_after="1h")
    world.steps(8)
    settings = world.settings.model_copy(
        update={"writer": world.settings.writer.model_copy(update={"http": "127.0.0.1:0", "http_token": "t" * 16})}
    )
    log, clock = structlog.get_logger(), world.clock
    served = WriterServing(
        settings, world.writer, page.pausing, page.paused, clock=clock, log=log, metrics=page.metrics
    )
    try:
        for wait_s, state in ((7_200, "well"), (7_200, "behind")):
            histories[0].observe({FIRST: Position(25)}, clock.now_s)
            clock.now_s += wait_s
            with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/status.json", timeout=60) as answer:
                (row,) = json.loads(answer.read())["partitions"]
            assert row["state"] == state
        world.writer.assignment.joined = False
        for request, status in (("GET /healthcheck", 200), ("GET /ready", 503), ("POST /pause", 401)):
            method, path = request.split()
            connection = http.client.HTTPConnection("127.0.0.1", required(served.port), timeout=60)
            connection.request(method, path)
            assert (request, connection.getresponse().status) == (request, status)
            connection.close()
    finally:
        served.close()


def test_writer_shows_why_a_partition_is_held_and_the_remedy(tmp_path: Path) -> None:
    page = WriterPage(tmp_path, {FIRST: 10})
    page.world.steps()
    page.world.store.write("done/orders/0/00000000000000000010.done", b'{"version": 99}')
    page.world.writer.revoked([FIRST])
    page.world.writer.assigned([FIRST])
    status = page.look()
    assert rows(status)["orders/0"][0] is State.HELD
    [problem] = status.problems
    assert (problem.level, problem.title) == (ProblemLevel.ERROR, "orders/0 is held (newer marker)")
    assert "upgrade" in problem.remedy
    assert status.streams[0].level is ProblemLevel.ERROR
    assert gauges(page.metrics, "stage_writer_held_partitions") == {"newer_marker": 1}
    page.world.writer.revoked([FIRST])
    page.look()
    assert gauges(page.metrics, "stage_writer_held_partitions") == {}


def test_writer_shows_topics_that_it_reads_for_no_stream(tmp_path: Path) -> None:
    page = WriterPage(tmp_path, {FIRST: 10})
    page.world.steps()
    telemetry = page.world.writer.snapshot().telemetry
    telemetry._unsubscribed.problems = {"orders-eu": ConfigError("two streams share it", "name one")}
    telemetry.note_hidden({"orders": BrokerRefusedError("it is hidden", "allow it")})
    shown = [(problem.level, problem.title, problem.problem) for problem in page.look().problems]
    assert shown == [
        (ProblemLevel.ERROR, "A topic of orders is not read", "it is hidden"),
        (ProblemLevel.ERROR, "The topic orders-eu is not read", "two streams share it"),
    ]


def attach(page: WriterPage, **parts: object) -> None:
    writer = page.world.writer
    writer._attachments = replace(writer._attachments, **parts)  # type: ignore[arg-type]


def test_writer_that_has_not_joined_its_group_knows_nothing_yet(tmp_path: Path) -> None:
    status = WriterPage(tmp_path, {FIRST: 10}).look()
    assert (status.state, status.is_known) == ("joining the group", False)


def test_writer_shows_what_fails_around_it(tmp_path: Path) -> None:
    page = WriterPage(tmp_path, {FIRST: 10})
    page.world.steps(1)
    failing = replace(page.world.writer.snapshot(), is_failing=True, changelogs=("it is compacted",))
    assert [(problem.level, problem.title) for problem in page.view.status(failing).problems] == [
        (ProblemLevel.WARNING, "The store or Kafka fails"),
        (ProblemLevel.ERROR, "A changelog topic does not retain state"),
    ]


def test_writer_shows_what_each_partition_does(tmp_path: Path) -> None:
    page = WriterPage(tmp_path, {FIRST: 10})
    page.world.steps(1)
    snapshot = page.world.writer.snapshot()
    (assigned,) = snapshot.assigned
    job, tail = cast("Job", SimpleNamespace(memory_bytes=7)), cast("Tail", SimpleNamespace(end=Position(5)))
    flushing = replace(assigned, in_flight=InFlightFlush(job, FlushReason.AGE, 0.0, None), tail=tail)
    away = cast("Dependency", SimpleNamespace(error=ConfigError("the registry is away", "start it")))

    def shown(assigned: AssignedPartition, paused: Collection[TopicPartition] = ()) -> Status:
        backpressure = replace(snapshot.backpressure, paused=frozenset(paused))
        return page.view.status(replace(snapshot, assigned=[assigned], backpressure=backpressure))

    def row(assigned: AssignedPartition, paused: Collection[TopicPartition] = ()) -> tuple[State, object, str]:
        (row,) = shown(assigned, paused).partitions
        return row.state, row.positions[:2], row.note

    assert row(flushing) == (State.FLUSHING, (5, 10), "flush for age")
    assert shown(flushing).figures[0].value == assigned.buffer.memory_bytes + 7
    assert row(flushing, [FIRST]) == (State.PAUSED, (5, 10), "not read now")
    assert row(replace(assigned, taken=Position(12))) == (State.WELL, (0, 12), "")
    waiting = replace(assigned, wait=away)
    assert row(waiting, [FIRST]) == (State.WAITING, (0, 10), "the registry is away")
    assert [problem.title for problem in shown(waiting).problems] == ["orders/0 waits"]
    page.history.observe({FIRST: Position(40)}, page.now_s - 5_000)
    assert [row(assigned)[0], row(assigned, [FIRST])[0]] == [State.BEHIND, State.PAUSED]


def test_paused_stream_of_a_writer_is_a_warning(tmp_path: Path) -> None:
    page = WriterPage(tmp_path, {FIRST: 10})
    page.world.steps(1)
    page.paused.pause("orders", "an operator")
    status = page.look()
    assert [problem.title for problem in status.problems] == ["orders is paused"]
    assert (status.streams[0].level, status.streams[0].way[-8:]) == (ProblemLevel.WARNING, ", paused")


def test_most_frequent_dead_letters_are_shown_first(tmp_path: Path) -> None:
    writer, loader = WriterPage(tmp_path / "writer", {FIRST: 10}), LoaderPage(tmp_path / "loader")
    loader.load()
    counts = {("orders", "not_json"): 1, ("orders", "wrong_type"): 2}
    writer.world.writer.snapshot().telemetry.dead_letters.update(counts)
    loader.service.stats.dead_letters = counts
    for page in (writer, loader):
        assert [letters.count for letters in page.look().dead_letters] == [2, 1]


def test_undelivered_records_for_kafka_topics_are_shown(tmp_path: Path) -> None:
    page = WriterPage(tmp_path, {FIRST: 10})
    page.world.steps()
    error = KafkaDeltaExpressError("orders/0: records for Kafka topics wait: no right", "allow it")
    attach(page, outlets=cast("Outlets", SimpleNamespace(problems=lambda: (error,))))
    [problem] = page.look().problems
    assert (problem.level, problem.problem, problem.remedy) == (ProblemLevel.ERROR, error.problem, "allow it")
    assert page.world.writer.health().problems == (f"{error.problem} → allow it",)


def test_paused_writer_shows_how_to_resume(tmp_path: Path) -> None:
    page = WriterPage(tmp_path, {FIRST: 10})
    page.world.steps()
    page.pausing.pause()
    status = page.look()
    assert status.state == "paused"
    assert [(problem.level, problem.title) for problem in status.problems] == [
        (ProblemLevel.WARNING, "Paused by request")
    ]
    assert "/resume`" in status.problems[0].remedy


def test_writer_shows_an_unreachable_control_topic(tmp_path: Path) -> None:
    page = WriterPage(tmp_path, {FIRST: 10})
    log = structlog.get_logger()
    attach(page, notifier=LoaderNotifier(cast("ObjectStage", None), page.world.clock, log, page.metrics, Unreached()))
    page.world.steps(1)
    [problem] = page.look().problems
    assert (problem.level, problem.title) == (ProblemLevel.WARNING, "Notifications go to the stage")
    assert problem.problem == "the topic is away; until then, notifications go to the stage"
    assert "stage-writer check" in problem.remedy


class Unreached:
    problem: str | None = "the topic is away"

    def send(self, app_id: str) -> bool:
        del app_id
        return False

    def undelivered(self) -> frozenset[str]:
        return frozenset()

    def end(self, within_s: float) -> frozenset[str]:
        del within_s
        return frozenset()


def test_dead_letters_are_counted_by_class_and_sampled_on_request(tmp_path: Path) -> None:
    for samples in (None, Samples(1)):
        page = WriterPage(tmp_path / str(samples is None), {FIRST: 0})
        telemetry = page.world.writer._runtime.telemetry
        telemetry.samples = samples
        page.world.group.ends[FIRST] = 2
        telemetry.dead_letters["orders", "wrong_type"] += 2
        if samples is not None:
            samples.add("orders", [("wrong_type", "orders/0 @ 1", b'{"id": "secret"}')])
        [letters] = page.look().dead_letters
        assert (letters.stream, letters.error_class, letters.count) == ("orders", "wrong_type", 2)
        assert [sample.text for sample in letters.samples] == ([] if samples is None else ['{"id": "xxxxxx"}'])


def test_workers_are_merged_into_one_page() -> None:
    first = writer_status(1_000)
    other = replace(first, partitions=first.partitions[:3], problems=(), state="paused")
    status = merged_status([as_json(first), as_json(other)], 3, 2_000, 0)
    assert len(status.partitions) == 15
    assert status.problems == first.problems
    assert (status.state, status.now_ms) == ("paused, staging", 2_000)
    assert status.verdict.startswith("2 of 3 workers respond")
    assert status.figures[0].value == 2 * 410 * 2**20
    assert status.streams[0].partitions == 24
    assert [stop.lag for stop in status.streams[0].stops] == [None, Lag(2_080, 1.0), Lag(18_720, 12.0)]
    assert [letters.count for letters in status.dead_letters] == [2_408, 34]
    assert not status.is_known, "one worker does not respond"
    assert merged_status([], 2, 0, 0).partitions == ()


class LoaderPage:
    def __init__(
        self, folder: Path, tables: MemoryDeltaTables | None = None, clock: Clock | None = None, **stream: object
    ) -> None:
        self.staging = Staging.below(folder)
        self.metrics, self.history = Metrics(), EndHistory()
        self.settings = settings_for(self.staging, stream)
        clock, log = clock or SystemClock(), structlog.get_logger()
        self.pausing = Pausing(clock, log, self.metrics, all_metrics.LOADER_PAUSED_BY_REQUEST)
        self.paused = paused_streams([stream.app_id for stream in self.settings.streams], metrics=self.metrics)
        self.loader: Loader | None = None
        service = loader_for(self.staging, tables or MemoryDeltaTables(), self.settings, clock)
        self.checkpoints = BackgroundCheckpoints(clock, log, self.metrics, lambda _: ())
        every = StreamTrigger(Schedule("15m"), waits=False, loads_per_minute=6)
        streams = {stream.app_id: every for stream in self.settings.streams}
        trigger = LoadTrigger(streams, RequestQueue(), clock, self.metrics)
        self.service = service
        self.ready = Loader(  # parts that its pages do not use are stubs
            service,
            Event(),
            None,
            None,
            cast("ReadinessCheck", _Nothing()),
            self.pausing,
            self.paused,
            trigger,
            StreamScheduler(1),
            self.checkpoints,
            Jobs(clock, log),
        )
        self.kafka = KafkaAnswers(EndHistory(), is_answering=True)
        writers = WritersView(self.settings.streams, self.history, self.kafka, flush_after_s=60.0)
        self.view = LoaderView(
            self.settings.streams, lambda: self.loader, self.history, writers, clock=clock, metrics=self.metrics
        )

    def load(self) -> Status:
        self.loader = self.ready
        self.service.run_pass()
        return self.look()

    def look(self) -> Status:
        self.view.refresh()
        return as_json(self.view.status())


class _Nothing:
    not_ready: Sequence[Check] = ()
    problems: Sequence[str] = ()


def healthcheck(page: LoaderPage) -> tuple[int, str]:
    serving = LoaderServing(page.pausing, page.paused, loader=page.ready, view=page.view)
    served = serving.routes(page.metrics, None, page.view).pages["/healthcheck"]
    assert callable(served)
    answer = served()
    return answer.status, answer.body.decode()


def test_starting_loader_refuses_load_requests(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    for loader, status in ((None, 503), (page.ready, 202)):
        for query in ({}, {"wait": ""}, {"wait": "0"}):
            assert LoaderServing(page.pausing, page.paused, loader=loader).load(query).status == status


@pytest.mark.parametrize(
    ("reports", "status"),
    [
        ([StreamReport("orders", commits=2)], 200),
        ([StreamReport("orders", failure=TableError("the table is away", "wait"))], 500),
        ([], 200),
        (None, 503),
    ],
)
def test_load_that_is_waited_for_tells_how_it_ended(
    tmp_path: Path, reports: list[StreamReport] | None, status: int
) -> None:
    page = LoaderPage(tmp_path)
    serving = LoaderServing(page.pausing, page.paused, loader=page.ready)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(serving.load, {"wait": "1"})
        while not serving.requests.is_requested:
            pass
        for request in serving.requests.take():
            request.complete(reports)
    answer = asking.result()
    assert answer.status == status
    if reports is not None:
        answer_json = json.loads(answer.body)
        ended = {report.app_id for report in reports}
        assert {stream["app_id"] for stream in answer_json["streams"]} == ended
        assert (answer_json["at_it"], answer_json["paused"]) == ([] if ended else ["orders"], [])


def test_load_that_is_waited_for_names_streams_that_are_paused(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    page.paused.pause("orders", "an operator")
    serving = LoaderServing(page.pausing, page.paused, loader=page.ready)
    request = LoadRequest()
    request.complete([])
    serving.requests = cast("RequestQueue", SimpleNamespace(ask=lambda: request))
    answer_json = json.loads(serving.load({"wait": "1"}).body)
    assert (answer_json["at_it"], answer_json["paused"]) == ([], ["orders"])


def test_loader_is_ready_once_it_has_loaded(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    serving = LoaderServing(page.pausing, page.paused)
    assert serving.readiness().problems == ("starting",)
    serving.readiness_check = cast("ReadinessCheck", SimpleNamespace(away="the stage is away"))
    assert serving.readiness().problems == ("starting", "the stage is away")
    serving.loader = page.ready
    assert serving.readiness().problems == ("starting", "the stage is away")
    page.pausing.pause()
    assert serving.readiness().problems == ()
    page.pausing.resume()
    page.load()
    assert serving.readiness().problems == ()


def test_paused_loader_says_how_to_resume_it(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    page.load()
    page.pausing.pause()
    status = page.look()
    assert (status.state, [problem.title for problem in status.problems]) == ("paused", ["Paused by request"])
    assert LoaderServing(page.pausing, page.paused, loader=page.ready).load({}).status == 409
    page.pausing.resume()
    assert page.look().problems == ()


def test_stream_that_is_not_ready_is_a_problem(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    page.load()
    check = StreamChecks("orders").error("columns", "the column id is not in it", "ALTER TABLE")
    readiness = SimpleNamespace(problems=("not ready to load: orders: the column id is not in it",), not_ready=(check,))
    page.loader = page.ready = replace(page.ready, readiness_check=cast("ReadinessCheck", readiness))
    status, text = healthcheck(page)
    assert (status, "not ready to load: orders" in text) == (503, True)
    shown = [(problem.level, problem.title) for problem in page.look().problems]
    assert shown == [(ProblemLevel.ERROR, "orders is not ready to load")]


def test_job_that_takes_long_is_a_note(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    page.load()
    jobs = SimpleNamespace(long_running=("the job 'clean_up' has been running for 9000 s",))
    page.loader = page.ready = replace(page.ready, jobs=cast("Jobs", jobs))
    status, text = healthcheck(page)
    assert (status, "the job 'clean_up' has been running" in text) == (200, True)
    assert [problem.title for problem in page.look().problems] == ["A job is taking long"]


def test_loader_with_failing_checkpoints_is_unhealthy(tmp_path: Path) -> None:
    def fail() -> None:
        msg = "no space is left"
        raise TableError(msg, "make room")

    page = LoaderPage(tmp_path)
    page.load()
    assert healthcheck(page)[0] == 200
    page.checkpoints.request(DueCheckpoint("s3://lake/orders", 10, fail))
    page.checkpoints.finish()
    status, text = healthcheck(page)
    assert status == 503
    assert "3 checkpoints of s3://lake/orders failed in a row: no space is left → nothing is lost" in text
    assert "Checkpoints fail" in [problem.title for problem in page.view.status().problems]

    page.checkpoints.request(DueCheckpoint("s3://lake/orders", 20, lambda: None))
    page.checkpoints.finish()
    assert healthcheck(page)[0] == 200


def test_paused_stream_is_shown_until_it_is_resumed(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    page.load()
    page.paused.pause("orders", "an operator")
    status, text = healthcheck(page)
    assert (status, "orders: loading is paused since" in text, "by an operator" in text) == (200, True, True)
    assert "`delta-loader resume" in text
    shown = page.view.status()
    assert [problem.title for problem in shown.problems] == ["orders is paused"]
    assert shown.streams[0].way.endswith(", paused")
    assert gauges(page.metrics, "delta_loader_stream_paused") == {"": 1.0}
    page.paused.resume("orders")
    assert page.view.status().problems == ()


def test_loader_shows_fields_that_no_column_takes(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    page.staging.undeclared = UndeclaredFields(20, {"sku": 20})
    page.staging.flush(0, 0, 10)
    page.staging.flush(1, 0, 10)
    (problem,) = page.load().problems
    assert (problem.level, problem.title) == (ProblemLevel.WARNING, "Fields of orders are dropped")
    assert problem.problem == "of 40 sampled records, fields that no column takes: sku (40)"


def test_fields_that_a_stream_drops_on_purpose_are_no_problem(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path, unknown_fields="ignore")
    page.staging.undeclared = UndeclaredFields(20, {"sku": 20})
    page.staging.flush(0, 0, 10)
    assert page.load().problems == ()


def test_age_of_the_oldest_waiting_marker_is_the_lag(tmp_path: Path) -> None:
    clock = HandClock(Staging.created_ms / 1000 + 90)
    page = LoaderPage(tmp_path, clock=clock)
    page.staging.flush(0, 5, 8)
    page.staging.flush(0, 20, 22)
    status = page.load()
    waited_s = 90 - 0.02  # the fake stage creates the marker of position 20 after 20 ms
    assert rows(status)["orders/0"] == (State.HELD, (8, 22, None), Lag(14, waited_s))
    assert gauges(page.metrics, "delta_loader_lag_seconds") == {"0": waited_s}
    assert clock.wall_ms() in [figure.value for figure in status.figures], "when the last load ended"
    for end, shown in ((10, 22), (30, 30)):
        page.history.observe({page.staging.source(0): Position(end)}, clock.now_s)
        assert rows(page.look())["orders/0"] == (State.HELD, (8, 22, shown), Lag(end - 8, waited_s))


def test_worst_problems_are_shown_first(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    page.load()
    (entry,) = page.service.stats.entries.values()
    page.service.stats.entries = {"orders": replace(entry, left_out=2)}
    check = StreamChecks("orders").error("columns", "the column id is not in it", "ALTER TABLE")
    note = StreamChecks("orders").warning("vacuum", "its files are kept for 1 day", "raise it")
    readiness = cast("ReadinessCheck", SimpleNamespace(problems=(), not_ready=(check, note)))
    page.loader = page.ready = replace(page.ready, readiness_check=readiness)
    status = page.look()
    assert [problem.title for problem in status.problems] == [
        "orders is not ready to load",
        "orders has tables that were left out",
    ]
    assert status.streams[0].way.endswith(", 2 tables left out")


def test_loader_shows_partitions_held_by_writers_and_the_remedy(tmp_path: Path) -> None:
    """Kafka had lost the records before the stage was read."""
    clock = HandClock()
    page = LoaderPage(tmp_path, clock=clock)
    page.staging.flush(0, 0, 10)
    page.staging.flush(1, 0, 10)
    first, second = page.staging.source(0), page.staging.source(1)
    page.history.observe({first: Position(40), second: Position(10)}, clock.now_s)
    page.kafka.firsts.observe({first: Position(25), second: Position(0)}, clock.now_s)
    status = page.load()
    [problem] = status.problems
    assert (problem.level, problem.title) == (ProblemLevel.ERROR, "orders/0 is held by its writers (gone from kafka)")
    assert "bootstrap skip ⟨config⟩ --topic orders --partition 0 --to 25 --yes" in problem.remedy
    assert [rows(status)[name][0] for name in ("orders/0", "orders/1")] == [State.HELD, State.WELL]
    assert (status.streams[0].held, status.streams[0].level) == (1, ProblemLevel.ERROR)
    assert "1 of 2 Kafka partitions is held" in status.verdict
    code, text = healthcheck(page)
    assert code == 200, "the loader itself is healthy"
    assert "orders/0 is held by its writers" in text
    assert "→ restore them, or skip them with `bootstrap skip" in text
    page.paused.pause("orders", "an operator")
    assert page.look().streams[0].level is ProblemLevel.ERROR, "and no warning"
    page.paused.resume("orders")
    clock.now_s += 5_000  # what is held waits, too
    page.history.observe({first: Position(40), second: Position(10)}, clock.now_s)
    assert page.load().problems == (problem,)


def test_partition_held_by_both_services_shows_the_loader_s_reason(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    page.staging.flush(0, 5, 8)
    page.staging.flush(0, 20, 22)
    source = page.staging.source(0)
    page.history.observe({source: Position(40)}, SystemClock().monotonic_s())
    page.kafka.firsts.observe({source: Position(25)}, SystemClock().monotonic_s())
    status = page.load()
    assert [problem.title for problem in status.problems] == [
        "orders/0 is held (gap)",
        "orders/0 is held by its writers (gone from kafka)",
    ]
    (row,) = status.partitions
    assert "nothing is staged for the positions [8, 20)" in row.note


def test_lag_that_the_last_pass_could_not_read_is_not_shown(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    page.staging.flush(0, 0, 10)
    page.load()
    assert gauges(page.metrics, "delta_loader_lag_seconds") == {"0": 0}
    page.staging.flush(0, 10, 20)
    stats = page.service.stats
    stats.entries = {name: replace(entry, is_current=False) for name, entry in stats.entries.items()}
    page.look()
    assert gauges(page.metrics, "delta_loader_lag_seconds") == {}


def test_standby_shows_the_lag_of_a_stream_that_another_loader_loads(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    page.staging.flush(0, 0, 10)
    lease = SimpleNamespace(problem=None, holder="host-2", held=frozenset, elsewhere=frozenset({"orders"}))
    page.loader = page.ready = replace(page.ready, lease=cast("LoaderLease", lease))
    page.kafka.firsts.observe({page.staging.source(0): Position(25)}, SystemClock().monotonic_s())
    page.service.inspect(page.ready.loaded_elsewhere)
    page.service.collect()
    status = page.look()
    assert status.problems == (), "the loader that loads shows those of the writers"
    assert status.verdict.startswith("Another loader holds the lease")
    assert (status.state, status.is_known) == ("standing by for host-2", False)
    assert rows(status)["orders/0"] == (State.BEHIND, (None, 10, None), Lag(10, rows(status)["orders/0"][2].seconds))
    assert "loaded by another loader" in status.streams[0].way
    refused = LoaderServing(page.pausing, page.paused, loader=page.ready).load({})
    assert LoaderServing(page.pausing, page.paused, loader=page.ready).readiness().problems == ()
    assert (refused.status, b"standby; ask the loader that holds the lease: host-2" in refused.body) == (409, True)
    assert gauges(page.service._ports.metrics, "delta_loader_lag_positions") == {"0": 10.0}
    assert gauges(page.metrics, "delta_loader_lag_seconds").keys() == {"0"}
    assert healthcheck(page)[0] == 200


def test_unreachable_lease_and_stuck_load_name_the_check_command(tmp_path: Path) -> None:
    clock = HandClock()
    page = LoaderPage(tmp_path, clock=clock)
    page.load()
    lease = SimpleNamespace(
        problem="the lease is away", holder=None, held=lambda: frozenset({"orders"}), elsewhere=frozenset()
    )
    page.loader = page.ready = replace(page.ready, lease=cast("LoaderLease", lease))
    page.service.unfinished.begin("orders")
    clock.now_s += STUCK_S + 1
    problems = page.look().problems
    code, text = healthcheck(page)
    assert ({problem.title for problem in problems}, code) == ({"The lease is unreachable", "A load hangs"}, 503)
    for problem in problems:
        assert "`delta-loader check ⟨config⟩`" in problem.remedy
        assert f"{problem.problem} → {problem.remedy}" in text


def test_records_lost_by_kafka_after_the_stage_scan_are_no_problem_yet(tmp_path: Path) -> None:
    """Writers may have staged them since; the next pass will see."""
    clock = HandClock()
    page = LoaderPage(tmp_path, clock=clock)
    page.staging.flush(0, 0, 10)
    partition = page.staging.source(0)
    page.kafka.firsts.observe({partition: Position(0)}, clock.now_s)
    page.load()
    clock.now_s += 60
    page.kafka.firsts.observe({partition: Position(25)}, clock.now_s)
    assert page.look().problems == ()
    assert page.load().problems != ()


def test_loader_reports_a_recreated_topic(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    page.staging.flush(0, 0, 10)
    page.load()
    entry = page.service.stats.entries["orders"]
    seen = {partition: replace(state, topic_id="old") for partition, state in entry.seen.items()}
    page.service.stats.entries = {"orders": replace(entry, seen=seen)}
    page.kafka.topic_ids = {Topic("orders"): "old"}
    assert page.look().problems == ()
    page.kafka.topic_ids = {Topic("orders"): "new"}
    [problem] = page.look().problems
    assert problem.title == "orders/0 is held by its writers (topic recreated)"
    assert "bootstrap restart ⟨config⟩ --topic orders --yes" in problem.remedy
    page.kafka.partitions = [TopicPartition(Topic("orders"), Partition(1))]  # the new topic has fewer
    assert page.look().problems == ()
    page.kafka.partitions = [TopicPartition(Topic("orders"), Partition(0))]
    assert len(page.look().problems) == 1


def test_records_that_wait_in_kafka_for_long_are_a_warning(tmp_path: Path) -> None:
    """Partition 0 has a chain, partition 1 has nothing staged. A loader that just started reports nothing yet."""
    clock = HandClock()
    page = LoaderPage(tmp_path, clock=clock)
    page.staging.flush(0, 0, 10)
    first, second = page.staging.source(0), page.staging.source(1)
    page.kafka.partitions = (first, second)
    page.kafka.firsts.observe({second: Position(0)}, clock.now_s)
    assert page.load().problems == ()
    assert page.view.watched == {first, second}
    page.history.observe({first: Position(30), second: Position(7)}, clock.now_s)
    clock.now_s += 700
    assert page.load().problems == ()
    clock.now_s += 100
    assert page.look().problems == (), "the stage was not read since: writers may have staged it all"
    status = page.load()
    [problem] = status.problems
    assert (problem.level, problem.title, problem.also) == (ProblemLevel.WARNING, "orders/0 waits to be staged", 1)
    assert problem.problem.startswith("20 records of orders/0 waited in Kafka for 13 minutes")
    assert status.streams[0].level is ProblemLevel.WARNING
    assert "orders/0 waits to be staged, and 1 more of this kind" in healthcheck(page)[1]
    page.staging.flush(0, 10, 30)
    page.staging.flush(1, 0, 7)
    assert page.load().problems == ()


def test_records_may_wait_for_the_stream_s_own_latency(tmp_path: Path) -> None:
    clock = HandClock()
    page = LoaderPage(tmp_path, clock=clock, flush_after="1h")
    page.staging.flush(0, 0, 10)
    page.load()
    page.history.observe({page.staging.source(0): Position(30)}, clock.now_s)
    for passed_s, problems in ((1_800, 0), (18_000, 1)):
        clock.now_s += passed_s
        assert len(page.load().problems) == problems


def test_end_of_a_transaction_is_not_a_waiting_record(tmp_path: Path) -> None:
    """Only a writer's recent idle report proves that no record follows a chain's end; else the loader warns."""
    clock = HandClock()
    page = LoaderPage(tmp_path, clock=clock)
    page.staging.flush(0, 0, 10)
    partition = page.staging.source(0)
    page.history.observe({partition: Position(11)}, clock.now_s)
    page.load()
    clock.now_s += 5000
    page.kafka.idle = (
        IdleWriter(partition, Position(10), clock.now_s - 60),
        IdleWriter(partition, Position(11), clock.now_s),
    )
    assert page.load().problems == ()
    clock.now_s += 700
    [problem] = page.load().problems
    assert problem.problem.startswith("1 record of orders/0 waited in Kafka for 12 minutes")
    page.kafka.idle = (IdleWriter(partition, Position(11), clock.now_s),)
    assert len(page.load().problems) == 1, "the report says nothing about later positions"


def test_idle_report_explains_a_partition_without_a_chain(tmp_path: Path) -> None:
    """Its records in Kafka may be aborted, or lie before its writer's start position."""
    clock = HandClock()
    page = LoaderPage(tmp_path, clock=clock)
    partition = page.staging.source(0)
    page.kafka.partitions = (partition,)
    page.kafka.firsts.observe({partition: Position(0)}, clock.now_s)
    page.history.observe({partition: Position(7)}, clock.now_s)
    clock.now_s += 5000
    page.loader = page.ready
    assert page.look().problems == (), "the stage was not read yet"
    assert [problem.title for problem in page.load().problems] == ["orders/0 waits to be staged"]
    for began in (0, 7):
        page.kafka.idle = (IdleWriter(partition, Position(began), clock.now_s),)
        assert page.load().problems == ()
    clock.now_s += 800
    assert page.load().problems != (), "without a recent report, the records count as waiting"


def test_stream_that_starts_at_latest_waits_only_for_newer_records(tmp_path: Path) -> None:
    clock = HandClock()
    page = LoaderPage(tmp_path, clock=clock)
    page.settings = page.settings.model_copy(
        update={"streams": (page.settings.streams[0].model_copy(update={"start": StartAt.LATEST}),)}
    )
    writers = WritersView(page.settings.streams, page.history, page.kafka, flush_after_s=60.0)
    page.view._writers = writers
    partition = page.staging.source(0)
    page.kafka.partitions = (partition,)
    page.kafka.firsts.observe({partition: Position(0)}, clock.now_s)
    page.history.observe({partition: Position(500)}, clock.now_s)
    clock.now_s += 1_000
    assert page.load().problems == ()
    page.history.observe({partition: Position(510)}, clock.now_s)
    clock.now_s += 1_000
    [problem] = page.load().problems
    assert problem.problem.startswith("10 records of orders/0")


def test_loader_shows_that_kafka_does_not_respond(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    assert "Kafka has not responded" not in page.load().verdict
    page.kafka.is_answering = False
    assert "Kafka has not responded" in page.look().verdict


def test_loader_health_names_held_partitions_and_the_remedy(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    page.staging.flush(1, 5, 8)
    page.staging.flush(1, 20, 22)
    page.load()
    code, text = healthcheck(page)
    assert code == 200
    assert "orders/1 is held (gap): nothing is staged for the positions [8, 20)" in text
    assert "→ stage them again with `bootstrap rewind ⟨config⟩ --topic orders --partition 1 --to 8 --yes`" in text


def test_starting_loader_shows_that_it_starts(tmp_path: Path) -> None:
    status = LoaderPage(tmp_path).look()
    assert (status.state, status.partitions, status.streams) == ("starting", (), ())
    assert not status.is_known


def test_loader_is_not_shown_as_healthy_before_its_first_load(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    page.loader = page.ready
    status = page.look()
    assert not status.is_known
    assert status.verdict == "1 stream; no load has ended since the start."
    assert [step.note for step in status.streams[0].stops] == ["", "", "no commit since the start"]
    status = page.load()
    assert status.is_known
    assert "as of the last load" in status.verdict
    assert status.streams[0].stops[1].note == "nothing waits"


def test_loader_shows_the_results_of_its_last_pass(tmp_path: Path) -> None:
    page = LoaderPage(tmp_path)
    page.staging.flush(0, 0, 10, dead=[4])
    page.staging.flush(1, 5, 8)
    page.staging.flush(1, 20, 22)
    ends = {page.staging.source(0): Position(12), page.staging.source(1): Position(22)}
    page.history.observe(ends, SystemClock().monotonic_s())
    status = page.load()
    partitions = rows(status)
    assert partitions["orders/0"][:2] == (State.WELL, (10, 10, 12))
    assert partitions["orders/1"][:2] == (State.HELD, (8, 22, 22))
    assert partitions["orders/0"][2].records == 2
    [problem] = status.problems
    assert (problem.level, problem.title) == (ProblemLevel.ERROR, "orders/1 is held (gap)")
    assert "bootstrap rewind ⟨config⟩ --topic orders --partition 1 --to 8 --yes" in problem.remedy
    assert [(dead_letter.error_class, dead_letter.count) for dead_letter in status.dead_letters] == [("not_json", 1)]
    assert {event.what.partition(" of ")[2] for event in status.events} == {"orders", "orders_dead_letters"}
    [flow] = status.streams
    assert (flow.held, flow.level, flow.partitions) == (1, ProblemLevel.ERROR, 2)
    assert [stop.lag and stop.lag.records for stop in flow.stops] == [None, 2, 14]
    assert (required(flow.stops[2].lag).seconds or 0) > 0, "that of the partition that waits"
    assert gauges(page.metrics, "delta_loader_kafka_lag_records") == {"0": 2, "1": 14}
    assert gauges(page.metrics, "delta_loader_lag_seconds")["0"] == 0
    assert gauges(page.metrics, "delta_loader_lag_seconds")["1"] > 0


def test_page_makes_no_request_to_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = LoaderPage(tmp_path)
    page.staging.flush(0, 0, 10)
    page.load()

    def fail(*_: object) -> None:
        pytest.fail("a store was asked")

    store = type(page.staging.store(page.staging.stage_url))
    for name in ("list", "read", "stat", "scan"):
        monkeypatch.setattr(store, name, fail)
    assert len(page.look().partitions) == 1


def test_failing_stream_keeps_its_last_known_state(tmp_path: Path) -> None:
    class Breaking(MemoryDeltaTables):
        broken = False

        def commit(self, commit: TableCommit) -> CommitOutcome:
            if self.broken:
                msg = "the table is away"
                raise TableError(msg, "wait")
            return super().commit(commit)

    tables = Breaking()
    page = LoaderPage(tmp_path, tables)
    page.staging.flush(0, 0, 10)
    page.load()
    tables.broken = True
    page.staging.flush(0, 10, 20)
    statuses = [page.load() for _ in range(3)]
    levels = [(status.problems[0].level, status.streams[0].level) for status in statuses]
    assert levels == [(ProblemLevel.WARNING, None)] * 2 + [(ProblemLevel.ERROR, ProblemLevel.ERROR)]
    assert statuses[0].problems[0].title == "orders failed"
    status = page.look()
    assert status.problems[0].title == "orders failed 3 times in a row"
    assert status.problems[0].problem == "the table is away"
    assert rows(status).keys() == {"orders/0"}
    tables.broken = False
    assert page.load().problems == ()


def test_unreachable_control_topic_is_only_a_warning(tmp_path: Path) -> None:
    class Deaf:
        problem = BrokerError("the topic is not there", "create it")

    page = LoaderPage(tmp_path)
    page.ready = replace(page.ready, control=cast("Listener", Deaf()))
    [problem] = page.load().problems
    assert (problem.level, problem.title, problem.remedy) == (
        ProblemLevel.WARNING,
        "The control topic is unreachable",
        "create it",
    )
    assert problem.problem.startswith("the topic is not there. The stage is scanned instead")
    status, text = healthcheck(page)
    assert (status, "the topic is not there; until then the loader finds new markers" in text) == (200, True)
