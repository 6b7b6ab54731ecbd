"""The verifier of real runs (tests/verifier.py) has to find its faults: each kind is planted and reported."""

import json
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.chaos.records import expected, record
from tests.verifier import (
    BAD,
    Findings,
    Row,
    Sent,
    dead_letter,
    delta_rs_reader,
    duckdb_reader,
    kafka_columns,
    order_faults,
    read_growth,
    reading_faults,
    verify,
)

TOPIC = "orders"
SENT = [
    Sent((TOPIC, generated.partition, n), 1_700_000_000_000 + n, generated.key, generated.value)
    for n, generated in ((n, record(3, n)) for n in range(200))
]


def is_bad(sent: Sent) -> bool:
    return sent.key is not None and sent.key.startswith(BAD)


def rows() -> list[Row]:
    return [{**expected(sent), **kafka_columns(sent)} for sent in SENT if sent.value is not None and not is_bad(sent)]


def dead_letters() -> list[Row]:
    return [dead_letter(sent, {"error": "it does not fit"}) for sent in SENT if sent.value is not None and is_bad(sent)]


Fault = tuple["Callable[[list[Row], list[Row]], object]", str]
"""The change to rows and dead letters, and the kinds of findings that report it."""


def change(row: Row, name: str, value: object) -> None:
    assert row[name] != value
    row[name] = value


FAULTS: dict[str, Fault] = {
    "a lost row": (lambda table, _: table.pop(7), "missing"),
    "a lost dead letter": (lambda _, dead: dead.pop(), "missing"),
    "a lost last row": (lambda table, _: table.pop(), "missing"),
    "a doubled row": (lambda table, _: table.append(dict(table[7])), "twice"),
    "a doubled dead letter": (lambda _, dead: dead.append(dict(dead[0])), "twice"),
    "a row that is a dead letter too": (
        lambda table, dead: dead.append({**dead[0], **place(table[7])}),
        "twice different",
    ),
    "a changed value": (lambda table, _: change(table[7], "name", "other"), "different"),
    "a value that became null": (lambda table, _: change(table[7], "small", None), "different"),
    "another Kafka timestamp": (
        lambda table, _: change(table[7], "_kafka_timestamp", datetime(2026, 1, 1, tzinfo=UTC)),
        "different",
    ),
    "a value that no record has": (lambda table, _: table[7].update(extra=1), "different"),
    "two rows that changed places": (lambda table, _: swap(table[7], table[8]), "different"),
    "other bytes in a dead letter": (lambda _, dead: change(dead[0], "value", b"{}"), "different"),
    "another key of a dead letter": (lambda _, dead: change(dead[0], "key", b""), "different"),
    "another reason of a dead letter": (lambda _, dead: change(dead[0], "error_class", "empty"), "different"),
    "a dead letter without an error": (lambda _, dead: change(dead[0], "error", None), "different"),
    "a good record among the dead letters": (lambda table, dead: dead.append(table.pop()), "different"),
    "a bad record among the rows": (lambda table, dead: table.append(dead.pop()), "different"),
    "a row without a record": (lambda table, _: table.append({**table[7], "_kafka_offset": 10_000}), "unknown"),
    "a row of a tombstone": (
        lambda table, _: table.append({**table[7], **kafka_columns(next(sent for sent in SENT if sent.value is None))}),
        "unknown",
    ),
}


def place(row: Row) -> Row:
    return {name: row[name] for name in ("_kafka_topic", "_kafka_partition", "_kafka_offset")}


def swap(row: Row, other: Row) -> None:
    mine, theirs = place(row), place(other)
    row.update(theirs)
    other.update(mine)


def test_correct_tables_are_clean() -> None:
    assert verify(SENT, rows(), dead_letters(), expected).clean


@pytest.mark.parametrize(("plant", "kind"), FAULTS.values(), ids=FAULTS)
def test_planted_fault_is_reported(plant: Callable[[list[Row], list[Row]], object], kind: str) -> None:
    table, dead = rows(), dead_letters()
    plant(table, dead)
    findings = verify(SENT, table, dead, expected)
    assert not findings.clean
    assert [field.name for field in fields(findings) if getattr(findings, field.name)] == kind.split(), findings


