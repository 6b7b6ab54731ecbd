"""Windows and joins against plain models that see all records at once; restarts and batches change nothing."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from stage_writer.topologies import Processor, Record
from stage_writer.topologies.dsl import (
    JoinWindows,
    KTable,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Windowed,
)
from stage_writer.topologies.task.writing import Row
from stage_writer.topologies.testing import Message, TopologyTestDriver

FOREVER = timedelta(days=10_000)


class Sent(NamedTuple):
    topic: int
    key: str
    value: int
    time_ms: int


_END_MS = 3 * round(FOREVER.total_seconds()) * 1000
_END = [Sent(0, "end", -1, _END_MS)]


class _Timed(Processor):
    """Puts a record's time into its value."""

    def process(self, record: Record) -> None:
        if record.timestamp_ms < _END_MS:
            self.context.forward(record.with_value({**record.value, "at": record.timestamp_ms}))


def sent(latest_ms: int = 60) -> st.SearchStrategy[list[Sent]]:
    message = st.builds(Sent, st.integers(0, 1), st.sampled_from("ab"), st.integers(0, 9), st.integers(0, latest_ms))
    return st.lists(message, max_size=30)


def ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def rows(builder: StreamsBuilder, messages: Sequence[Sent], restarts: Sequence[int] = ()) -> list[Row]:
    """The rows of a topology; after each count in ``restarts`` a batch ends and the task is lost."""
    driver = TopologyTestDriver(builder)
    batch: list[Message] = []
    for number, message in enumerate(messages):
        batch.append(Message("lr"[message.topic], message.key, message.value, message.time_ms))
        if number in restarts or not restarts:
            driver.pipe_inputs(batch)
            batch = []
            if restarts:
                driver.restart()
    driver.pipe_inputs(batch)
    return driver.rows()


def listed(table: KTable) -> None:
    def row(windowed: Windowed, value: object) -> Row:
        return {"key": windowed.key, "start": windowed.start_ms, "end": windowed.end_ms, "value": value}

    table.to_stream().map_values_with_key(row).to()


def last_of(given_rows: list[Row]) -> dict[tuple[str, int, int], object]:
    """The table that the changes add up to."""
    table = {(row["key"], row["start"], row["end"]): row["value"] for row in given_rows}
    return {key: value for key, value in table.items() if value is not None}


@given(sent(), st.integers(1, 20), st.integers(1, 20), st.integers(0, 30))
def test_time_window_has_the_records_that_came_before_it_closed(
    messages: list[Sent], size: int, advance: int, grace: int
) -> None:
    advance = min(advance, size)
    builder = StreamsBuilder()
    windows = TimeWindows.of_size_and_grace(ms(size), ms(grace)).advance_by(ms(advance))
    listed(builder.stream("l", "r").group_by_key().windowed_by(windows).aggregate(list, lambda _k, v, so: [*so, v]))

    expected: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for number, message in enumerate(messages):
        time_ms = max(other.time_ms for other in messages[: number + 1])
        for start in range(0, message.time_ms + 1, advance):
            if message.time_ms < start + size and start + size > time_ms - grace:
                expected[message.key, start, start + size].append(message.value)
    assert last_of(rows(builder, messages)) == expected


@given(sent(), st.integers(1, 20), st.integers(1, 20), st.integers(0, 30))
def test_final_result_is_emitted_once_and_equals_the_window_s(
    messages: list[Sent], size: int, advance: int, grace: int
) -> None:
    windows = TimeWindows.of_size_and_grace(ms(size), ms(grace)).advance_by(ms(min(advance, size)))
    plain, final = StreamsBuilder(), StreamsBuilder()
    listed(plain.stream("l", "r").group_by_key().windowed_by(windows).count())
    counts = final.stream("l", "r").group_by_key().windowed_by(windows).count()
    listed(counts.suppress(Suppressed.until_window_closes()))

    ended = [*messages, Sent(0, "end", 0, 10_000)]
    given_on = [(row["key"], row["start"], row["end"], row["value"]) for row in rows(final, ended)]
    assert len(given_on) == len(set(given_on))
    assert {row[:3]: row[3] for row in given_on} == last_of(rows(plain, messages))


@given(sent(), st.integers(1, 15))
def test_sessions_with_unlimited_grace_are_the_clusters_of_all_records(messages: list[Sent], gap: int) -> None:
    builder = StreamsBuilder()
    windows = SessionWindows.of_inactivity_gap_and_grace(ms(gap), FOREVER)
    grouped = builder.stream("l", "r").group_by_key().windowed_by_sessions(windows)
    listed(grouped.aggregate(list, lambda _k, v, so: sorted([*so, v]), lambda _k, first, two: sorted(first + two)))

    expected: dict[tuple[str, int, int], list[int]] = {}
    for key in "ab":
        cluster: list[Sent] = []
        for record in [
            *sorted((message for message in messages if message.key == key), key=lambda message: message.time_ms),
            None,
        ]:
            if cluster and (record is None or record.time_ms > cluster[-1].time_ms + gap):
                span = key, cluster[0].time_ms, cluster[-1].time_ms
                expected[span] = sorted(member.value for member in cluster)
                cluster = []
            cluster += [record] if record is not None else []
    assert last_of(rows(builder, messages)) == expected


