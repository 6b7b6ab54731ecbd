"""A stream with a topology on a real broker: writers are killed, and the table is like a batch's over the topic."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.integration.counted import PARTITIONS, Sender, batch_of, counted_rows, flushes, settings
from tests.reading import rows_of
from tests.staged import manifests
from tests.waiting import until, until_left

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.mark.in_turn("writers of tasks are killed")
def test_writers_killed_in_the_middle_give_the_table_that_a_batch_gives(  # noqa: PLR0917 - fixtures
    programs: Programs,
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(PARTITIONS)
    monkeypatch.setenv("COUNTED_TOPIC", topic)
    config, store = programs.config(settings(kafka, tmp_path, topic)), FsspecStore(f"{tmp_path}/stage")
    sender = Sender(kafka, topic)
    sending = threading.Thread(target=sender.run, daemon=True)
    sending.start()
    writers = [programs.start("stage-writer", "run", config) for _ in range(2)]
    until(lambda: flushes(store) >= PARTITIONS)
    writers.pop(0).kill()  # its partitions come to the other one, and its successor takes some of them back
    writers.append(programs.start("stage-writer", "run", config))
    before = flushes(store)
    until(lambda: flushes(store) >= before + PARTITIONS)
    sender.stopped.set()
    sending.join()
    writers.pop().kill()
    assert writers.pop().stop() == 0
    until_left(kafka, topic)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")

    report = in_process.load(config, spark)
    assert report.failure is None
    assert not report.held
    rows, dead = batch_of(kafka, topic, sender.sent)
    assert counted_rows(tmp_path) == rows
    letters = rows_of(f"{tmp_path}/counts_dead_letters")
    assert len(letters) == dead
    assert {row["error_class"] for row in letters} == {"topology", "invalid_json"}
    verified = in_process.verify(config, spark)
    assert (verified.failure, verified.faults) == (None, ())
    assert [partition.proved for partition in verified.partitions] == [True] * PARTITIONS
    assert every_state_is_there(store)


def every_state_is_there(store: FsspecStore) -> bool:
    for manifest in manifests(store):
        assert manifest.state is not None
        for path in (*manifest.state.files.paths, *manifest.state.before.paths):
            if store.read(path) is None:
                return False
    return True