def test_only_planted_faults_are_reported() -> None:
    table = rows()
    lost, changed = table.pop(7), table[7]
    change(changed, "name", "other")
    findings = verify(SENT, table, dead_letters(), expected)
    assert findings == Findings(findings.missing, (), (), findings.different)
    assert findings.missing == (tuple(place(lost).values()),)
    assert len(findings.different) == 1


def test_version_that_adds_older_records_is_reported() -> None:
    grown = [[(TOPIC, 0, 0), (TOPIC, 0, 1)], [(TOPIC, 1, 0)], [(TOPIC, 0, 5), (TOPIC, 0, 2)]]
    assert order_faults(grown) == []
    assert order_faults([*grown, [(TOPIC, 0, 4), (TOPIC, 1, 9)]]) == [
        "version 3 added orders/0 @ 4 after @ 5 was there"
    ]


ARROW = pa.schema(
    [
        ("n", pa.int64()),
        ("name", pa.string()),
        ("kind", pa.string()),
        ("_kafka_topic", pa.string()),
        ("_kafka_partition", pa.int32()),
        ("_kafka_offset", pa.int64()),
        ("_kafka_timestamp", pa.timestamp("us", "UTC")),
    ]
)
PLAIN = [
    Sent(
        (TOPIC, 0, n),
        1_700_000_000_000 + n,
        b"good",
        json.dumps({"n": n, "name": f"Škoda {n}", "kind": "a b"}).encode(),
    )
    for n in range(20)
]


def parsed(sent: Sent) -> Row:
    assert sent.value is not None
    row: Row = json.loads(sent.value)
    return row


def written(url: Path, *offsets: int) -> None:
    records = [{**parsed(PLAIN[offset]), **kafka_columns(PLAIN[offset])} for offset in offsets]
    write_deltalake(url, pa.Table.from_pylist(records, ARROW), mode="append", partition_by=["kind"])


def judged(url: Path) -> tuple[Findings, Findings, list[str]]:
    readers = (delta_rs_reader(None), duckdb_reader(None, {}))
    by_delta_rs, by_duckdb = (verify(PLAIN, reader(url.as_uri()), [], parsed) for reader in readers)
    return by_delta_rs, by_duckdb, order_faults(read_growth(url))


def test_correct_table_on_disk_is_clean_after_optimize(tmp_path: Path) -> None:
    written(tmp_path / "orders", *range(10))
    written(tmp_path / "orders", *range(10, 20))
    DeltaTable(tmp_path / "orders").optimize.compact()
    by_delta_rs, by_duckdb, order = judged(tmp_path / "orders")
    assert (by_delta_rs.clean, by_duckdb.clean, order) == (True, True, [])


def test_faults_of_a_table_on_disk_are_found_by_both_readers(tmp_path: Path) -> None:
    written(tmp_path / "orders", *range(10))
    written(tmp_path / "orders", *range(11, 20))
    written(tmp_path / "orders", 3)
    by_delta_rs, by_duckdb, order = judged(tmp_path / "orders")
    assert by_delta_rs == by_duckdb == Findings(((TOPIC, 0, 10),), ((TOPIC, 0, 3),), (), ())
    assert order == ["version 2 added orders/0 @ 3 after @ 19 was there"]


def test_differing_readers_are_reported(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    written(table, *range(10))
    by_spark = delta_rs_reader(None)(table.as_uri())
    assert reading_faults(by_spark, str(table), {}, tmp_path) == []
    by_spark[3] = {**by_spark[3], "n": -1}
    faults = reading_faults([*by_spark[1:]], str(table), {}, tmp_path)
    assert [fault.split()[1] for fault in faults] == ["delta-rs", "DuckDB"]
    assert all('"n": -1' in fault.rpartition("Spark")[2] for fault in faults)
