"""Records with arrays, from a real broker into tables with a row for each element, against a model in plain Python."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from delta_loader.inspect.verify.findings import Verdict
from devservices.kafka import KafkaCluster
from tests.builders import pipeline_config
from tests.fakes.events import Key, Row
from tests.fakes.records import OF_ALL, RecordEvent, Records, replay_records
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.reading import rows_of

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@dataclass
class Topic:
    producer: Producer
    name: str
    sequenced: bool
    soft: bool
    expected: Records = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    waiting: list[RecordEvent] = field(default_factory=list)

    def send(self, value: object, event: RecordEvent | None = None, key: object = None) -> None:
        """Send a message; without an event, one that changes nothing."""
        partition = 0 if event is None else event.partition
        offset = self.ends.get(partition, 0)
        self.ends[partition] = offset + 1
        texts = [None if part is None else json.dumps(part) for part in (value, key)]
        self.producer.produce(self.name, *texts, partition=partition)
        if event is not None:
            elements, sequence = event.elements, event.sequence
            self.waiting.append(RecordEvent(partition, offset, event.record, elements, sequence))

    def loaded(self) -> Records:
        replay_records(self.expected, self.waiting, sequenced=self.sequenced, soft=self.soft)
        self.waiting.clear()
        return self.expected


def orders_of(topic: str, table: str) -> dict[str, object]:
    return {
        "app_id": "orders",
        "topics": [topic],
        "table": table,
        "columns": "orderID BIGINT, at BIGINT, op STRING, "
        "items ARRAY<STRUCT<SKU: STRING, value: STRING, note: STRING>>",
        "explode": "items",
        "rename": {"orderID": "order_id", "items": "item", "items.SKU": "sku"},
        "drop": ["items.note"],
        "load": "merge",
        "merge": {
            "keys": ["item.sku", "order_id"],
            "sequence": "at",
            "operation": "op",
            "deletes": ["cancel"],
            "soft_delete": "gone",
        },
    }


def baskets_of(topic: str, table: str) -> dict[str, object]:
    return {
        "app_id": "baskets",
        "topics": [topic],
        "table": table,
        "columns": "id BIGINT, inside STRUCT<lines: ARRAY<STRUCT<n: INT, value: STRING>>>",
        "derive": {"line": "inside.lines"},
        "explode": "line",
        "drop": ["inside"],
        "envelope": "debezium",
        "load": "merge",
        "merge": {"keys": ["id", "line.n"], "truncates": "apply"},
        "partition_by": ["id"],
    }


def order(topic: Topic, record: int, elements: Mapping[str, str], changed: int, op: str = "put") -> None:
    items = [{"SKU": sku, "value": value, "note": "!"} for sku, value in elements.items()]
    kept: dict[Key, str] = {} if op == "cancel" else {(sku,): value for sku, value in elements.items()}
    message = {"orderID": record, "at": changed, "op": op, "items": items or None}
    topic.send(message, RecordEvent(record % 2, 0, record, kept, changed), {"orderID": record})


def basket(topic: Topic, record: int, lines: Mapping[int, str]) -> None:
    made = [{"n": n, "value": value} for n, value in lines.items()]
    row = {"id": record, "inside": {"lines": made}}
    elements: dict[Key, str] = {(n,): value for n, value in lines.items()}
    event = RecordEvent(0, 0, record, elements)
    topic.send({"payload": {"op": "u", "before": None, "after": row, "ts_ms": 1}}, event, {"id": record})


def lost(topic: Topic, record: int) -> None:
    """A delete, as Debezium sends it of a row whose key changes, too."""
    image = {"op": "d", "before": {"id": record}, "after": None, "ts_ms": 1}
    topic.send({"payload": image}, RecordEvent(0, 0, record), {"id": record})
    topic.send(None, RecordEvent(0, 0, record), {"schema": {"type": "struct"}, "payload": {"id": record}})


def rows_in(rows: list[dict[str, object]], topic: Topic, record: str, element: str, key: str) -> Records:
    records: Records = {}
    for row in rows:
        of = row[element]
        assert isinstance(of, dict)
        names = records.setdefault(row[record], {})  # type: ignore[arg-type]
        assert (of[key],) not in names
        sequence = row["at"] if topic.sequenced else None
        names[of[key],] = Row(of["value"], sequence, bool(row.get("gone")), row["_kafka_offset"])  # type: ignore[arg-type]
    return records


def read(folder: Path, orders: Topic, baskets: Topic) -> tuple[Records, Records]:
    return (
        rows_in(rows_of(f"{folder}/orders"), orders, "order_id", "item", "sku"),
        rows_in(rows_of(f"{folder}/baskets"), baskets, "id", "line", "n"),
    )


def test_tables_have_the_elements_of_their_records_and_no_others(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path, spark: SparkSession
) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    orders = Topic(producer, new_topic(2), sequenced=True, soft=True)
    baskets = Topic(producer, new_topic(1), sequenced=False, soft=False)
    config = programs.config(
        pipeline_config(
            kafka.bootstrap_servers,
            tmp_path,
            orders_of(orders.name, f"{tmp_path}/orders"),
            baskets_of(baskets.name, f"{tmp_path}/baskets"),
            writer={"group_id": orders.name},
        )
    )

    def load() -> None:
        assert producer.flush(180) == 0
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
        reports = in_process.load_all(config, spark)
        assert [(report.failure, report.held) for report in reports] == [(None, {}), (None, {})]
        assert read(tmp_path, orders, baskets) == (orders.loaded(), baskets.loaded())

    for number in range(6):
        order(orders, number, {"a": "1", "b": "1", "c": "1"}, 10)
        basket(baskets, number, {1: "x", 2: "x", 3: "x"})
    orders.send({"orderID": 0, "at": 99, "op": "put", "items": [{"SKU": "a"}, {"SKU": "b"}, {"SKU": "a"}]})
    orders.send({"orderID": 0, "at": 99, "op": "put", "items": [{"SKU": "a"}, {"value": "no key"}]})
    load()
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/baskets` ADD CONSTRAINT known CHECK (line.value <> 'no')")
    order(orders, 0, {"b": "2", "d": "2"}, 20)  # a and c are gone
    order(orders, 1, {}, 20)
    order(orders, 2, {"a": "9"}, 20, op="cancel")
    order(orders, 3, {"z": "late"}, 5)
    order(orders, 4, {"e": "2"}, 20)
    order(orders, 4, {"f": "late"}, 19)
    order(orders, 4, {"a": "3"}, 21)
    basket(baskets, 0, {2: "y"})
    basket(baskets, 1, {})
    lost(baskets, 2)
    basket(baskets, 12, {1: "y", 2: "y"})
    refused = {"id": 3, "inside": {"lines": [{"n": 1, "value": "no"}, {"n": 7, "value": "y"}]}}
    baskets.send({"payload": {"op": "u", "before": None, "after": refused, "ts_ms": 1}})
    load()
    chance = random.Random(7)  # noqa: S311 - a test's dice
    for number in range(30):
        chosen = {chance.choice("abcdef"): str(chance.randrange(9)) for _ in range(chance.randrange(4))}
        order(orders, chance.randrange(6), chosen, 20 + chance.randrange(9), chance.choice(["put", "put", "cancel"]))
        basket(baskets, chance.randrange(6), {ord(name): value for name, value in chosen.items()})
        if number == 20:
            baskets.send({"payload": {"op": "t", "ts_ms": 1, "source": {}}}, RecordEvent(0, 0, OF_ALL))
    load()
    check(orders, tmp_path, config, spark)


def check(orders: Topic, folder: Path, config: Path, spark: SparkSession) -> None:
    by_spark = spark.read.format("delta").load(f"{folder}/orders").where("NOT gone").select("order_id", "item.sku")
    shown = [(record, *name) for record, rows in orders.expected.items() for name in rows if not rows[name].deleted]
    assert sorted(map(tuple, by_spark.collect())) == sorted(shown)
    letters = rows_of(f"{folder}/orders_dead_letters")
    assert sorted(row["error_class"] for row in letters) == ["null_key", "repeated_key"]
    letters = rows_of(f"{folder}/baskets_dead_letters")
    assert [row["error_class"] for row in letters] == ["refused_by_table"]
    for app_id in ("orders", "baskets"):
        report = in_process.verify(config, spark, app_id)
        assert (report.failure, report.is_clean) == (None, True)
        assert {"merged"} == {finding.kind for finding in report.findings if finding.verdict is Verdict.UNPROVED}


def test_elements_gain_fields_while_a_writer_dies(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path, spark: SparkSession
) -> None:
    """With columns of the records, which evolve."""
    topic, table = new_topic(1), f"{tmp_path}/orders"
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    stream = {"app_id": "orders", "topics": [topic], "table": table, "explode": "items", "load": "merge"}
    config = programs.config(
        pipeline_config(kafka.bootstrap_servers, tmp_path, {**stream, "merge": {"keys": ["order", "items.sku"]}})
    )

    def loaded(*records: dict[str, object]) -> None:
        for record in records:
            producer.produce(topic, json.dumps(record), partition=0)
        assert producer.flush(120) == 0
        programs.writer_dies(config)
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
        report = in_process.load(config, spark)
        assert (report.failure, report.held) == (None, {})

    loaded({"order": 1, "items": [{"sku": "a", "n": 1}, {"sku": "b", "n": 1}]})
    more = {"order": 1, "items": [{"sku": "a", "n": 2, "gift": True}, {"sku": "c", "n": 3}], "city": "Ulm"}
    loaded({"order": 2, "items": [{"sku": "a", "n": 9}]}, more)
    rows = [(row["order"], row["items"], row["city"]) for row in rows_of(table)]
    assert sorted(rows, key=repr) == [
        (1, {"sku": "a", "n": 2, "gift": True}, "Ulm"),
        (1, {"sku": "c", "n": 3, "gift": None}, "Ulm"),
        (2, {"sku": "a", "n": 9, "gift": None}, None),
    ]
    assert in_process.verify(config, spark).is_clean
