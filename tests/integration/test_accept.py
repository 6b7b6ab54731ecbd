"""The whole way back after a RESTORE: stopped, a dry run, the answer, and each of Kafka's records once in the table."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.settings import load_settings
from delta_loader.load.report import StreamReport
from delta_loader.spark.delta import SparkDeltaTables
from devservices.kafka import KafkaCluster
from tests.fakes.loading import loader_for
from tests.fakes.staging import Staging
from tests.integration.conftest import Programs

pytestmark = [pytest.mark.broker, pytest.mark.spark]


class Pipeline:
    """One topic of two partitions, staged by the real program and loaded by the session that tests share."""

    def __init__(self, kafka: KafkaCluster, topic: str, folder: Path, programs: Programs, spark: SparkSession) -> None:
        self.kafka, self.topic, self.programs, self.spark = kafka, topic, programs, spark
        self.staging = Staging(str(folder), topic)
        self.config = programs.config(
            {
                "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
                "stage": {"url": self.staging.stage_url},
                "writer": {"http": None, "group_id": f"group-{topic}", "flush_records": 5},
                "loader": {"http": None, "marker_retention": "0s"},
                "streams": [
                    {"app_id": "orders", "topics": [topic], "table": self.staging.table, "columns": "id BIGINT"}
                ],
            }
        )
        self.sent: list[tuple[int, int]] = []

    def stage(self, count: int = 0, *, bad: bool = True) -> None:
        """Send so many records to each partition, one of ten a bad one, and stage them."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for _ in range(count):
            for partition in (0, 1):
                offset = sum(staged_partition == partition for staged_partition, _ in self.sent)
                producer.produce(self.topic, b"{" if bad and offset % 10 == 3 else b'{"id": 7}', partition=partition)
                self.sent.append((partition, offset))
        assert producer.flush(180) == 0
        self.programs.succeed("stage-writer", "run", self.config, "--until-caught-up")

    def load(self) -> StreamReport:
        settings = load_settings(self.config, {})
        (report,) = loader_for(self.staging, SparkDeltaTables(self.spark, SystemClock()), settings).run_pass()
        assert report.failure is None
        return report

    def rows(self) -> list[tuple[int, int]]:
        """What both tables hold, by partition and offset."""
        rows: list[tuple[int, int]] = []
        for url in (self.staging.table, self.staging.dead_letters):
            table = DeltaTable(url).to_pyarrow_table(columns=["_kafka_partition", "_kafka_offset"])
            rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
        return sorted(rows)

    def held(self) -> set[str]:
        content = json.loads(self.programs.run("delta-loader", "status", self.config, "--json").stdout)
        return {partition["held"]["reason"] for partition in content["streams"][0]["partitions"] if partition["held"]}

    def accept(self, *arguments: str) -> str:
        return self.programs.succeed("bootstrap", "accept", self.config, "--stream", "orders", *arguments)


@pytest.fixture
def pipeline(
    kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path, programs: Programs, spark: SparkSession
) -> Pipeline:
    return Pipeline(kafka, new_topic(2), tmp_path, programs, spark)


def test_after_a_restore_each_record_is_there_once_again(pipeline: Pipeline) -> None:
    pipeline.stage(10)
    pipeline.load()
    first = {url: DeltaTable(url).version() for url in (pipeline.staging.table, pipeline.staging.dead_letters)}
    for _ in range(2):
        pipeline.stage(10)
        pipeline.load()
    assert pipeline.rows() == sorted(pipeline.sent)
    # Both tables, by another engine than Spark.
    for url, version in first.items():
        DeltaTable(url).restore(version)
    assert len(pipeline.rows()) == 20
    pipeline.stage(5)
    assert {held.reason for held in pipeline.load().held.values()} == {"table_restored"}
    assert pipeline.held() == {"table_restored"}
    assert len(pipeline.rows()) == 20

    shown = pipeline.accept("--replay")
    assert f"{pipeline.topic}/0: loading would start again at 10" in shown
    assert "the writers would stage again from 10 on" in shown
    assert "Nothing was changed" in shown
    assert list(pipeline.staging.store(pipeline.staging.stage_url).list("accept")) == []

    assert "applies it at its next run" in pipeline.accept("--replay", "--yes")
    pipeline.stage(3)
    assert pipeline.load().held == {}
    assert pipeline.rows() == sorted(pipeline.sent)
    assert pipeline.held() == set()


def test_offsets_that_kafka_no_longer_has_are_reported_before_any_change(pipeline: Pipeline) -> None:
    pipeline.stage(10, bad=False)
    pipeline.load()
    version = DeltaTable(pipeline.staging.table).version()
    for _ in range(2):  # the last marker of a partition stays, and could be used again
        pipeline.stage(10, bad=False)
        pipeline.load()
    DeltaTable(pipeline.staging.table).restore(version)
    admin = pipeline.kafka.admin  # held, because the request is lost when the client is collected
    for deleted in admin.delete_records([KafkaPartition(pipeline.topic, 0, 13)]).values():
        deleted.result(60)
    done = pipeline.programs.run("bootstrap", "accept", pipeline.config, "--stream", "orders", "--replay", "--yes")
    assert done.returncode == 2
    assert f"Kafka no longer has [10, 13) of {pipeline.topic}/0: 3 positions" in done.stderr
    assert "13 on" in pipeline.accept("--replay", "--give-up", "--yes")
    pipeline.stage()
    assert pipeline.load().held == {}
    own = DeltaTable(pipeline.staging.table).to_pyarrow_table(columns=["_kafka_partition", "_kafka_offset"])
    loaded_rows = sorted(zip(*(column.to_pylist() for column in own.columns), strict=True))
    assert loaded_rows == sorted(set(pipeline.sent) - {(0, 10), (0, 11), (0, 12)})
