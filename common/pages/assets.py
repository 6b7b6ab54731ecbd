"""The static files of the status page."""

from collections.abc import Callable
from importlib.resources import files

from common.http.server import Page, json_page
from common.pages.model import Status

_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


def status_pages(status: Callable[[], Status]) -> dict[str, Callable[[], Page]]:
    return {
        "/": _file("status.html"),
        "/status.css": _file("status.css"),
        "/status.js": _file("status.js"),
        "/status.json": lambda: json_page(200, status().to_json()),
    }


def _file(name: str) -> Callable[[], Page]:
    page = Page(200, _TYPES[name.rpartition(".")[2]], (files("common.pages") / name).read_bytes())
    return lambda: page
