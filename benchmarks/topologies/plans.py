"""The measured topologies, and the columns that their streams read and write."""

from datetime import timedelta
from typing import Any

from stage_writer.topologies.dsl import StreamsBuilder, TimeWindows, Windowed

TOPIC = "requests"
COLUMNS = "session_id STRING, status INT, url STRING"
MAPPED = "session_id STRING, status INT, path STRING"
COUNTED = "key STRING, start_ms BIGINT, count BIGINT"
SKIPPED = len("http://www.example.com/")


def records() -> StreamsBuilder:
    """A filter and a new value for each record, in Python."""
    builder = StreamsBuilder()
    requests = builder.stream(TOPIC, columns=COLUMNS)
    requests.filter(lambda _, request: request["status"] < 400).map_values(_row).to()  # noqa: PLR2004 - HTTP's
    return builder


def vectorised() -> StreamsBuilder:
    builder = StreamsBuilder()
    requests = builder.stream(TOPIC, columns=COLUMNS).where("status < 400")
    path = f"substr(url, {SKIPPED + 1})"
    requests.select({"session_id": "session_id", "status": "status // 100", "path": path}).to()
    return builder


def windowed() -> StreamsBuilder:
    """Requests per key and minute; each update is a row."""
    builder = StreamsBuilder()
    requests = builder.stream(TOPIC, columns=COLUMNS).group_by_key()
    counts = requests.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1))).count()
    counts.to_stream().map(_counted).to()
    return builder


def _row(request: dict[str, Any]) -> dict[str, Any]:
    url = request["url"][SKIPPED:]
    return {"session_id": request["session_id"], "status": request["status"] // 100, "path": url}


def _counted(window: Windowed, count: int) -> tuple[object, dict[str, Any]]:
    return window.key, {"key": window.key, "start_ms": window.start_ms, "count": count}
