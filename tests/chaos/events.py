"""Change events that gain fields, merged by key into tables by route; and the tables' expected contents.

The event of a number is always the same. Its key names the row that it changes, and a key's events are all in one Kafka
partition. Fields appear at certain numbers, one of them with a type that differs from its column's later type. Some
events cannot be read, and some delete, by their operation or as tombstones.

The judge applies Kafka's events one by one. It shares no code with the services, like tests/verifier.py.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import TYPE_CHECKING

from tests.chaos.records import PARTITIONS, Record
from tests.verifier import (
    canonical,
    copied,
    delta_rs_reader,
    duckdb_reader,
    order_faults,
    read_growth,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from devservices.s3 import S3Server
    from tests.verifier import Row, Sent

IDS = 600
ROUTES = ("left", "right")
COLUMNS = "id BIGINT, op STRING, n BIGINT, v STRING"
ROUTE = f"CASE (id // {PARTITIONS}) % 3 WHEN 0 THEN 'left' WHEN 1 THEN 'right' END"
_MORE_FROM, _NOTE_FROM, _TEXT_FROM = 400, 800, 1200
_RESCUE = "_rescued"


def event(seed: int, number: int) -> Record:
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - a test's data
    which = rng.randrange(IDS)
    partition, key = which % PARTITIONS, json.dumps({"id": which, "n": number}).encode()
    if number % 31 == 0:
        return Record(partition, key, None)
    content = {"id": which, "op": "d" if number % 7 == 0 else "u", "n": number, "v": rng.choice(["x", "Škoda", None])}
    if number % 40 == 0:
        content["v"] = 7
    if number >= _MORE_FROM:
        content["more"] = "many" if number >= _TEXT_FROM and number % 9 == 0 else number
    if number >= _NOTE_FROM:
        content["note"] = f"of {number}"
    return Record(partition, key, json.dumps(content).encode())


def settings(table: str) -> dict[str, object]:
    return {
        "columns": COLUMNS,
        "load": "merge",
        "merge": {"keys": ["id"], "operation": "op", "deletes": ["d"]},
        "unknown_fields": "evolve",
        "flush_after": "6s",  # a merge reads every staged file, with one core
        "route": ROUTE,
        "routes": {route: f"{table}_{route}" for route in ROUTES},
    }


def tables(table: str) -> list[str]:
    """The tables with rows, the main table first."""
    return [table, *(f"{table}_{route}" for route in ROUTES)]


def event_faults(sent: Sequence[Sent], table: str, *, server: S3Server, folder: Path) -> list[str]:
    """Unexpected rows and dead letters of the tables, by two readers; copies go to ``folder``."""
    wanted, letters = _replayed(sent, table)
    urls = [*tables(table), f"{table}_dead_letters"]
    copies = [copied(url, server.storage_options, folder) for url in urls]
    faults = [f"{copies[-1].name}: {fault}" for fault in order_faults(read_growth(copies[-1]))]
    for name, reader, places in (
        ("delta-rs", delta_rs_reader(server), urls),
        ("DuckDB", duckdb_reader(None, {}), [copy.as_uri() for copy in copies]),
    ):
        *rows_of_tables, dead = map(reader, places)
        for url, rows in zip(tables(table), rows_of_tables, strict=True):
            have = Counter(_shown(row) for row in rows)
            want = Counter(_shown(row) for row in wanted[url].values())
            faults += [f"read by {name}, {url} has too many: {row}" for row in have - want]
            faults += [f"read by {name}, {url} lacks {row}" for row in want - have]
        have_dead: Counter[tuple[object, ...]] = Counter(
            (row["_kafka_partition"], row["_kafka_offset"], row["error_class"], row["value"]) for row in dead
        )
        want_dead: Counter[tuple[object, ...]] = Counter(
            (letter.place[1], letter.place[2], "wrong_type", letter.value) for letter in letters
        )
        faults += [f"read by {name}, a dead letter too many: {event}" for event in have_dead - want_dead]
        faults += [f"read by {name}, a dead letter is missing: {event}" for event in want_dead - have_dead]
    return faults


def _replayed(sent: Sequence[Sent], table: str) -> tuple[dict[str, dict[int, Row]], list[Sent]]:
    """The rows of each table by id, and the unreadable events, for the events in Kafka's order."""
    rows: dict[str, dict[int, Row]] = {url: {} for url in tables(table)}
    letters: list[Sent] = []
    own, left, right = tables(table)
    for record in sorted(sent, key=lambda sent_record: sent_record.place):
        assert record.key is not None
        which = json.loads(record.key)["id"]
        of_route = rows[(left, right, own)[which // PARTITIONS % 3]]
        content: Row = {} if record.value is None else json.loads(record.value)
        if content.get("v") == 7:
            letters.append(record)
        elif record.value is None or content["op"] == "d":
            of_route.pop(which, None)
        else:
            _, partition, offset = record.place
            of_route[which] = {**content, "_kafka_partition": partition, "_kafka_offset": offset}
    return rows, letters


def _shown(row: Row) -> str:
    """A row's values by name, in any columns; the operation has no column."""
    rescued = row.get(_RESCUE)
    values = {**row, **(json.loads(str(rescued)) if rescued is not None else {})}
    for name in (_RESCUE, "op", "_kafka_topic", "_kafka_timestamp"):
        values.pop(name, None)
    return json.dumps({name: canonical(values[name]) for name in sorted(values) if values[name] is not None})
