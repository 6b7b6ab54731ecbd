"""Exit codes of whole commands: 0 done, 1 a retry may help, 2 wrong use or config, 3 waits for a person.

Where a command would need Kafka or Spark, the part that asks them is replaced by its result.
"""

import itertools
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import NoReturn

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException

import bootstrap.__main__ as bootstrap_program
import delta_loader.__main__ as loader_program
import stage_writer.__main__ as writer_program
from bootstrap.plans.plan import NotNeeded, PlannedPartition, RefusedPartition, StreamPlan
from common import errors
from common.cli import new_app, run
from common.clock import SystemClock
from common.errors import (
    BrokerError,
    BrokerRefusedError,
    ConfigError,
    ExitCode,
    HeldError,
    KafkaDeltaExpressError,
    NotCompatibleError,
    StoreError,
    StoreRefusedError,
    TableError,
    UnsafeStoreError,
)
from common.spans import Position, TopicPartition
from common.stage.failures import LastFailure, failure_path, last_failure
from common.stage.paused import Pause, StreamPart
from delta_loader.catalog.registering import UnknownCatalogError
from delta_loader.check_result import Check, Level
from delta_loader.checks.preflight import failed
from delta_loader.commands import inspection, upkeep
from delta_loader.inspect.verify.findings import Finding, Verdict, VerifiedStream
from delta_loader.load.load_stats import FailureNotes
from delta_loader.load.report import StreamReport
from delta_loader.maintenance.cleaning.rules import Tally
from delta_loader.maintenance.services import due
from delta_loader.maintenance.services.due import MaintenanceTask, TableRules
from delta_loader.maintenance.services.facts import Service
from delta_loader.plan.held import Held
from delta_loader.status import kafka as kafka_status
from delta_loader.status.values import PartitionStatus, StreamStatus, exit_code
from stage_writer import wiring
from stage_writer.topologies.errors import TopologyError, UnknownFieldError
from stage_writer.worker_pool import WorkerPool
from tests.builders import config_file
from tests.fakes.markers import ORDERS
from tests.fakes.staging import Staging

PACKAGES = {"bootstrap", "common", "delta_loader", "stage_writer"}

NAMES = {
    1: (
        "BrokerError BuildError DownloadError KafkaDeltaExpressError MarkerError NewerFormatError RegistryError "
        "StateError StoreError TableError TopologyError UnderRepairError"
    ),
    2: (
        "BrokerRefusedError ConfigError ExpressionError SchemaError StoreRefusedError UnsafeStoreError "
        "UnknownCatalogError UnknownFieldError UsageError"
    ),
    3: "HeldError NotCompatibleError",
}
CODES = {error: code for code, names in NAMES.items() for error in names.split()}


def errors_below(root: type[KafkaDeltaExpressError]) -> list[type[KafkaDeltaExpressError]]:
    classes = [root]
    for below in root.__subclasses__():
        classes += errors_below(below)
    return [class_ for class_ in classes if class_.__module__.partition(".")[0] in PACKAGES]


LAZILY = (TopologyError, UnknownCatalogError, UnknownFieldError)
"""Errors of modules that a program imports only when needed."""
ERRORS = {error.__name__: error for error in errors_below(errors.KafkaDeltaExpressError)}


def raising(error: KafkaDeltaExpressError) -> Callable[..., NoReturn]:
    def fail(*_arguments: object, **_named: object) -> NoReturn:
        raise error

    return fail


def nothing(*_arguments: object, **_named: object) -> None:
    pass


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging.below(tmp_path)


@pytest.fixture
def config(staging: Staging, tmp_path: Path) -> str:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        f"kafka: {{bootstrap.servers: 'localhost:1'}}\nstage: {{url: {staging.stage_url}}}\n"
        "loader: {http: null}\nwriter: {http: null}\n"
        f"streams: [{{app_id: orders, topics: [orders], table: {staging.table}, columns: 'id BIGINT'}}]\n"
    )
    return str(path)


# The numbers, and errors.


def test_exit_code_numbers_are_fixed() -> None:
    assert {code.name: int(code) for code in ExitCode} == {"DONE": 0, "FAILED": 1, "USAGE": 2, "HELD": 3}


