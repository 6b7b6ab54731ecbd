"""A task processes its messages: order, undo, time, punctuations, steps on columns, refusals."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from common.errors import ConfigError, SchemaError
from stage_writer.topologies import (
    Derive,
    MapBatches,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    Select,
    Topology,
    TopologyError,
    Where,
)
from stage_writer.topologies.stores import Stores
from stage_writer.topologies.testing import Message, TopologyTestDriver

SECOND = timedelta(seconds=1)


def each(function: Callable[[ProcessorContext, Record], None]) -> Callable[[], Processor]:

    class Each(Processor):
        def process(self, record: Record) -> None:
            function(self.context, record)

    return Each


def numbers(**settings: str) -> Topology:
    return Topology(**settings).add_source("numbers", "numbers", columns="n INT, text STRING")


class Count(Processor):
    """Counts each key; a record with a negative number raises after it was counted and forwarded."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._counts = context.store("counts")

    def process(self, record: Record) -> None:
        count = (self._counts.get(record.key) or 0) + 1
        self._counts.put(record.key, count)
        self.context.forward(record.with_value({"key": record.key, "count": count}))
        if record.value["n"] < 0:
            raise ValueError(record.value["n"])


def counting(**settings: str) -> Topology:
    topology = numbers(**settings).add_processor("count", Count, "numbers").add_sink("rows", "count")
    return topology.add_state_store(Stores.key_value("counts"), "count")


def given(values: Iterable[tuple[str, int, int]]) -> list[Message]:
    return [Message("numbers", key, {"n": number}, time_ms) for key, number, time_ms in values]


def test_record_reaches_the_end_of_one_path_before_the_next_starts() -> None:
    seen: list[str] = []

    def note(context: ProcessorContext, record: Record) -> None:
        seen.append(f"{context.node}{record.value['n']}")
        context.forward(record)

    topology = numbers()
    for name, parent in [("a", "numbers"), ("b", "numbers"), ("aa", "a"), ("ab", "a"), ("ba", "b")]:
        topology.add_processor(name, each(note), parent)
    topology.add_sink("rows", "aa", "ab", "ba")
    TopologyTestDriver(topology).pipe_inputs(given([("k", 1, 1), ("k", 2, 2)]))
    assert seen == ["a1", "aa1", "ab1", "b1", "ba1", "a2", "aa2", "ab2", "b2", "ba2"]


def test_steps_before_processors_keep_record_order() -> None:
    seen: list[str] = []

    def note(context: ProcessorContext, record: Record) -> None:
        seen.append(f"{context.node}{record.value['n']}")

    topology = numbers().add_step("odd", Where("n % 2 = 1"), "numbers")
    topology.add_processor("below", each(note), "odd").add_processor("next", each(note), "numbers")
    TopologyTestDriver(topology).pipe_inputs(given([("k", 1, 1), ("k", 2, 2), ("k", 3, 3)]))
    assert seen == ["below1", "next1", "next2", "below3", "next3"]


def test_step_does_not_evaluate_a_tombstone() -> None:
    derive = Derive({"m": "CAST(coalesce(text, 'none') AS INT)"})
    driver = TopologyTestDriver(numbers().add_step("cast", derive, "numbers").add_sink("rows", "cast"))
    driver.pipe_inputs([Message("numbers", "k", None, 1), Message("numbers", "k", {"text": "5"}, 2)])
    assert ([row["m"] for row in driver.rows()], driver.dead_letters()) == ([5], [])


def test_node_can_forward_to_one_named_child() -> None:
    def choose(context: ProcessorContext, record: Record) -> None:
        context.forward(record, "even" if record.value["n"] % 2 == 0 else "odd")

    topology = numbers().add_processor("choose", each(choose), "numbers")
    driver = TopologyTestDriver(topology.add_sink("even", "choose", table="even").add_sink("odd", "choose"))
    driver.pipe_inputs(given([("k", 1, 1), ("k", 2, 2), ("k", 4, 3)]))
    assert [row["n"] for row in driver.rows("even")] == [2, 4]
    assert [row["n"] for row in driver.rows()] == [1]


def test_failing_message_is_undone() -> None:
    driver = TopologyTestDriver(counting(), columns="key STRING, count BIGINT")
    driver.pipe_inputs(given([("a", 1, 1), ("a", -1, 2), ("a", 3, 3), ("b", -1, 4), ("b", 2, 5)]))
    assert driver.rows() == [{"key": "a", "count": 1}, {"key": "a", "count": 2}, {"key": "b", "count": 1}]
    assert driver.store("counts").get("a") == 2
    first, second = driver.dead_letters()
    assert (first.offset, first.error_class, first.error) == (1, "topology", "count: ValueError: -1")
    assert second.offset == 3


