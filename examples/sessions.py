"""Sessions of web requests: one row for each visit of a user, once it is over.

Messages are keyed by the user. A visit is over after half an hour without a request. Requests may arrive ten minutes
late; a later one is a dead letter, since its visit already has a row.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from stage_writer.topologies import SessionWindows, StreamsBuilder, Suppressed

if TYPE_CHECKING:
    from stage_writer.topologies import Windowed

GAP = timedelta(minutes=30)
GRACE = timedelta(minutes=10)
SERVER_ERROR = 500

Visit = dict[str, Any]


def build() -> StreamsBuilder:
    """Requests in, visits out."""
    builder = StreamsBuilder(late="dead_letter")
    requests = builder.stream("web_requests", columns="sent TIMESTAMP, url STRING, status INT", timestamp="sent")
    visits = (
        requests.where("url NOT LIKE '/health%'")
        .group_by_key()
        .windowed_by_sessions(SessionWindows.of_inactivity_gap_and_grace(GAP, GRACE))
        .aggregate(no_visit, with_request, of_both)
        .suppress(Suppressed.until_window_closes())
    )
    visits.to_stream().map_values_with_key(row).to()
    return builder


def no_visit() -> Visit:
    """A visit before its first request."""
    return {"requests": 0, "errors": 0, "pages": []}


def with_request(_user: str, request: dict[str, Any], visit: Visit) -> Visit:
    """The visit with one more request."""
    return {
        "requests": visit["requests"] + 1,
        "errors": visit["errors"] + (request["status"] >= SERVER_ERROR),
        "pages": sorted({*visit["pages"], request["url"]}),
    }


def of_both(_user: str, one: Visit, two: Visit) -> Visit:
    """Two visits that a late request has merged into one."""
    return {
        "requests": one["requests"] + two["requests"],
        "errors": one["errors"] + two["errors"],
        "pages": sorted({*one["pages"], *two["pages"]}),
    }


def row(visitor: Windowed, visit: Visit) -> Visit:
    """The visit as a row of the table."""
    began, ended = (datetime.fromtimestamp(at_ms / 1000, UTC) for at_ms in (visitor.start_ms, visitor.end_ms))
    return {"user": visitor.key, "began": began, "ended": ended, **visit}