def test_gravest_of_several_codes_wins() -> None:
    gravest = [2, 1, 3, 0]
    for codes in itertools.product(ExitCode, repeat=2):
        assert ExitCode.most_significant(codes) == min(codes, key=gravest.index)
    assert ExitCode.most_significant([]) == 0


def test_each_error_has_its_code_in_this_table() -> None:
    assert ERRORS.keys() == CODES.keys()


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_error_ends_a_command_with_its_code(name: str, code: int) -> None:
    app, error = new_app("Try things."), ERRORS[name]("something is wrong", "do something")

    @app.command()
    def fail() -> None:
        raise error

    assert run(app, ["fail"]) == code


# bootstrap


@pytest.mark.parametrize(
    ("outcome", "code"), [(NotNeeded("there is a chain"), 0), (RefusedPartition("no", "do this"), 3)]
)
def test_exit_code_of_bootstrap_plan(
    outcome: NotNeeded | RefusedPartition, code: int, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = (StreamPlan("orders", (PlannedPartition(ORDERS, None, outcome),)),)
    work = SimpleNamespace(plan=lambda *_: plans)
    monkeypatch.setattr(bootstrap_program, "Work", lambda *_: work)
    assert run(bootstrap_program.app, ["plan", config, "--from", "earliest"]) == code


@pytest.mark.parametrize(("spoiled", "code"), [("nothing", 0), ("file", 3), ("marker", 3), ("table", 1)])
def test_exit_code_of_bootstrap_markers_verify(spoiled: str, code: int, config: str, staging: Staging) -> None:
    marker = staging.flush(0, 0, 10)
    if spoiled == "file":
        staging.store(staging.table).delete([marker.tables[0].files[0].path])
    if spoiled == "marker":
        staging.store(staging.stage_url).write(marker.name.path, b"{")
    if spoiled == "table":
        staging.store(staging.table).write("_delta_log/00000000000000000000.json", b"{")
    assert run(bootstrap_program.app, ["markers", "verify", config]) == code


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("restart", ["--topic", "orders", "--at", "5"]),  # one offset for all of its partitions
        ("rewind", ["--all-held", "--give-up"]),
        ("rewind", ["--all-held", "--below-table"]),
    ],
)
def test_exit_code_of_bootstrap_options_that_contradict(command: str, options: list[str], config: str) -> None:
    assert run(bootstrap_program.app, [command, config, *options]) == 2


# delta-loader


def loader_that(
    reports: list[StreamReport],
    unfit: tuple[Check, ...] = (),
    at_load: Callable[[], None] = lambda: None,
    paused: tuple[str, ...] = (),
) -> object:
    def run_pass(*_arguments: object, **_named: object) -> list[StreamReport]:
        at_load()
        return reports

    return SimpleNamespace(
        lease=None,
        lease_thread=None,
        end_streams=nothing,
        service=SimpleNamespace(run_pass=run_pass, stats=SimpleNamespace(entries={})),
        checkpoints=SimpleNamespace(finish=nothing),
        readiness_check=SimpleNamespace(check_again=nothing, problems=(), not_ready=unfit),
        paused=SimpleNamespace(notes=[f"{app_id} is paused" for app_id in paused], pauses=dict.fromkeys(paused)),
    )


HELD_REPORT = StreamReport("orders", held={ORDERS: Held("gap", "it lacks records", "do this")})
UNFIT = Check("table", Level.ERROR, "it lacks a column", "add it")


