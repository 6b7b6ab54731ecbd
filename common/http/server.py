"""The small HTTP server of both services.

Rules:

1. ``GET`` reads, ``POST`` asks for something. A ``POST`` needs the token of the settings, compared in constant time;
   without a token in the settings every one is refused. The token is in no page and in no log. So does a ``GET`` that
   reads what records hold (`Routes.reads`).
2. It binds to what the settings say, loopback by default. A page that fails answers 500 and harms nothing else.
3. What a request may cost is bounded: few at a time, few bytes of it, little time to send it.
4. A page loads nothing from anywhere else, and no other site may show it in a frame or read it.
"""

from __future__ import annotations

import gzip
import hmac
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import parse_qsl, urlsplit

from common.errors import ConfigError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

_CLOSE_WITHIN_S = 0.1
_SEND_WITHIN_S = 10.0
_MOST_AT_A_TIME = 64
_MOST_BODY_BYTES = 4096
_WORTH_PACKING_BYTES = 4096
_BEARER = "Bearer "
_CALLS_ARE_OFF = "this is off, because the settings have no http_token: set one, and send it as a bearer token\n"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Routes:
    """What a server answers."""

    pages: Mapping[str, Callable[[], Page]]
    """For ``GET``, by path."""
    calls: Mapping[str, Callable[[Mapping[str, str]], Page]] = field(default_factory=dict)
    """For ``POST``, by path; given the query."""
    token: str | None = field(default=None, repr=False)
    """What a ``POST`` has to bring; None where none is allowed."""
    reads: Mapping[str, Callable[[str, Mapping[str, str]], Page]] = field(default_factory=dict)
    """For ``GET`` with the token, by the first part of the path; given what follows it, and the query."""


def text_page(status: int, text: str) -> Page:
    """Plain text."""
    return Page(status, "text/plain; charset=utf-8", text.encode())


def json_page(status: int, value: object) -> Page:
    """JSON."""
    return Page(status, "application/json", json.dumps(value, separators=(",", ":")).encode())


class HttpServer:
    """Serves from a thread of its own until closed."""

    def __init__(self, address: str, routes: Routes) -> None:
        """Bind to ``host:port``; raises ConfigError when the address is wrong or taken."""
        host, _, port = address.rpartition(":")
        try:
            self._server = _BoundedServer(
                (host.strip("[]"), int(port)), type("Handler", (_Handler,), {"routes": routes})
            )
        except (OSError, ValueError, OverflowError) as error:
            msg = f"cannot serve HTTP on {address}: {error}"
            raise ConfigError(msg, "give a free host:port in writer.http or loader.http, or null for none") from error
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


class _BoundedServer(ThreadingHTTPServer):
    """One thread for each request, up to a number (rule 3); whoever comes beyond that is hung up on."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(_MOST_AT_A_TIME)
        super().__init__(address, handler)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Somebody who hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one request; ``routes`` is set by the class that is made for a server."""

    routes: ClassVar[Routes]
    timeout = _SEND_WITHIN_S

    def do_GET(self) -> None:
        found = self.routes.pages.get(self._path)
        if found is None:
            self._answer(self._read())
        else:
            self._answer(_tried(found))

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def do_POST(self) -> None:
        refused = self._refusal()
        if refused is None:
            call = self.routes.calls[self._path]
            query = self._query
            refused = _tried(lambda: call(query))
        self._answer(refused)

    @property
    def _path(self) -> str:
        return self.path.partition("?")[0]

    @property
    def _query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))

    def _read(self) -> Page:
        """What the token allows to see."""
        first = "/" + self._path.removeprefix("/").partition("/")[0]
        read = self.routes.reads.get(first)
        if read is None:
            return text_page(404, "no such page\n")
        rest, query = self._path.removeprefix(first), self._query
        return self._unknown() or _tried(lambda: read(rest, query))

    def _refusal(self) -> Page | None:
        """Why a ``POST`` is not carried out (rules 1 and 3); its body says nothing, and is read away."""
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal() or int(length) > _MOST_BODY_BYTES:
            return text_page(413, f"a body of {_MOST_BODY_BYTES} bytes at most is read\n")
        self.rfile.read(int(length))
        unknown = self._unknown()
        if unknown is not None:
            return unknown
        return None if self._path in self.routes.calls else text_page(404, "no such call\n")

    def _unknown(self) -> Page | None:
        """Why who asks is not known (rule 1)."""
        if self.routes.token is None:
            return text_page(403, _CALLS_ARE_OFF)
        given = self.headers.get("Authorization", "")
        known = hmac.compare_digest(given.encode(), f"{_BEARER}{self.routes.token}".encode())
        if not known:
            return text_page(401, "send the settings' http_token as a bearer token\n")
        return None

    def _answer(self, page: Page) -> None:
        packed = len(page.body) >= _WORTH_PACKING_BYTES and "gzip" in self.headers.get("Accept-Encoding", "")
        body = gzip.compress(page.body, 1) if packed else page.body
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(body)))
        if packed:
            self.send_header("Content-Encoding", "gzip")
        if page.status == 401:  # noqa: PLR2004 - a status
            self.send_header("WWW-Authenticate", "Bearer")
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Which Python it is concerns nobody."""
        return "kafka-delta-express"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Requests are not logged."""


def _tried(answer: Callable[[], Page]) -> Page:
    try:
        return answer()
    except Exception as error:  # noqa: BLE001 - rule 2
        return text_page(500, f"{type(error).__name__}\n")
