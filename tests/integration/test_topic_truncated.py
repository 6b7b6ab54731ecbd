"""A topic that has lost records which are staged, while its id stays: a broker comes back from a copy of its data.

Other records get the lost ones' offsets before any writer asks again, so no offset tells.
"""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from devservices.kafka import KafkaCluster, running_kafka
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.integration.test_topic_recreated import ends, send, settings, wait_for
from tests.waiting import until

pytestmark = pytest.mark.broker
TOPIC = "orders"


@contextmanager
def copied_kafka(folder: Path, *, stopped: bool) -> Iterator[KafkaCluster]:
    """A broker with 50 records, and a copy of its data, taken while it was stopped or while it ran."""
    with running_kafka(folder=folder) as kafka:
        kafka.create_topic(TOPIC)
        send(kafka, TOPIC, "kept", 50)
        (broker,) = kafka.brokers
        if stopped:
            broker.stop()
        shutil.copytree(broker.folder / "data", folder / "copy")
        if stopped:
            broker.start()
            kafka.wait_until_ready()
        send(kafka, TOPIC, "lost", 50)
        yield kafka


def restore(kafka: KafkaCluster, folder: Path) -> None:
    """Put the copy in the place of the broker's data; its next records are others."""
    (broker,) = kafka.brokers
    broker.stop()
    shutil.rmtree(broker.folder / "data")
    shutil.copytree(folder / "copy", broker.folder / "data")
    broker.start()
    kafka.wait_until_ready()
    send(kafka, TOPIC, "other", 60)


@pytest.mark.spark
def test_records_that_kafka_lost_while_no_writer_ran_hold_their_partition(
    tmp_path: Path, programs: Programs, spark: SparkSession
) -> None:
    with copied_kafka(tmp_path / "kafka", stopped=False) as kafka:
        config = programs.config(settings(kafka, tmp_path, TOPIC))
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
        assert ends(tmp_path, TOPIC) == {0: 100}
        restore(kafka, tmp_path / "kafka")

        done = programs.run("stage-writer", "run", config, "--until-caught-up")
        assert done.returncode == 3
        assert "Kafka lost the record at 99 of orders/0" in done.stderr
        assert "has different ones from 50 on" in done.stderr
        assert "if it names none, it is 50" in done.stderr
        assert ends(tmp_path, TOPIC) == {0: 100}, "none of the other records is in the old chain"

        assert in_process.load(config, spark).failure is None
        [fault] = in_process.verify(config, spark).faults
        assert "50 records of orders/0 have another timestamp in Kafka than in the tables, the first one at 50 (" in (
            fault.text
        )
        assert f"--topic {TOPIC} --partition 0 --at 50 --yes" in fault.text
        refused = programs.run("bootstrap", "restart", config, "--topic", TOPIC, "--yes")
        assert "its chain belongs to the current topic" in refused.stdout
        at_50 = ("--topic", TOPIC, "--partition", "0", "--at", "50", "--yes")
        programs.succeed("bootstrap", "restart", config, *at_50)
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
        assert in_process.load(config, spark).failure is None
    texts = DeltaTable(f"{tmp_path}/orders").to_pyarrow_table()["text"].to_pylist()
    assert {text: texts.count(text) for text in set(texts)} == {"kept": 50, "lost": 50, "other": 60}


@pytest.mark.in_turn("leader epochs come again")
@pytest.mark.parametrize("native", ["auto", "off"])
def test_restored_cluster_with_repeated_leader_epochs_is_noticed(
    tmp_path: Path, programs: Programs, native: str
) -> None:
    """The copy was taken of a stopped broker: it is started twice, and gives both times the same epoch."""
    with copied_kafka(tmp_path / "kafka", stopped=True) as kafka:
        given = settings(kafka, tmp_path, TOPIC)
        writer_settings = given["writer"]
        assert isinstance(writer_settings, dict)
        config = programs.config({**given, "writer": {**writer_settings, "native": native}})
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
        assert ends(tmp_path, TOPIC) == {0: 100}
        restore(kafka, tmp_path / "kafka")
        done = programs.run("stage-writer", "run", config, "--until-caught-up")
    assert done.returncode == 3
    assert "Kafka lost the record at 99 of orders/0" in done.stderr
    assert ends(tmp_path, TOPIC) == {0: 100}


def test_running_writer_stages_no_records_of_the_restored_cluster(tmp_path: Path, programs: Programs) -> None:
    """Its client has seen a higher epoch, believes the restored cluster nothing, and has to be started again.

    One that was too slow to see that epoch reads another record, and holds the partition.
    """
    with copied_kafka(tmp_path / "kafka", stopped=True) as kafka:
        config = programs.config(settings(kafka, tmp_path, TOPIC))
        writer = programs.start("tests.integration.hasty_writer", "run", config)
        writer.wait_until(lambda: ends(tmp_path, TOPIC) == {0: 100}, "all is staged")
        restore(kafka, tmp_path / "kafka")
        writer.signal(signal.SIGUSR1)
        lost = "Kafka lost the record at 99 of orders/0"
        until(lambda: not writer.is_running or lost in writer.log.read_text("utf-8"))
        if writer.is_running:
            writer.stop()
        else:
            assert writer.process.returncode == 1
            assert "Kafka does not deliver the record at 99 of orders/0" in writer.log.read_text("utf-8")
        again = programs.start("stage-writer", "run", config)
        wait_for(again, "partition held")
        again.stop()
        assert lost in again.log.read_text("utf-8")
        assert ends(tmp_path, TOPIC) == {0: 100}
