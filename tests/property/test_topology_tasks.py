"""A task's output does not depend on how its messages are cut into batches, on restarts, or on refused messages.

The topology counts by key with a store, ticks by stream time, and fails in each way that a message can fail: in a step
before, in a processor after it has changed its state, in a step after, and by a row that does not fit.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stage_writer.topologies import (
    BuiltTopology,
    Derive,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    Select,
    Topology,
    Where,
)
from stage_writer.topologies.stores import Stores
from stage_writer.topologies.testing import Message, TopologyTestDriver
from tests.conftest import examples

COLUMNS = "key STRING, n INT, count TINYINT, tick BIGINT"
AFTER = "key STRING, n INT, count INT, tick BIGINT"
FAILS, TOO_LARGE, NO_NUMBER = -1, 300, -2


class CountAndTick(Processor):
    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._counts = context.store("counts")
        context.schedule(timedelta(milliseconds=10), PunctuationType.STREAM_TIME)

    def process(self, record: Record) -> None:
        number = record.value["n"]
        count = (self._counts.get(record.key) or 0) + 1
        self._counts.put(record.key, count)
        shown = number if number == TOO_LARGE else count
        self.context.forward(record.with_value({"key": record.key, "n": number, "count": shown, "tick": None}))
        if number == FAILS:
            self._counts.delete("a")
            raise ValueError(number)

    def punctuate(self, timestamp_ms: int) -> None:
        for key, count in self._counts.all():
            row = {"key": key, "n": 0, "count": count, "tick": timestamp_ms}
            self.context.forward(Record(None, row, timestamp_ms))


class Built:
    """Checked once: binding the steps takes longer than an example."""

    def __init__(self, topology: Topology) -> None:
        self._built = topology.check()

    def check(self) -> BuiltTopology:
        return self._built


@cache
def topology() -> Built:
    made = Topology().add_source("numbers", "numbers", columns="n INT")
    made.add_step("parsed", Derive({"x": f"1 // CASE n WHEN {NO_NUMBER} THEN CAST('x' AS INT) ELSE 1 END"}), "numbers")
    made.add_step("kept", Where("n <> 0"), "parsed").add_processor("count", CountAndTick, "kept")
    made.add_state_store(Stores.key_value("counts"), "count").add_sink("rows", "count")
    made.add_step("after", Select({"key": "key", "n": "n", "tick": "tick"}), "count", columns=AFTER)
    return Built(made.add_sink("after rows", "after", table="after"))


MESSAGES = st.lists(
    st.builds(
        lambda key, number, time_ms: Message("numbers", key, {"n": number}, time_ms),
        st.sampled_from("abc"),
        st.sampled_from([0, 1, 2, FAILS, TOO_LARGE, NO_NUMBER]),
        st.integers(0, 60),
    ),
    max_size=12,
)


def outcome(driver: TopologyTestDriver) -> tuple[Any, ...]:
    return driver.rows(), driver.rows("after"), dict(driver.store("counts").all())


def cut(messages: Sequence[Message], cuts: Sequence[int]) -> list[Sequence[Message]]:
    places = sorted({0, len(messages), *(place for place in cuts if place < len(messages))})
    return [messages[start:end] for start, end in pairwise(places)]


@given(messages=MESSAGES, cuts=st.lists(st.integers(1, 11), max_size=3), restarts=st.booleans())
@settings(max_examples=examples(0.2))
def test_batches_restarts_and_refused_messages_change_nothing(
    messages: list[Message], cuts: list[int], *, restarts: bool
) -> None:
    together = TopologyTestDriver(topology(), columns=COLUMNS)
    together.pipe_inputs(messages)
    refused = {letter.offset for letter in together.dead_letters()}
    bad = {place for place, message in enumerate(messages) if message.value["n"] in (FAILS, TOO_LARGE, NO_NUMBER)}
    assert refused == bad
    expected = outcome(together)

    parted = TopologyTestDriver(topology(), columns=COLUMNS)
    for part in cut(messages, cuts):
        parted.pipe_inputs(part)
        if restarts:
            parted.restart()
    assert outcome(parted) == expected
    assert {letter.offset for letter in parted.dead_letters()} == bad

    without = TopologyTestDriver(topology(), columns=COLUMNS)
    without.pipe_inputs([message for place, message in enumerate(messages) if place not in bad])
    assert outcome(without) == expected


class Recorded(Processor):
    """`Where("n % 2 = 0")` and a Select, record by record."""

    def process(self, record: Record) -> None:
        number = record.value["n"]
        if number % 2 == 0:
            self.context.forward(record.with_value({"half": number // 2, "key": record.key}))


@cache
def same_twice() -> Built:
    select = Select({"half": "n // 2", "key": "kafka.key_text"})
    made = Topology().add_source("numbers", "numbers", columns="n INT")
    made.add_processor("records", Recorded, "numbers").add_sink("record-wise", "records", table="records")
    made.add_step("even", Where("n % 2 = 0"), "numbers").add_step("before", select, "even")
    made.add_sink("vectorised before", "before", table="before")
    made.add_processor("as it is", AsItIs, "numbers")
    made.add_step("even after", Where("n % 2 = 0"), "as it is", columns="n INT, key STRING")
    made.add_step("after", Select({"half": "n // 2", "key": "key"}), "even after")
    return Built(made.add_sink("vectorised after", "after", table="after"))


@given(MESSAGES)
@settings(max_examples=examples(0.15))
def test_steps_equal_a_processor(messages: list[Message]) -> None:
    columns = "half INT, key STRING"
    driver = TopologyTestDriver(same_twice(), routes=dict.fromkeys(("records", "before", "after"), columns))
    driver.pipe_inputs(messages)
    expected = driver.rows("records")
    assert driver.rows("before") == expected
    assert driver.rows("after") == expected
    assert not driver.dead_letters()


class AsItIs(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_value({**record.value, "key": record.key}))
