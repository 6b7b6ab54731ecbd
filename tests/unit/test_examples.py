"""The examples' topologies in the test driver, compared with batches that see all messages at once."""

from pathlib import Path

import pytest

from common.settings.load import parse_settings
from examples import alerts, enrichment, sessions
from stage_writer.tasks.loading import topology_of
from stage_writer.topologies.testing import Message, TopologyTestDriver
from tests import examples as batch

CONFIG = Path(__file__).parents[2] / "examples" / "pipeline.yaml"
STREAMS = {
    stream.app_id: stream
    for stream in parse_settings(
        CONFIG.read_text("utf-8"), {"KAFKA": "localhost:9092", "LAKE": "file:///lake"}, "the examples' config"
    ).streams
}
BATCHES = (29, 1_000)


def driven(driver: TopologyTestDriver, messages: list[Message], size: int) -> TopologyTestDriver:
    """Pipes the messages in batches of ``size``; the task is lost after each."""
    for start in range(0, len(messages), size):
        driver.pipe_inputs(messages[start : start + size])
        driver.restart()
    return driver


@pytest.mark.parametrize("size", BATCHES)
def test_visits_equal_a_batch_computation(size: int) -> None:
    sent = batch.requests()
    driver = driven(TopologyTestDriver(sessions.build(), columns=batch.columns(STREAMS["visits"])), sent, size)
    expected = batch.visits(sent)
    assert batch.shown(driver.rows()) == expected
    assert len(expected) > 20
    assert driver.dead_letters() == []


def test_request_that_is_too_late_is_a_dead_letter() -> None:
    driver = TopologyTestDriver(sessions.build())
    late = [batch.request("ada", minute) for minute in (0, 45, 200, 1)]
    driver.pipe_inputs(late)
    assert [(letter.offset, letter.error_class) for letter in driver.dead_letters()] == [(3, "late")]
    assert len(driver.rows()) == 2


@pytest.mark.parametrize("size", BATCHES)
def test_orders_equal_a_batch_computation(size: int) -> None:
    sent = batch.orders_and_customers()
    driver = driven(TopologyTestDriver(enrichment.build(), columns=batch.columns(STREAMS["orders"])), sent, size)
    expected = batch.enriched(sent)
    assert batch.shown(driver.rows()) == expected
    assert {row["customer"] is None for row in expected} == {True, False}


@pytest.mark.parametrize("size", BATCHES)
def test_minutes_and_alerts_equal_a_batch_computation(size: int) -> None:
    sent = batch.readings()
    stream = STREAMS["devices"]
    routes = {"alerts": stream.routing.route_tables["alerts"].columns}
    driver = driven(TopologyTestDriver(alerts.build(), columns=stream.record.columns, routes=routes), sent, size)
    minutes, alarming = batch.tallies(sent, 1), batch.alarming(batch.tallies(sent, 5))
    assert batch.shown(driver.rows()) == minutes
    assert batch.shown(driver.rows("alerts")) == alarming
    assert len(driver.topic_records("alerts")) == len(alarming) > 3
    assert driver.dead_letters() == []


@pytest.mark.parametrize("app_id", sorted(STREAMS))
def test_config_topics_match_the_topologies(app_id: str) -> None:
    stream = STREAMS[app_id]
    assert sorted(topology_of(stream).sources) == sorted(stream.topics)