def test_failing_message_leaves_nothing_in_topics_and_counts() -> None:
    def send(context: ProcessorContext, record: Record) -> None:
        context.forward(record.with_value({"n": record.value["n"]}))
        context.drop(record, "odd")
        if record.value["n"] < 0:
            raise ValueError(record.value["n"])

    topology = numbers().add_processor("send", each(send), "numbers")
    driver = TopologyTestDriver(topology.add_topic_sink("out", "send", topic="out"))
    driver.pipe_inputs(given([("a", 1, 1), ("a", -1, 2), ("a", 2, 3), ("b", -2, 4)]))
    assert [record.value for record in driver.topic_records("out")] == [b'{"n":1}', b'{"n":2}']
    assert driver.dropped == {"odd": 2}
    assert [letter.offset for letter in driver.dead_letters()] == [1, 3]


def test_on_error_fail_ends_the_writer() -> None:
    driver = TopologyTestDriver(counting(on_error="fail"))
    with pytest.raises(TopologyError, match="numbers/0/1: count: ValueError: -7"):
        driver.pipe_inputs(given([("a", 1, 1), ("a", -7, 2)]))


def test_incompatible_row_undoes_its_message_and_state() -> None:
    driver = TopologyTestDriver(counting(), columns="key STRING, count TINYINT")
    driver.store("counts").put("a", 126)
    driver.pipe_inputs(given([("a", 1, 1), ("a", 1, 2), ("b", 1, 3)]))
    assert driver.rows() == [{"key": "a", "count": 127}, {"key": "b", "count": 1}]
    assert driver.store("counts").get("a") == 127
    (letter,) = driver.dead_letters()
    assert letter.offset == 1
    assert "the stream's table does not match: the column `count`" in letter.error


class FirstOfKey(Processor):
    """Forwards the first record of each key; undoing it makes the next record the first."""

    rounds = 0

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._seen = context.store("seen")

    def process(self, record: Record) -> None:
        FirstOfKey.rounds += 1
        if self._seen.get(record.key) is None:
            self._seen.put(record.key, 1)
            self.context.forward(record.with_value({"n": record.value["n"]}))


def firsts() -> Topology:
    FirstOfKey.rounds = 0
    topology = numbers().add_processor("first", FirstOfKey, "numbers").add_sink("rows", "first")
    return topology.add_state_store(Stores.key_value("seen"), "first")


def test_incompatible_row_undoes_only_its_own_message() -> None:
    """Each refused message makes the next one the first of its key, so all 200 are refused in turn."""
    driver = TopologyTestDriver(firsts(), columns="n TINYINT")
    driver.pipe_inputs(given([("a", 1_000, time) for time in range(200)] + [("a", 7, 300)]))
    assert driver.rows() == [{"n": 7}]
    assert [letter.offset for letter in driver.dead_letters()] == list(range(200))
    assert FirstOfKey.rounds == 2 * 201, "once all together, then once more message by message"
    driver.pipe_inputs(given([("b", 1_000, 400), ("b", 8, 401), ("c", 9, 402)]))
    assert FirstOfKey.rounds == 2 * 201 + 3, "after an incompatible row, messages are tried one by one"
    driver.pipe_inputs(given([("d", 1, 500)]))
    driver.pipe_inputs(given([("e", 2, 501), ("e", 1_000, 502), ("f", 1_000, 503)]))
    assert FirstOfKey.rounds == 2 * 201 + 3 + 1 + 2 * 3, "and together again after a conversion without one"
    assert [row["n"] for row in driver.rows()] == [8, 9, 1, 2]


def test_incompatible_row_refuses_its_message_even_if_user_code_catches() -> None:
    def catch(context: ProcessorContext, record: Record) -> None:
        try:
            context.forward(record.with_value({"n": record.value["n"]}))
        except Exception:  # noqa: BLE001 - as users do
            context.forward(record.with_value({"n": 0}))

    topology = numbers().add_processor("catch", each(catch), "numbers").add_sink("rows", "catch")
    driver = TopologyTestDriver(topology, columns="n TINYINT")
    driver.pipe_inputs(given([("a", 1, 1), ("a", 1_000, 2), ("a", 2, 3)]))
    assert driver.rows() == [{"n": 1}, {"n": 2}]
    assert [letter.offset for letter in driver.dead_letters()] == [1]


def test_unknown_row_field_fails_by_name() -> None:
    def misspelled(context: ProcessorContext, record: Record) -> None:
        context.forward(record.with_value({"usr": record.key, "n": record.value["n"]}))

    topology = numbers().add_processor("spell", each(misspelled), "numbers").add_sink("rows", "spell")
    driver = TopologyTestDriver(topology, columns="user STRING, n INT")
    with pytest.raises(TopologyError, match="field 'usr', but the stream's table has no such column") as raised:
        driver.pipe_inputs(given([("a", 1, 1), ("b", 2, 2)]))
    assert "at numbers/0/0" in raised.value.problem
    assert "did you mean 'user'? " in (raised.value.remedy or "")


