"""The topic went back: deleted and created again, truncated, given more partitions; or it was never there.

Each history ends with what an operator sees, the remedy carried out, and nothing lost or mixed.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import NewPartitions
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from devservices.processes import Child
from tests.builders import pipeline_config
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.producing import produce
from tests.staged import markers
from tests.waiting import until

pytestmark = pytest.mark.broker


def settings(kafka: KafkaCluster, folder: Path, topic: str, start: str = "earliest") -> dict[str, object]:
    return pipeline_config(
        kafka.bootstrap_servers,
        folder,
        {
            "app_id": "orders",
            "topics": [topic],
            "table": f"{folder}/orders",
            "columns": "text STRING",
            "start": start,
        },
        kafka={"session.timeout.ms": 6000, "topic.metadata.refresh.interval.ms": 1000},
        writer={"flush_after": "1s"},
    )


def send(kafka: KafkaCluster, topic: str, text: str, records: int, partition: int = 0) -> None:
    produce(kafka.bootstrap_servers, topic, *[json.dumps({"text": text})] * records, partition=partition)


def recreated(kafka: KafkaCluster, topic: str) -> None:

    def is_there() -> bool:
        with suppress(KafkaException):  # the old one is still being deleted
            return bool(kafka.create_topic(topic))
        return False

    until(is_there, "a new topic")


def create_again(kafka: KafkaCluster, topic: str, text: str, records: int) -> None:
    kafka.delete_topic(topic)
    recreated(kafka, topic)
    send(kafka, topic, text, records)


def spans(folder: Path, topic: str) -> dict[int, list[tuple[int, int, int]]]:
    """By partition, each marker's generation, start and end."""
    spans_of_partition: dict[int, list[tuple[int, int, int]]] = {}
    for marker in markers(FsspecStore(f"{folder}/stage"), f"done/{topic}"):
        assert marker.manifest is not None
        span = (marker.manifest.generation, int(marker.span.start), int(marker.span.end))
        spans_of_partition.setdefault(marker.name.topic_partition.partition, []).append(span)
    return {partition: sorted(several) for partition, several in sorted(spans_of_partition.items())}


def ends(folder: Path, topic: str) -> dict[int, int]:
    return {partition: several[-1][2] for partition, several in spans(folder, topic).items()}


def until_writers_hold(programs: Programs, config: Path, reason: str | None) -> None:
    """Wait for a status for which Kafka answered in time, and by which the only partition is held for this reason."""
    until(lambda: writers_hold(programs, config) == reason, f"the reason {reason}")


def writers_hold(programs: Programs, config: Path) -> str | None:
    status = programs.run("delta-loader", "status", config, "--json")
    (stream,) = json.loads(status.stdout)["streams"]
    (partition,) = stream["partitions"]
    assert status.returncode == (0 if partition["writers_hold"] is None else 3)
    return None if partition["writers_hold"] is None else str(partition["writers_hold"]["reason"])


def wait_for(child: Child, text: str, within_s: float = 180.0) -> None:
    child.wait_until(lambda: text in child.log.read_text("utf-8"), f"“{text}”", within_s)


def writer_of_old_topic(kafka: KafkaCluster, topic: str, programs: Programs, config: Path, folder: Path) -> Child:
    """A running writer that has staged the topic's first records."""
    send(kafka, topic, "old", 10)
    writer = programs.start("stage-writer", "run", config)
    writer.wait_until(lambda: ends(folder, topic) == {0: 10}, "the old topic is staged")
    return writer


