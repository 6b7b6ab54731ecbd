"""The pages and calls of every service."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from common.http.server import Page, json_page, text_page

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from common.http.pausing import Pausing

DISTRIBUTION = "kafka-delta-express"


@dataclass(frozen=True, slots=True)
class Health:
    """A service's health: ``problems`` is empty when there are none."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes for operators that are not problems."""


def with_remedy(problem: str, remedy: str) -> str:
    """A problem and its remedy in one line, which command lines show in two."""
    return f"{problem} → {remedy}" if remedy else problem


def release() -> str:
    """The installed version of this project."""
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


def pausing_calls(pausing: Pausing) -> dict[str, Callable[[Mapping[str, str]], Page]]:
    """``/pause`` and ``/resume``; both are idempotent."""

    def pause(_query: Mapping[str, str]) -> Page:
        pausing.pause()
        return json_page(200, {"paused": True})

    def resume(_query: Mapping[str, str]) -> Page:
        pausing.resume()
        return json_page(200, {"paused": False})

    return {"/pause": pause, "/resume": resume}


def _health(health: Health) -> Page:
    notes = "".join(f"{note}\n" for note in health.notes)
    if health.problems:
        return text_page(503, "".join(f"{problem}\n" for problem in health.problems) + notes)
    return text_page(200, f"ok\n{notes}")