@pytest.mark.parametrize(
    ("reports", "unfit", "code"),
    [
        ([StreamReport("orders")], (), 0),
        ([HELD_REPORT], (), 3),
        ([StreamReport("orders", failure=StoreError("it is away"))], (), 1),
        ([StreamReport("orders", failure=StoreRefusedError("no right"))], (), 2),
        ([StreamReport("orders", failure=NotCompatibleError("it lacks a column"))], (), 3),
        ([StreamReport("orders")], (UNFIT,), 3),
        ([HELD_REPORT, StreamReport("more", failure=TableError("it is away"))], (UNFIT,), 1),
    ],
)
def test_exit_code_of_loader_run_once(
    reports: list[StreamReport], unfit: tuple[Check, ...], code: int, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_signals_and_logs(loader_program, monkeypatch)
    loader = loader_that(reports, unfit)
    monkeypatch.setattr(loader_program, "_loader", lambda *_, **__: loader)
    assert run(loader_program.app, ["run", config, "--once"]) == code


def test_exit_code_of_loader_run_once_with_a_paused_stream(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_signals_and_logs(loader_program, monkeypatch)
    loader = loader_that([StreamReport("orders")], paused=("orders",))
    monkeypatch.setattr(loader_program, "_loader", lambda *_, **__: loader)
    assert run(loader_program.app, ["run", config, "--once"]) == 3


def test_loader_checks_spark_at_once_and_reports_that_it_ended(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any stream may be the first to notice that Java ended, by any exception, before the next scheduled check."""
    without_signals_and_logs(loader_program, monkeypatch)
    ended = Event()

    def fail_without_spark(*_: object) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(loader_program, "_run", fail_without_spark)
    loader = SimpleNamespace(
        lease_thread=None,
        end_streams=nothing,
        spark_stopped=ended,
        jobs=SimpleNamespace(start=nothing, soon=lambda name: ended.set() if name == "Spark" else None),
    )
    monkeypatch.setattr(loader_program, "_loader", lambda *_, **__: loader)
    assert run(loader_program.app, ["run", config]) == 1
    assert "the Spark process has ended" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("once", "while_loading", "code"), [(["--once"], True, 1), (["--once"], False, 1), ([], False, 0)]
)
def test_exit_code_of_a_stopped_loader(
    once: list[str],
    while_loading: bool,  # noqa: FBT001
    code: int,
    config: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With --once, records may be left; a service that was asked to stop has done its job."""
    without_signals_and_logs(loader_program, monkeypatch)

    def made(_settings: object, _log: object, _stack: ExitStack, stopped: Event, **_named: object) -> object:
        if not while_loading:
            stopped.set()
        return loader_that([StreamReport("orders")], at_load=stopped.set)

    monkeypatch.setattr(loader_program, "_loader", made)
    assert run(loader_program.app, ["run", config, *once]) == code


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (Check("stage", Level.OK, "well"), 0),
        (Check("table", Level.WARNING, "look at it"), 0),
        (UNFIT, 3),
        (Check("registry", Level.ERROR, "it is away", away=True), 1),
        (failed("stage", StoreError("it is away")), 1),
        (failed("stage", StoreRefusedError("no right")), 2),
        (failed("stage", UnsafeStoreError("no conditions")), 2),
        (failed("spark", ConfigError("no such key")), 2),
        (failed("spark", TableError("it has no log")), 3),
        (failed("kafka", BrokerRefusedError("no right")), 2),
    ],
)
def test_exit_code_of_loader_check(result: Check, code: int, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_signals_and_logs(inspection, monkeypatch)
    monkeypatch.setattr(inspection, "preflight_of", lambda *_: SimpleNamespace(checks=lambda: [result]))
    monkeypatch.setattr(inspection, "_spark_checks", lambda *_: iter([Check("spark", Level.OK, "well")]))
    assert run(loader_program.app, ["check", config]) == code
    monkeypatch.setattr(inspection, "preflight_of", lambda *_: SimpleNamespace(checks=list))
    monkeypatch.setattr(inspection, "_spark_checks", lambda *_: iter([result]))
    assert run(loader_program.app, ["check", config]) == code


@pytest.mark.parametrize(
    ("verdict", "failure", "code"),
    [
        (Verdict.PROVED, None, 0),
        (Verdict.NOTED, None, 0),
        (Verdict.UNPROVED, None, 0),
        (Verdict.FAULT, None, 3),
        (Verdict.PROVED, "it is away", 1),
        (Verdict.FAULT, "it is away", 1),
    ],
)
def test_exit_code_of_loader_verify(
    verdict: Verdict, failure: str | None, code: int, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = Finding(verdict, "kind", "text", "/t")
    report = VerifiedStream("orders", "/t", 1, 0, findings=(finding,), failure=failure)
    verifier = SimpleNamespace(verify=lambda _: report)
    monkeypatch.setattr(inspection, "verifier_of", lambda *_, **__: verifier)
    monkeypatch.setattr(inspection, "replace", lambda settings, **_: settings)
    assert run(loader_program.app, ["verify", config]) == code


@pytest.mark.parametrize(
    ("topics", "code"),
    [([["a"]], 0), ([["^a"]], 0), ([["a"], ["b"]], 0), ([["a"], ["b", "a"]], 2), ([["a"], ["^b"]], 2)],
)
def test_loader_verify_needs_the_stage_where_streams_may_share_a_topic(
    topics: list[list[str]],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(_settings: object) -> None:
        msg = "no right"
        raise StoreRefusedError(msg)

    streams = [{"app_id": f"s{index}", "topics": names, "table": f"/{index}"} for index, names in enumerate(topics)]
    verifier = SimpleNamespace(verify=lambda stream: VerifiedStream(stream.app_id, "/t", 1, 0))
    monkeypatch.setattr(inspection, "verifier_of", lambda *_, **__: verifier)
    monkeypatch.setattr(inspection, "replace", lambda settings, **_: settings)
    monkeypatch.setattr(inspection, "stage_store", refused)
    assert run(loader_program.app, ["verify", str(config_file(tmp_path, *streams))]) == code
    printed = capsys.readouterr().err
    assert ("the stage was not read" in printed) is (code == 0)
    assert "no right" in printed


class Ends:
    error: KafkaDeltaExpressError | None = None

    def __init__(self, _settings: object) -> None:
        pass

    def __call__(self, _stream: object) -> dict[object, object]:
        if self.error is not None:
            raise self.error
        return {}

    now = __call__

    def firsts(self, _sources: object) -> dict[object, object]:
        return {}

    def topic_ids(self, _topics: object) -> dict[object, object]:
        return {}


@pytest.mark.parametrize(
    ("error", "code"), [(None, 0), (BrokerError("it is away"), 1), (BrokerRefusedError("no right"), 2)]
)
def test_exit_code_of_loader_status_by_kafka_s_response(
    error: KafkaDeltaExpressError | None, code: int, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "BrokerEnds", Ends)
    monkeypatch.setattr(Ends, "error", error)
    assert run(loader_program.app, ["status", config]) == code


@pytest.mark.parametrize("code", list(ExitCode)[1:])
def test_exit_code_of_loader_status_after_a_failed_load(
    code: ExitCode, config: str, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "BrokerEnds", Ends)
    note = LastFailure(1_000, "it failed", "do this", code)
    staging.store(staging.stage_url).write(failure_path("orders"), note.to_bytes())
    assert run(loader_program.app, ["status", config]) == code


def test_note_of_a_failed_load_has_its_error_s_code(staging: Staging) -> None:
    store = staging.store(staging.stage_url)
    FailureNotes(store, SystemClock(), structlog.get_logger()).failed("orders", HeldError("it waits"))
    note = last_failure(store, "orders")
    assert note is not None
    assert note.code == ExitCode.HELD


def test_exit_code_of_loader_status_with_a_held_partition(
    config: str, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "BrokerEnds", Ends)
    marker = staging.flush(0, 0, 10)
    staging.store(staging.stage_url).write(marker.name.path, b"{")
    assert run(loader_program.app, ["status", config]) == 3


@pytest.mark.parametrize(("then", "code"), [(7, 3), (9, 3), (10, 0), (None, 0)])
def test_status_command_asks_for_the_ends_again_before_it_reports_lost_records(
    then: int | None,
    code: int,
    config: str,
    staging: Staging,
    *,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first answers serve all streams. Records that writers staged since then are not lost."""
    for partition in range(2):
        staging.flush(partition, 0, 10)
    answers = iter([Position(7), Position(0), then])  # the ends, the first records, the ends again

    def offsets(_admin: object, partitions: Iterable[TopicPartition], _which: object) -> tuple[object, object]:
        answer = next(answers)
        if answer is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return dict.fromkeys(partitions, answer), {}

    topics = SimpleNamespace(topics={"orders": SimpleNamespace(partitions=[0, 1])})
    admin = SimpleNamespace(list_topics=lambda **_: topics)
    monkeypatch.setattr(kafka_status, "query_offsets", offsets)
    monkeypatch.setattr(kafka_status, "AdminClient", lambda *_, **__: admin)
    monkeypatch.setattr(kafka_status, "described_ids", lambda *_: {})
    assert run(loader_program.app, ["status", "--json", config]) == code
    assert not list(answers), "asked once more, for all partitions of the stream"
    partitions = json.loads(capsys.readouterr().out)["streams"][0]["partitions"]
    assert [each["kafka_end"] for each in partitions] == [then or 7] * 2


WAITS = Held("topic_recreated", "it waits", "do this")


WELL = PartitionStatus(ORDERS, Position(0), Position(0), None, 0, None)


@pytest.mark.parametrize(
    ("partition", "unfit", "code"),
    [
        (WELL, (), 0),
        (replace(WELL, held=WAITS), (), 3),
        (replace(WELL, writers_hold=WAITS), (), 3),
        (WELL, (UNFIT,), 3),
        (replace(WELL, staged_to=Position(3), loaded_to=Position(5)), (), 0),
    ],
)
def test_exit_code_of_loader_status_by_partition_state(
    partition: PartitionStatus, unfit: tuple[Check, ...], code: int, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = StreamStatus("orders", "/t", None, None, (partition,), incompatible=unfit)
    paused = replace(stream, pauses=(Pause("orders", StreamPart.LOADING, 0),))
    assert (exit_code([paused]), partition.lag) == (3, 0), "a table may be ahead of its stage"
    monkeypatch.setattr(inspection, "BrokerEnds", Ends)
    monkeypatch.setattr(inspection, "stream_status", lambda *_, **__: stream)
    assert run(loader_program.app, ["status", config]) == code


@pytest.mark.parametrize(("failure", "code"), [(None, 0), ("it is away", 1)])
def test_exit_code_of_loader_clean(
    failure: str | None, code: int, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally("data files", "/t", failure=failure)
    monkeypatch.setattr(upkeep, "CleanUp", lambda *_: SimpleNamespace(run=lambda *_, **__: [tally]))
    assert run(loader_program.app, ["clean", config]) == code


@pytest.mark.parametrize(
    ("arguments", "result", "code"),
    [
        ([], (due.Done(), None), 0),
        ([], (due.Done(), "it is away"), 1),
        (["--run"], (due.Done(), None), 0),
        (["--run"], (due.TaskAborted("another commit"), None), 0),
        (["--run"], (due.TaskFailed("it is away"), None), 1),
        (["--run"], (due.Done(), "it is away"), 1),
        (["--run", "--dry-run"], (due.Done(), None), 2),
    ],
)
def test_exit_code_of_loader_services(
    arguments: list[str],
    result: tuple[due.Outcome, str | None],
    code: int,
    config: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome, failure = result
    without_signals_and_logs(upkeep, monkeypatch)

    def look_at(settings: object, *_: object) -> list[due.TableSnapshot]:
        rules = TableRules(settings.table_services, 0.0)  # type: ignore[attr-defined]
        return [due.TableSnapshot("/t", None, rules, failure=failure)]

    def parts(settings: object, *_: object, **__: object) -> object:
        piece = due.TaskReport(MaintenanceTask(Service.CHECKPOINT, "/t", "it is due"), outcome, 0.0)
        report = due.RunReport((piece,), tuple(look_at(settings)))
        return SimpleNamespace(run=lambda **_: report)

    monkeypatch.setattr(upkeep, "inspect_tables", look_at)
    monkeypatch.setattr(upkeep, "TableServices", parts)
    monkeypatch.setattr(upkeep, "_spark", nothing)
    assert run(loader_program.app, ["services", config, *arguments]) == code


# stage-writer

UNTIL = ["--until-caught-up"]


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (UNTIL, 1)])
def test_exit_code_of_a_writer_stopped_before_it_begins(
    arguments: list[str], code: int, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_program, "_stop_on_signals", lambda stop: stop())
    assert run(writer_program.app, ["run", config, *arguments]) == code


@pytest.mark.parametrize(
    ("arguments", "raised", "undelivered", "code"),
    [
        ([], {"alarm": "held"}, None, 0),
        (UNTIL, {}, None, 0),
        (UNTIL, {"alarm": "held"}, None, 3),
        (UNTIL, {}, (), 1),
        (UNTIL, {"alarm": "held"}, (BrokerError("no such topic", "create it"),), 3),
        ([], {}, (BrokerError("no such topic", "create it"),), 0),
    ],
)
def test_exit_code_of_a_writer_that_has_caught_up(  # noqa: PLR0917 - the last is pytest's
    arguments: list[str],
    raised: dict[str, str],
    undelivered: tuple[KafkaDeltaExpressError, ...] | None,
    code: int,
    config: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_signals_and_logs(writer_program, monkeypatch)
    for part in ("keep_memory", "rarely_collect", "open_stage", "_stage", "source_of"):
        monkeypatch.setattr(wiring, part, nothing)
    monkeypatch.setattr(wiring, "StageTopicOwners", lambda *_, **__: SimpleNamespace(read_all=nothing, agree=nothing))
    alarms = SimpleNamespace(telemetry=SimpleNamespace(alarms=SimpleNamespace(raised=raised)))
    service = SimpleNamespace(run=nothing, snapshot=lambda: alarms, stop=nothing)
    monkeypatch.setattr(wiring, "StageWriter", lambda *_, **__: service)
    monkeypatch.setattr(wiring, "WriterServing", lambda *_, **__: SimpleNamespace(port=None, close=nothing))
    outlets = SimpleNamespace(close=lambda _: undelivered is None, problems=lambda: undelivered)
    monkeypatch.setattr(wiring, "KafkaOutlets", lambda *_, **__: outlets)
    assert run(writer_program.app, ["run", config, *arguments]) == code


@pytest.mark.parametrize(
    ("codes", "arguments", "code"),
    [((0, 0), UNTIL, 0), ((0, 3), UNTIL, 3), ((0, 2), UNTIL, 2), ((1, 1), UNTIL, 1), ((0, 0), [], 1)],
)
def test_exit_code_of_several_workers_is_the_gravest(
    codes: tuple[int, int], arguments: list[str], code: int, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that runs until stopped has failed when it ends by itself."""
    without_signals_and_logs(writer_program, monkeypatch)
    ends = f"import sys; raise SystemExit({codes!r}[int(sys.argv[-1].split('/')[0])])"
    command = [sys.executable, "-c", ends]
    monkeypatch.setattr(writer_program, "workers_of", lambda _: 2)
    monkeypatch.setattr(writer_program, "WorkerPool", lambda _, *rest: WorkerPool(command, *rest))
    assert run(writer_program.app, ["run", config, *arguments]) == code


@pytest.mark.parametrize(
    ("error", "well", "code"),
    [
        (None, True, 0),
        (None, False, 3),
        (StoreError("it is away"), True, 1),
        (UnsafeStoreError("no conditions"), True, 2),
    ],
)
def test_exit_code_of_writer_check(
    error: KafkaDeltaExpressError | None,
    well: bool,  # noqa: FBT001
    code: int,
    config: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_signals_and_logs(writer_program, monkeypatch)
    monkeypatch.setattr(writer_program, "open_stage", nothing if error is None else raising(error))
    monkeypatch.setattr(writer_program, "StageTopicOwners", lambda *_, **__: SimpleNamespace(read_all=nothing))
    monkeypatch.setattr(writer_program, "_ends", lambda *_: ({ORDERS: 0}, {}))
    monkeypatch.setattr(writer_program, "topic_lines", lambda *_: iter(["ok"]))
    monkeypatch.setattr(writer_program, "_try_records", lambda *_: well)
    monkeypatch.setattr(writer_program, "_check_topics_of_ours", nothing)
    for arguments in ([], ["--json"]):
        assert run(writer_program.app, ["check", config, *arguments]) == code


def without_signals_and_logs(program: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is pytest's: a command must not take its signals and its log."""
    monkeypatch.setattr(program, "_stop_on_signals", nothing, raising=False)
    monkeypatch.setattr(program, "set_up_logs", lambda *_: structlog.get_logger())