@pytest.mark.spark
def test_topic_that_is_created_again_while_a_writer_runs_is_never_mixed(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> None:
    topic = new_topic(1)
    config = programs.config(settings(kafka, tmp_path, topic))
    writer = writer_of_old_topic(kafka, topic, programs, config, tmp_path)
    create_again(kafka, topic, "new", 30)  # so many that there is a position 10 again
    wait_for(writer, "was deleted and created again")
    assert ends(tmp_path, topic) == {0: 10}, "not one record of the new topic is in the old one's chain"

    refused = programs.run("bootstrap", "restart", config, "--topic", topic, "--yes")
    assert refused.returncode == 2
    assert "[0, 10)" in refused.stderr
    assert "not loaded" in refused.stderr
    assert in_process.load(config, spark).failure is None
    shown = programs.succeed("bootstrap", "restart", config, "--topic", topic)
    assert "generation 1" in shown
    assert "Nothing was changed" in shown
    assert spans(tmp_path, topic) == {0: [(0, 0, 10)]}
    programs.succeed("bootstrap", "restart", config, "--topic", topic, "--yes")
    writer.wait_until(lambda: ends(tmp_path, topic) == {0: 30}, "the running writer goes on in the new chain")
    writer.stop()
    assert all(generation == 1 for generation, _, _ in spans(tmp_path, topic)[0])

    assert in_process.load(config, spark).failure is None
    table = DeltaTable(f"{tmp_path}/orders")
    texts = table.to_pyarrow_table()["text"].to_pylist()
    assert {text: texts.count(text) for text in set(texts)} == {"old": 10, "new": 30}
    assert (table.transaction_version("orders-0"), table.transaction_version("orders-0@1")) == (9, 29)
    status = json.loads(programs.succeed("delta-loader", "status", config, "--json"))
    (partition,) = status["streams"][0]["partitions"]
    assert (partition["staged_to"], partition["loaded_to"], partition["held"]) == (30, 30, None)


def test_topic_that_is_deleted_does_not_end_a_writer(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    topic = new_topic(1)
    config = programs.config(settings(kafka, tmp_path, topic))
    writer = writer_of_old_topic(kafka, topic, programs, config, tmp_path)
    kafka.delete_topic(topic)
    wait_for(writer, "topic does not exist in Kafka")
    recreated(kafka, topic)
    wait_for(writer, "was deleted and created again")
    writer.stop()


@pytest.mark.parametrize("records", [0, 30])
def test_topic_that_was_created_again_while_no_writer_ran_is_held(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path, records: int
) -> None:
    topic = new_topic(1)
    config = programs.config(settings(kafka, tmp_path, topic))
    send(kafka, topic, "old", 10)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    create_again(kafka, topic, "new", records)
    done = programs.run("stage-writer", "run", config, "--until-caught-up")
    assert done.returncode == 3
    assert "was deleted and created again" in done.stderr
    assert spans(tmp_path, topic) == {0: [(0, 0, 10)]}
    remedy = f"bootstrap restart {config} --topic {topic} --yes"
    until(lambda: remedy in programs.run("delta-loader", "status", config).stdout, "a status with the remedy")
    until_writers_hold(programs, config, "topic_recreated")
    programs.succeed("bootstrap", "restart", config, "--topic", topic, "--give-up", "--yes")
    until_writers_hold(programs, config, None)
    assert spans(tmp_path, topic) == {}
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert spans(tmp_path, topic) == ({0: [(1, 0, records)]} if records else {})
    again = programs.succeed("bootstrap", "restart", config, "--topic", topic, "--yes")
    assert "its chain belongs to the current topic" in again


def test_partition_that_is_added_under_latest_is_read_from_its_first_record(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    topic = new_topic(2)
    config = programs.config(settings(kafka, tmp_path, topic, "latest"))
    for partition in (0, 1):
        send(kafka, topic, "before", 5, partition)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert spans(tmp_path, topic) == {}, "what was there before is not wanted"
    admin = kafka.admin  # held, because the answer is lost when the client is collected
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
    until(lambda: len(admin.list_topics(topic, 180).topics[topic].partitions) == 3)  # brokers hear of it by and by
    send(kafka, topic, "after", 7, 2)
    send(kafka, topic, "after", 2, 1)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert spans(tmp_path, topic) == {1: [(0, 5, 7)], 2: [(0, 0, 7)]}


def test_records_that_were_deleted_beyond_the_position_are_held_until_they_are_given_up(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    topic = new_topic(1)
    config = programs.config(settings(kafka, tmp_path, topic))
    send(kafka, topic, "first", 10)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    send(kafka, topic, "second", 10)
    place, admin = KafkaPartition(topic, 0, 15), kafka.admin
    admin.delete_records([place])[place].result(60)
    done = programs.run("stage-writer", "run", config, "--until-caught-up")
    assert done.returncode == 3
    assert f"Kafka no longer has [10, 15) of {topic}/0" in done.stderr
    assert f"bootstrap skip {config} --topic {topic} --partition 0 --to 15 --yes" in done.stderr
    until_writers_hold(programs, config, "gone_from_kafka")
    programs.succeed("bootstrap", "skip", config, "--topic", topic, "--partition", "0", "--to", "15", "--yes")
    until_writers_hold(programs, config, None)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert spans(tmp_path, topic) == {0: [(0, 0, 10), (0, 10, 15), (0, 15, 20)]}


def test_missing_topic_is_named_and_waited_for(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> None:
    topic = f"{new_topic(1)}-later"
    config = programs.config(settings(kafka, tmp_path, topic))
    for command, *options in (("run", "--until-caught-up"), ("check",)):
        done = programs.run("stage-writer", command, config, *options)
        assert done.returncode == 2
        assert f"names the topic '{topic}', which does not exist in Kafka" in done.stderr
    writer = programs.start("stage-writer", "run", config)
    wait_for(writer, "topic does not exist in Kafka")
    assert topic in writer.log.read_text("utf-8")
    kafka.create_topic(topic)
    send(kafka, topic, "late", 4)
    writer.wait_until(lambda: ends(tmp_path, topic) == {0: 4}, "the topic that came is staged")
    writer.stop()
    kafka.delete_topic(topic)
