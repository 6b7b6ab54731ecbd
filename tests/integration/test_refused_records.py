"""Kafka to a table with constraints, generated and identity columns, by `load: append`, and proved by `verify`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.spans import Partition, Topic, TopicPartition
from common.storage.store import FsspecStore
from delta_loader.inspect.verify.findings import Verdict
from devservices.kafka import KafkaCluster
from tests.builders import pipeline_config
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.integration.mortal import Death, Mortal
from tests.reading import rows_of

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COUNT = 200


def test_each_record_is_a_row_or_a_dead_letter_with_its_bytes(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> None:
    topic, table = new_topic(2), f"{tmp_path}/orders"
    kafka_columns = "_kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, _kafka_timestamp TIMESTAMP"
    spark.sql(
        f"CREATE TABLE delta.`{table}` (number BIGINT GENERATED ALWAYS AS IDENTITY, id BIGINT NOT NULL, item STRING, "
        f"{kafka_columns}, bucket BIGINT GENERATED ALWAYS AS (id % 3)) USING delta PARTITIONED BY (bucket) "
        "TBLPROPERTIES ('delta.constraints.small' = 'item IS NULL OR length(item) < 4')"
    )
    config = programs.config(
        pipeline_config(
            kafka.bootstrap_servers,
            tmp_path,
            {
                "app_id": "orders",
                "topics": [topic],
                "table": table,
                "columns": "id BIGINT, items ARRAY<STRING>",
                "explode": "items",
                "rename": {"items": "item"},
                "load": "append",
            },
        )
    )
    producer, sent = Producer({"bootstrap.servers": kafka.bootstrap_servers}), dict[tuple[int, int], bytes]()
    for partition in (0, 1):
        for number in range(COUNT):
            items = ["a", "far too long"] if number % 50 == 7 else ["a", "b"][: number % 3]
            record = {"id": None if number % 60 == 9 else "x" if number % 70 == 11 else number, "items": items}
            sent[partition, number] = json.dumps(record).encode()
            producer.produce(topic, sent[partition, number], key=b"k", partition=partition)
    assert producer.flush(180) == 0
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    stage = FsspecStore(f"{tmp_path}/stage")
    assert len(list(stage.list("data/orders"))) == 2, "a file for each flush, although there are three buckets"

    tables = Mortal(spark, SystemClock(), f"{tmp_path}/stage")
    with pytest.raises(Death):
        in_process.load(config, spark, tables=tables)
    tables.dies = False
    report = in_process.load(config, spark, tables=tables)
    assert (report.failure, report.held) == (None, {})

    refused = {place for place in sent if place[1] % 50 == 7 or place[1] % 60 == 9}
    not_json = {place for place in sent if place[1] % 70 == 11}
    letters = rows_of(f"{table}_dead_letters")
    dead_letters = {
        (row["_kafka_partition"], row["_kafka_offset"]): (row["error_class"], row["value"]) for row in letters
    }
    assert len(letters) == len(dead_letters)
    assert dead_letters.keys() == refused | not_json
    for place in refused:
        assert dead_letters[place] == ("refused_by_table", sent[place])
    rows = rows_of(table)
    assert {(row["_kafka_partition"], row["_kafka_offset"]) for row in rows} == sent.keys() - refused - not_json
    assert len({row["number"] for row in rows}) == len(rows)
    assert all(row["bucket"] == int(str(row["id"])) % 3 for row in rows)
    verified = in_process.verify(config, spark)
    assert verified.failure is None
    assert {finding.verdict for finding in verified.findings} <= {Verdict.PROVED, Verdict.NOTED}, verified.findings
    assert all(partition.proved for partition in verified.partitions)


def test_table_without_kafkas_columns_refuses_records_that_can_still_be_named(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> None:
    topic, table = new_topic(2), f"{tmp_path}/orders"
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT NOT NULL, item STRING, square BIGINT GENERATED ALWAYS AS "
        "(id * id)) USING delta TBLPROPERTIES ('delta.constraints.small' = 'length(item) < 4')"
    )
    sent = dict[tuple[int, int], bytes]()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for partition, number in ((partition, number) for partition in (0, 1) for number in range(20)):
        items = ["a", "far too long"] if number % 5 == 2 else ["a", "b"]
        sent[partition, number] = json.dumps({"id": 10 * number + partition, "items": items}).encode()
        producer.produce(topic, sent[partition, number], key=b"k", partition=partition)
    assert producer.flush(180) == 0

    def config(load: str) -> Path:
        stream: dict[str, object] = {
            "app_id": "orders",
            "topics": [topic],
            "table": table,
            "columns": "id BIGINT, items ARRAY<STRING>",
        }
        stream |= {"explode": "items", "rename": {"items": "item"}, "load": load, "kafka_columns": False}
        return programs.config(pipeline_config(kafka.bootstrap_servers, tmp_path, stream))

    # Staged next to the table, where a file may become part of it unchanged, rows do not name their record.
    plain = config("auto")
    programs.succeed("stage-writer", "run", plain, "--until-caught-up")
    report = in_process.load(plain, spark)
    held = report.held[TopicPartition(Topic(topic), Partition(0))]
    assert (held.reason, "set load: append and stage its records again" in held.remedy) == ("not_written", True)
    assert rows_of(table) == []

    apart = config("append")
    for again in ("0", "1"):
        programs.succeed("bootstrap", "rewind", apart, "--topic", topic, "--partition", again, "--to", "0", "--yes")
    programs.succeed("stage-writer", "run", apart, "--until-caught-up")
    tables = Mortal(spark, SystemClock(), f"{tmp_path}/stage")
    with pytest.raises(Death):
        in_process.load(apart, spark, tables=tables)
    report = in_process.load(apart, spark)
    assert (report.failure, report.held) == (None, {})

    letters = rows_of(f"{table}_dead_letters")
    dead_letters = {
        (row["_kafka_partition"], row["_kafka_offset"]): (row["error_class"], row["value"]) for row in letters
    }
    refused = {place: ("refused_by_table", value) for place, value in sent.items() if place[1] % 5 == 2}
    assert (len(letters), dead_letters) == (len(refused), refused)
    rows = rows_of(table)
    wanted = [10 * number + partition for partition, number in sent.keys() - refused.keys() for _ in "ab"]
    assert sorted(int(str(row["id"])) for row in rows) == sorted(wanted)
    assert set(rows[0]) == {"id", "item", "square"}
    verified = in_process.verify(apart, spark)
    assert "rows_reconciled" in {finding.kind for finding in verified.findings}, verified.findings