@pytest.mark.parametrize("columns", [None, "tags MAP<STRING, INT>, name STRING"])
@pytest.mark.parametrize("value", [{"tags": {"odd": 1}}, {"name": "odd"}])
def test_unknown_field_named_by_record_data_is_a_dead_letter(columns: str | None, value: dict[str, object]) -> None:
    def spread(context: ProcessorContext, record: Record) -> None:
        named = record.value.get("name")
        context.forward(record.with_value({**(record.value.get("tags") or {}), **({named: 1} if named else {})}))

    topology = Topology().add_source("events", "events", columns=columns)
    topology.add_processor("spread", each(spread), "events").add_sink("rows", "spread")
    driver = TopologyTestDriver(topology, columns="n INT")
    driver.pipe_inputs([Message("events", "k", sent, 1) for sent in (value, {"tags": {"n": 5}})])
    assert driver.rows() == [{"n": 5}]
    assert ["has no column 'odd'" in letter.error for letter in driver.dead_letters()] == [True]


def test_unknown_field_for_a_step_after_a_processor_fails() -> None:
    def misspelled(context: ProcessorContext, record: Record) -> None:
        context.forward(record.with_value({"nn": 1}))

    topology = numbers().add_processor("spell", each(misspelled), "numbers")
    topology.add_step("double", Derive({"m": "n * 2"}), "spell", columns="n INT").add_sink("rows", "double")
    with pytest.raises(TopologyError, match="field 'nn', but the step 'double' has no such column"):
        TopologyTestDriver(topology, columns="n INT, m INT").pipe_inputs(given([("a", 1, 1)]))


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("x INT", {"x": 1.5}, "`x`"),
        ("x INT", {"x": "1"}, "`x`"),
        ("x INT NOT NULL", {}, "NOT NULL"),
        ("x TIMESTAMP", {"x": 1_700_000_000_000}, "of type int"),
        ("x DECIMAL(5,2)", {"x": Decimal("1.005")}, "`x`"),
        ("x STRING", {"x": 1}, "`x`"),
        ("x STRING", {"x": b"text"}, "bytes"),
        ("x INT", {"x": True}, "bool"),
        ("x INT", {"x": 2**40}, "`x`"),
        ("x FLOAT", {"x": 1e300}, "out of range for FLOAT"),
        ("x ARRAY<FLOAT>", {"x": [None, 1.5, -1e39]}, "-1e+39 is out of range for FLOAT"),
        ("x DATE", {"x": datetime(2026, 3, 1, 12, tzinfo=UTC)}, "datetime"),
        ("x ARRAY<INT>", {"x": [1, 2.5]}, "2.5 is of type float"),
        ("x STRUCT<a: INT>", {"x": {"a": 1, "b": 2}}, "no field 'b'"),
        ("x STRUCT<a: INT NOT NULL>", {"x": {}}, "NOT NULL"),
        ("x MAP<STRING, INT>", {"x": {"a": "1"}}, "'1' is of type str"),
        ("x INT", [1], "a row is a dict of columns, not list"),
    ],
)
def test_value_that_would_be_rounded_or_dropped_is_a_dead_letter(column: str, value: object, why: str) -> None:
    topology = numbers().add_processor("p", each(lambda c, r: c.forward(r.with_value(value))), "numbers")
    driver = TopologyTestDriver(topology.add_sink("rows", "p"), columns=column)
    driver.pipe_input("numbers", "k", {"n": 1}, 1)
    (letter,) = driver.dead_letters()
    assert driver.rows() == []
    assert letter.error_class == "topology"
    assert why in letter.error


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda record: record.with_timestamp(1.5), "'float' object cannot be interpreted as an integer"),
        (lambda record: record.with_timestamp(None), "'NoneType' object"),
        (lambda record: record.with_timestamp(2**63), "is not a time in milliseconds"),
        (lambda record: record.with_timestamp(-(2**70)), "is not a time in milliseconds"),
        (lambda record: record.with_headers((("a", 5),)), "Kafka needs bytes, not int: 5"),
        (lambda record: record.with_headers(((b"a", b""),)), "Kafka needs text"),
        (lambda record: record.with_headers((("\ud800", b""),)), "surrogates not allowed"),
    ],
)
def test_invalid_timestamp_or_header_refuses_its_message(made: Callable[[Record], Record], why: str) -> None:
    topology = numbers().add_processor("p", each(lambda c, r: c.forward(made(r))), "numbers")
    driver = TopologyTestDriver(topology.add_topic_sink("out", "p", topic="out"))
    driver.pipe_input("numbers", "k", {"n": 1}, 1)
    (letter,) = driver.dead_letters()
    assert why in letter.error
    assert driver.topic_records("out") == []


def test_topic_record_keeps_its_timestamp_and_headers() -> None:
    made = Record("k", "v", 7, (("a", b"x"), ("b", None)))
    topology = numbers().add_processor("p", each(lambda c, _: c.forward(made)), "numbers")
    driver = TopologyTestDriver(topology.add_topic_sink("out", "p", topic="out"))
    driver.pipe_input("numbers", "k", {"n": 1}, 1)
    (record,) = driver.topic_records("out")
    assert (record.timestamp_ms, record.headers) == (7, (("a", b"x"), ("b", None)))


