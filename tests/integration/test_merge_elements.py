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


@dataclass(frozen=True)
class Pipeline:
    topic: Topic
    table: str
    config: Path
    programs: Programs
    spark: SparkSession
    columns: tuple[str, str, str]
    """A record's key, its element, and that one's key."""

    def load(self) -> None:
        assert self.topic.producer.flush(180) == 0
        self.programs.succeed("stage-writer", "run", self.config, "--until-caught-up")
        report = in_process.load(self.config, self.spark)
        assert (report.failure, report.held) == (None, {})
        assert rows_in(rows_of(self.table), self.topic, *self.columns) == self.topic.loaded()

    def check(self, *dead_letters: str) -> None:
        letters = rows_of(f"{self.table}_dead_letters")
        assert sorted(str(row["error_class"]) for row in letters) == list(dead_letters)
        report = in_process.verify(self.config, self.spark)
        assert (report.failure, report.is_clean) == (None, True)
        assert {"merged"} == {finding.kind for finding in report.findings if finding.verdict is Verdict.UNPROVED}


@pytest.fixture
def pipeline(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path, spark: SparkSession
) -> Callable[..., Pipeline]:
    def pipeline(
        stream_of: Callable[[str, str], dict[str, object]], *columns: str, partitions: int, by_sequence: bool
    ) -> Pipeline:
        """``by_sequence`` is for records with a sequence, whose deletes stay as rows."""
        producer, table = Producer({"bootstrap.servers": kafka.bootstrap_servers}), f"{tmp_path}/table"
        topic = Topic(producer, new_topic(partitions), sequenced=by_sequence, soft=by_sequence)
        stream, writer = stream_of(topic.name, table), {"group_id": topic.name}
        config = programs.config(pipeline_config(kafka.bootstrap_servers, tmp_path, stream, writer=writer))
        record, element, key = columns
        return Pipeline(topic, table, config, programs, spark, (record, element, key))

    return pipeline


def some_elements(chance: random.Random) -> dict[str, str]:
    return {chance.choice("abcdef"): str(chance.randrange(9)) for _ in range(chance.randrange(4))}


# What both have of SQL, tests/property/test_elements.py shows on DuckDB.
one_of_them = pytest.mark.in_turn("the elements of records, merged by Spark")


@one_of_them
def test_table_has_the_elements_of_the_last_records_by_sequence(
    pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    orders = pipeline(orders_of, "order_id", "item", "sku", partitions=2, by_sequence=True)
    topic = orders.topic
    for number in range(6):
        order(topic, number, {"a": "1", "b": "1", "c": "1"}, 10)
    topic.send({"orderID": 0, "at": 99, "op": "put", "items": [{"SKU": "a"}, {"SKU": "b"}, {"SKU": "a"}]})
    topic.send({"orderID": 0, "at": 99, "op": "put", "items": [{"SKU": "a"}, {"value": "no key"}]})
    orders.load()
    order(topic, 0, {"b": "2", "d": "2"}, 20)  # a and c are gone
    order(topic, 1, {}, 20)
    order(topic, 2, {"a": "9"}, 20, op="cancel")
    order(topic, 3, {"z": "late"}, 5)
    order(topic, 4, {"e": "2"}, 20)
    order(topic, 4, {"f": "late"}, 19)
    order(topic, 4, {"a": "3"}, 21)
    orders.load()
    chance = random.Random(7)  # noqa: S311 - a test's dice
    for _ in range(30):
        elements, changed = some_elements(chance), 20 + chance.randrange(9)
        order(topic, chance.randrange(6), elements, changed, chance.choice(["put", "put", "cancel"]))
    orders.load()
    by_spark = spark.read.format("delta").load(orders.table).where("NOT gone").select("order_id", "item.sku")
    shown = [(record, *name) for record, rows in topic.expected.items() for name in rows if not rows[name].deleted]
    assert sorted(map(tuple, by_spark.collect())) == sorted(shown)
    orders.check("null_key", "repeated_key")


@one_of_them
def test_table_has_the_elements_of_the_rows_of_a_database(
    pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    baskets = pipeline(baskets_of, "id", "line", "n", partitions=1, by_sequence=False)
    topic = baskets.topic
    for number in range(6):
        basket(topic, number, {1: "x", 2: "x", 3: "x"})
    baskets.load()
    spark.sql(f"ALTER TABLE delta.`{baskets.table}` ADD CONSTRAINT known CHECK (line.value <> 'no')")
    basket(topic, 0, {2: "y"})
    basket(topic, 1, {})
    lost(topic, 2)
    basket(topic, 12, {1: "y", 2: "y"})
    refused = {"id": 3, "inside": {"lines": [{"n": 1, "value": "no"}, {"n": 7, "value": "y"}]}}
    topic.send({"payload": {"op": "u", "before": None, "after": refused, "ts_ms": 1}})
    baskets.load()
    chance = random.Random(7)  # noqa: S311 - a test's dice
    for number in range(30):
        basket(topic, chance.randrange(6), {ord(name): value for name, value in some_elements(chance).items()})
        if number == 20:
            topic.send({"payload": {"op": "t", "ts_ms": 1, "source": {}}}, RecordEvent(0, 0, OF_ALL))
    baskets.load()
    baskets.check("refused_by_table")


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
