"""Change events gain fields, and their table gains columns under other names: by a real broker and Spark."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from devservices.kafka import KafkaCluster
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.reading import rows_of

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_merged_events_gain_fields_under_other_names_while_a_writer_dies(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path, spark: SparkSession
) -> None:
    """The names are edited while a file waits, which was staged with the names before."""
    topic, table = new_topic(1), f"{tmp_path}/orders"
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    stream = {"app_id": "orders", "topics": [topic], "table": table, "load": "merge", "merge": {"keys": ["order_id"]}}
    settings: dict[str, Any] = {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "stage": {"url": f"{tmp_path}/stage"},
        "loader": {"http": None, "spark": {"spark.master": "local[2]"}},
    }

    def configs(**more: object) -> tuple[Path, Path]:
        # What dies is in a group of its own, so that nothing waits until Kafka knows of its death.
        def config(name: str) -> Path:
            writer = {"group_id": f"{topic}-{name}", "http": None}
            return programs.config({**settings, "streams": [{**stream, **more}], "writer": writer}, f"{name}.yaml")

        return config("staging"), config("dying")

    def staged(config: Path, of_dying: Path, *events: tuple[object, object]) -> None:
        for before, after in events:
            op = "d" if after is None else "c" if before is None else "u"
            producer.produce(topic, json.dumps({"before": before, "after": after, "op": op, "ts_ms": 5}), partition=0)
        assert producer.flush(120) == 0
        dying = [sys.executable, "-m", "tests.integration.dying_writer", "0", "run", str(of_dying), "--until-caught-up"]
        assert subprocess.run(dying, check=False).returncode == -signal.SIGKILL
        programs.succeed("stage-writer", "run", config, "--until-caught-up")

    named = configs(field_names="snake_case")
    staged(*named, (None, {"orderId": 1, "city": "Ulm"}), (None, {"orderId": 2, "city": "Bonn"}))
    first = {"orderId": 1, "city": "Ulm", "zipCode": 89073, "oldName": "x"}
    staged(*named, ({"orderId": 1, "city": "Ulm"}, first))
    named = configs(field_names="snake_case", rename={"oldName": "label"})
    third = {"orderId": 3, "city": "Kiel", "zipCode": 24103, "oldName": "y", "meta": {"madeBy": "z"}}
    staged(*named, (None, third), ({"orderId": 2, "city": "Bonn"}, None))
    report = in_process.load(named[0], spark)
    assert (report.failure, report.held) == (None, {})
    staged(*named, (first, {"orderId": 1, "city": "Ulm"}), (third, {**third, "zipCode": "none"}))
    report = in_process.load(named[0], spark)
    assert (report.failure, report.held) == (None, {})

    names = ("order_id", "city", "zip_code", "old_name", "label", "meta", "_rescued")
    rows = sorted((tuple(row[name] for name in names) for row in rows_of(table)), key=repr)
    assert rows == [
        (1, "Ulm", None, "x", None, None, None),
        (3, "Kiel", None, None, "y", {"made_by": "z"}, '{"zipCode":"none"}'),
    ]
    assert in_process.verify(named[0], spark).is_clean
