"""A writer that is stopped: its conversion is aborted in time, and no record is lost or doubled."""

import signal
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

import stage_writer.__main__ as program
from common.errors import ExitCode
from stage_writer.background import Background
from stage_writer.loop import StageWriter
from stage_writer.stopping import StartingExit, end_when_stuck
from stage_writer.tasks import joint_converter
from stage_writer.topologies import Record
from tests.builders import settings_of
from tests.fakes.counting import FIRST, Counts, World, counted

REVOKE_TIMEOUT_S = 5.0


def counts_slowly(world: World, monkeypatch: pytest.MonkeyPatch, *, stop_at: int, seconds: float) -> list[int]:
    """Each record takes ``seconds``; the writer is stopped at the record ``stop_at``."""
    seen: list[int] = []

    def process(self: Counts, record: Record) -> None:
        seen.append(record.value["id"])
        world.clock.now_s += seconds
        if record.value["id"] == stop_at:
            world.writer.stop()
        fast(self, record)

    fast = Counts.process
    monkeypatch.setattr(Counts, "process", process)
    return seen


def test_conversion_is_aborted_between_messages_and_its_records_are_reread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, 10)
    world.steps()
    assert world.staged() == counted(10)
    with monkeypatch.context() as patched:
        seen = counts_slowly(world, patched, stop_at=12, seconds=1.0)
        world.new_writer()
        world.group.ends[FIRST] = 1_000
        world.writer.run(until_caught_up=False)
    assert seen == [10, 11, 12, 13, 14, 15], "it stops after half of the revoke timeout"
    assert world.staged() == counted(10)
    world.new_writer()
    world.steps()
    assert world.staged() == counted(1_000), "state and rows are as without the stop"


def test_conversion_that_finishes_in_time_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, 0)
    counts_slowly(world, monkeypatch, stop_at=12, seconds=0.0)
    world.group.ends[FIRST] = 40
    world.writer.run(until_caught_up=False)
    assert world.staged() == counted(40)


@pytest.mark.parametrize("is_stuck", [True, False])
def test_process_is_ended_only_if_a_step_is_stuck(is_stuck: bool) -> None:  # noqa: FBT001 - a parameter
    ended: list[int] = []
    with structlog.testing.capture_logs() as logs:
        end_when_stuck(0.0, lambda: is_stuck, structlog.get_logger(), ended.append).join()
    assert ended == ([1] if is_stuck else [])
    assert [line["event"] for line in logs] == (["stopped in the middle of a step"] if is_stuck else [])


def test_writer_stopped_in_time_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread would keep the converters alive until the process ends, where DuckDB prints each leftover object."""
    settings = settings_of(
        {"app_id": "a", "topics": ["t"], "table": "file:///t"}, folder="file://", writer={"revoke_timeout": "1h"}
    )
    service = SimpleNamespace(stop=lambda: None, run=lambda **_: signal.raise_signal(signal.SIGTERM))
    writer = SimpleNamespace(
        service=service,
        serving=SimpleNamespace(port=None),
        stopping=SimpleNamespace(is_stepping=False),
        close=lambda _within_s: None,
    )
    monkeypatch.setattr(program, "wired_writer", lambda *_: writer)
    monkeypatch.setattr(program, "set_up_logs", lambda *_: structlog.get_logger())
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    before = set(threading.enumerate())
    try:
        program._write(settings, None, StartingExit(ExitCode.DONE), until_caught_up=False)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert set(threading.enumerate()) <= before


def test_loop_is_not_stepping_during_its_last_flushes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, 5)
    stepping: list[bool] = []
    real = StageWriter._flush_rest

    def flush_rest(self: StageWriter) -> bool:
        stepping.append(self._runtime.stopping.is_stepping)
        return real(self)

    monkeypatch.setattr(StageWriter, "_flush_rest", flush_rest)
    process = counts_slowly(world, monkeypatch, stop_at=3, seconds=0.0)
    world.writer.run(until_caught_up=False)
    assert stepping == [False]
    assert process


def test_last_idle_report_counts_as_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, 5)
    stepping: list[bool] = []

    def report(_: Background) -> None:
        stepping.append(world.writer._runtime.stopping.is_stepping)

    monkeypatch.setattr(Background, "report_idle", report)
    counts_slowly(world, monkeypatch, stop_at=3, seconds=0.0)
    world.writer.run(until_caught_up=False)
    assert stepping == [True]


def test_nothing_more_is_converted_after_a_stop_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, 0)
    seen = counts_slowly(world, monkeypatch, stop_at=5, seconds=0.0)
    monkeypatch.setattr(joint_converter, "_MOST_MESSAGES", 10)
    world.group.ends[FIRST] = 40
    world.writer.run(until_caught_up=False)
    assert seen == list(range(10)), "the current batch of messages is the last one"
    assert world.staged() == counted(10)


@pytest.mark.parametrize("continues", [True, False])
def test_stop_during_startup_hides_the_error_that_it_caused(*, continues: bool) -> None:
    """DuckDB raises its own error in place of the exception of a signal handler."""
    starting = StartingExit(0)

    def start() -> None:
        with suppress(SystemExit):
            starting.ask()
        if not continues:
            msg = "Query interrupted"
            raise RuntimeError(msg)
        starting.end_if_asked()

    with pytest.raises(SystemExit) as ended, starting.instead_of_errors():
        start()
    assert ended.value.code == 0


def test_startup_error_without_a_stop_is_raised() -> None:
    with pytest.raises(ValueError, match="wrong"), StartingExit(0).instead_of_errors():
        raise ValueError("wrong")
