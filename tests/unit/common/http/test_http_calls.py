"""Calls to a service over HTTP: which are allowed, to whom, and what they may cost."""

import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, repeat
from types import SimpleNamespace

import pytest
import structlog

from common import metrics as all_metrics
from common.errors import StoreError
from common.http import server as http_server
from common.http.pages import Health, Pausing, pausing_calls, service_pages
from common.http.server import HttpServer, Page, Routes, text_page
from common.metrics import Metrics
from common.stage.paused_streams import PausedStreams
from tests.fakes.group import HandClock
from tests.fakes.pauses import paused_streams

TOKEN = "a-token-of-a-test"
WAIT_S = 600
"""A limit for events that are immediate on any machine that is not stuck."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, no client is late."""
    for name in ("_RECEIVE_WITHIN_S", "_SEND_WITHIN_S", "_DRAIN_WITHIN_S"):
        monkeypatch.setattr(http_server, name, WAIT_S)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def pausing(metrics: Metrics) -> Pausing:
    return Pausing(HandClock(), structlog.get_logger(), metrics, all_metrics.WRITER_PAUSED_BY_REQUEST)


@pytest.fixture
def serve(pausing: Pausing, metrics: Metrics) -> Iterator[Callable[..., HttpServer]]:
    servers: list[HttpServer] = []

    def broken(_query: Mapping[str, str]) -> Page:
        raise ZeroDivisionError

    def serve(
        token: str | None = TOKEN, pages: Mapping[str, Callable[[], Page]] | None = None, hosts: Sequence[str] = ()
    ) -> HttpServer:
        served = service_pages("x", lambda: Health(notes=pausing.notes), Health, metrics.exposition)
        served["/long"] = lambda: text_page(200, "x" * 100_000)
        routes = Routes(
            {**served, **(pages or {})}, pausing_calls(pausing, paused_streams()) | {"/broken": broken}, token
        )
        servers.append(HttpServer("127.0.0.1:0", routes, hosts))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


