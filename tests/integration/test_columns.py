"""Columns that no config declares: from the first records, then from the table, by the commands, a loader and Spark."""

import datetime as dt
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import SparkSession

from common.errors import ExitCode
from devservices.apicurio import running_apicurio
from devservices.kafka import KafkaCluster
from devservices.schema_registry import running_registry
from tests.integration import in_process
from tests.integration.conftest import Programs

pytestmark = [pytest.mark.broker, pytest.mark.spark]
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
SENT = dt.datetime(2024, 2, 29, tzinfo=dt.UTC)


def test_columns_come_from_the_records_and_then_from_the_table(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> None:
    topic, table = new_topic(2), f"{tmp_path}/orders"
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def config(**stream: object) -> Path:
        usual = {"app_id": "orders", "topics": [topic], "table": table, "kafka_columns": False}
        return programs.config(
            {
                "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
                "stage": {"url": f"{tmp_path}/stage"},
                "writer": {"group_id": topic, "http": None},
                "loader": {"http": None},
                "streams": [{**usual, **stream}],
            }
        )

    def staged(written: Path, *values: str, writers: int = 1) -> None:
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % 2)
        assert producer.flush(180) == 0
        started = [programs.start("stage-writer", "run", written, "--until-caught-up") for _ in range(writers)]
        assert [writer.process.wait(600) for writer in started] == [0] * writers

    def load(written: Path) -> None:
        report = in_process.load(written, spark)
        assert (report.failure, report.held) == (None, {})

    missing = programs.run("stage-writer", "check", config(columns="from_table"))
    assert missing.returncode == ExitCode.USAGE
    assert f"columns is from_table, and there is no Delta table at {table}" in missing.stderr
    staged(config())  # an empty topic is no reason to fail

    inferring = config()
    staged(inferring, '{"id": 1, "at": "2026-03-01T00:00:00Z"}', '{"id": 2, "price": 1.5}', writers=2)
    columns = "id BIGINT, at TIMESTAMP, price DOUBLE"
    assert f"orders: from_records: {columns}" in programs.succeed("stage-writer", "check", inferring)
    load(inferring)
    staged(inferring, '{"id": 3, "late": true}')
    load(inferring)
    assert f"orders: from_records: {columns}" in programs.succeed("delta-loader", "check", inferring)

    following = config(columns="from_table", unknown_fields="rescue")
    staged(following, '{"id": 4, "late": false, "new": 1}')
    load(following)
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMNS (new DECIMAL(9, 2))")
    assert "from_table: id BIGINT, at TIMESTAMP, price DOUBLE, late BOOLEAN, new DECIMAL(9,2)" in programs.succeed(
        "stage-writer", "check", following
    )
    staged(following, '{"id": 5, "new": 1.25}')
    load(following)

    rows = spark.read.format("delta").load(table).orderBy("id").selectExpr("to_json(struct(*))").collect()
    assert [row[0] for row in rows] == [
        '{"id":1,"at":"2026-03-01T00:00:00.000Z"}',
        '{"id":2,"price":1.5}',
        '{"id":3,"late":true}',
        '{"id":4,"_rescued":"{\\"new\\":1}","late":false}',
        '{"id":5,"new":1.25}',
    ]


@contextmanager
def small_registry() -> Iterator[str]:
    with running_registry() as registry:
        yield registry.url


