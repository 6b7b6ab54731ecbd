"""Orders in one table and their lines in another, from one topic, while a writer dies."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from devservices.kafka import KafkaCluster
from tests.builders import pipeline_config
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.reading import rows_of

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_orders_and_their_lines_are_in_tables_of_their_own(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path, spark: SparkSession
) -> None:
    topic, orders, lines = new_topic(1), f"{tmp_path}/orders", f"{tmp_path}/lines"
    columns = "id BIGINT, items ARRAY<STRUCT<sku: STRING, n: BIGINT>>"
    stream = {
        "app_id": "orders",
        "topics": [topic],
        "table": orders,
        "columns": "id BIGINT, city STRING",
        "tables": [{"table": lines, "columns": columns, "explode": "items"}],
        "unknown_fields": "evolve",
    }
    settings = pipeline_config(kafka.bootstrap_servers, tmp_path, stream)
    config = programs.config(settings)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    counts = [3, 0, 20_000, 1]
    for number, count in enumerate(counts):
        # The items of the third are made in many pieces.
        items = [{"sku": f"{number}-{line}", "n": line, "gift": True} for line in range(count)]
        producer.produce(topic, json.dumps({"id": number, "city": "Ulm", "note": "x" * 2_000, "items": items}))
    producer.produce(topic, json.dumps({"id": 4, "city": 4, "items": [{"sku": "none"}]}))
    assert producer.flush(120) == 0
    programs.writer_dies(config)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    report = in_process.load(config, spark)
    assert (report.failure, report.held) == (None, {})

    assert sorted((row["id"], len(row["items"]), len(row["note"])) for row in rows_of(orders)) == [
        (number, count, 2_000) for number, count in enumerate(counts)
    ]
    pairs = [(row["id"], row["items"]) for row in rows_of(lines)]
    assert sorted(number for number, _ in pairs) == [0] * 3 + [1] + [2] * 20_000 + [3]
    skus = [item["sku"] for number, item in pairs if number == 2]
    assert len({*skus}) == len(skus) == 20_000
    assert {item["gift"] for _, item in pairs if item is not None} == {True}
    assert [row["error_class"] for row in rows_of(f"{orders}_dead_letters")] == ["wrong_type"]
    assert in_process.verify(config, spark).is_clean
