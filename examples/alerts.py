"""Alerts from a windowed aggregate: a device that fails too often within five minutes.

Messages are keyed by the device. Each minute of each device is a row of the table. When too many readings of five
minutes have failed, the table of alerts, which has its own columns, gets a row, and the topic ``alerts`` a record, once
for each window.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from stage_writer.topologies import StreamsBuilder, Suppressed, TimeWindows

if TYPE_CHECKING:
    from stage_writer.topologies import KTable, Windowed

MINUTE = timedelta(minutes=1)
GRACE = timedelta(seconds=30)
TOO_MANY = 0.5
ENOUGH = 4

Tally = dict[str, int]


def build() -> StreamsBuilder:
    """Readings in; minutes and alerts out."""
    builder = StreamsBuilder()
    readings = (
        builder.stream("readings", columns="at TIMESTAMP, celsius DOUBLE, error STRING", timestamp="at")
        .derive({"failed": "error IS NOT NULL OR celsius NOT BETWEEN -60 AND 90"})
        .group_by_key()
    )

    def tallied(windows: TimeWindows) -> KTable:
        tallies = readings.windowed_by(windows).aggregate(lambda: {"readings": 0, "failed": 0}, with_reading)
        return tallies.suppress(Suppressed.until_window_closes())

    minutes = tallied(TimeWindows.of_size_and_grace(MINUTE, GRACE))
    minutes.to_stream().map_values_with_key(row).to()

    fives = tallied(TimeWindows.of_size_and_grace(5 * MINUTE, GRACE).advance_by(MINUTE))
    alerts = fives.to_stream().filter(is_alarming).map_values_with_key(alert)
    alerts.to("alerts")
    alerts.map(lambda window, found: (window.key, found)).to_topic("alerts")
    return builder


def with_reading(_device: str, reading: dict[str, Any], tally: Tally) -> Tally:
    """The tally with one more reading."""
    return {"readings": tally["readings"] + 1, "failed": tally["failed"] + bool(reading["failed"])}


def is_alarming(_window: Windowed, tally: Tally) -> bool:
    """Whether enough readings have failed for an alert."""
    return tally["readings"] >= ENOUGH and tally["failed"] > TOO_MANY * tally["readings"]


def row(window: Windowed, tally: Tally) -> dict[str, Any]:
    """The tally as a row of a table."""
    return {"device": window.key, "began": datetime.fromtimestamp(window.start_ms / 1000, UTC), **tally}


def alert(window: Windowed, tally: Tally) -> dict[str, Any]:
    """The tally as a row of the table of alerts, which is partitioned by day."""
    began = datetime.fromtimestamp(window.start_ms / 1000, UTC)
    return {"day": began.date(), "device": window.key, "began": began, "failing": tally["failed"] / tally["readings"]}
