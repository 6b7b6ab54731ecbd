"""The pages and calls of every service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from common.errors import StoreError
from common.hints import unknown_stream
from common.http.server import Page, json_page, text_page

if TYPE_CHECKING:
    from common.http.pausing import Pausing
    from common.stage.paused_streams import PausedStreams

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
