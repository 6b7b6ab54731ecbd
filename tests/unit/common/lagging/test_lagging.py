"""Lag in seconds from observed ends: by hand-made times, and against a plain count."""

import itertools
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import cast

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from common.lagging.history import MOST, EndHistory
from common.lagging.watch import EndWatch, KafkaEnds
from common.spans import Partition, Position, Topic, TopicPartition
from tests.builders import required
from tests.fakes.group import HandClock

SOURCE = TopicPartition(Topic("orders"), Partition(0))
OTHER = TopicPartition(Topic("orders"), Partition(1))


def history_of(*ends: tuple[float, int]) -> EndHistory:
    history = EndHistory()
    for now_s, end in ends:
        history.observe({SOURCE: Position(end)}, now_s)
    return history


def lag(history: EndHistory, position: int, now_s: float) -> tuple[int | None, float | None]:
    return history.lag_records(SOURCE, Position(position)), history.lag_s(SOURCE, Position(position), now_s)


def test_position_at_the_end_has_no_lag() -> None:
    assert lag(history_of((0, 10), (10, 30)), 30, 500) == (0, 0.0)
    assert lag(history_of((0, 10), (10, 30)), 31, 500) == (0, 0.0), "it advanced after the last observation"


def test_lag_starts_when_the_position_was_last_the_end() -> None:
    history = history_of((0, 10), (10, 30), (20, 30), (30, 50))
    assert lag(history, 30, 35) == (20, 15), "at 20 s it was still the end"
    assert lag(history, 10, 35) == (40, 35)
    assert lag(history, 29, 35) == (21, 35)


def test_position_before_all_observations_lags_since_the_first() -> None:
    assert lag(history_of((5, 10), (10, 30)), 3, 35) == (27, 30)


def test_lag_is_unknown_without_an_observation_or_a_position() -> None:
    assert lag(EndHistory(), 3, 35) == (None, None)
    history = history_of((0, 10))
    assert (history.lag_records(SOURCE, None), history.lag_s(SOURCE, None, 1)) == (None, None)


def test_recreated_topic_restarts_the_history() -> None:
    assert lag(history_of((0, 100), (10, 3), (20, 9)), 3, 25) == (6, 15)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=300), st.data())
def test_lag_is_bounded_by_the_observations(observations: list[tuple[int, int]], data: st.DataObject) -> None:
    times = list(itertools.accumulate(step for step, _ in observations))
    ends = list(itertools.accumulate(grown for _, grown in observations))
    history = history_of(*zip(map(float, times), ends, strict=True))
    assert len(history._seen[SOURCE]) <= MOST + 1
    position = data.draw(st.integers(0, ends[-1]))
    lag_s = history.lag_s(SOURCE, Position(position), float(times[-1]))
    exact = [time for time, end in zip(times, ends, strict=True) if end <= position]
    if position == ends[-1]:
        assert lag_s == 0
    elif len(observations) <= MOST:
        assert lag_s == times[-1] - (exact[-1] if exact else times[0])
    else:
        assert required(lag_s) >= times[-1] - (exact[-1] if exact else times[0]), (
            "a thinned-out history overstates the lag"
        )


def test_unreachable_kafka_only_stops_the_figures() -> None:
    answers: list[dict[TopicPartition, Position]] = [{}, {SOURCE: Position(7)}]
    ends_seen: list[Position | None] = []
    history = EndHistory()

    def ends(_sources: object) -> dict[TopicPartition, Position]:
        answer = answers.pop(0) if answers else {}
        if not answer:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no broker"))
        return answer

    clock = HandClock()
    watch = EndWatch(
        ends,
        lambda: {SOURCE},
        lambda: ends_seen.append(history.end(SOURCE)),
        history=history,
        clock=clock,
        log=structlog.get_logger(),
    )
    watch.close()
    for _ in range(3):
        watch.refresh()
    assert ends_seen[:2] == [None, 7]
    assert set(ends_seen[2:]) == {7}


def test_partitions_that_are_no_longer_watched_are_forgotten() -> None:
    history = history_of((0, 10))
    history.observe({OTHER: Position(5)}, 0)
    history.retain({OTHER})
    assert (history.end(SOURCE), history.end(OTHER)) == (None, 5)


def test_refused_topic_is_logged_once_and_does_not_hide_other_topics() -> None:
    ends = KafkaEnds({"bootstrap.servers": "nowhere:1"}, structlog.get_logger())
    refuses = {"secret"}

    class Admin:
        def list_offsets(
            self, wanted: Mapping[KafkaPartition, OffsetSpec], **_: object
        ) -> dict[KafkaPartition, object]:
            return {partition: answer_for(partition.topic) for partition in wanted}

    def answer_for(topic: str) -> Future[SimpleNamespace]:
        answer: Future[SimpleNamespace] = Future()
        if topic in refuses:
            answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not allowed")))
        else:
            answer.set_result(SimpleNamespace(offset=7))
        return answer

    ends._admin = cast("AdminClient", Admin())
    wanted = {SOURCE, *(TopicPartition(Topic("secret"), Partition(number)) for number in range(3))}
    with capture_logs() as logs:
        assert ends(wanted) == ends(wanted) == {SOURCE: 7}
    assert [(line["topic"], line["problem"]) for line in logs] == [("secret", "not allowed")]
    refuses.clear()
    assert len(ends(wanted)) == 4
    refuses.add("secret")
    with capture_logs() as logs:
        ends(wanted)
    assert len(logs) == 1, "logged again, because it had responded in between"
    refuses.add(str(SOURCE.topic))
    with pytest.raises(KafkaException):
        ends(wanted)
