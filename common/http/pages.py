"""The pages and calls that every service has."""

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
    """How a service is: ``problems`` is empty when all is well."""

    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What a person may want to know, and is no problem."""


def with_remedy(problem: str, remedy: str) -> str:
    """A line for a problem and what fixes it, as command lines have it in two."""
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
    """The pages that every service has, its status aside."""
    return {
        "/healthcheck": lambda: _health(health()),
        "/ready": lambda: _health(ready()),
        "/version": json_page(200, {"service": service, "version": release()}),
        "/metrics": lambda: Page(200, "text/plain; version=0.0.4; charset=utf-8", metrics()),
    }


def pausing_calls(pausing: Pausing) -> dict[str, Callable[[Mapping[str, str]], Page]]:
    """``/pause`` and ``/resume``; each may be said twice."""

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