def test_missing_row_columns_are_null_and_values_take_the_table_types() -> None:
    row = {"at": datetime(2026, 3, 1, tzinfo=UTC), "price": Decimal("1.50"), "tags": {"a": 1}, "many": [{"x": 1}]}
    topology = numbers().add_processor("p", each(lambda c, r: c.forward(r.with_value(row))), "numbers")
    columns = "at TIMESTAMP, price DECIMAL(8,3), tags MAP<STRING, INT>, many ARRAY<STRUCT<x: INT>>, none STRING"
    driver = TopologyTestDriver(topology.add_sink("rows", "p"), columns=columns)
    driver.pipe_input("numbers", "k", {"n": 1}, 1)
    assert driver.rows() == [{**row, "none": None}]


def test_row_is_copied_when_it_is_forwarded() -> None:
    def change(context: ProcessorContext, record: Record) -> None:
        context.forward(record)
        record.value["n"] = 99

    driver = TopologyTestDriver(numbers().add_processor("p", each(change), "numbers").add_sink("rows", "p"))
    driver.pipe_input("numbers", "k", {"n": 1}, 1)
    assert driver.rows() == [{"n": 1, "text": None}]


def test_processor_sees_the_origin_of_its_record() -> None:
    seen: list[tuple[Any, ...]] = []

    def note(context: ProcessorContext, record: Record) -> None:
        place = (context.topic, context.partition, context.offset, context.timestamp_ms, context.stream_time_ms)
        seen.append((*place, context.task_id, context.headers, record.headers, context.wall_clock_ms))

    topology = Topology().add_source("a", "a", columns="n INT", headers=True).add_processor("p", each(note), "a")
    driver = TopologyTestDriver(topology, wall_clock_ms=7)
    driver.pipe_input("a", "k", {"n": 1}, 50, (("h", b"1"),), partition=3)
    driver.pipe_input("a", "k", {"n": 1}, 40, partition=3)
    headers = (("h", b"1"),)
    assert seen == [("a", 3, 0, 50, 50, "a/3", headers, headers, 7), ("a", 3, 1, 40, 50, "a/3", (), (), 7)]


class Ticks(Processor):
    """Forwards each punctuation's time, and fails for a record with a negative number."""

    kind = PunctuationType.STREAM_TIME
    intervals: tuple[int, ...] = (10, 25)

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        for interval in self.intervals:
            context.schedule(timedelta(milliseconds=interval), self.kind, self.tick(interval))

    def tick(self, interval: int) -> Callable[[int], None]:
        def called(now_ms: int) -> None:
            assert self.context.topic is None
            self.context.forward(Record(None, {"every": interval, "at": now_ms}, now_ms))

        return called

    def process(self, record: Record) -> None:
        if record.value["n"] < 0:
            raise ValueError


def ticking(processor: type[Processor], columns: str | None = None, wall_clock_ms: int = 0) -> TopologyTestDriver:
    topology = numbers().add_processor("ticks", processor, "numbers").add_sink("rows", "ticks")
    return TopologyTestDriver(topology, columns=columns, wall_clock_ms=wall_clock_ms)


def ticks(driver: TopologyTestDriver) -> list[tuple[int, int]]:
    return [(row["every"], row["at"]) for row in driver.rows()]


def test_stream_time_punctuations_run_in_order_and_once_per_advance() -> None:
    driver = ticking(Ticks)
    driver.pipe_input("numbers", "k", {"n": 1}, 3)
    assert ticks(driver) == [(10, 3), (25, 3)]
    driver.pipe_inputs(given([("k", 1, 9), ("k", 1, 12), ("k", 1, 11)]))
    assert ticks(driver) == [(10, 12)]
    driver.pipe_input("numbers", "k", {"n": 1}, 57)
    assert ticks(driver) == [(10, 57), (25, 57)]
    driver.pipe_inputs(given([("k", 1, 60), ("k", 1, 74), ("k", 1, 75)]))
    assert ticks(driver) == [(10, 60), (10, 74), (25, 75)]


@pytest.mark.parametrize("targets", [("p",), ("p", "q")])
def test_maximum_timestamp_schedules_no_overflowing_punctuation(targets: tuple[str, ...]) -> None:
    seen: list[int] = []
    topology = numbers()
    for target in targets:
        topology.add_processor(target, each(lambda _, record: seen.append(record.timestamp_ms)), "numbers")
    driver = TopologyTestDriver(topology)
    for _ in range(2):
        driver.pipe_input("numbers", "k", {"n": 1}, 2**63 - 1)
        driver.restart()
    assert seen == [2**63 - 1] * 2 * len(targets)


def test_failing_message_does_not_advance_stream_time() -> None:
    driver = ticking(Ticks)
    driver.pipe_inputs(given([("k", 1, 1), ("k", -1, 1000), ("k", 1, 5)]))
    assert ticks(driver) == [(10, 1), (25, 1)]
    assert len(driver.dead_letters()) == 1
    driver.pipe_input("numbers", "k", {"n": 1}, 12)
    assert ticks(driver) == [(10, 12)]


