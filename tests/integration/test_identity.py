"""Edits of a config that change whose records a position counts: held by name, and loaded once after the remedy."""

import json
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.settings import load_settings
from common.stage.leases import Epoch, Grant, LeaseRecord, epoch_path
from common.storage.store import FsspecStore
from delta_loader.spark.delta import SparkDeltaTables
from devservices.kafka import KafkaCluster
from tests.fakes.loading import loader_for
from tests.fakes.staging import Staging
from tests.integration.conftest import Programs
from tests.integration.in_process import verify
from tests.integration.test_topic_recreated import recreated

pytestmark = [pytest.mark.broker, pytest.mark.spark]


class Edited:
    """A pipeline whose config is edited; the writer and the operator's commands are the real programs."""

    def __init__(self, kafka: KafkaCluster, folder: Path, programs: Programs, spark: SparkSession) -> None:
        self.kafka, self.programs, self.spark, self.folder = kafka, programs, spark, folder
        self.staging = Staging(str(folder))
        self.config = folder
        self.sent: Counter[tuple[str, int]] = Counter()

    def edit(self, topics: list[str], app_id: str = "orders", stage: str = "stage") -> None:
        self.config = self.programs.config(
            {
                "kafka": {"bootstrap.servers": self.kafka.bootstrap_servers},
                "stage": {"url": f"{self.folder}/{stage}"},
                "writer": {"http": None, "group_id": f"group-{stage}", "flush_records": 5},
                "loader": {"http": None, "marker_retention": "0s"},
                "streams": [{"app_id": app_id, "topics": topics, "table": self.staging.table, "columns": "id BIGINT"}],
            }
        )

    def send(self, topic: str, records: int) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for _ in range(records):
            producer.produce(topic, b'{"id": 7}', partition=0)
            self.sent[topic, sum(sent_topic == topic for sent_topic, _ in self.sent.elements())] += 1
        assert producer.flush(180) == 0
        self.programs.succeed("stage-writer", "run", self.config, "--until-caught-up")

    def load(self) -> None:
        settings = load_settings(self.config, {})
        tables = SparkDeltaTables(self.spark, SystemClock())
        (report,) = loader_for(_At(self.staging, settings.stage.url), tables, settings).run_pass()
        assert report.failure is None, report.failure

    def held(self) -> dict[str, str]:
        """By topic, why it is held, as status says it."""
        streams = json.loads(self.programs.run("delta-loader", "status", self.config, "--json").stdout)["streams"]
        partitions = [partition for stream in streams for partition in stream["partitions"]]
        return {partition["topic"]: partition["held"]["reason"] for partition in partitions if partition["held"]}

    def remedy(self) -> str:
        """The only command that status prints for what is held."""
        streams = json.loads(self.programs.run("delta-loader", "status", self.config, "--json").stdout)["streams"]
        (text,) = {
            partition["held"]["remedy"] for stream in streams for partition in stream["partitions"] if partition["held"]
        }
        return str(text.split("`")[1])

    def obey(self) -> None:
        program, *arguments = shlex.split(self.remedy())
        self.programs.succeed(program, *arguments)

    def rows(self) -> Counter[tuple[str, int]]:
        table = DeltaTable(self.staging.table).to_pyarrow_table(columns=["_kafka_topic", "_kafka_offset"])
        return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


class _At(Staging):
    def __init__(self, staging: Staging, stage_url: str) -> None:
        super().__init__(staging.root, staging.topic)
        self._stage_url = stage_url

    @property
    def stage_url(self) -> str:
        return self._stage_url


@pytest.fixture
def edited(kafka: KafkaCluster, tmp_path: Path, programs: Programs, spark: SparkSession) -> Edited:
    return Edited(kafka, tmp_path, programs, spark)