@pytest.mark.parametrize("running", [small_registry, pytest.param(running_apicurio, marks=pytest.mark.nightly)])
def test_columns_come_from_the_registry_and_a_new_field_is_in_its_column_from_its_first_record(
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    programs: Programs,
    spark: SparkSession,
    tmp_path: Path,
    *,
    running: Callable[[], AbstractContextManager[str]],
) -> None:
    topic, table = new_topic(1), f"{tmp_path}/orders"
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    context = SerializationContext(topic, MessageField.VALUE)
    fields: list[dict[str, object]] = [{"name": "id", "type": "int"}, {"name": "sent", "type": MILLIS}]
    prices = {"columns": "id BIGINT, price DOUBLE", "derive": {"double_price": "2 * price"}}
    with running() as url:
        client = SchemaRegistryClient({"url": url})

        def produce(*records: dict[str, object]) -> None:
            schema = {"type": "record", "name": "Order", "fields": fields}
            serialize = AvroSerializer(client, json.dumps(schema))
            for record in records:
                producer.produce(topic, serialize({"sent": SENT, **record}, context))
            assert producer.flush(120) == 0

        config = programs.config(
            {
                "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
                "schema_registry": {"url": url},
                "stage": {"url": f"{tmp_path}/stage"},
                "writer": {"group_id": topic, "http": None},
                "loader": {"http": None},
                "streams": [
                    {
                        "app_id": "orders",
                        "topics": [topic],
                        "tables": [table, {"table": f"{tmp_path}/prices", **prices}],
                        "columns": "from_registry",
                        "format": "avro",
                        "framing": "confluent",
                        "kafka_columns": False,
                    }
                ],
            }
        )
        produce({"id": 1})
        columns = "orders: from_registry: id INT, sent TIMESTAMP"
        assert columns in programs.succeed("stage-writer", "check", config)
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
        report = in_process.load(config, spark)
        assert (report.failure, report.held) == (None, {})
        produce({"id": 2})
        fields.append({"name": "price", "type": ["null", "double"], "default": None})
        produce({"id": 3, "price": 1.5}, {"id": 4, "price": None})
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
        report = in_process.load(config, spark)
        assert (report.failure, report.held) == (None, {})
        assert f"{columns}, price DOUBLE" in programs.succeed("delta-loader", "check", config)
    rows = spark.read.format("delta").load(table).orderBy("id").selectExpr("id", "year(sent)", "price").collect()
    assert [tuple(row) for row in rows] == [(1, 2024, None), (2, 2024, None), (3, 2024, 1.5), (4, 2024, None)]
    rows = spark.read.format("delta").load(f"{tmp_path}/prices").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, None, None), (2, None, None), (3, 1.5, 3.0), (4, None, None)]


def test_columns_come_from_the_schema_file_and_a_field_added_to_it_is_loaded_with_the_records_that_wait(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> None:
    topics = {"avro": new_topic(1), "protobuf": new_topic(1)}
    streams = [
        {"app_id": name, "topics": [topic], "table": f"{tmp_path}/{name}", "format": name}
        for name, topic in topics.items()
    ]
    config = programs.config(
        {
            "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
            "stage": {"url": f"{tmp_path}/stage"},
            "writer": {"group_id": topics["avro"], "http": None},
            "loader": {"http": None},
            "streams": [{**stream, "schema_file": f"{tmp_path}/{stream['app_id']}.schema"} for stream in streams],
        }
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def stage(proto: str, *records: bytes, **types: str) -> None:
        schema = {"type": "record", "name": "A", "fields": [{"name": name, "type": types[name]} for name in types]}
        (tmp_path / "avro.schema").write_text(json.dumps(schema))
        (tmp_path / "protobuf.schema").write_text(f'syntax = "proto3"; message A {{ sint64 id = 1; {proto} }}')
        for topic, record in zip(topics.values(), records, strict=True):
            producer.produce(topic, record)
        assert producer.flush(180) == 0
        programs.succeed("stage-writer", "run", config, "--until-caught-up")

    stage("", b"\2", b"\x08\2", id="long")
    stage("string note = 2;", b"\4\2x", b"\x08\4\x12\1x", id="long", note="string")
    checked = programs.succeed("stage-writer", "check", config)
    assert all(f"{app_id}: from_schema_file: id BIGINT, note STRING" in checked for app_id in topics)
    for report in in_process.load_all(config, spark):
        assert (report.failure, report.held) == (None, {})
    for stream in streams:
        rows = spark.read.format("delta").load(stream["table"]).orderBy("id").select("id", "note").collect()
        assert [tuple(row) for row in rows] == [(1, None), (2, "x")]
