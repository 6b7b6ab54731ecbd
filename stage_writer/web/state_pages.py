"""``GET /state``: interactive lookups in the stores of a writer's tasks.

    /state                          streams, their stores and the tasks that are here
    /state/<app_id>/<store>         entries, by key; ?low= &high= or &prefix=, of windows ?from= &to=
    /state/<app_id>/<store>/<key>   a key's value, windows or sessions

Rules:

1. A key in the path or the query is text; with ``key_type=json`` it is JSON, an array being a tuple. Times are
   milliseconds since 1970. ``limit`` is 100 of each task, 10,000 at most.
2. A response has one element for each task of this writer, even where nothing was found: so a client that queries
   several writers knows which partitions have answered.
3. Values are returned as JSON: other types as text, bytes in base64.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from urllib.parse import unquote

from common.http.server import Page, json_page, text_page
from stage_writer.tasks.look_ups import EARLIEST_MS, LATEST_MS, LookUps, StoreEntry, StoreQuery
from stage_writer.topologies.stores import Key, StoreKind

_KNOWN = frozenset({"key_type", "low", "high", "prefix", "from", "to", "limit"})
_STORE_PARTS, _KEY_PARTS = 2, 3


def state_reads(look_ups: LookUps) -> dict[str, Callable[[str, Mapping[str, str]], Page]]:
    """The handler of paths below ``/state``, called with the rest of the path, and the query."""
    return {"/state": lambda rest, query: _answer(look_ups, rest, query)}


def _answer(look_ups: LookUps, rest: str, query: Mapping[str, str]) -> Page:
    parts = [unquote(part) for part in rest.split("/")[1:]]
    if not parts or parts == [""]:
        return json_page(200, {"streams": [_stream(look_ups, app_id) for app_id in look_ups.streams]})
    if len(parts) not in {_STORE_PARTS, _KEY_PARTS}:
        return text_page(404, "use /state, /state/<app_id>/<store> or /state/<app_id>/<store>/<key>\n")
    app_id, store = parts[:_STORE_PARTS]
    kind = look_ups.streams.get(app_id, {}).get(store)
    if kind is None:
        return text_page(404, "there is no such stream or store: GET /state lists them\n")
    try:
        query_of_store = _parsed_query(parts[_STORE_PARTS:], query)
    except (ValueError, TypeError, RecursionError) as error:
        return text_page(400, f"{error}\n")
    return json_page(
        200, {"app_id": app_id, "store": store, "tasks": _tasks(look_ups, app_id, store, kind, query_of_store)}
    )


def _stream(look_ups: LookUps, app_id: str) -> dict[str, object]:
    tasks = [(task.partition, task.count()) for task in look_ups.tasks(app_id)]
    return {
        "app_id": app_id,
        "stores": [{"store": name, "kind": str(kind)} for name, kind in look_ups.streams[app_id].items()],
        "tasks": [
            {"topic": partition.topic, "partition": partition.partition, "entries": count}
            for partition, count in tasks
            if count is not None
        ],
    }


def _tasks(look_ups: LookUps, app_id: str, store: str, kind: StoreKind, query: StoreQuery) -> list[dict[str, object]]:
    results = ((task.partition, task.find(store, kind, query)) for task in look_ups.tasks(app_id))
    return [
        {"topic": partition.topic, "partition": partition.partition, "entries": [_entry(entry) for entry in entries]}
        for partition, entries in results
        if entries is not None
    ]


def _entry(entry: StoreEntry) -> dict[str, object]:
    times = {} if entry.start_ms is None else {"start_ms": entry.start_ms, "end_ms": entry.end_ms}
    return {"key": _plain(entry.key), **times, "value": _plain(entry.value)}


def _parsed_query(keys: list[str], query: Mapping[str, str]) -> StoreQuery:
    unknown = sorted(set(query) - _KNOWN)
    if unknown:
        raise ValueError(f"{unknown[0]} is unknown; use one of {', '.join(sorted(_KNOWN))}")
    key_type = query.get("key_type", "text")
    if key_type not in {"text", "json"}:
        raise ValueError("key_type must be text or json")

    def key(text: str) -> Key:
        return text if key_type == "text" else _tuples(json.loads(text))

    def bound(name: str) -> Key:
        return key(query[name]) if name in query else None

    def moment(name: str, otherwise: int) -> int:
        return _number(name, query[name]) if name in query else otherwise

    prefix = bound("prefix")
    if isinstance(prefix, bool | int | float):
        raise TypeError("a prefix must be text or an array")
    return StoreQuery(
        tuple(key(text) for text in keys),
        low=bound("low"),
        high=bound("high"),
        prefix=prefix,
        from_ms=moment("from", EARLIEST_MS),
        to_ms=moment("to", LATEST_MS),
        limit=max(_number("limit", query.get("limit", "100")), 0),
    )


def _number(name: str, text: str) -> int:
    number = int(text) if text.removeprefix("-").isdecimal() and len(text) < 19 else None  # noqa: PLR2004 - 64 bits
    if number is None:
        raise ValueError(f"{name} must be a whole number")
    return number


def _tuples(value: object) -> Key:
    if isinstance(value, list):
        return tuple(_tuples(element) for element in value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError("a JSON key must be text, a number, a boolean, null or an array of these")


def _plain(value: object) -> object:  # noqa: PLR0911 - one for each type
    match value:
        case dict():
            return {key if isinstance(key, str) else _text(key): _plain(element) for key, element in value.items()}
        case list() | tuple():
            return [_plain(element) for element in value]
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case float() if not math.isfinite(value):
            return str(value)
        case Decimal() | timedelta():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return value


def _text(key: object) -> str:
    return json.dumps(_plain(key), ensure_ascii=False)
