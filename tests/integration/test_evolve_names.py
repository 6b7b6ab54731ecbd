"""Change events gain fields, and their table gains columns under other names: by a real broker and Spark."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from devservices.kafka import KafkaCluster
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.producing import produce
from tests.reading import rows_of

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_merged_events_gain_fields_under_other_names_while_a_writer_dies(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path, spark: SparkSession
) -> None:
    """The names are edited while a file waits, which was staged with the names before."""
    topic, table = new_topic(1), f"{tmp_path}/orders"
    stream = {"app_id": "orders", "topics": [topic], "table": table, "load": "merge", "merge": {"keys": ["order_id"]}}
    settings: dict[str, Any] = {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "stage": {"url": f"{tmp_path}/stage"},
        "writer": {"group_id": topic, "http": None},
        "loader": {"http": None, "spark": {"spark.master": "local[2]"}},
    }

    def config_with(**more: object) -> Path:
        return programs.config({**settings, "streams": [{**stream, **more}]})

    def staged(config: Path, *events: tuple[object, object]) -> None:
        for before, after in events:
            op = "d" if after is None else "c" if before is None else "u"
            value = json.dumps({"before": before, "after": after, "op": op, "ts_ms": 5})
            produce(kafka.bootstrap_servers, topic, value, partition=0)
        programs.writer_dies(config)
        programs.succeed("stage-writer", "run", config, "--until-caught-up")

    config = config_with(field_names="snake_case")
    staged(config, (None, {"orderId": 1, "city": "Ulm"}), (None, {"orderId": 2, "city": "Bonn"}))
    first = {"orderId": 1, "city": "Ulm", "zipCode": 89073, "oldName": "x"}
    staged(config, ({"orderId": 1, "city": "Ulm"}, first))
    config = config_with(field_names="snake_case", rename={"oldName": "label"})
    third = {"orderId": 3, "city": "Kiel", "zipCode": 24103, "oldName": "y", "meta": {"madeBy": "z"}}
    staged(config, (None, third), ({"orderId": 2, "city": "Bonn"}, None))
    report = in_process.load(config, spark)
    assert (report.failure, report.held) == (None, {})
    staged(config, (first, {"orderId": 1, "city": "Ulm"}), (third, {**third, "zipCode": "none"}))
    report = in_process.load(config, spark)
    assert (report.failure, report.held) == (None, {})

    names = ("order_id", "city", "zip_code", "old_name", "label", "meta", "_rescued")
    rows = sorted((tuple(row[name] for name in names) for row in rows_of(table)), key=repr)
    assert rows == [
        (1, "Ulm", None, "x", None, None, None),
        (3, "Kiel", None, None, "y", {"made_by": "z"}, '{"zipCode":"none"}'),
    ]
    assert in_process.verify(config, spark).is_clean