def test_filtered_message_advances_stream_time() -> None:
    topology = numbers().add_step("where", Where("n > 0"), "numbers").add_processor("ticks", Ticks, "where")
    driver = TopologyTestDriver(topology.add_sink("rows", "ticks"))
    driver.pipe_inputs(given([("k", 1, 1), ("k", 0, 100), ("k", 1, 101)]))
    assert ticks(driver) == [(10, 1), (25, 1), (10, 100), (25, 100)]


def test_stream_time_and_punctuations_survive_a_restart() -> None:
    driver = ticking(Ticks)
    driver.pipe_inputs(given([("k", 1, 1), ("k", 1, 12)]))
    driver.restart()
    driver.rows()
    driver.pipe_inputs(given([("k", 1, 19), ("k", 1, 20), ("k", 1, 24), ("k", 1, 25)]))
    assert ticks(driver) == [(10, 20), (25, 25)]


@pytest.mark.parametrize("by_a_step", [False, True])
def test_row_of_a_punctuation_that_does_not_match_ends_the_work(*, by_a_step: bool) -> None:
    topology = numbers().add_processor("ticks", Ticks, "numbers")
    if by_a_step:
        topology.add_step("low", Derive({"low": 'CAST("at" AS TINYINT)'}), "ticks", columns="every BIGINT, at BIGINT")
    topology.add_sink("rows", "low" if by_a_step else "ticks")
    driver = TopologyTestDriver(topology, columns=None if by_a_step else "every BIGINT, at TINYINT")
    driver.pipe_input("numbers", "k", {"n": 1}, 1)
    with pytest.raises(TopologyError, match="a row that a punctuation returned does not match the"):
        driver.pipe_input("numbers", "k", {"n": 1}, 300)


class WallTicks(Ticks):
    kind = PunctuationType.WALL_CLOCK_TIME
    intervals = (1000,)


@pytest.mark.parametrize("began_ms", [0, 5_300])
def test_wall_clock_punctuation_runs_with_the_next_input_and_survives_a_restart(began_ms: int) -> None:
    driver = ticking(WallTicks, wall_clock_ms=began_ms)
    driver.pipe_input("numbers", "k", {"n": 1}, 1)
    driver.advance_wall_clock(SECOND * 0.6)
    driver.pipe_input("numbers", "k", {"n": 1}, 1)
    driver.restart()
    driver.advance_wall_clock(SECOND * 0.6)
    assert ticks(driver) == []
    driver.pipe_input("numbers", "k", {"n": 1}, 1)
    assert ticks(driver) == [(1000, began_ms + 1200)]


def test_wall_clock_punctuation_waits_while_all_messages_are_refused() -> None:
    driver = ticking(WallTicks)
    driver.pipe_input("numbers", "k", {"n": 1}, 1)
    driver.advance_wall_clock(SECOND)
    driver.pipe_input("numbers", "k", {"n": -1}, 1)
    assert ticks(driver) == []
    driver.pipe_input("numbers", "k", {"n": 1}, 1)
    assert ticks(driver) == [(1000, 1000)]


def test_output_of_a_wall_clock_punctuation_belongs_to_the_last_message_that_is_not_refused() -> None:
    """It follows from all of them. A delivery that was interrupted finds out by this which records Kafka has."""
    topology = numbers().add_processor("ticks", WallTicks, "numbers")
    driver = TopologyTestDriver(topology.add_topic_sink("out", "ticks", topic="out"))
    driver.pipe_input("numbers", "k", {"n": 1}, 1)
    driver.advance_wall_clock(SECOND)
    driver.pipe_inputs(given([("k", 1, 1), ("k", 1, 1), ("k", -1, 1)]))
    assert [record.index for record in driver.topic_records("out")] == [1]


def test_cancelled_punctuation_stops_unless_the_cancel_is_undone() -> None:
    class Cancels(Processor):
        def init(self, context: ProcessorContext) -> None:
            super().init(context)
            self._ticks = context.schedule(timedelta(milliseconds=10), PunctuationType.STREAM_TIME)

        def punctuate(self, timestamp_ms: int) -> None:
            self.context.forward(Record(None, {"every": 10, "at": timestamp_ms}, timestamp_ms))

        def process(self, record: Record) -> None:
            if record.value["n"] != 1:
                self._ticks.cancel()
            if record.value["n"] < 0:
                raise ValueError

    driver = ticking(Cancels)
    driver.pipe_inputs(given([("k", 1, 1), ("k", -1, 5), ("k", 1, 10), ("k", 0, 11), ("k", 1, 100)]))
    assert ticks(driver) == [(10, 1), (10, 10)]


