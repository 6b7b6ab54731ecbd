import http.client
import json
from collections.abc import Iterator

import pytest

from common.errors import ConfigError
from common.http.pages import Health, service_pages
from common.http.server import HttpServer, Page, Routes


class Service:
    def __init__(self) -> None:
        self.health = Health()
        self.ready = Health(("not yet a member of the group",))

    def broken(self) -> Page:
        raise ZeroDivisionError("a secret")


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def server(service: Service) -> Iterator[HttpServer]:
    pages = service_pages("stage-writer", lambda: service.health, lambda: service.ready, lambda: b"metric 1\n")
    http_server = HttpServer("127.0.0.1:0", Routes({**pages, "/broken": service.broken}))
    yield http_server
    http_server.close()


def ask(server: HttpServer, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read()
    finally:
        connection.close()


def test_healthy_service_responds_ok(server: HttpServer) -> None:
    assert ask(server, "/healthcheck")[::2] == (200, b"ok\n")


def test_problems_are_named_with_status_503(server: HttpServer, service: Service) -> None:
    assert ask(server, "/ready")[::2] == (503, b"not yet a member of the group\n")
    service.health = Health(("orders/0: gap", "the store fails"))
    assert ask(server, "/healthcheck")[::2] == (503, b"orders/0: gap\nthe store fails\n")


def test_metrics_are_in_the_prometheus_format(server: HttpServer) -> None:
    status, content_type, body = ask(server, "/metrics")
    assert (status, body) == (200, b"metric 1\n")
    assert content_type.startswith("text/plain; version=0.0.4")


def test_version_is_served(server: HttpServer) -> None:
    status, content_type, body = ask(server, "/version")
    assert (status, content_type) == (200, "application/json")
    assert json.loads(body)["service"] == "stage-writer"


def test_query_is_ignored_and_an_unknown_page_is_404(server: HttpServer) -> None:
    assert ask(server, "/healthcheck?verbose=1")[0] == 200
    assert ask(server, "/nothing")[0] == 404


def test_head_request_has_no_body(server: HttpServer) -> None:
    assert ask(server, "/healthcheck", "HEAD")[::2] == (200, b"")


def test_failing_page_is_a_500_without_details_and_others_still_work(server: HttpServer) -> None:
    status, _, body = ask(server, "/broken")
    assert status == 500
    assert b"secret" not in body
    assert ask(server, "/healthcheck")[0] == 200


def test_taken_or_invalid_address_is_a_config_error(server: HttpServer) -> None:
    for address in (f"127.0.0.1:{server.port}", "nohost", "127.0.0.1:99999", "127.0.0.1:x"):
        with pytest.raises(ConfigError, match=address) as caught:
            HttpServer(address, Routes({}))
        assert "writer.http" in caught.value.remedy


def test_closed_server_refuses_connections(service: Service) -> None:
    pages = service_pages("x", lambda: service.health, lambda: service.ready, lambda: b"")
    server = HttpServer("127.0.0.1:0", Routes(pages))
    port = server.port
    server.close()
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=60).request("GET", "/")
