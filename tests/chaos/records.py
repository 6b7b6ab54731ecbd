"""The records of a run: number n of a seed is always the same one, and contains its number.

Every fortieth is invalid, every thirty-first is a tombstone. The key says what should become of a record, as
tests/verifier.py expects; a tombstone's key has its number.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from tests.verifier import GOOD, Row, Sent, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PARTITIONS = 6
COLUMNS = (
    "n BIGINT, small SMALLINT, name STRING, amount DECIMAL(20, 4), at TIMESTAMP, tags ARRAY<STRING>, "
    "nested STRUCT<a: INT, b: STRING>, kind STRING"
)
PARTITION_BY = ["kind"]
_BAD: tuple[tuple[str, str], ...] = (
    ("not_exact", '{"n": %d, "small": 1.5}'),
    ("wrong_type", '{"n": %d, "name": 7}'),
    ("out_of_range", '{"n": %d, "small": 40000}'),
    ("invalid_json", '{"n": %d} {"n": 2}'),
    ("invalid_utf8", '{"n": %d, "name": "\udcff"}'),
    ("duplicate_field", '{"n": %d, "small": 1, "small": 2}'),
    ("not_an_object", '[{"n": %d}]'),
)
_GONE = b"gone:"
_NUMBER = re.compile(rb'"n": (\d+)')


@dataclass(frozen=True, slots=True)
class Record:
    partition: int
    key: bytes
    value: bytes | None


def record(seed: int, number: int) -> Record:
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - a test's data
    # The last partition gets few records, so that one partition is idle for a while.
    partition = rng.choices(range(PARTITIONS), [20] * (PARTITIONS - 1) + [1])[0]
    if number % 31 == 0:
        return Record(partition, b"%b%d" % (_GONE, number), None)
    if number % 40 == 0:
        error_class, text = _BAD[number // 40 % len(_BAD)]
        value = (text % number).encode("utf-8", "surrogateescape")
        return Record(partition, f"bad:{error_class}".encode(), value)
    moment = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(microseconds=rng.randrange(10**13))
    content = {
        "n": number,
        "small": rng.randrange(-(2**15), 2**15),
        "name": rng.choice([None, "", "Škoda", "北京", "a/b"]),
        "amount": str(Decimal(rng.randrange(-(10**20), 10**20)).scaleb(-4)),
        "at": moment.isoformat(),
        "tags": rng.choice([None, [], ["x", None, "ü"]]),
        "nested": rng.choice([None, {"a": 7}, {"a": None, "b": "deep"}]),
        "kind": rng.choice("ab"),
        "unknown": {"is": ["ignored"]},
    }
    return Record(partition, GOOD, json.dumps(content).encode())


def number_of(sent: Sent) -> int:
    if sent.value is None and sent.key is not None and sent.key.startswith(_GONE):
        return int(sent.key.removeprefix(_GONE))
    match = _NUMBER.search(sent.value or sent.key or b"")
    assert match is not None, f"{sent} has no number"
    return int(match[1])


def expected(sent: Sent) -> Row:
    """The expected row of a good record, without Kafka's columns."""
    row = parse(sent)
    nested = row["nested"]
    same: Callable[[object], object] = lambda value: value  # noqa: E731
    shaped: dict[str, Callable[[object], object]] = {
        "amount": lambda value: Decimal(str(value)),
        "at": lambda value: datetime.fromisoformat(str(value)),
        "nested": lambda _: {"a": nested.get("a"), "b": nested.get("b")} if isinstance(nested, dict) else None,
    }
    names = ("n", "small", "name", "amount", "at", "tags", "nested", "kind")
    return {name: shaped.get(name, same)(row[name]) for name in names}


def numbered(sent: Iterable[Sent]) -> Callable[[Sent], Row]:
    """The expected row of a good record in a run with state, by all records in Kafka (`tests.chaos.stateful`)."""
    counts: dict[object, itertools.count[int]] = defaultdict(lambda: itertools.count(1))
    seen = {
        numbered_record.place: next(counts[numbered_record.place[1], parse(numbered_record)["kind"]])
        for numbered_record in sorted(sent, key=lambda record: record.place)
        if numbered_record.key == GOOD and numbered_record.value is not None
    }
    return lambda numbered_record: {**expected(numbered_record), "seen": seen[numbered_record.place]}