def test_punctuation_scheduled_and_cancelled_by_a_failing_message_never_runs() -> None:
    class Begins(Processor):
        def process(self, record: Record) -> None:
            if record.value["n"] < 0:
                self.context.schedule(timedelta(milliseconds=10), PunctuationType.STREAM_TIME).cancel()
                raise ValueError

        def punctuate(self, timestamp_ms: int) -> None:
            self.context.forward(Record(None, {"every": 10, "at": timestamp_ms}, timestamp_ms))

    driver = ticking(Begins)
    driver.pipe_inputs(given([("k", -1, 1), ("k", 1, 20), ("k", 1, 40)]))
    assert ticks(driver) == []


class TicksAndRows(Ticks):
    def process(self, record: Record) -> None:
        super().process(record)
        self.context.forward(record.with_value({"every": record.value["n"], "at": 0}))


def test_message_with_an_incompatible_row_leaves_punctuations_as_if_it_failed() -> None:
    def made(refused: int) -> list[tuple[int, int]]:
        driver = ticking(TicksAndRows, "every TINYINT, at BIGINT")
        driver.pipe_inputs(given([("k", 1, 1), ("k", refused, 12), ("k", 2, 30)]))
        assert len(driver.dead_letters()) == 1
        return ticks(driver)

    assert made(1_000) == made(-1) == [(1, 0), (10, 1), (25, 1), (2, 0), (10, 30), (25, 30)]


def test_punctuation_that_raises_ends_the_writer() -> None:
    class Raises(Ticks):
        def tick(self, interval: int) -> Callable[[int], None]:
            return lambda now_ms: self.process(Record(None, {}, now_ms + interval))

    with pytest.raises(TopologyError, match="the punctuation of the node 'ticks' in the task numbers/0"):
        ticking(Raises).pipe_input("numbers", "k", {"n": 1}, 1)


def test_processor_whose_init_fails_is_named() -> None:
    class Forwards(Processor):
        def init(self, context: ProcessorContext) -> None:
            super().init(context)
            context.forward(Record("k", {"n": 1}, 1))

    class Fails(Processor):
        def init(self, context: ProcessorContext) -> None:
            raise LookupError(context.node)

    for processor, why in ((Forwards, "'p' forwards a record in init"), (Fails, "'p' cannot start: LookupError: p")):
        # The forwarded record could reach a store even though there is no sink.
        topology = (
            numbers().add_processor("p", processor, "numbers").add_processor("ends", each(lambda _c, _r: None), "p")
        )
        with pytest.raises(ConfigError, match=why):
            TopologyTestDriver(topology).pipe_input("numbers", "k", {"n": 1}, 1)


def test_late_records_are_counted_or_dead_lettered() -> None:
    def late(context: ProcessorContext, record: Record) -> None:
        context.forward(record)
        if record.timestamp_ms < context.stream_time_ms:
            context.drop(record)

    for setting, rows in (("drop", 3), ("dead_letter", 2)):
        driver = TopologyTestDriver(
            numbers(late=setting).add_processor("p", each(late), "numbers").add_sink("rows", "p")
        )
        driver.pipe_inputs(given([("k", 1, 5), ("k", 2, 3), ("k", 3, 6)]))
        assert len(driver.rows()) == rows
        assert [letter.error_class for letter in driver.dead_letters()] == ["late"] * (3 - rows)
        assert driver.dropped["late"] == rows - 2


def test_topology_of_steps_alone_produces_rows() -> None:
    topology = numbers().add_step("where", Where("n > 0"), "numbers")
    topology.add_step("made", Select({"twice": "n * 2", "at": "kafka.offset"}), "where").add_sink("rows", "made")
    driver = TopologyTestDriver(topology, columns="twice INT, at BIGINT")
    driver.pipe_inputs(given([("k", 1, 1), ("k", 0, 2), ("k", 3, 3)]))
    assert driver.rows() == [{"twice": 2, "at": 0}, {"twice": 6, "at": 2}]


def test_failing_step_expression_refuses_the_message_on_all_paths() -> None:
    topology = counting().add_step("made", Derive({"x": "CAST(text AS INTEGER)"}), "numbers")
    driver = TopologyTestDriver(topology.add_sink("columns", "made", table="made"))
    for text in ("1", "x", "3"):
        driver.pipe_input("numbers", "k", {"n": 1, "text": text}, 1)
    assert [row["x"] for row in driver.rows("made")] == [1, 3]
    assert [row["count"] for row in driver.rows()] == [1, 2]
    assert [letter.error_class for letter in driver.dead_letters()] == ["expression_failed"]


