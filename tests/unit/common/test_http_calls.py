"""What may be asked of a service over HTTP, by whom, and what it may cost."""

from __future__ import annotations

import gzip
import http.client
import socket
from typing import TYPE_CHECKING

import pytest
import structlog

from common import metrics as catalogue
from common.http.pages import Health, pausing_calls, service_pages
from common.http.pausing import Pausing
from common.http.server import HttpServer, Page, Routes, text_page
from common.metrics import Metrics
from tests.fakes.group import HandClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TOKEN = "a-token-of-a-test"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def pausing(metrics: Metrics) -> Pausing:
    return Pausing(HandClock(), structlog.get_logger(), metrics, catalogue.WRITER_PAUSED_BY_REQUEST)


@pytest.fixture
def serve(pausing: Pausing, metrics: Metrics) -> Iterator[Callable[..., HttpServer]]:
    servers: list[HttpServer] = []

    def broken(_query: Mapping[str, str]) -> Page:
        raise ZeroDivisionError

    def serve(token: str | None = TOKEN) -> HttpServer:
        pages = service_pages("x", lambda: Health(notes=pausing.notes), Health, metrics.exposition)
        pages["/long"] = lambda: text_page(200, "x" * 100_000)
        servers.append(HttpServer("127.0.0.1:0", Routes(pages, pausing_calls(pausing) | {"/broken": broken}, token)))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


def ask(
    server: HttpServer, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
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


def test_a_call_with_the_token_is_carried_out(serve: Callable[..., HttpServer], pausing: Pausing) -> None:
    server = serve()
    assert ask(server, "POST", "/pause", bearer())[:2] == (200, '{"paused":true}')
    assert pausing.since_ms is not None
    assert "paused since" in ask(server, "GET", "/healthcheck")[1]
    assert "stage_writer_paused_by_request 1.0" in ask(server, "GET", "/metrics")[1]
    assert ask(server, "POST", "/resume", bearer())[0] == 200
    assert ask(server, "GET", "/healthcheck")[:2] == (200, "ok\n")
    assert "stage_writer_paused_by_request 0.0" in ask(server, "GET", "/metrics")[1]


@pytest.mark.parametrize("headers", [{}, bearer("b" + TOKEN[1:]), bearer(TOKEN[:-1]), {"Authorization": TOKEN}])
def test_a_call_with_another_token_or_none_is_refused(
    serve: Callable[..., HttpServer], pausing: Pausing, headers: dict[str, str]
) -> None:
    status, text, answered = ask(serve(), "POST", "/pause", headers)
    assert (status, answered["WWW-Authenticate"]) == (401, "Bearer")
    assert TOKEN not in text
    assert not pausing.is_on


def test_without_a_token_in_the_settings_no_call_is_carried_out(serve: Callable[..., HttpServer]) -> None:
    status, text, _ = ask(serve(None), "POST", "/pause", bearer("None"))
    assert status == 403
    assert "http_token" in text


def test_what_calls_do_cannot_be_had_by_get_and_pages_not_by_post(
    serve: Callable[..., HttpServer], pausing: Pausing
) -> None:
    server = serve()
    assert ask(server, "GET", "/pause", bearer())[0] == 404
    assert ask(server, "POST", "/metrics", bearer())[0] == 404
    assert ask(server, "PUT", "/pause", bearer())[0] == 501
    assert not pausing.is_on


def test_a_call_that_fails_harms_nothing_else(serve: Callable[..., HttpServer]) -> None:
    server = serve()
    assert ask(server, "POST", "/broken", bearer())[:2] == (500, "ZeroDivisionError\n")
    assert ask(server, "GET", "/healthcheck")[0] == 200


def test_a_large_body_is_not_read(serve: Callable[..., HttpServer], pausing: Pausing) -> None:
    server = serve()
    large = bearer() | {"Content-Length": "10000000000"}
    assert ask(server, "POST", "/pause", large)[0] == 413
    chunked = bearer() | {"Transfer-Encoding": "chunked"}
    assert ask(server, "POST", "/pause", chunked)[0] == 413
    assert not pausing.is_on


def test_no_other_site_may_frame_or_feed_a_page(serve: Callable[..., HttpServer]) -> None:
    headers = ask(serve(), "GET", "/version")[2]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert "Python" not in headers["Server"]


def test_a_long_page_is_packed_for_who_can_unpack_it(serve: Callable[..., HttpServer]) -> None:
    server = serve()
    status, text, headers = ask(server, "GET", "/long", {"Accept-Encoding": "gzip"})
    assert (status, len(text)) == (200, 100_000)
    assert int(headers["Content-Length"]) < 1_000
    assert int(ask(server, "GET", "/long")[2]["Content-Length"]) == 100_000


def test_people_who_say_nothing_do_not_keep_others_out(serve: Callable[..., HttpServer]) -> None:
    server = serve()
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(70)]
    try:
        for one in silent[:10]:
            one.close()
        answers = [_status(server) for _ in range(20)]
        assert 200 in answers
    finally:
        for one in silent:
            one.close()


def _status(server: HttpServer) -> int | None:
    try:
        return ask(server, "GET", "/healthcheck")[0]
    except OSError:
        return None
