"""The small HTTP server of both services: health, readiness, version and metrics.

Rules: it only reads; it binds to what the settings say (loopback by default); a page that fails answers 500 and harms
nothing else.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from common.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

DISTRIBUTION = "kafka-delta-express"
_CLOSE_WITHIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Health:
    """How a service is: ``problems`` is empty when all is well."""

    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: int
    content_type: str
    body: bytes


def release() -> str:
    """The installed version of this project."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "0+unknown"


def service_pages(
    service: str, health: Callable[[], Health], ready: Callable[[], Health], metrics: Callable[[], bytes]
) -> dict[str, Callable[[], Page]]:
    """The pages that every service has."""

    def root() -> Page:
        return _text(200, f"{service} {release()}\nsee /healthcheck /ready /version /metrics\n")

    return {
        "/": root,
        "/healthcheck": lambda: _health(health()),
        "/ready": lambda: _health(ready()),
        "/version": lambda: _json(200, {"service": service, "version": release()}),
        "/metrics": lambda: Page(200, "text/plain; version=0.0.4; charset=utf-8", metrics()),
    }


class HttpServer:
    """Serves pages from a thread of its own until closed."""

    def __init__(self, address: str, pages: dict[str, Callable[[], Page]]) -> None:
        """Bind to ``host:port``; raises ConfigError when the address is wrong or taken."""
        host, _, port = address.rpartition(":")
        try:
            self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), _handler(pages))
        except (OSError, ValueError, OverflowError) as error:
            msg = f"cannot serve HTTP on {address}: {error}"
            raise ConfigError(msg, "give a free host:port in writer.http or loader.http, or null for none") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": _CLOSE_WITHIN_S}, name="http", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is bound, also when 0 was asked for."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(pages: dict[str, Callable[[], Page]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = self._page()
            self.send_response(page.status)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(page.body)

        do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

        def _page(self) -> Page:
            found = pages.get(self.path.partition("?")[0])
            if found is None:
                return _text(404, "no such page\n")
            try:
                return found()
            except Exception as error:  # noqa: BLE001 - rule: a failing page harms nothing else
                return _text(500, f"{type(error).__name__}\n")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Requests are not logged."""

    return Handler


def _health(health: Health) -> Page:
    if health.problems:
        return _text(503, "".join(f"{problem}\n" for problem in health.problems))
    return _text(200, "ok\n")


def _text(status: int, text: str) -> Page:
    return Page(status, "text/plain; charset=utf-8", text.encode())


def _json(status: int, value: object) -> Page:
    return Page(status, "application/json", json.dumps(value).encode())
