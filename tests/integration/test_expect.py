"""Rules on rows through the commands: dead letters, counts, and a partition that is held until a record is given up."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.integration.test_replay import STARTED_MS, Pipeline
from tests.reading import rows_of
from tests.staged import manifests

pytestmark = [pytest.mark.broker, pytest.mark.spark]

AMOUNTS = [5, -5, None, 7, 500, 3, -1, 2]
RULES = {
    "positive": "amount > 0",
    "small": {"rule": "amount < 6", "on_fail": "count"},
    "sane": {"rule": "amount < 100", "on_fail": "hold"},
}


def test_rules_refuse_count_and_hold_until_the_record_is_given_up(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> None:
    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number, amount in enumerate(AMOUNTS):
        value = json.dumps({"id": number, "amount": amount})
        producer.produce(topic, value, partition=0, timestamp=STARTED_MS + number * 1000)
    assert producer.flush(180) == 0
    pipeline = Pipeline(programs, spark, tmp_path, topic, kafka.bootstrap_servers)
    stream = {"columns": "id BIGINT, amount BIGINT", "derive": {}, "partition_by": [], "expect": RULES}
    config = pipeline.config("id", "id", **stream)

    held = programs.run("stage-writer", "run", config, "--until-caught-up")
    assert held.returncode == 3, held.stderr
    output = held.stdout + held.stderr
    assert (
        f"the record at offset 4 of {topic}/0 breaks a rule with on_fail: hold: expect.sane is false: amount < 100"
        in output
    )
    skip = ("skip", config, "--topic", topic, "--partition", "0", "--to", "5", "--yes")
    assert f"bootstrap skip {config} --topic {topic} --partition 0 --to 5 --yes" in output
    assert programs.run("stage-writer", "run", config, "--until-caught-up").returncode == 3, "nothing has changed"

    programs.succeed("bootstrap", *skip)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    marked = sorted(
        manifests(FsspecStore(f"{tmp_path}/stage"), f"done/{topic}/0"), key=lambda marker: marker.span.start
    )
    assert [(marker.span.start, marker.span.end, dict(marker.violations)) for marker in marked] == [
        (0, 4, {"positive": 1, "small": 1}),
        (4, 5, {}),
        (5, 8, {"positive": 1}),
    ]
    pipeline.load(config)
    rows = rows_of(f"{tmp_path}/orders")
    assert {row["id"]: row["amount"] for row in rows} == {0: 5, 2: None, 3: 7, 5: 3, 7: 2}
    letters = rows_of(f"{tmp_path}/orders_dead_letters")
    assert {(row["_kafka_offset"], row["error_class"], row["error"]) for row in letters} == {
        (offset, "expectation", "expect.positive is false: amount > 0") for offset in (1, 6)
    }
    report = in_process.verify(config, spark)
    assert (report.failure, report.faults) == (None, ())