def test_failing_step_after_a_processor_undoes_its_state() -> None:
    step = Derive({"big": "CAST(126 + count AS TINYINT)"})
    topology = counting().add_step("after", step, "count", columns="key STRING, count INT")
    driver = TopologyTestDriver(topology.add_sink("late", "after", table="late"))
    driver.pipe_inputs(given([("a", 1, 1), ("a", 1, 2), ("b", 1, 3)]))
    assert [(row["key"], row["big"]) for row in driver.rows("late")] == [("a", 127), ("b", 127)]
    assert driver.store("counts").get("a") == 1
    assert [letter.error_class for letter in driver.dead_letters()] == ["expression_failed"]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("n INT", "the column 'text'"),
        ("n SMALLINT, text STRING", "gives 'n' as INT"),
        ("n INT, text STRING, more STRING NOT NULL", "'more' NOT NULL"),
    ],
)
def test_source_columns_are_checked_against_the_table_at_startup(columns: str, named: str) -> None:
    with pytest.raises(SchemaError, match=named):
        TopologyTestDriver(numbers().add_sink("rows", "numbers"), columns=columns)


def test_source_columns_may_be_narrower_or_fewer_than_the_table() -> None:
    driver = TopologyTestDriver(
        numbers().add_sink("rows", "numbers"), columns="more DATE, n BIGINT NOT NULL, text STRING"
    )
    driver.pipe_inputs(given([("k", 1, 1)]))
    driver.pipe_input("numbers", "k", {"text": "a"}, 1)
    assert driver.rows() == [{"more": None, "n": 1, "text": None}]
    assert [letter.error_class for letter in driver.dead_letters()] == ["missing_field"]


def test_map_batches_applies_a_user_function() -> None:
    def doubled(table: pa.Table) -> pa.Table:
        return table.set_column(0, "n", [[2 * n for n in table["n"].to_pylist()]])

    topology = numbers().add_step("twice", MapBatches(doubled, "n INT"), "numbers").add_sink("rows", "twice")
    driver = TopologyTestDriver(topology, columns="n INT")
    driver.pipe_inputs(given([("k", 1, 1), ("k", 2, 2)]))
    assert driver.rows() == [{"n": 2}, {"n": 4}]


def test_tombstones_reach_processors_but_no_table() -> None:
    seen: list[Any] = []
    topology = numbers().add_processor("p", each(lambda _, record: seen.append(record.value)), "numbers")
    driver = TopologyTestDriver(topology.add_step("all", Where("true"), "numbers").add_sink("rows", "all", "numbers"))
    driver.pipe_inputs([Message("numbers", "a", None, 1), *given([("k", 1, 2)])])
    assert seen == [None, {"n": 1, "text": None}]
    assert len(driver.rows()) == 2


@pytest.mark.parametrize(
    ("form", "key", "decoded"),
    [
        ("STRING", b"caf\xc3\xa9", "café"),
        ("BIGINT", b"\xff" * 8, -1),
        ("INT", b"\x00\x00\x01\x00", 256),
        ("DOUBLE", b"\x3f\xf8" + b"\x00" * 6, 1.5),
        ("BINARY", b"\xff", b"\xff"),
        ("JSON", b'[1,"a"]', (1, "a")),
    ],
)
def test_keys_are_decoded_and_encoded_in_the_declared_format(form: str, key: bytes, decoded: object) -> None:
    seen: list[object] = []
    topology = Topology().add_source("a", "a", columns="n INT", key=form)

    def note(context: ProcessorContext, record: Record) -> None:
        seen.append(record.key)
        context.forward(record)

    topology.add_processor("p", each(note), "a")
    driver = TopologyTestDriver(topology.add_topic_sink("out", "p", topic="b", key=form))
    driver.pipe_input("a", key, {"n": 1}, 1)
    driver.pipe_input("a", None, {"n": 1}, 1)
    assert seen == [decoded, None]
    assert [record.key for record in driver.topic_records("b")] == [key, None]


@pytest.mark.parametrize(
    ("form", "key"),
    [("STRING", b"\xff"), ("BIGINT", b"12")]
    + [("JSON", key) for key in (b'{"a":1}', b"NaN", b'"\\ud800"', b"[" * 600 + b"]" * 600, b"[" * 100_000, b"\xff")],
)
def test_key_in_another_format_is_a_dead_letter(form: str, key: bytes) -> None:
    topology = Topology().add_source("a", "a", columns="n INT", key=form).add_processor("p", Processor, "a")
    driver = TopologyTestDriver(topology)
    driver.pipe_input("a", key, {"n": 1}, 1)
    assert [letter.error_class for letter in driver.dead_letters()] == ["unreadable_key"]


def test_timestamp_column_sets_the_record_time() -> None:
    seen: list[int] = []
    for columns in ("at TIMESTAMP", "at BIGINT"):
        topology = Topology().add_source("a", "a", columns=columns, timestamp="at")
        driver = TopologyTestDriver(topology.add_processor("p", each(lambda _, r: seen.append(r.timestamp_ms)), "a"))
        driver.pipe_input("a", "k", {"at": "1970-01-01T00:00:01.5Z" if "TIME" in columns else 1500}, 9)
        driver.pipe_input("a", "k", {"at": None}, 9)
        driver.pipe_input("a", "k", None, 9)
        assert [letter.offset for letter in driver.dead_letters()] == [1]
    assert seen == [1500, 9, 1500, 9]


