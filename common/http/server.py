"""The small HTTP server of both services.

Rules:

1. ``GET`` reads, ``POST`` triggers an action. A ``POST`` needs the token of the settings, compared in constant time;
   without a token in the settings every ``POST`` is refused. A ``GET`` that reads record content needs it too
   (`Routes.reads`). The token appears in no page and in no log.
2. It binds to the configured address, loopback by default. A page that fails returns 500 and affects nothing else.
3. The cost of a request is bounded: its head is at most 16 KiB, and receiving it and sending the response take at most
   10 s each, even with a slow client. 64 connections are open at a time; one more closes the oldest connection that
   waits for its client. Pages that anyone may read are computed 32 at a time, so slow ones do not occupy all
   connections; a constant `Page` (``/version``, which probes use) is served without that limit.
4. A page loads nothing from other hosts, and no other site may show it in a frame or read it. A site cannot point a
   name of its own at this server to read it either (DNS rebinding): the ``Host`` of a request must be an IP address, a
   name that cannot be registered (without a dot, ``.localhost``, ``.svc``, ``.cluster.local``), this machine's own
   name, the name in the bound address, or one in the settings (`HostNames`).
"""

import gzip
import hmac
import io
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import ClassVar
from urllib.parse import parse_qsl, urlsplit

from common.errors import ConfigError
from common.remedies import rendered

_CLOSE_WITHIN_S = 0.1
_RECEIVE_WITHIN_S = 10.0
_SEND_WITHIN_S = 10.0
_DRAIN_WITHIN_S = 1.0
_MOST_CONNECTIONS = 64
_MOST_PAGES_AT_A_TIME = 32
_MOST_HEAD_BYTES = 16 * 1024
_MOST_BODY_BYTES = 4096
_MOST_DRAINED_BYTES = 256 * 1024
_RECEIVED_AT_ONCE_BYTES = 4096
_WORTH_PACKING_BYTES = 4096
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_END_OF_HEAD_BYTES = 4
_CONTENT_LENGTH = re.compile("[0-9]{1,9}")
_UNREGISTRABLE = ("localhost", "svc", "cluster.local")
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
    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Routes:
    pages: Mapping[str, Page | Callable[[], Page]]
    """For ``GET``, by path."""
    calls: Mapping[str, Callable[[Mapping[str, str]], Page]] = field(default_factory=dict)
    """For ``POST``, by path; called with the query."""
    token: str | None = field(default=None, repr=False)
    """The token that a ``POST`` must send; None where none is allowed."""
    reads: Mapping[str, Callable[[str, Mapping[str, str]], Page]] = field(default_factory=dict)
    """For ``GET`` with the token, by the first part of the path; called with the rest of the path, and the query."""


def text_page(status: int, text: str) -> Page:
    return Page(status, "text/plain; charset=utf-8", rendered(text).encode())


def json_page(status: int, value: object) -> Page:
    return Page(status, "application/json", rendered(json.dumps(value, separators=(",", ":"))).encode())


