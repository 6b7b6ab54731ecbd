"""A range is made again from Kafka and replaced in the tables: exactly these rows, once, whoever dies."""

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.settings import load_settings
from common.storage.store import FsspecStore
from delta_loader.dead_letters.filters import DeadLetterFilter
from delta_loader.dead_letters.reading import StoredDeadLetters, write_parquet
from delta_loader.load.replace_steps import Request, RequestStep
from delta_loader.load.report import StreamReport
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.spark.replace import SparkReplacer
from devservices.kafka import KafkaCluster
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.integration.mortal import Death
from tests.reading import place_of, rows_of

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COUNT = 200
STARTED_MS = 1_772_359_200_000
Values = dict[int, tuple[object, ...]]


class Mortal(SparkReplacer):
    dies_after: tuple[str, RequestStep] | None = None

    def replace(self, request: Request, url: str, step: RequestStep, *, keep_stale: bool, metadata: str) -> bool:
        done = super().replace(request, url, step, keep_stale=keep_stale, metadata=metadata)
        if self.dies_after == ("dead_letters" if url.endswith("_dead_letters") else "rows", step):
            raise Death
        return done


@dataclass
class Pipeline:
    """One stream as a user runs it; the loader in this process, for its Spark is here already."""

    programs: Programs
    spark: SparkSession
    folder: Path
    topic: str
    servers: str
    replacer: Mortal = field(init=False)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.replacer = Mortal(self.spark, f"{self.folder}/stage")

    def config(self, source: str, day: str, **stream: object) -> Path:
        """``source`` is the field that becomes the column n: a number as a text, or a dead letter."""
        return self.programs.config(
            {
                "kafka": {"bootstrap.servers": self.servers},
                "stage": {"url": f"{self.folder}/stage"},
                "writer": {"group_id": self.topic, "http": None},
                "loader": {"http": None, "spark": {"spark.master": "local[2]"}},
                "streams": [
                    {
                        "app_id": "orders",
                        "topics": [self.topic],
                        "table": f"{self.folder}/orders",
                        "columns": "id BIGINT, sent STRING, a STRING, b STRING",
                        "derive": {"n": f"CAST({source} AS BIGINT)", "day": day},
                        "partition_by": ["day"],
                        **stream,
                    }
                ],
            },
            f"{next(self.numbers)}.yaml",
        )

    def load(self, config: Path) -> StreamReport:
        report = in_process.load(config, self.spark, replacer=self.replacer)
        assert report.failure is None
        return report

    def rows(self, table: str = "orders") -> dict[tuple[int, int], tuple[object, ...]]:
        rows = rows_of(f"{self.folder}/{table}")
        by_record = {place_of(row)[1:]: tuple(row.values()) for row in rows}
        assert len(by_record) == len(rows)
        return by_record

    def version(self, table: str = "orders") -> int:
        state = SparkDeltaTables(self.spark, SystemClock()).state(f"{self.folder}/{table}")
        assert state is not None
        return state.version

    def staged(self) -> list[str]:
        store = FsspecStore(f"{self.folder}/stage")
        return [item.path for folder in ("replace", "data") for item in store.list(f"{folder}/")]


MONTH, DAY = "substr(sent, 1, 7)", "substr(sent, 1, 10)"