def test_renamed_topic_is_held_and_loaded_after_the_command_of_status(
    edited: Edited, new_topic: Callable[..., str]
) -> None:
    orders, renamed = new_topic(), new_topic()
    edited.edit([orders])
    edited.send(orders, 12)
    edited.load()
    edited.edit([renamed])
    edited.send(renamed, 25)
    edited.load()
    assert edited.held() == {renamed: "other_topic"}
    assert {topic for topic, _ in edited.rows()} == {orders}
    edited.obey()
    edited.send(renamed, 3)
    edited.load()
    assert edited.held() == {}
    edited.edit([orders, renamed])
    edited.send(orders, 4)
    edited.load()
    assert (edited.held(), edited.rows()) == ({}, edited.sent)


def test_replaced_topic_is_reported_until_its_markers_are_loaded(edited: Edited, new_topic: Callable[..., str]) -> None:
    orders, payments, refunds = new_topic(), new_topic(), new_topic()
    edited.edit([orders, payments])
    edited.send(orders, 12)
    edited.send(payments, 7)
    edited.load()
    edited.send(payments, 8)
    edited.edit([orders, refunds])
    edited.send(refunds, 3)
    edited.load()
    assert {topic for topic, _ in edited.rows()} == {orders, payments, refunds}
    assert edited.rows() < edited.sent
    status = edited.programs.run("delta-loader", "status", edited.config)
    assert status.returncode == 3
    assert f"1 marker of {payments}/0 was staged for it" in status.stdout
    assert edited.programs.run("delta-loader", "check", edited.config).returncode == 3
    edited.edit([orders, refunds, payments])  # as the remedy says
    edited.load()
    assert edited.rows() == edited.sent
    edited.edit([orders, refunds])
    assert edited.programs.run("delta-loader", "status", edited.config).returncode == 0


def test_changed_app_id_is_held_and_continues_after_the_first(edited: Edited, new_topic: Callable[..., str]) -> None:
    orders = new_topic()
    edited.edit([orders])
    edited.send(orders, 12)
    edited.load()
    edited.edit([orders], app_id="orders_prod")
    edited.send(orders, 5)
    edited.load()
    assert edited.held() == {orders: "other_stream"}
    command = edited.remedy()
    still_loads = Grant("loader-1", frozenset({"orders"}), 1.0, Epoch(9), {"orders": frozenset({orders})})
    lease = LeaseRecord("loader-1", released=False, lease_s=1.0, created_ms=0, grants=(still_loads,))
    FsspecStore(f"{edited.folder}/stage").create(epoch_path(Epoch(9)), lease.to_bytes())
    done = edited.programs.run(*shlex.split(command))
    assert done.returncode == 0, done.stderr
    assert "whether the loader loader-1 still runs" in done.stderr, (
        "it may add to what the table has under the old name"
    )
    edited.send(orders, 2)
    edited.load()
    assert (edited.held(), edited.rows()) == ({}, edited.sent)


def test_topic_of_the_same_name_with_another_id_in_another_stage_is_held(
    edited: Edited, new_topic: Callable[..., str]
) -> None:
    orders = new_topic()
    edited.edit([orders])
    edited.send(orders, 12)
    edited.load()
    edited.kafka.delete_topic(orders)  # what a move to another cluster looks like to the table
    recreated(edited.kafka, orders)
    edited.edit([orders], stage="other-stage")
    producer = Producer({"bootstrap.servers": edited.kafka.bootstrap_servers})
    for _ in range(7):
        producer.produce(orders, b'{"id": 8}', partition=0)
    assert producer.flush(180) == 0
    edited.programs.succeed("stage-writer", "run", edited.config, "--until-caught-up")
    edited.load()
    assert edited.held() == {orders: "other_topic"}
    (fault,) = verify(edited.config, edited.spark).faults
    assert (fault.kind, str(fault.partition)) == ("other_topic", f"{orders}/0"), "offsets below 7 look the same"
    edited.obey()
    edited.programs.succeed("stage-writer", "run", edited.config, "--until-caught-up")
    edited.load()
    assert edited.held() == {}
    assert verify(edited.config, edited.spark).is_clean
    assert edited.rows() == edited.sent + Counter({(orders, offset): 1 for offset in range(7)})
