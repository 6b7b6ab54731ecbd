"""Tables that keep every version of a row, through the writer's staging and Spark, against a model in plain Python."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from delta_loader.inspect.verify.findings import Verdict
from delta_loader.tables.commits import AlreadyLoaded
from devservices.kafka import KafkaCluster
from tests.fakes.changes import ChangeStream
from tests.fakes.events import Event
from tests.fakes.versions import Version, Versions, replay_by_sequence
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.integration.test_merge import Watched
from tests.integration.test_merge_pipeline import config_of
from tests.producing import produce
from tests.reading import rows_of

# The SQL of both runs on DuckDB in tests/property/test_history.py.
pytestmark = [pytest.mark.spark, pytest.mark.in_turn("tables that keep every version of a row")]

BY_SEQUENCE = {"keys": ["id", "name"], "operation": "op", "deletes": ["d"], "history": True}


def versions_of(stream: ChangeStream) -> Versions:
    by_key: Versions = {}
    for row in rows_of(stream.table):
        times = (row["valid_from"], row["valid_to"])
        version = Version(row["value"], *times, row["is_current"], deleted=row["gone"])
        by_key.setdefault((row["id"], row["name"]), []).append(version)
    return {key: sorted(versions, key=repr) for key, versions in by_key.items()}


def test_late_changes_get_their_place_among_the_versions_of_a_row(tmp_path: Path, spark: SparkSession) -> None:
    """What the table forbids, also of deletes, which are rows here, is as if it had never been sent."""
    chance = random.Random(3)  # noqa: S311 - a test's dice
    merge = {**BY_SEQUENCE, "sequence": "at", "tombstones": "ignore", "soft_delete": "gone"}
    stream = ChangeStream(tmp_path, more={"merge": merge, "partition_by": ["is_current"]})
    tables, name = Watched(spark, stream.settings.stage.url), f"delta.`{stream.table}`"
    taken: list[Event] = []
    refused: list[Event] = []
    first: list[tuple[int, str | None, int | None]] = [(5, "b", 0), (6, "b", 0)]
    last: list[tuple[int, str | None, int | None]] = [(5, None, 9), (6, "c", 9), (6, "x", 9)]
    for number, certain in enumerate((first, [], last)):
        for partition in (0, 10):
            keys = [chance.randrange(3) + partition for _ in range(4)]
            drawn = [(key, chance.choice(["b", "c", None]), 2 * chance.randrange(4) + number // 2) for key in keys]
            stream.flush(partition, drawn if partition else [*drawn, *certain])
        for event in stream._waiting:
            (refused if event.value == "x" or (event.deletes and event.key[0] == 5) else taken).append(event)
        stream.load(tables, spark)
        expected = replay_by_sequence(taken, soft=True)
        assert versions_of(stream) == {key: sorted(versions, key=repr) for key, versions in expected.items()}, number
        if number == 1:
            spark.sql(f"ALTER TABLE {name} ADD COLUMNS (mine STRING)")
            spark.sql(f"UPDATE {name} SET mine = 'kept' WHERE value = 'b'")  # noqa: S608 - our own path
            check = "(value IS NULL OR (value <> 'x' AND (mine IS NULL OR value <> 'c'))) AND (id <> 5 OR NOT gone)"
            spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT known CHECK ({check})")
    assert stream.letters().keys() == {event.place for event in refused}
    held = versions_of(stream)
    assert isinstance(tables.commit(tables.commits[-1][0]), AlreadyLoaded), "a loader that died after its commit"
    assert versions_of(stream) == held


def change(op: str, at_ms: int, **row: object) -> str:
    image = {"before": {"id": row["id"]}, "after": None} if op == "d" else {"before": None, "after": row}
    return json.dumps({"payload": {"op": op, **image, "ts_ms": at_ms + 1, "source": {"ts_ms": at_ms}}})


@pytest.mark.broker
def test_history_table_has_every_version_of_a_database(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path, spark: SparkSession
) -> None:
    topic, table = new_topic(1), f"{tmp_path}/customers"
    merge = {"keys": ["id"], "history": True}
    config = config_of(programs, kafka, tmp_path, topic, columns="from_records", merge=merge)

    def send(*changes: str | None) -> None:
        produce(kafka.bootstrap_servers, topic, *changes, key='{"id": 2}')
        programs.succeed("stage-writer", "run", config, "--until-caught-up")

    def load(*changes: str | None) -> None:
        send(*changes)
        report = in_process.load(config, spark)
        assert (report.failure, report.held) == (None, {})

    load(
        change("c", 1000, id=1, city="Bonn"), change("c", 2000, id=2, city="Bonn"), change("u", 3000, id=1, city="Ulm")
    )
    # The tombstone of a delete has only the time of its record: it ends nothing. The source's clock goes back once.
    load(change("d", 4000, id=2), None, change("u", 2500, id=1, city="Kiel"))
    load(change("c", 5000, id=2, city="Jena", tier=1), change("u", 6000, id=1, city="Mainz", tier=2))
    load(change("u", 7000, id=2, city="Trier", tier=3))
    frame = spark.read.format("delta").load(table)
    times = "unix_millis(valid_from)", "unix_millis(valid_to)", "is_current"
    rows = frame.selectExpr("id", "city", *times).orderBy("id", "_kafka_offset").collect()
    assert [tuple(row) for row in rows] == [
        (1, "Bonn", 1000, 3000, False),
        (1, "Ulm", 3000, 3000, False),
        (1, "Kiel", 3000, 6000, False),
        (1, "Mainz", 6000, None, True),
        (2, "Bonn", 2000, 4000, False),
        (2, "Jena", 5000, 7000, False),
        (2, "Trier", 7000, None, True),
    ]
    assert [row["tier"] for row in frame.where("city = 'Trier'").collect()] == [3]
    report = in_process.verify(config, spark)
    assert (report.failure, report.is_clean) == (None, True)
    assert {finding.kind for finding in report.findings if finding.verdict is Verdict.UNPROVED} == {"merged"}
    config = config_of(programs, kafka, tmp_path, topic, columns="from_records", merge={"keys": ["id"]})
    send(change("u", 8000, id=1, city="Bonn"))
    refused = in_process.load(config, spark)
    assert refused.failure is not None
    assert ("keeps every version of a row" in refused.failure.problem, refused.commits) == (True, 0)
    assert "set merge.history: true and stage again with" in refused.failure.remedy
