"""The DSL: refused uses, operators that Kafka Streams lacks, late and dropped records."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from common.errors import ConfigError
from stage_writer.topologies import Processor, Record
from stage_writer.topologies.dsl import (
    JoinWindows,
    KStream,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from stage_writer.topologies.stores import Stores
from stage_writer.topologies.testing import TopologyTestDriver

SECOND = timedelta(seconds=1)
WITHIN = JoinWindows.of_time_difference_with_no_grace(10 * SECOND)


def pair(own: object, other: object) -> dict[str, object]:
    return {"own": own, "other": other}


@pytest.mark.parametrize(
    "use",
    [
        lambda stream: stream.group_by_key(),
        lambda stream: stream.to_table(),
        lambda stream: stream.join_previous(pair),
        lambda stream: stream.filter(lambda *_: True).join(StreamsBuilder().stream("other"), pair, WITHIN),
        lambda stream: stream.group_by(lambda _key, value: value, keeps_partition=True),
    ],
)
def test_changed_keys_require_a_repartition_topic(use: Callable[[KStream], object]) -> None:
    stream = StreamsBuilder().stream("clicks").select_key(lambda _key, value: value["page"], name="by-page")
    with pytest.raises(ConfigError, match=r"'by-page' changed their keys") as refused:
        use(stream)
    assert "through" in refused.value.remedy
    assert "keeps_partition=True" in refused.value.remedy


def test_changed_keys_can_be_grouped_if_they_keep_their_partition() -> None:
    builder = StreamsBuilder()
    pages = builder.stream("clicks").group_by(lambda _key, value: value["page"], keeps_partition=True)
    pages.count().to_stream().map(lambda page, count: (page, {"page": page, "count": count})).to()
    driver = TopologyTestDriver(builder)
    for page in ("/", "/help", "/"):
        driver.pipe_input("clicks", "ada", {"page": page})
    assert driver.rows() == [{"page": "/", "count": 1}, {"page": "/help", "count": 1}, {"page": "/", "count": 2}]


def test_records_sent_through_a_topic_are_grouped_by_their_new_key() -> None:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks").select_key(lambda _key, value: value["page"])
    counts = clicks.through("clicks-by-page").group_by_key().count()
    counts.to_stream().map(lambda page, count: (page, {"page": page, "count": count})).to()
    driver = TopologyTestDriver(builder)
    for page in ("/", "/help", "/"):
        driver.pipe_input("clicks", "ada", {"page": page})
    assert driver.rows()[-1] == {"page": "/", "count": 2}
    assert [record.key for record in driver.topic_records("clicks-by-page")] == [b"/", b"/help", b"/"]
    assert [group.topics for group in builder.check().groups] == [("clicks",), ("clicks-by-page",)]


def test_filtered_table_has_only_rows_that_pass() -> None:
    builder = StreamsBuilder()
    large = builder.table("stock").filter(lambda _key, row: row["n"] > 1)
    large.to_stream().map_values(lambda row: {"n": row and row["n"]}).to()
    builder.stream("sold").join(large, lambda _sold, row: {"n": 10 * row["n"]}).to()
    driver = TopologyTestDriver(builder)
    for time_ms, n in enumerate((2, 1, 3)):
        driver.pipe_input("stock", "pen", {"n": n}, time_ms)
        driver.pipe_input("sold", "pen", {}, time_ms)
    assert [row["n"] for row in driver.rows()] == [2, 20, None, 3, 30]


@pytest.mark.parametrize("materialized", [None, Materialized("large")])
def test_filter_of_a_kept_table_deletes_no_row_that_never_passed(materialized: Materialized | None) -> None:
    builder = StreamsBuilder()
    stock = builder.table("stock", materialized=Materialized("stock"))
    large = stock.filter(lambda _key, row: row["n"] > 1, materialized)
    large.to_stream().map_values(lambda row: {"n": row and row["n"]}).to()
    driver = TopologyTestDriver(builder)
    for n in (1, 2, 1, 0):
        driver.pipe_input("stock", "pen", {"n": n})
    assert [row["n"] for row in driver.rows()] == [2, None]


def test_prior_join_matches_only_older_records() -> None:
    builder = StreamsBuilder()
    builder.stream("left").join_prior(builder.stream("right"), pair, WITHIN).to()
    driver = TopologyTestDriver(builder)
    driver.pipe_input("left", "k", "l5", 5_000)
    driver.pipe_input("right", "k", "r5", 5_000)  # not older
    driver.pipe_input("right", "k", "r7", 7_000)
    driver.pipe_input("left", "k", "l6", 6_000)
    driver.pipe_input("right", "k", "r30", 30_000)  # too far away
    assert driver.rows() == [pair("l5", "r7"), pair("l6", "r5")]


def test_join_previous_survives_a_restart() -> None:
    builder = StreamsBuilder()
    builder.stream("prices").join_previous(pair).to()
    driver = TopologyTestDriver(builder)
    driver.pipe_input("prices", "gold", 1)
    driver.restart()
    driver.pipe_input("prices", "gold", 2)
    driver.pipe_input("prices", "iron", 3)
    assert driver.rows() == [pair(1, None), pair(2, 1), pair(3, None)]


def test_late_record_is_dropped_and_counted_or_dead_lettered() -> None:
    for late, dropped, refused in (("drop", {"late": 1}, 0), ("dead_letter", {}, 1)):
        builder = StreamsBuilder(late=late, on_error="fail")
        windows = TimeWindows.of_size_with_no_grace(10 * SECOND)
        counts = builder.stream("clicks").group_by_key().windowed_by(windows).count()
        counts.to_stream().map_values(lambda count: {"count": count}).to()
        driver = TopologyTestDriver(builder)
        for time_ms in (1_000, 10_000, 9_999, 11_000):
            driver.pipe_input("clicks", "ada", {}, time_ms)
        assert [row["count"] for row in driver.rows()] == [1, 1, 2]
        assert {reason: count for reason, count in driver.dropped.items() if count} == dropped
        assert len(driver.dead_letters()) == refused


@pytest.mark.parametrize(("time_ms", "is_late"), [(4_999, True), (5_000, False), (5_001, False)])
def test_session_closes_after_its_gap_and_grace(time_ms: int, *, is_late: bool) -> None:
    builder = StreamsBuilder()
    windows = SessionWindows.of_inactivity_gap_and_grace(10 * SECOND, 5 * SECOND)
    counts = builder.stream("clicks").group_by_key().windowed_by_sessions(windows).count()
    counts.to_stream().map(lambda session, count: (None, {"key": session.key, "count": count})).to()
    driver = TopologyTestDriver(builder)
    driver.pipe_input("clicks", "ada", {}, 20_000)
    driver.pipe_input("clicks", "bob", {}, time_ms)
    assert [row["key"] for row in driver.rows()] == (["ada"] if is_late else ["ada", "bob"])
    assert driver.dropped["late"] == (1 if is_late else 0)


@pytest.mark.parametrize("is_session", [False, True])
def test_suppressed_result_is_emitted_in_the_millisecond_its_window_closes(*, is_session: bool) -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("clicks").group_by_key()
    if is_session:
        closed_ms = 15_001
        windows = SessionWindows.of_inactivity_gap_and_grace(10 * SECOND, 5 * SECOND)
        counts = grouped.windowed_by_sessions(windows).count()
    else:
        closed_ms = 15_000
        counts = grouped.windowed_by(TimeWindows.of_size_and_grace(10 * SECOND, 5 * SECOND)).count()
    final = counts.suppress(Suppressed.until_window_closes())
    final.to_stream().map(lambda window, count: (None, {"key": window.key, "count": count})).to()
    driver = TopologyTestDriver(builder)
    driver.pipe_input("clicks", "ada", {}, 0)
    driver.pipe_input("clicks", "bob", {}, closed_ms - 1)
    assert driver.rows() == []
    driver.pipe_input("clicks", "bob", {}, closed_ms)
    assert driver.rows() == [{"key": "ada", "count": 1}]


def test_held_changes_are_one_change_for_the_aggregates_below() -> None:
    builder = StreamsBuilder()
    held = builder.table("stock").suppress(Suppressed.until_time_limit(timedelta(seconds=10)))
    grouped = held.group_by(lambda _key, row: ("all", row["count"]), keeps_partition=True)
    total = grouped.reduce(lambda so_far, count: so_far + count, lambda so_far, count: so_far - count)
    total.to_stream().map(lambda _key, count: (None, {"total": count})).to()
    driver = TopologyTestDriver(builder)
    for key, count, time_ms in (("pen", 1, 0), ("pen", 2, 1_000), ("cup", 5, 12_000), ("cup", 7, 24_000)):
        driver.pipe_input("stock", key, {"count": count}, time_ms)
    assert driver.rows() == [{"total": 2}, {"total": 9}]


@pytest.mark.parametrize("kind", ["left_join", "outer_join"])
def test_unmatched_row_is_emitted_in_the_millisecond_its_join_window_closes(kind: str) -> None:
    builder = StreamsBuilder()
    windows = JoinWindows.of_time_difference_and_grace(10 * SECOND, 5 * SECOND).before(2 * SECOND)
    getattr(builder.stream("left"), kind)(builder.stream("right"), pair, windows).to()
    driver = TopologyTestDriver(builder)
    for key, time_ms, rows in (("ada", 0, []), ("bob", 15_000, []), ("bob", 15_001, [pair(0, None)])):
        driver.pipe_input("left", key, time_ms, time_ms)
        assert driver.rows() == rows


@pytest.mark.parametrize("late", ["drop", "dead_letter"])
def test_partly_late_record_counts_in_its_open_windows(late: str) -> None:
    builder = StreamsBuilder(late=late)
    windows = TimeWindows.of_size_with_no_grace(10 * SECOND).advance_by(5 * SECOND)
    counts = builder.stream("clicks").group_by_key().windowed_by(windows).count()
    counts.to_stream().map(lambda window, count: (None, {"start": window.start_ms, "count": count})).to()
    driver = TopologyTestDriver(builder)
    for time_ms in (16_000, 13_000, 9_000):
        driver.pipe_input("clicks", "ada", {}, time_ms)
    assert [(row["start"], row["count"]) for row in driver.rows()] == [(10_000, 1), (15_000, 1), (10_000, 2)]
    assert driver.dropped["partly_late"] == 1
    assert driver.dropped["late"] == (2 if late == "drop" else 0)
    assert [letter.offset for letter in driver.dead_letters()] == ([] if late == "drop" else [2])


def test_exception_undoes_the_state_changes_of_its_record() -> None:
    def checked(_key: object, value: dict[str, int]) -> object:
        if value["count"] == 2:
            raise ValueError(value)
        return None

    builder = StreamsBuilder()
    windows = TimeWindows.of_size_with_no_grace(10 * SECOND)
    counts = builder.stream("clicks").group_by_key().windowed_by(windows).count(Materialized("counts"))
    counts.to_stream().map_values(lambda count: {"count": count}).peek(checked).to()
    driver = TopologyTestDriver(builder)
    driver.pipe_input("clicks", "ada", {}, 1_000)
    driver.pipe_input("clicks", "ada", {}, 10_000_000)
    driver.pipe_input("clicks", "ada", {}, 10_000_001)
    driver.pipe_input("clicks", "ada", {}, 10_000_002)
    assert [row["count"] for row in driver.rows()] == [1, 1]
    assert len(driver.dead_letters()) == 2
    assert driver.store("counts").fetch("ada", 10_000_000) == [1, 10_000_000]


def test_column_operators_combine_with_record_operators() -> None:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", columns="page STRING, ms BIGINT").where("ms > 10").derive({"s": "ms / 1000.0"})
    clicks.map_values(lambda click: {"page": click["page"].upper(), "s": float(click["s"])}).to()
    driver = TopologyTestDriver(builder, columns="page STRING, s DOUBLE")
    driver.pipe_input("clicks", "ada", {"page": "/a", "ms": 5})
    driver.pipe_input("clicks", "ada", {"page": "/b", "ms": 2_500})
    assert driver.rows() == [{"page": "/B", "s": 2.5}]


def test_user_processor_with_its_own_store_fits_between_operators() -> None:
    class Numbered(Processor):
        def process(self, record: Record) -> None:
            store = self.context.store("numbers")
            number = (store.get(record.key) or 0) + 1
            store.put(record.key, number)
            self.context.forward(record.with_value({"number": number}))

    builder = StreamsBuilder().add_state_store(Stores.key_value("numbers"))
    builder.stream("clicks").process(Numbered, stores=["numbers"]).to()
    driver = TopologyTestDriver(builder)
    for key in ("ada", "bob", "ada"):
        driver.pipe_input("clicks", key, {})
    assert [row["number"] for row in driver.rows()] == [1, 1, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TimeWindows.of_size_with_no_grace(timedelta()), "size is zero"),
        (lambda: TimeWindows.of_size_with_no_grace(SECOND).advance_by(2 * SECOND), "advance by 2000 ms"),
        (lambda: TimeWindows.of_size_and_grace(SECOND, -SECOND), "grace"),
        (lambda: SessionWindows.of_inactivity_gap_with_no_grace(timedelta()), "gap is zero"),
        (lambda: JoinWindows.of_time_difference_with_no_grace(timedelta(microseconds=1)), "whole milliseconds"),
        (lambda: StreamsBuilder().stream("l").join(StreamsBuilder().stream("r"), pair), "no windows"),
        (lambda: StreamsBuilder().table("t").suppress(Suppressed.until_window_closes()), "without windows"),
        (lambda: StreamsBuilder().table("t").group_by(lambda key, value: (key, value)), "keeps_partition"),
        (StreamsBuilder().stream("s").process(Processor, stores=["none"])._graph.build, "'none'"),
    ],
)
def test_invalid_dsl_use_is_refused_with_a_remedy(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make()
    assert message in str(refused.value)
    assert refused.value.remedy


def test_two_operators_cannot_share_a_store() -> None:
    builder = StreamsBuilder()
    builder.stream("a").group_by_key().count(materialized=Materialized("counts"))
    with pytest.raises(ConfigError, match="'counts'"):
        builder.stream("b").group_by_key().count(materialized=Materialized("counts"))