@pytest.fixture
def pipeline(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> Pipeline:
    """Two partitions, loaded: with the field a every 10th record is a dead letter, with b every 25th."""
    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(COUNT):
        a, b = "x" if number % 10 == 0 else number, "x" if number % 25 == 0 else -number
        value: str | None = f'{{"id": {number}, "sent": "2026-03-{number % 3 + 1:02d}", "a": "{a}", "b": "{b}"}}'
        value = value if number % 40 != 7 else None
        for partition in (0, 1):
            producer.produce(topic, value, partition=partition, timestamp=STARTED_MS + number * 1000)
    assert producer.flush(180) == 0
    made = Pipeline(programs, spark, tmp_path, topic, kafka.bootstrap_servers)
    config = made.config("a", MONTH)
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    made.load(config)
    return made


def test_fixed_expression_fixes_exactly_the_range(pipeline: Pipeline) -> None:
    before, letters, version = pipeline.rows(), pipeline.rows("orders_dead_letters"), pipeline.version()
    config = pipeline.config("b", DAY)
    ask = ("replay", config, "--topic", pipeline.topic, "--partition", "0", "--from", "50", "--to", "150")
    shown = pipeline.programs.succeed("stage-writer", *ask)
    assert "[50, 150)  100 records: 94 rows" in shown
    assert "4 dead letters (4 expression_failed), 2 tombstones" in shown
    assert (pipeline.staged(), pipeline.load(config).commits) == ([], 0)

    pipeline.programs.succeed("stage-writer", *ask, "--yes")
    assert pipeline.load(config).held == {}
    after, new_letters = pipeline.rows(), pipeline.rows("orders_dead_letters")
    inside = {(0, offset) for offset in range(50, 150)}
    assert {place: row for place, row in after.items() if place not in inside} == {
        place: row for place, row in before.items() if place not in inside
    }
    for place in inside & after.keys():
        offset = place[1]
        assert (after[place][4], after[place][5]) == (-offset, f"2026-03-{offset % 3 + 1:02d}")
    gone = {(0, offset) for offset in range(50, 150) if offset % 40 == 7}
    assert inside - gone - after.keys() == {(0, offset) for offset in range(50, 150, 25)}
    assert new_letters.keys() & inside == {(0, offset) for offset in range(50, 150, 25)}
    assert new_letters.keys() - inside == letters.keys() - inside
    assert pipeline.version() == version + 1
    assert pipeline.staged() == []

    letters_table = f"delta.`{pipeline.folder}/orders_dead_letters`"
    pipeline.spark.sql(f"ALTER TABLE {letters_table} SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    pipeline.programs.succeed("stage-writer", *ask[:-4], "--from", "151", "--to", "155", "--yes")
    assert pipeline.load(config).held == {}, "none of its rows is deleted"
    assert pipeline.rows("orders_dead_letters") == new_letters

    report = in_process.verify(config, pipeline.spark)
    assert (report.failure, report.faults, [partition.proved for partition in report.partitions]) == (
        None,
        (),
        [True, True],
    )
    assert {finding.kind for finding in report.findings} == {"replaced", "all_in_tables"}


@pytest.mark.in_turn("a loader dies between the tables of a replacement")
@pytest.mark.parametrize(
    "step", [("dead_letters", RequestStep.ADD), ("rows", RequestStep.ROWS), ("dead_letters", RequestStep.DROP)]
)
def test_loader_that_dies_between_the_tables_loses_nothing(pipeline: Pipeline, step: tuple[str, RequestStep]) -> None:
    config = pipeline.config("b", DAY)
    records = {*pipeline.rows(), *pipeline.rows("orders_dead_letters")}
    stage = FsspecStore(f"{pipeline.folder}/stage")
    version, span = pipeline.version(), range(60, 120)
    ask = ("replay", config, "--topic", pipeline.topic, "--partition", "1", "--yes")
    pipeline.programs.succeed("stage-writer", *ask, "--from", str(span.start), "--to", str(span.stop))
    (request,) = [path for path in pipeline.staged() if path.startswith("replace/")]
    content = stage.read(request)
    pipeline.replacer.dies_after = step
    with pytest.raises(Death):
        pipeline.load(config)
    assert {*pipeline.rows(), *pipeline.rows("orders_dead_letters")} == records
    pipeline.replacer.dies_after = None
    pipeline.load(config)
    rows, letters = pipeline.rows(), pipeline.rows("orders_dead_letters")
    assert (rows.keys() | letters.keys(), rows.keys() & letters.keys()) == (records, set())
    inside = {(1, offset) for offset in span}
    assert letters.keys() & inside == {(1, offset) for offset in span if offset % 25 == 0}
    assert (pipeline.version(), pipeline.staged()) == (version + 1, [])
    # The same request once more, as a backup of the stage would bring it back.
    done = pipeline.version(), pipeline.version("orders_dead_letters")
    assert content is not None
    stage.write(request, content)
    pipeline.load(config)
    assert (pipeline.version(), pipeline.version("orders_dead_letters"), pipeline.staged()) == (*done, [])
    assert in_process.verify(config, pipeline.spark).faults == ()


def test_values_that_are_too_long_for_a_folder_are_replaced_and_copied(pipeline: Pipeline) -> None:
    """The second request has none of them; it takes rows out of files that have them, and the others are copied."""
    for config, stop in (
        (pipeline.config("a", "repeat(substr(sent, 1, 10), 40)"), "100"),
        (pipeline.config("a", DAY), "50"),
    ):
        ask = ("replay", config, "--topic", pipeline.topic, "--partition", "0", "--yes", "--from", "0", "--to", stop)
        before = pipeline.rows()
        pipeline.programs.succeed("stage-writer", *ask)
        assert pipeline.load(config).held == {}
        after = pipeline.rows()
        assert (after.keys(), pipeline.staged()) == (before.keys(), [])
    for (partition, offset), row in after.items():
        day = f"2026-03-{offset % 3 + 1:02d}"
        expected = day[:7] if partition == 1 or offset >= 100 else day if offset < 50 else day * 40
        assert row[5] == expected


def test_invalid_replays_are_refused_and_times_become_offsets(pipeline: Pipeline) -> None:
    config = pipeline.config("a", DAY)
    ask = ("replay", config, "--topic", pipeline.topic, "--partition", "0")
    refused = pipeline.programs.run("stage-writer", *ask, "--from", "10", "--to", "900")
    assert (refused.returncode, "Kafka has [0, 200)" in refused.stderr) == (2, True)
    off = pipeline.config("a", DAY, kafka_columns=False)
    refused = pipeline.programs.run("stage-writer", "replay", off, *ask[2:], "--from", "10", "--to", "20")
    assert (refused.returncode, "kafka_columns: off" in refused.stderr) == (2, True)
    producer = Producer({"bootstrap.servers": pipeline.servers})
    producer.produce(pipeline.topic, '{"id": 1, "sent": "2026-03-01", "a": "1", "b": "2"}', partition=0)
    assert producer.flush(180) == 0
    pipeline.programs.succeed("stage-writer", *ask, "--from", "199", "--to", "201", "--yes")
    ((_, held),) = pipeline.load(config).held.items()
    assert (held.reason, "the table is at 200" in held.problem) == ("replacement_waits", True)
    pipeline.programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert pipeline.load(config).held == {}
    assert pipeline.staged() == []

    # A range of time, over all partitions.
    moments = ("--since", "2026-03-01T10:00:20Z", "--until", "2026-03-01T10:00:50Z")
    pipeline.programs.succeed("stage-writer", "replay", config, "--topic", pipeline.topic, *moments, "--yes")
    pipeline.load(config)
    fixed = {place for place, row in pipeline.rows().items() if len(str(row[5])) == len("2026-03-01")}
    letters = pipeline.rows("orders_dead_letters").keys()
    wanted = {(partition, offset) for partition in (0, 1) for offset in range(20, 50) if offset % 40 != 7}
    assert fixed - {(0, 199), (0, 200)} == wanted - letters


def test_dead_letters_are_listed_and_replayed_from_their_own_bytes(pipeline: Pipeline) -> None:
    settings = load_settings(pipeline.config("a", MONTH), os.environ)
    wanted = DeadLetterFilter(
        error_class="expression_failed", partition=0, start=0, end=60, until_ms=STARTED_MS + 40_000
    )
    (group,) = StoredDeadLetters(pipeline.spark, FsspecStore, settings.streams, wanted).groups(with_values=True)
    assert (group.topic, group.count, group.partitions, group.example) == (pipeline.topic, 4, 1, (0, 0))
    assert "x" not in group.reason.partition("string")[2]
    assert group.shown is not None
    assert '"a": "x"' in group.shown[1]

    before, letters_before = pipeline.rows(), pipeline.rows("orders_dead_letters")
    # Kafka is away: what is decoded again is what the dead-letter table has. Of the offsets 0 and 10 one fits now.
    pipeline.servers = "localhost:1"
    fixed = pipeline.config("b", MONTH)
    chosen = ("dead-letters", "replay", fixed, "--partition", "0", "--to", "20", "--yes")
    output = pipeline.programs.succeed("delta-loader", *chosen)
    assert "[10, 11)  1 record: 1 row" in output
    assert "none of them matches; they stay as they are" in output
    assert output.count("and the request replace/") == 1
    assert pipeline.load(fixed).held == {}
    after, letters_after = pipeline.rows(), pipeline.rows("orders_dead_letters")
    assert after.keys() - before.keys() == letters_before.keys() - letters_after.keys() == {(0, 10)}
    assert {place: after[place] for place in before} == before
    assert letters_after.keys() >= {(0, 0), (0, 20), (1, 10)}
    assert pipeline.staged() == []


def test_letters_that_stand_alone_share_a_replacement(pipeline: Pipeline) -> None:
    before, letters_before = pipeline.rows(), pipeline.rows("orders_dead_letters")
    versions = pipeline.version(), pipeline.version("orders_dead_letters")
    fixed, export = pipeline.config("b", MONTH), pipeline.folder / "letters.parquet"
    with export.open("wb") as file:
        streams = load_settings(fixed, os.environ).streams
        letters = StoredDeadLetters(pipeline.spark, FsspecStore, streams, DeadLetterFilter())
        assert write_parquet(file, letters.rows(), lambda _: None) == len(letters_before)
    assert set(pq.read_table(export)["app_id"].to_pylist()) == {streams[0].app_id}
    output = pipeline.programs.succeed("stage-writer", "replay", fixed, "--letters", export, "--yes")
    assert output.count("and the request replace/") == 2
    assert output.count("16 offsets of [10, 191)  16 records: 16 rows") == 2
    assert output.count("none of them matches; they stay as they are") == 2
    # One commit to each table for each Kafka partition, whoever dies; what does not fit is not even written again.
    pipeline.replacer.dies_after = ("rows", RequestStep.ROWS)
    with pytest.raises(Death):
        pipeline.load(fixed)
    pipeline.replacer.dies_after = None
    assert pipeline.load(fixed).held == {}
    assert (pipeline.version(), pipeline.version("orders_dead_letters")) == (versions[0] + 2, versions[1] + 2)
    after, left = pipeline.rows(), pipeline.rows("orders_dead_letters")
    assert after.keys() - before.keys() == letters_before.keys() - left.keys()
    assert left == {place: values for place, values in letters_before.items() if place[1] % 50 == 0}
    assert {place: after[place] for place in before} == before
    assert pipeline.staged() == []
    findings = in_process.verify(fixed, pipeline.spark).findings
    assert {finding.kind for finding in findings} == {"replaced", "all_in_tables"}
