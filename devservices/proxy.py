"""An HTTP proxy in front of an S3 server. A test's policy delays requests and drops responses.

Rules:

1. A request reaches the server byte for byte, its ``Host`` included, so signatures stay valid.
2. The policy is called once per request, in the request's own thread, before anything reaches the server. A policy that
   does not return delays only its own request.
3. Every request is recorded with the status that the *server* returned, even when the response is dropped.
"""

import hashlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import assert_never
from urllib.parse import urlsplit

from devservices.ports import HOST

_TIMEOUT_S = 120
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "expect"})


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    """Bucket and key, without the query."""
    query: str
    headers: Mapping[str, str]
    """Headers by lowercase name."""
    content_sha256: str


@dataclass(frozen=True, slots=True)
class Pass:
    """Forward the request without the headers in ``without``, and return the server's response."""

    without: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """Forward the request, and close the client's connection instead of responding."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Respond with this S3 error; the server never receives the request."""

    status: int
    code: str


Verdict = Pass | LoseAnswer | Refuse


@dataclass(frozen=True, slots=True)
class Exchange:
    request: Request
    verdict: Verdict
    status: int | None
    """Status that the server returned; None when it never received the request."""


@dataclass
class Proxy:
    """A running proxy. ``policy`` may be changed at any time."""

    endpoint_url: str
    policy: Callable[[Request], Verdict]
    exchanges: list[Exchange] = field(default_factory=list)
    records_exchanges: bool = True
    """Whether `exchanges` is recorded; turn it off in runs of many minutes."""

    def statuses(self, method: str, suffix: str) -> list[int | None]:
        """Statuses that the server returned to ``method`` on paths with this suffix, in the order of the responses."""
        return [
            exchange.status
            for exchange in self.exchanges
            if exchange.request.method == method and exchange.request.path.endswith(suffix)
        ]


@contextmanager
def running_proxy(
    target_url: str, policy: Callable[[Request], Verdict] | None = None, *, records_exchanges: bool = True
) -> Iterator[Proxy]:
    """Listen on a free loopback port and forward every request to ``target_url`` as the policy decides."""
    with _Server(target_url, policy or (lambda _request: Pass())) as server:
        server.proxy.records_exchanges = records_exchanges
        thread = threading.Thread(target=server.serve_forever, name="proxy", daemon=True)
        thread.start()
        try:
            yield server.proxy
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, target_url: str, policy: Callable[[Request], Verdict]) -> None:
        super().__init__((HOST, 0), _Handler)
        self.target = urlsplit(target_url).netloc
        self.proxy = Proxy(f"http://{HOST}:{self.server_address[1]}", policy)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (OSError, http.client.HTTPException):
            # One end closed its connection; the other end sees its own connection close.
            self.close_connection = True

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""

    def _handle(self) -> None:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            self.send_error(http.HTTPStatus.NOT_IMPLEMENTED)
            return
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:  # the client disconnected in the middle of the body
            self.close_connection = True
            return
        path, _, query = self.path.partition("?")
        headers = {key.lower(): value for key, value in self.headers.items()}
        request = Request(self.command, path, query, headers, hashlib.sha256(body).hexdigest())
        verdict = self.server.proxy.policy(request)
        match verdict:
            case Refuse():
                self._record(Exchange(request, verdict, None))
                text = f"<?xml version='1.0'?><Error><Code>{verdict.code}</Code><Message>test policy</Message></Error>"
                self._respond(verdict.status, [("Content-Type", "application/xml")], text.encode())
            case LoseAnswer():
                status, _, _ = self._forward(body, frozenset())
                self._record(Exchange(request, verdict, status))
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            case Pass():
                status, answer, content = self._forward(body, verdict.without)
                self._record(Exchange(request, verdict, status))
                self._respond(status, answer, content)
            case _:
                assert_never(verdict)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - the names that http.server looks for

    def _forward(self, body: bytes, without: frozenset[str]) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.server.target, timeout=_TIMEOUT_S)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for key, value in self.headers.items():
                if key.lower() not in _HOP_BY_HOP | without:
                    connection.putheader(key, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _respond(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        lengths = [value for key, value in headers if key.lower() == "content-length"]
        for key, value in headers:
            if key.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(key, value)
        if status not in (http.HTTPStatus.NO_CONTENT, http.HTTPStatus.NOT_MODIFIED):
            # The response to a HEAD has a length and no content.
            self.send_header("Content-Length", lengths[0] if self.command == "HEAD" and lengths else str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _record(self, exchange: Exchange) -> None:
        if self.server.proxy.records_exchanges:
            self.server.proxy.exchanges.append(exchange)  # append is atomic
