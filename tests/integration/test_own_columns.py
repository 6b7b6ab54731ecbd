"""All tables of a database by one stream: each appears with its columns and keys, by real programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from delta_loader.inspect.verify.findings import Verdict
from devservices.kafka import KafkaCluster
from devservices.schema_registry import running_registry
from tests.builders import pipeline_config
from tests.conftest import Lake
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.reading import delta_rs_options, rows_of

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.s3]


def change(table: str, op: str, before: dict[str, object] | None, after: dict[str, object] | None) -> bytes:
    source = {"db": "shop", "schema": "public", "table": table, "ts_ms": 1_700_000_000_000}
    payload = {"before": before, "after": after, "op": op, "source": source, "ts_ms": 1_700_000_000_500}
    return json.dumps({"schema": {"type": "struct"}, "payload": payload}).encode()


def key(**names: object) -> bytes:
    return json.dumps({"schema": {"type": "struct"}, "payload": names}).encode()


@pytest.mark.parametrize("lake", ["file", pytest.param("moto", marks=pytest.mark.nightly)], indirect=True)
def test_one_stream_follows_all_tables_of_a_database(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, lake: Lake
) -> None:
    customers, lines = new_topic(2, prefix="shop.public.customers"), new_topic(1, prefix="shop.public.lines")
    stream = {
        "app_id": "shop",
        "topics": [customers, lines],
        "table": f"{lake.url}/position",
        "envelope": "debezium",
        "route": "regexp_extract(kafka.topic, '([a-z]+)-[^.]*$', 1)",
        "route_table": f"{lake.url}/shop/{{route}}",
        "route_columns": "own",
        "load": "merge",
        "merge": {},
    }
    config = programs.config(pipeline_config(kafka.bootstrap_servers, lake, stream, writer={"group_id": customers}))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def send(topic: str, message_key: bytes | None, value: bytes | None) -> None:
        producer.produce(topic, value, message_key, partition=0)

    def stage_and_load() -> None:
        assert producer.flush(120) == 0
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
        (report,) = in_process.load_all(config, spark)
        assert (report.failure, report.held) == (None, {})

    def rows(table: str, *columns: str) -> list[tuple[object, ...]]:
        rows = rows_of(f"{lake.url}/shop/{table}", lake.storage_options)
        return sorted(tuple(row[column] for column in columns) for row in rows)

    ada, eve = {"id": 1, "name": "Ada"}, {"id": 2, "name": "Eve"}
    send(customers, key(id=1), change("customers", "r", None, ada))
    send(customers, key(id=2), change("customers", "c", None, eve))
    line = {"order_id": "a", "line": 1, "id": "not a number", "amount": 1.5}
    send(lines, key(order_id="a", line=1), change("lines", "c", None, line))
    send(lines, key(order_id="a", line=2), change("lines", "c", None, {**line, "line": 2}))
    stage_and_load()
    assert rows("customers", "id", "name") == [(1, "Ada"), (2, "Eve")]
    assert rows("lines", "order_id", "line", "id", "amount") == [
        ("a", 1, "not a number", 1.5),
        ("a", 2, "not a number", 1.5),
    ]

    # The source gains a column, deletes a row, and sends tombstones; a new table comes with a tombstone.
    send(customers, key(id=2), change("customers", "u", eve, {**eve, "vip": True}))
    send(customers, key(id=1), change("customers", "d", ada, None))
    send(customers, key(id=1), None)
    send(lines, key(order_id="a", line=2), None)
    send(lines, key(order_id="a", line=1, part=1), change("lines", "u", line, line))
    send(customers, None, change("customers", "c", None, {"id": 3}))
    stage_and_load()
    assert rows("customers", "id", "name", "vip") == [(2, "Eve", True)]
    assert rows("lines", "order_id", "line") == [("a", 1)]
    options = delta_rs_options(lake.storage_options)
    names = {
        table: {field.name for field in DeltaTable(f"{lake.url}/shop/{table}", storage_options=options).schema().fields}
        for table in ("customers", "lines")
    }
    assert "name" not in names["lines"]
    assert "amount" not in names["customers"]
    letters = rows_of(f"{lake.url}/position_dead_letters", lake.storage_options)
    assert [row["error_class"] for row in letters] == ["unreadable_key"] * 2
    assert rows_of(f"{lake.url}/position", lake.storage_options) == []

    # A null in an update is a null in the table, also in a file of a writer that starts again.
    send(customers, key(id=2), change("customers", "u", eve, {"id": 2, "name": None}))
    stage_and_load()
    assert rows("customers", "id", "name", "vip") == [(2, None, None)]
    report = in_process.verify(config, spark)
    assert report.failure is None
    assert not [finding for finding in report.findings if finding.verdict is Verdict.FAULT], report.findings
    (shown,) = json.loads(programs.succeed("delta-loader", "status", config, "--json"))["streams"]
    assert sorted(shown["appeared"]) == ["customers", "lines"]
    assert "customers.vip BOOLEAN" in {gained["column"] for gained in shown["gained"]}
    checked = programs.succeed("delta-loader", "check", config)
    assert f"{lake.url}/shop/lines" in checked


@pytest.mark.parametrize("lake", ["moto"], indirect=True)
def test_tables_of_canal_appear_with_the_keys_that_its_events_name(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, lake: Lake
) -> None:
    topic = new_topic(1)
    stream = {
        "app_id": "shop",
        "topics": [topic],
        "table": f"{lake.url}/position",
        "envelope": "canal",
        "route": "regexp_extract(_cdc.source, '[^.]+$')",
        "route_table": f"{lake.url}/shop/{{route}}",
        "route_columns": "own",
        "load": "merge",
        "merge": {"tombstones": "ignore"},
    }
    config = programs.config(pipeline_config(kafka.bootstrap_servers, lake, stream))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def load(*events: dict[str, object]) -> None:
        about = {"database": "shop", "es": 1_700_000_000_000, "ts": 1_700_000_000_500, "isDdl": False, "old": None}
        for event in events:
            producer.produce(topic, json.dumps({**about, **event}).encode())
        assert producer.flush(120) == 0
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
        (report,) = in_process.load_all(config, spark)
        assert (report.failure, report.held) == (None, {})

    def rows(table: str, *columns: str) -> list[tuple[object, ...]]:
        rows = rows_of(f"{lake.url}/shop/{table}", lake.storage_options)
        return sorted(tuple(row[column] for column in columns) for row in rows)

    customers, lines = {"table": "customers", "pkNames": ["id"]}, {"table": "lines", "pkNames": ["order", "line"]}
    two = [{"id": "1", "name": "Ada"}, {"id": "2", "name": "Eve"}]
    line = {"order": "a", "line": "1", "id": "x"}
    load({**customers, "type": "INSERT", "data": two}, {**lines, "type": "INSERT", "data": [line]})
    moved = {"type": "UPDATE", "data": [{"id": "3", "name": "Ada", "vip": "1"}], "old": [{"id": "1", "vip": None}]}
    ddl = {"type": "ALTER", "isDdl": True, "data": None, "pkNames": None, "sql": "ALTER TABLE customers ADD vip INT"}
    other = {"type": "INSERT", "data": [line], "pkNames": ["id"]}
    load(
        {**customers, **ddl},
        {**customers, **moved},
        {**customers, "type": "DELETE", "data": [two[1]]},
        {**lines, **other},
    )
    assert rows("customers", "id", "name", "vip") == [("3", "Ada", "1")]
    assert rows("lines", "order", "line", "id") == [("a", "1", "x")]
    dead_letters = rows_of(f"{lake.url}/position_dead_letters", lake.storage_options)
    assert [row["error_class"] for row in dead_letters] == ["unreadable_key"]
    report = in_process.verify(config, spark)
    assert report.failure is None
    assert not [finding for finding in report.findings if finding.verdict is Verdict.FAULT], report.findings


def test_tables_appear_with_the_keys_of_message_keys_in_avro(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> None:
    """As Debezium sends them with Confluent's converter, tombstones too."""
    topic = new_topic(1, prefix="shop.public.customers")
    with running_registry() as registry:
        config = programs.config(
            pipeline_config(
                kafka.bootstrap_servers,
                tmp_path,
                {
                    "app_id": "shop",
                    "topics": [topic],
                    "table": f"{tmp_path}/position",
                    "format": "avro",
                    "framing": "confluent",
                    "envelope": "debezium",
                    "route": "regexp_extract(kafka.topic, '([a-z]+)-[^.]*$', 1)",
                    "route_table": f"{tmp_path}/shop/{{route}}",
                    "route_columns": "own",
                    "load": "merge",
                    "merge": {},
                },
                schema_registry={"url": registry.url},
            )
        )
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        client = SchemaRegistryClient({"url": registry.url})
        fields = [{"name": "id", "type": "long"}]
        of_key = AvroSerializer(client, json.dumps({"type": "record", "name": "Key", "fields": fields}))

        def send(number: int, op: str = "", **row: str) -> None:
            """An event, or without an operation a tombstone."""
            image = {"type": "record", "name": "Value", "fields": fields}
            image = {**image, "fields": [*fields, *({"name": name, "type": "string"} for name in row)]}
            parts = [("before", ["null", image]), ("after", ["null", "Value"]), ("op", "string")]
            of_parts = [{"name": name, "type": kind} for name, kind in parts]
            schema = {"type": "record", "name": "Envelope", "fields": of_parts}
            key_context = SerializationContext(topic, MessageField.KEY)
            value = None
            if op:
                context = SerializationContext(topic, MessageField.VALUE)
                event = {"before": None, "after": {"id": number, **row}, "op": op}
                value = AvroSerializer(client, json.dumps(schema))(event, context)
            producer.produce(topic, value, of_key({"id": number}, key_context))

        def rows(*columns: str) -> list[tuple[object, ...]]:
            assert producer.flush(120) == 0
            programs.succeed("stage-writer", "run", config, "--until-caught-up")
            (report,) = in_process.load_all(config, spark)
            assert (report.failure, report.held) == (None, {})
            frame = spark.read.format("delta").load(f"{tmp_path}/shop/customers")
            return sorted(tuple(row) for row in frame.select(*columns).collect())

        send(1, "c", name="Ada")
        send(2, "c", name="Eve")
        programs.succeed("stage-writer", "check", config)
        assert rows("id", "name") == [(1, "Ada"), (2, "Eve")]
        send(1)
        send(2, "u", name="Eve", city="Oslo")
        send(3)
        assert rows("id", "name", "city") == [(2, "Eve", "Oslo")]
        assert not (tmp_path / "position_dead_letters/_delta_log").exists()