def ask(
    server: HttpServer, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        data = answer.read()
        packed = answer.getheader("Content-Encoding") == "gzip"
        return answer.status, (gzip.decompress(data) if packed else data).decode(), answer.headers
    finally:
        connection.close()


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_call_with_the_token_is_performed(serve: Callable[..., HttpServer], pausing: Pausing) -> None:
    server = serve()
    assert ask(server, "POST", "/pause", bearer())[:2] == (200, '{"paused":true}')
    assert pausing.since_ms is not None
    assert "paused since" in ask(server, "GET", "/healthcheck")[1]
    assert "stage_writer_paused_by_request 1.0" in ask(server, "GET", "/metrics")[1]
    assert ask(server, "POST", "/resume", bearer())[0] == 200
    assert ask(server, "GET", "/healthcheck")[:2] == (200, "ok\n")
    assert "stage_writer_paused_by_request 0.0" in ask(server, "GET", "/metrics")[1]


@pytest.mark.parametrize("headers", [{}, bearer("b" + TOKEN[1:]), bearer(TOKEN[:-1]), {"Authorization": TOKEN}])
def test_call_without_the_right_token_is_refused(
    serve: Callable[..., HttpServer], pausing: Pausing, headers: dict[str, str]
) -> None:
    status, text, answered = ask(serve(), "POST", "/pause", headers)
    assert (status, answered["WWW-Authenticate"]) == (401, "Bearer")
    assert TOKEN not in text
    assert not pausing.is_on


def test_one_stream_is_paused_and_resumed(serve: Callable[..., HttpServer], pausing: Pausing) -> None:
    server = serve()
    status, text, _ = ask(server, "POST", "/pause?stream=orders", bearer())
    assert (status, json.loads(text)["by"]) == (200, "POST /pause")
    assert json.loads(ask(server, "POST", "/resume?stream=orders", bearer())[1])["was_paused"]
    assert not json.loads(ask(server, "POST", "/resume?stream=orders", bearer())[1])["was_paused"]
    assert ask(server, "POST", "/pause?stream=order", bearer())[:2] == (
        404,
        "no stream of this config has the app_id 'order'; did you mean 'orders'?\n",
    )
    assert ask(server, "POST", "/pause?strean=orders", bearer())[0] == 400
    assert not pausing.is_on


def test_second_pause_keeps_the_time_of_the_first(metrics: Metrics) -> None:
    clock = HandClock()
    pausing = Pausing(clock, structlog.get_logger(), metrics, all_metrics.WRITER_PAUSED_BY_REQUEST)
    since_ms = clock.wall_ms()
    for _ in range(2):
        pausing.pause()
        assert pausing.since_ms == since_ms
        clock.sleep_s(5)


def test_pause_that_the_stage_refuses_is_a_503(
    serve: Callable[..., HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreError("the stage is away", "start it")

    monkeypatch.setattr(PausedStreams, "pause", refuse)
    answered = ask(serve(), "POST", "/pause?stream=orders", bearer())
    assert answered[:2] == (503, "the stage is away → start it\n")


def test_unhealthy_service_shows_its_notes_too() -> None:
    page = service_pages("x", lambda: Health(("it is broken",), ("a note",)), Health, bytes)["/healthcheck"]
    assert callable(page)
    assert (page().status, page().body) == (503, b"it is broken\na note\n")


def test_calls_are_refused_without_a_configured_token(serve: Callable[..., HttpServer]) -> None:
    status, text, _ = ask(serve(None), "POST", "/pause", bearer("None"))
    assert status == 403
    assert "http_token" in text


def test_calls_need_post_and_pages_need_get(serve: Callable[..., HttpServer], pausing: Pausing) -> None:
    server = serve()
    assert ask(server, "GET", "/pause", bearer())[0] == 404
    assert [ask(server, "POST", "/metrics", headers)[0] for headers in (bearer(), {})] == [404, 401]
    assert ask(server, "PUT", "/pause", bearer())[0] == 501
    assert not pausing.is_on


def test_failing_call_is_a_500_and_others_still_work(serve: Callable[..., HttpServer]) -> None:
    server = serve()
    assert ask(server, "POST", "/broken", bearer())[:2] == (500, "ZeroDivisionError\n")
    assert ask(server, "GET", "/healthcheck")[0] == 200


def test_large_body_is_not_read(serve: Callable[..., HttpServer], pausing: Pausing) -> None:
    server = serve()
    for length in ("10000000000", "4097", "-5", "x"):
        assert ask(server, "POST", "/pause", bearer() | {"Content-Length": length})[0] == 413
    chunked = bearer() | {"Transfer-Encoding": "chunked"}
    assert ask(server, "POST", "/pause", chunked)[0] == 413
    assert not pausing.is_on


def test_pages_forbid_framing_and_foreign_content(serve: Callable[..., HttpServer]) -> None:
    headers = ask(serve(), "GET", "/version")[2]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert "Python" not in headers["Server"]


def test_long_page_is_compressed_for_clients_that_accept_gzip(serve: Callable[..., HttpServer]) -> None:
    server = serve()
    status, text, headers = ask(server, "GET", "/long", {"Accept-Encoding": "gzip"})
    assert (status, len(text)) == (200, 100_000)
    assert int(headers["Content-Length"]) < 1_000
    assert int(ask(server, "GET", "/long")[2]["Content-Length"]) == 100_000


def connect(server: HttpServer, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
    connection.sendall(sent)
    return connection


def received(connection: socket.socket) -> bytes:
    text = b""
    while chunk := connection.recv(4096):
        text += chunk
    return text


def test_connections_that_never_send_a_request_do_not_block_probes(serve: Callable[..., HttpServer]) -> None:
    server = serve()
    with ExitStack() as stack:
        for _ in range(150):
            stack.enter_context(connect(server, b"GET /version HTTP/1.1\r\nX: "))
        assert [ask(server, "GET", "/version")[0] for _ in range(10)] == [200] * 10


def test_connection_over_the_limit_closes_the_oldest(serve: Callable[..., HttpServer]) -> None:
    server = serve()
    with ExitStack() as stack:
        waiting = [stack.enter_context(connect(server)) for _ in range(64)]
        assert ask(server, "GET", "/version")[0] == 200
        assert received(waiting[0]) == b""
        waiting[1].sendall(b"GET /version HTTP/1.0\r\n\r\n")
        assert b" 200 " in received(waiting[1])


def test_request_in_progress_is_not_cut_off(serve: Callable[..., HttpServer]) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow() -> Page:
        begun.set()
        may_end.wait()
        return text_page(200, "at last\n")

    server = serve(pages={"/slow": slow})
    with ExitStack() as stack:
        stack.callback(may_end.set)
        asking = stack.enter_context(connect(server, b"GET /slow HTTP/1.0\r\n\r\n"))
        assert begun.wait(WAIT_S)
        for _ in range(100):
            stack.enter_context(connect(server))
        assert ask(server, "GET", "/version")[0] == 200
        may_end.set()
        assert received(asking).endswith(b"at last\n")


def test_slow_pages_do_not_take_all_connections(serve: Callable[..., HttpServer]) -> None:
    begun, may_end = threading.Semaphore(0), threading.Event()

    def slow() -> Page:
        begun.release()
        may_end.wait()
        return text_page(200, "")

    server = serve(pages={"/slow": slow})
    with ExitStack() as stack:
        stack.callback(may_end.set)
        for _ in range(32):
            stack.enter_context(connect(server, b"GET /slow HTTP/1.0\r\n\r\n"))
        assert all(begun.acquire(timeout=WAIT_S) for _ in range(32))
        assert [ask(server, "GET", "/slow")[0] for _ in range(40)] == [503] * 40
        assert ask(server, "GET", "/version")[0] == 200


def test_receive_deadline_covers_the_whole_request(
    serve: Callable[..., HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_s = chain([0.0, 1.0], repeat(1000.0))  # when it begins, before its first bytes, and after them
    monkeypatch.setattr(http_server, "_RECEIVE_WITHIN_S", 1000.0)
    monkeypatch.setattr(http_server, "time", SimpleNamespace(monotonic=lambda: next(at_s)))
    with connect(serve(), b"GET /version HTTP/1.1\r\nX: ") as slow:
        assert b" 408 " in slow.recv(4096)


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\n"])
def test_head_may_arrive_byte_by_byte(
    serve: Callable[..., HttpServer], monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    monkeypatch.setattr(http_server, "_RECEIVED_AT_ONCE_BYTES", 1)
    with connect(serve(), b"GET /version HTTP/1.0" + end) as asking:
        assert b" 200 " in received(asking)


@pytest.mark.parametrize("line", [b"", b"X: " + b"a" * 1000 + b"\r\n"])
def test_head_of_more_than_16_kib_is_refused(serve: Callable[..., HttpServer], line: bytes) -> None:
    request = b"GET /version HTTP/1.1\r\nHost: localhost\r\n" + line * 16 + b"Cookie: "
    fits, too_large = request.ljust(16 * 1024 - 4, b"c"), request.ljust(16 * 1024 - 3, b"c")
    server = serve()
    for head, status in ((fits, b" 200 "), (too_large, b" 431 "), (too_large + b"c" * 5000, b" 431 ")):
        with connect(server, head + b"\r\n\r\n") as asking:
            assert status in received(asking)


@pytest.mark.parametrize(
    "host",
    [
        "localhost:8080", "127.0.0.1", "[::1]:8080", "10.1.2.3:8080", "LOCALHOST.", "writer.localhost", "stage-writer",
        "stage-writer.pipeline.svc:8080", "stage-writer.pipeline.svc.cluster.local", socket.gethostname(),
        "pipeline.example.com", "a.pages.example.org:443",
    ],
)  # fmt: skip
def test_host_that_cannot_be_rebound_is_served(serve: Callable[..., HttpServer], host: str) -> None:
    server = serve(hosts=("Pipeline.example.com", "*.pages.example.org"))
    assert ask(server, "GET", "/version", {"Host": host})[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "example.com",
        "pages.example.org", "localhost@evil.example", "evilsvc.example", "[::1", "", "evil.example.",
        "evil.examplesvc",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_host_of_another_site_is_refused(
    serve: Callable[..., HttpServer], pausing: Pausing, host: str, method: str
) -> None:
    server = serve(hosts=("pipeline.example.com", "*.pages.example.org"))
    for path in ("/version", "/pause"):
        status, text, _ = ask(server, method, path, bearer() | {"Host": host})
        assert (status, "http_hosts" in text) == (421, True)
    assert not pausing.is_on


def test_asterisk_serves_every_host(serve: Callable[..., HttpServer]) -> None:
    assert ask(serve(hosts=("*",)), "GET", "/version", {"Host": "any.example"})[0] == 200


def test_second_host_header_is_refused_and_a_missing_one_is_served(serve: Callable[..., HttpServer]) -> None:
    server = serve()
    for head, status in ((b"", b" 200 "), (b"Host: localhost\r\nHost: localhost\r\n", b" 421 ")):
        with connect(server, b"GET /version HTTP/1.0\r\n" + head + b"\r\n") as asking:
            assert status in received(asking)


@pytest.mark.parametrize(
    "request_line", [b"", b"GET", b"PUT / HTTP/1.1", b"GET / HTTP/9.9", b"GET / FTP/1.1", b"\xff\x00"]
)
def test_malformed_request_is_rejected_and_others_still_work(
    serve: Callable[..., HttpServer], request_line: bytes
) -> None:
    server = serve()
    with connect(server, request_line + b"\r\n\r\n") as asking:
        answer = received(asking)
        assert answer.startswith((b"HTTP/1.0 4", b"HTTP/1.0 5")) if request_line else not answer
    assert ask(server, "GET", "/version")[0] == 200


def test_page_limit_frees_a_slot_after_each_page(serve: Callable[..., HttpServer]) -> None:
    server = serve()
    asked = [ask(server, "GET", "/healthcheck")[0] for _ in range(http_server._MOST_PAGES_AT_A_TIME + 1)]
    assert set(asked) == {200}


def test_head_has_no_body_and_a_large_post_body_is_refused(serve: Callable[..., HttpServer]) -> None:
    server = serve()
    with connect(server, b"HEAD /version HTTP/1.0\r\n\r\n") as asking:
        head, _, body = received(asking).partition(b"\r\n\r\n")
    assert (b" 200 " in head, body) == (True, b"")
    for size, status in ((4096, 200), (4097, 413)):
        assert ask(server, "POST", "/pause", bearer(), b"x" * size)[0] == status


def test_client_that_is_still_sending_is_not_cut_off(serve: Callable[..., HttpServer]) -> None:
    """Many clients read the response only after their whole request."""
    server, size = serve(), 20_000
    head = f"POST /pause HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {2 * size}\r\n\r\n"
    with connect(server, head.encode() + b"x" * size) as asking:
        assert received(asking).startswith(b"HTTP/1.0 413 ")
        for _ in range(20):
            asking.sendall(b"x" * (size // 20))
            time.sleep(0.01)


def test_service_may_listen_on_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    server = HttpServer("[::1]:0", Routes({"/hello": lambda: text_page(200, "hello")}))
    try:
        with socket.create_connection(("::1", server.port), WAIT_S) as asking:
            asking.sendall(b"GET /hello HTTP/1.0\r\n\r\n")
            assert received(asking).endswith(b"hello")
    finally:
        server.close()


def test_response_to_an_unreadable_request_may_not_be_framed_either(serve: Callable[..., HttpServer]) -> None:
    """The standard library would answer it with a page of its own."""
    server = serve()
    for request in (b"GET / HTTP/9.9", b"GET / FTP/1.1"):
        with connect(server, request + b"\r\n\r\n") as asking:
            head, _, body = received(asking).partition(b"\r\n\r\n")
        assert b"X-Frame-Options: DENY" in head.split(b"\r\n")
        assert b"<" not in body


def test_clients_that_do_not_read_their_response_make_room_for_others(
    serve: Callable[..., HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_MOST_CONNECTIONS", 2)
    server = serve(pages={"/large": lambda: text_page(200, "x" * 2**25)})
    with ExitStack() as stack:
        for _ in range(2):
            slow = stack.enter_context(connect(server, b"GET /large HTTP/1.0\r\n\r\n"))
            assert slow.recv(1) == b"H"
        assert ask(server, "GET", "/version")[0] == 200


def test_answered_requests_do_not_count_as_connections(serve: Callable[..., HttpServer]) -> None:
    server = serve()
    with connect(server, b"GET /version HTTP/1.0\r\n") as waiting:
        assert {ask(server, "GET", "/version")[0] for _ in range(100)} == {200}
        waiting.sendall(b"\r\n")
        assert b" 200 " in received(waiting)