@given(sent(), st.integers(1, 15), st.integers(0, 20))
def test_sessions_count_each_record_once_and_drop_only_late_ones(messages: list[Sent], gap: int, grace: int) -> None:
    builder = StreamsBuilder()
    windows = SessionWindows.of_inactivity_gap_and_grace(ms(gap), ms(grace))
    listed(builder.stream("l", "r").group_by_key().windowed_by_sessions(windows).count())
    driver = TopologyTestDriver(builder)
    driver.pipe_inputs([Message("l", message.key, message.value, message.time_ms) for message in messages])

    table = last_of(driver.rows())
    assert sum(table.values()) == len(messages) - driver.dropped["late"]  # type: ignore[arg-type] # counts
    seen = 0
    surely_late = 0
    for message in messages:
        seen = max(seen, message.time_ms)
        surely_late += message.time_ms + 2 * gap + grace < seen and all(
            abs(other.time_ms - message.time_ms) > gap for other in messages if other is not message
        )
    assert driver.dropped["late"] >= surely_late


@given(sent(), st.integers(0, 15), st.integers(0, 15))
def test_joins_with_unlimited_grace_are_those_of_all_records(messages: list[Sent], before: int, after: int) -> None:
    windows = JoinWindows.of_time_difference_and_grace(ms(before), FOREVER).after(ms(after))
    pairs = {
        (left, right)
        for left in range(len(messages))
        for right in range(len(messages))
        if messages[left].topic == 0
        and messages[right].topic == 1
        and messages[left].key == messages[right].key
        and -before <= messages[right].time_ms - messages[left].time_ms <= after
    }
    expected = Counter(
        (messages[left].value, messages[right].value, max(messages[left].time_ms, messages[right].time_ms))
        for left, right in pairs
    )
    alone = [message for number, message in enumerate(messages) if _is_alone(messages, number, pairs, after, before)]
    for kind, sides in (("join", ()), ("left_join", (0,)), ("outer_join", (0, 1))):
        builder = StreamsBuilder()
        left, right = builder.stream("l"), builder.stream("r")
        joined = getattr(left, kind)(right, lambda left, two: {"left": left, "right": two}, windows)
        joined.process(_Timed).to()
        joined_rows = Counter((row["left"], row["right"], row["at"]) for row in rows(builder, [*messages, *_END]))
        wanted = expected + Counter(
            (message.value, None, message.time_ms) if message.topic == 0 else (None, message.value, message.time_ms)
            for message in alone
            if message.topic in sides
        )
        assert joined_rows == wanted, kind


def _is_alone(messages: Sequence[Sent], number: int, pairs: set[tuple[int, int]], after: int, before: int) -> bool:
    late = _is_late(messages, number, after, before)
    return not any(number in pair and (max(pair) == number or not late) for pair in pairs)


def _is_late(messages: Sequence[Sent], number: int, after: int, before: int) -> bool:
    """Whether stream time had passed a record's window when it came: it is then emitted at once."""
    message = messages[number]
    latest_ms = message.time_ms + (after if message.topic == 0 else before)
    return latest_ms < max(other.time_ms for other in messages[: number + 1])


@given(sent(), st.integers(0, 15), st.integers(0, 30), st.sets(st.integers(0, 30), min_size=1))
def test_restarts_and_batches_change_nothing(
    messages: list[Sent], difference_ms: int, grace: int, restarts: set[int]
) -> None:
    def build() -> StreamsBuilder:
        builder = StreamsBuilder()
        left, right = builder.stream("l"), builder.stream("r")
        windows = JoinWindows.of_time_difference_and_grace(ms(difference_ms), ms(grace))
        left.outer_join(right, lambda left, two: {"left": left, "right": two}, windows).to()
        sessions = SessionWindows.of_inactivity_gap_and_grace(ms(difference_ms + 1), ms(grace))
        counts = left.merge(right).group_by_key().windowed_by_sessions(sessions).count()
        listed(counts.suppress(Suppressed.until_window_closes()))
        listed(left.group_by_key().windowed_by(TimeWindows.of_size_and_grace(ms(difference_ms + 1), ms(grace))).count())
        left.join_previous(lambda own, before: {"own": own, "before": before}).to()
        return builder

    ended = [*messages, Sent(0, "end", 0, 1_000), Sent(1, "end", 0, 2_000)]
    assert rows(build(), ended, sorted(restarts)) == rows(build(), ended)
