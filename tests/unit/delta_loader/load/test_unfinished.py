"""Streams whose turns last long are reported, each time after twice as long."""

import structlog
from structlog.testing import capture_logs

from common.metrics import Metrics
from delta_loader.load.unfinished import UnfinishedStreams
from tests.fakes.group import HandClock


def test_long_load_is_reported_after_growing_pauses() -> None:
    clock = HandClock()
    streams = UnfinishedStreams(clock, structlog.get_logger(), Metrics())
    streams.begin("orders")
    began_s, reported_s = clock.now_s, list[float]()
    for _ in range(1_000):
        clock.now_s += 1
        with capture_logs() as logs:
            streams.report_long_turns()
        reported_s += [clock.now_s - began_s for entry in logs if entry["event"] == "load still running"]
    assert reported_s == [30, 90, 210, 450, 930]