def test_source_without_columns_yields_any_json() -> None:
    seen: list[Any] = []
    topology = Topology().add_source("a", "a").add_processor("p", each(lambda _, r: seen.append(r.value)), "a")
    driver = TopologyTestDriver(topology)
    for value in (b'{"a": [1, null]}', b'"text"', b'"\\ud83d\\ude00"', None):
        driver.pipe_input("a", "k", value, 1)
    assert seen == [{"a": [1, None]}, "text", "\N{GRINNING FACE}", None]
    for value in (b"nothing", b"NaN", b"[" * 100_000, b'{"a": "\\ud800"}', b"\xff"):
        driver.pipe_input("a", "k", value, 1)
    assert [letter.error_class for letter in driver.dead_letters()] == ["invalid_json"] * 5


class TextlessError(Exception):
    def __str__(self) -> str:
        raise LookupError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("\ud800"), "ValueError: \\ud800"),
        (ValueError("x" * 100_000), "ValueError: " + "x" * 4_000),
        (TextlessError(), "TextlessError: its text raises LookupError"),
    ],
)
def test_dead_letter_holds_the_text_of_any_error(error: Exception, text: str) -> None:
    def fail(_context: ProcessorContext, _record: Record) -> None:
        raise error

    driver = TopologyTestDriver(numbers().add_processor("p", each(fail), "numbers"))
    driver.pipe_input("numbers", "k", {"n": 1}, 1)
    assert [letter.error for letter in driver.dead_letters()] == [f"p: {text}"]


def test_topics_of_one_task_share_state_and_keep_record_order() -> None:
    topology = counting().add_source("more", "more", columns="n INT").add_processor("other", Count, "more")
    driver = TopologyTestDriver(topology.add_state_store(Stores.key_value("unused"), "other", "count"))
    with pytest.raises(ConfigError, match="which is not connected to it"):
        driver.pipe_input("more", "k", {"n": 1}, 1)
    topology = (
        counting().add_source("more", "more", columns="n INT").add_processor("other", Count, "more", stores=["counts"])
    )
    driver = TopologyTestDriver(topology.add_sink("rows2", "other", table="other"))
    driver.pipe_inputs(
        [Message("numbers", "k", {"n": 1}, 1), Message("more", "k", {"n": 1}, 2), Message("numbers", "k", {"n": 1}, 3)]
    )
    assert [row["count"] for row in driver.rows()] == [1, 3]
    assert [row["count"] for row in driver.rows("other")] == [2]


def test_record_written_to_a_source_topic_is_read_back() -> None:
    def rekeyed(context: ProcessorContext, record: Record) -> None:
        context.forward(record.with_key(record.value["text"]))

    topology = numbers().add_processor("key", each(rekeyed), "numbers").add_topic_sink("out", "key", topic="by_text")
    topology.add_source("by_text", "by_text", columns="n INT, text STRING").add_processor("count", Count, "by_text")
    topology.add_state_store(Stores.key_value("counts"), "count").add_sink("rows", "count")
    driver = TopologyTestDriver(topology)
    for text in "aba":
        driver.pipe_input("numbers", None, {"n": 1, "text": text}, 1)
    assert [(row["key"], row["count"]) for row in driver.rows()] == [("a", 1), ("b", 1), ("a", 2)]
    assert len(driver.topic_records("by_text")) == 3


def test_requested_commit_is_counted() -> None:
    topology = numbers().add_processor("p", each(lambda context, _: context.commit()), "numbers")
    driver = TopologyTestDriver(topology)
    driver.pipe_input("numbers", "k", {"n": 1}, 1)
    assert driver.commits == 1


def test_unconnected_store_is_refused_at_startup() -> None:
    topology = numbers().add_processor("count", Count, "numbers").add_sink("rows", "count")
    with pytest.raises(ConfigError, match="the processor 'count' uses the state store 'counts'"):
        TopologyTestDriver(topology).pipe_input("numbers", "k", {"n": 1}, 1)


def test_step_after_a_processor_cannot_see_kafka_fields() -> None:
    topology = counting().add_step("after", Derive({"x": "kafka.offset"}), "count", columns="key STRING, count INT")
    with pytest.raises(SchemaError, match=r"kafka"):
        topology.add_sink("late", "after").check()


def test_filtered_message_advances_the_stream_time_of_later_messages() -> None:
    seen: list[tuple[int, int]] = []

    def note(context: ProcessorContext, record: Record) -> None:
        seen.append((record.timestamp_ms, context.stream_time_ms))
        if record.value["n"] == 2:
            raise ValueError

    topology = numbers().add_step("where", Where("n > 0"), "numbers").add_processor("p", each(note), "where")
    driver = TopologyTestDriver(topology)
    driver.pipe_inputs(given([("k", 1, 1), ("k", 0, 100), ("k", 2, 200), ("k", 1, 3), ("k", 0, 300)]))
    driver.pipe_inputs(given([("k", 1, 4)]))
    assert seen == [(1, 1), (200, 200), (3, 100), (4, 300)]
