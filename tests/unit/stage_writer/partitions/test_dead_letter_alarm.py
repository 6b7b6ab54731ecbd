"""The dead letter alarm, and its report in the writer's log, metrics, health and samples."""

from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from common import metrics as all_metrics
from common.metrics import Metrics
from stage_writer.convert import StreamConverter
from stage_writer.partitions.dead_letter_alarm import WINDOW_RECORDS, AlarmChange, DeadLetterAlarms
from stage_writer.sample import StreamSample
from stage_writer.telemetry import WriterTelemetry
from tests.fakes.group import HandClock
from tests.fakes.metrics import values
from tests.fakes.streams import batch_of, stream_of
from tests.unit.stage_writer.test_service import FIRST, World


def wrong(count: int) -> dict[str, int]:
    return {"wrong_type": count}


def test_share_above_the_limit_raises_one_alarm() -> None:
    alarms = DeadLetterAlarms(0.1)
    assert alarms.add("orders", 1_000, wrong(99)) is None
    assert alarms.add("orders", 1_000, wrong(101)) is AlarmChange.RAISED
    assert alarms.add("orders", 1_000, wrong(1_000)) is None
    assert alarms.raised["orders"].sentence == "1,200 of the last 3,000 records are dead letters (wrong_type 1,200)"


def test_alarm_follows_the_recent_window_only() -> None:
    alarms = DeadLetterAlarms(0.5)
    for _ in range(100):
        assert alarms.add("orders", WINDOW_RECORDS, {}) is None
    assert alarms.add("orders", WINDOW_RECORDS, wrong(WINDOW_RECORDS)) is AlarmChange.RAISED
    assert alarms.add("orders", WINDOW_RECORDS, {}) is AlarmChange.ENDED
    assert not alarms.raised


def test_alarm_ends_at_half_of_its_limit() -> None:
    alarms = DeadLetterAlarms(0.5)
    assert alarms.add("orders", WINDOW_RECORDS, wrong(5_000)) is AlarmChange.RAISED
    assert alarms.add("orders", WINDOW_RECORDS, wrong(2_501)) is None
    assert alarms.add("orders", WINDOW_RECORDS, wrong(5_000)) is None
    assert alarms.add("orders", WINDOW_RECORDS, wrong(2_500)) is AlarmChange.ENDED


@pytest.mark.parametrize(
    ("records", "dead", "raises"),
    [(20, 9, False), (20, 10, True), (3, 3, True), (1, 1, True), (1, 0, False), (0, 0, False)],
)
def test_alarm_needs_several_dead_letters_or_only_dead_letters(records: int, dead: int, *, raises: bool) -> None:
    change = DeadLetterAlarms(0.1).add("orders", records, wrong(dead) if dead else {})
    assert (change is AlarmChange.RAISED) == raises


def test_no_alarm_without_a_limit() -> None:
    assert DeadLetterAlarms(None).add("orders", 100, wrong(100)) is None


def test_alarms_are_separate_per_stream() -> None:
    alarms = DeadLetterAlarms(0.5)
    assert alarms.add("healthy", 1_000_000, {}) is None
    assert alarms.add("orders", 10, wrong(10)) is AlarmChange.RAISED
    assert set(alarms.raised) == {"orders"}


def test_alarm_is_in_log_health_notes_metric_and_page(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 20}, alarm=0.5, columns="id STRING")
    with capture_logs() as logs:
        world.writer = world.new_writer()
        world.steps()
    (warned,) = [line for line in logs if line["event"] == "many dead letters"]
    assert warned["log_level"] == "warning"
    assert "20 of the last 20 records are dead letters (wrong_type 20)" in warned["problem"]
    (sealed,) = [line for line in logs if line["event"] == "sealed"]
    assert (sealed["rows"], sealed["dead_letters"]) == (0, 20)
    assert world.problems() == ""  # a probe must not restart the writer for it
    assert "20 of the last 20 records" in " ".join(world.writer.health().notes)
    assert "orders" in world.writer.snapshot().telemetry.alarms.raised
    assert values(world.metrics)[all_metrics.WRITER_DEAD_LETTER_SHARE.name, (("app_id", "orders"),)] == 1
    ((title, problem),) = world.page_problems()
    assert title == "Many records of orders are dead letters"
    assert "20 of the last 20 records" in problem


def test_sealed_counts_add_up_to_the_span(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 20}, where="id % 2 = 0")
    world.group.holes = {3, 4}
    with capture_logs() as logs:
        world.writer = world.new_writer()
        world.steps()
    (sealed,) = [line for line in logs if line["event"] == "sealed"]
    parts = ("rows", "dead_letters", "tombstones", "filtered", "without_record")
    assert sealed["filtered"] > 0
    assert sealed["without_record"] == 2
    assert sum(sealed.get(part, 0) for part in parts) == sealed["end"] - sealed["start"] == 20


def test_dead_letter_share_is_a_metric() -> None:
    metrics = Metrics()
    converter = StreamConverter(stream_of(columns="id INT"))
    telemetry = WriterTelemetry(HandClock(), structlog.get_logger(), metrics, dead_letter_alarm=0.1)
    batch = batch_of([b'{"id":1}', b'{"id":"x"}', b'{"id":2}', b"{"])
    ((part,),) = converter.slices([batch])
    telemetry.converted(batch, converter.stream, part[1])
    assert f'{all_metrics.WRITER_DEAD_LETTER_SHARE.name}{{app_id="orders"}} 0.5' in metrics.exposition().decode()


def test_sample_reports_the_dead_letter_share_and_reasons_without_values() -> None:
    converter = StreamConverter(stream_of(columns="id BIGINT, qty STRING"))
    sample = StreamSample(converter.stream, None)
    sample.add(converter, [batch_of([b'{"id":1,"qty":%d}' % number for number in range(4711, 4751)])])
    lines = list(sample.lines(0.1))
    assert "40 of the newest 40 records would be dead letters" in lines[0]
    assert lines[1] == "  40 because qty: the number … where STRING is declared"
    assert "47" not in "".join(lines)
    assert lines[2].startswith("  → fix streams[].columns, formats or coerce, or what the producers send; then `stage-")
    assert sample.share.passes(0.1)
    assert not sample.share.passes(None)


@pytest.mark.parametrize(
    ("columns", "value"),
    [
        ("x BIGINT", b"4711.5"),
        ("x INT", b"-471100000000"),
        ("x DECIMAL(3,1)", b"47.11"),
        ("x DATE", b'"4711-99-99"'),
        ("x BOOLEAN", b'"Ada 4711"'),
        ("x BINARY", b'"!4711"'),
    ],
)
def test_sample_reasons_quote_no_value(columns: str, value: bytes) -> None:
    converter = StreamConverter(stream_of(columns=columns))
    sample = StreamSample(converter.stream, None)
    sample.add(converter, [batch_of([b'{"x":%s}' % value])])
    (reason,) = sample.reasons
    assert "47" not in reason
    assert "Ada" not in reason
    assert reason.startswith("x: ")
