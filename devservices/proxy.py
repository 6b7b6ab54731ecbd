"""An HTTP proxy before an S3 server that holds requests back and loses answers, as a test says.

Rules:

1. A request reaches the server byte for byte, its ``Host`` included: signatures stay right.
2. The policy is asked once for each request, in the request's own thread, before anything reaches the server. It holds
   a request back by not returning, and lets the others pass meanwhile.
3. Every request is kept with the status that the *server* gave, whatever became of the answer.
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
    """Their names in small letters."""
    content_sha256: str


@dataclass(frozen=True, slots=True)
class Pass:
    """The request goes to the server, without the headers named here, and the answer to the client."""

    without: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """The request goes to the server, and the client's connection is closed instead of an answer."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The server never hears of it, and the client gets this S3 error."""

    status: int
    code: str


Verdict = Pass | LoseAnswer | Refuse


@dataclass(frozen=True, slots=True)
class Seen:
    request: Request
    verdict: Verdict
    status: int | None
    """What the server answered; None when it never heard of it."""


@dataclass
class Proxy:
    """A running proxy. ``policy`` may be changed at any time."""

    endpoint_url: str
    policy: Callable[[Request], Verdict]
    seen: list[Seen] = field(default_factory=list)
    remembers: bool = True
    """Whether it keeps `seen`; a run of many minutes had better not."""

    def statuses(self, method: str, ending: str) -> list[int | None]:
        """What the server answered to one method on the paths that end so, in the order of the answers."""
        asked = [one for one in self.seen if one.request.method == method and one.request.path.endswith(ending)]
        return [one.status for one in asked]


@contextmanager
def running_proxy(
    target_url: str, policy: Callable[[Request], Verdict] | None = None, *, remembers: bool = True
) -> Iterator[Proxy]:
    """Listen on a free port of the loopback interface and pass everything on to ``target_url``, but for the policy."""
    with _Server(target_url, policy or (lambda _request: Pass())) as server:
        server.proxy.remembers = remembers
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
            # One of the two ends has gone; the other one sees a connection that closes.
            self.close_connection = True

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""

    def _pass(self) -> None:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            self.send_error(http.HTTPStatus.NOT_IMPLEMENTED)
            return
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:  # the client has gone in the middle of it
            self.close_connection = True
            return
        path, _, query = self.path.partition("?")
        headers = {key.lower(): value for key, value in self.headers.items()}
        request = Request(self.command, path, query, headers, hashlib.sha256(body).hexdigest())
        verdict = self.server.proxy.policy(request)
        match verdict:
            case Refuse():
                self._keep(Seen(request, verdict, None))
                text = f"<?xml version='1.0'?><Error><Code>{verdict.code}</Code><Message>as told</Message></Error>"
                self._answer(verdict.status, [("Content-Type", "application/xml")], text.encode())
            case LoseAnswer():
                status, _, _ = self._ask(body, frozenset())
                self._keep(Seen(request, verdict, status))
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            case Pass():
                status, answer, content = self._ask(body, verdict.without)
                self._keep(Seen(request, verdict, status))
                self._answer(status, answer, content)
            case _:
                assert_never(verdict)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815 - the names that http.server looks for

    def _ask(self, body: bytes, without: frozenset[str]) -> tuple[int, list[tuple[str, str]], bytes]:
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

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        lengths = [value for key, value in headers if key.lower() == "content-length"]
        for key, value in headers:
            if key.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(key, value)
        if status not in (http.HTTPStatus.NO_CONTENT, http.HTTPStatus.NOT_MODIFIED):
            # A HEAD's answer tells a length and has no content.
            self.send_header("Content-Length", lengths[0] if self.command == "HEAD" and lengths else str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _keep(self, seen: Seen) -> None:
        if self.server.proxy.remembers:
            self.server.proxy.seen.append(seen)  # which is atomic
