"""The pages and calls of every service, and whether it is paused by request.

Rules:

1. A pause applies to one process until it ends: a restart clears it, and other processes are unaffected. It is for
   short maintenance of a store; for a longer break, stop the service. One stream is paused in the stage, for all
   processes and across restarts (common/stage/paused.py).
2. It is not a problem: the health page has a note and stays healthy, because a monitor would otherwise restart the
   service, and so end the pause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from common.errors import StoreError
from common.hints import unknown_stream
from common.http.server import Page, json_page, text_page
from common.sizes import time_text

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from common.metrics import Metric, Metrics
    from common.ports import Clock
    from common.stage.paused_streams import PausedStreams


class Pausing:
    """Set from one thread, read from another."""

    def __init__(self, clock: Clock, log: FilteringBoundLogger, metrics: Metrics, metric: Metric) -> None:
        """``metric`` is 1 while it lasts."""
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._metric = metric
        self.since_ms: int | None = None
        metrics.set(metric, 0)

    @property
    def is_on(self) -> bool:
        return self.since_ms is not None

    @property
    def notes(self) -> tuple[str, ...]:
        since_ms = self.since_ms
        return () if since_ms is None else (f"paused since {time_text(since_ms)}; POST /resume ends it",)

    def pause(self) -> None:
        if self.since_ms is None:
            self.since_ms = self._clock.wall_ms()
            self._metrics.set(self._metric, 1)
            self._log.warning("paused by request")

    def resume(self) -> None:
        if self.since_ms is not None:
            self.since_ms = None
            self._metrics.set(self._metric, 0)
            self._log.warning("resumed by request")


DISTRIBUTION = "kafka-delta-express"


@dataclass(frozen=True, slots=True)
class Health:
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes for operators that are not problems."""


def with_remedy(problem: str, remedy: str) -> str:
    """A problem and its remedy in one line, which command lines show in two."""
    return f"{problem} → {remedy}" if remedy else problem


def release() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "0+unknown"


def service_pages(
    service: str, health: Callable[[], Health], ready: Callable[[], Health], metrics: Callable[[], bytes]
) -> dict[str, Page | Callable[[], Page]]:
    """The pages of every service, except its status page."""
    return {
        "/healthcheck": lambda: _health(health()),
        "/ready": lambda: _health(ready()),
        "/version": json_page(200, {"service": service, "version": release()}),
        "/metrics": lambda: Page(200, "text/plain; version=0.0.4; charset=utf-8", metrics()),
    }


def pausing_calls(pausing: Pausing, paused: PausedStreams) -> dict[str, Callable[[Mapping[str, str]], Page]]:
    """``/pause`` and ``/resume``, of the process or of the stream in the query; both are idempotent."""

    def pause(query: Mapping[str, str]) -> Page:
        return of_stream(query, pause=True) if query else of_process(pause=True)

    def resume(query: Mapping[str, str]) -> Page:
        return of_stream(query, pause=False) if query else of_process(pause=False)

    def of_process(*, pause: bool) -> Page:
        (pausing.pause if pause else pausing.resume)()
        return json_page(200, {"paused": pause})

    def of_stream(query: Mapping[str, str], *, pause: bool) -> Page:
        app_id = query.get("stream")
        if app_id is None:
            unknown = ", ".join(sorted(query))
            return text_page(400, f"unknown parameters: {unknown}; give stream=APP_ID, or none for the whole process\n")
        if app_id not in paused.app_ids:
            unknown_id = unknown_stream(app_id, paused.app_ids)
            return text_page(404, f"{unknown_id.problem}; {unknown_id.remedy}\n")
        try:
            if not pause:
                return json_page(200, {"stream": app_id, "paused": False, "was_paused": paused.resume(app_id)})
            stream_pause = paused.pause(app_id, by="POST /pause")
        except StoreError as error:
            return text_page(503, f"{with_remedy(error.problem, error.remedy)}\n")
        return json_page(
            200, {"stream": app_id, "paused": True, "since_ms": stream_pause.since_ms, "by": stream_pause.by}
        )

    return {"/pause": pause, "/resume": resume}


def _health(health: Health) -> Page:
    notes = "".join(f"{note}\n" for note in health.notes)
    if health.problems:
        return text_page(503, "".join(f"{problem}\n" for problem in health.problems) + notes)
    return text_page(200, f"ok\n{notes}")