class HostNames:
    def __init__(self, bound: str, more: Collection[str] = ()) -> None:
        """``bound`` is the bound address's host; ``more`` are further names: a name, ``*.`` and a domain, or ``*``."""
        self._patterns = tuple(name.lower() for name in (bound, socket.gethostname(), *more))

    def __contains__(self, host: str) -> bool:
        """Whether a request with this header, with or without a port, is allowed."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        except ValueError:
            return False
        return _is_unregistrable(name) or any(fnmatchcase(name, pattern) for pattern in self._patterns)


def _is_unregistrable(name: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(name))
    return bool(name) and ("." not in name or name.endswith(tuple(f".{domain}" for domain in _UNREGISTRABLE)))


class HttpServer:
    """Serves from a thread of its own until closed."""

    def __init__(self, address: str, routes: Routes, hosts: Collection[str] = ()) -> None:
        """Bind to ``host:port``, and also accept ``hosts``; raises ConfigError when the address is wrong or taken."""
        host, _, port = address.rpartition(":")
        names = HostNames(host.strip("[]"), hosts)
        try:
            self._server = _BoundedServer(
                (host.strip("[]"), int(port)), type("Handler", (_Handler,), {"routes": routes, "hosts": names})
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
        """The bound port, also when 0 was requested."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Connections:
    """The open connections, oldest first (rule 3). A socket is closed only after it was removed here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_answered: dict[socket.socket, bool] = {}

    def admit(self, connection: socket.socket) -> bool:
        """Add a connection; if there are too many, close the oldest idle one. False if there is none."""
        with self._lock:
            if len(self._is_answered) >= _MOST_CONNECTIONS:
                waiting = (other for other, is_answered in self._is_answered.items() if not is_answered)
                oldest = next(waiting, None)
                if oldest is None:
                    return False
                del self._is_answered[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
            self._is_answered[connection] = False
            return True

    def leave(self, connection: socket.socket) -> None:
        with self._lock:
            self._is_answered.pop(connection, None)

    @contextmanager
    def answering(self, connection: socket.socket) -> Iterator[None]:
        """Keeps the connection while its response is computed; raises ConnectionAbortedError if it had to be closed."""
        self._mark(connection, is_answered=True)
        try:
            yield
        finally:
            self._mark(connection, is_answered=False)

    def _mark(self, connection: socket.socket, *, is_answered: bool) -> None:
        with self._lock:
            if connection not in self._is_answered:
                raise ConnectionAbortedError
            self._is_answered[connection] = is_answered


class _BoundedServer(ThreadingHTTPServer):
    """One thread for each connection, up to a limit (rule 3)."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.connections = _Connections()
        self.computed_pages = threading.BoundedSemaphore(_MOST_PAGES_AT_A_TIME)
        super().__init__(address, handler)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        if not isinstance(request, socket.socket) or not self.connections.admit(request):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.connections.leave(request)
            raise

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        if isinstance(request, socket.socket):
            self.connections.leave(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that disconnects is not an error."""


class _Handler(BaseHTTPRequestHandler):
    """Handles one request; ``routes`` and ``hosts`` are set by the subclass that is made for a server."""

    routes: ClassVar[Routes]
    hosts: ClassVar[HostNames]
    server: _BoundedServer
    default_request_version = "HTTP/1.0"  # so that an unreadable request gets a status, too

    def handle(self) -> None:
        """One request, which must be received completely before any of it counts (rule 3)."""
        self.close_connection = True
        self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
        self.headers = self.MessageClass()
        try:
            head = self._received_head()
        except TimeoutError:
            self._answer(text_page(408, f"send a request within {_RECEIVE_WITHIN_S:.0f} s\n"))
        else:
            self._handle_head(head)
        self._drain()

    def _received_head(self) -> bytes | None:
        """The bytes before the body, and some of it; None for more than rule 3 allows. Raises OSError."""
        deadline_s = time.monotonic() + _RECEIVE_WITHIN_S
        received = bytearray()
        while len(received) <= _MOST_HEAD_BYTES:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self.connection.settimeout(left_s)
            chunk = self.connection.recv(_RECEIVED_AT_ONCE_BYTES)
            if not chunk:
                raise ConnectionAbortedError
            searched = max(0, len(received) - _END_OF_HEAD_BYTES)
            received += chunk
            end = _END_OF_HEAD.search(received, searched)
            if end is not None and end.end() <= _MOST_HEAD_BYTES:
                return bytes(received[: end.end()])
        return None

    def _handle_head(self, head: bytes | None) -> None:
        if head is None:
            self._answer(text_page(431, f"the request line and the headers may have {_MOST_HEAD_BYTES} bytes\n"))
            return
        self.rfile.close()
        self.rfile = io.BytesIO(head)
        self.raw_requestline = self.rfile.readline()
        if not self.parse_request():
            return  # it has responded
        hosts = self.headers.get_all("Host", [])
        if len(hosts) > 1 or not all(host in self.hosts for host in hosts):
            setting = "writer.http_hosts or loader.http_hosts"
            self._answer(text_page(421, f"this Host is not served here; add it to {setting}\n"))
            return
        if self.command in {"GET", "HEAD"}:
            self._answer(self._computed(self._found))
        elif self.command == "POST":
            self._answer(self._computed(self._called))
        else:
            self._answer(text_page(501, "only GET, HEAD and POST are supported\n"))

    def _computed(self, compute: Callable[[], Page]) -> Page:
        with self.server.connections.answering(self.connection):
            return compute()

    def _drain(self) -> None:
        """Receive the remaining bytes; otherwise closing could make the client lose the response."""
        self.connection.shutdown(socket.SHUT_WR)
        deadline_s = time.monotonic() + _DRAIN_WITHIN_S
        drained = 0
        while drained < _MOST_DRAINED_BYTES and (left_s := deadline_s - time.monotonic()) > 0:
            self.connection.settimeout(left_s)
            chunk = self.connection.recv(_RECEIVED_AT_ONCE_BYTES)
            if not chunk:
                return
            drained += len(chunk)

    def _found(self) -> Page:
        page = self.routes.pages.get(self._path)
        if page is None:
            return self._read()
        if isinstance(page, Page):
            return page
        if not self.server.computed_pages.acquire(blocking=False):
            return text_page(503, f"{_MOST_PAGES_AT_A_TIME} pages are being computed; ask again\n")
        try:
            return _tried(page)
        finally:
            self.server.computed_pages.release()

    def _called(self) -> Page:
        refused = self._refusal()
        if refused is not None:
            return refused
        call, query = self.routes.calls[self._path], self._query
        return _tried(lambda: call(query))

    @property
    def _path(self) -> str:
        return self.path.partition("?")[0]

    @property
    def _query(self) -> dict[str, str]:
        return dict(parse_qsl(self.path.partition("?")[2], keep_blank_values=True))

    def _read(self) -> Page:
        """Reads that need the token."""
        first = "/" + self._path.removeprefix("/").partition("/")[0]
        read = self.routes.reads.get(first)
        if read is None:
            return text_page(404, "no such page\n")
        rest, query = self._path.removeprefix(first), self._query
        return self._unknown() or _tried(lambda: read(rest, query))

    def _refusal(self) -> Page | None:
        """The response to a ``POST`` that is refused (rules 1 and 3), or None; no call reads its body."""
        length = self.headers.get("Content-Length", "0")
        is_length = _CONTENT_LENGTH.fullmatch(length) is not None
        if "Transfer-Encoding" in self.headers or not is_length or int(length) > _MOST_BODY_BYTES:
            return text_page(413, f"a body may have {_MOST_BODY_BYTES} bytes, and its length in Content-Length\n")
        unknown = self._unknown()
        if unknown is not None:
            return unknown
        return None if self._path in self.routes.calls else text_page(404, "no such call\n")

    def _unknown(self) -> Page | None:
        """The refusal for an unauthenticated caller, or None (rule 1)."""
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
        self.connection.settimeout(_SEND_WITHIN_S)  # for everything one call sends, not per part
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

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """An unreadable request gets a response like any other."""
        self._answer(text_page(code, f"{message}\n"))

    def version_string(self) -> str:
        """The project's version, not Python's."""
        return "kafka-delta-express"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Requests are not logged."""


def _tried(compute: Callable[[], Page]) -> Page:
    try:
        return compute()
    except Exception as error:  # noqa: BLE001 - rule 2
        return text_page(500, f"{type(error).__name__}\n")
