"""One topic to several tables, by real programs: killed between two tables, and with a broken table."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.errors import TableError
from delta_loader.inspect.verify.findings import Verdict
from delta_loader.inspect.verify.findings import VerifiedStream as Verified
from delta_loader.load.report import StreamReport
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.tables.commits import CommitOutcome, TableCommit
from devservices.kafka import KafkaCluster
from tests.builders import pipeline_config
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.integration.mortal import Death
from tests.reading import place_of, rows_of

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COUNT = 120
KINDS = ("click", "view", "buy", "click", "other", None)
ROUTES = {"click": "clicks", "view": "views", "buy": "sales"}
Place = tuple[int, int]


class Troubled(SparkDeltaTables):
    """Dies after some commits, and does not get into one of the tables."""

    dies_after: int | None = None
    broken: str | None = None

    def commit(self, commit: TableCommit) -> CommitOutcome:
        if self.broken is not None and commit.target.url.endswith(self.broken):
            msg = "access is denied"
            raise TableError(msg, "ask for it")
        outcome = super().commit(commit)
        if self.dies_after is not None:
            self.dies_after -= 1
            if not self.dies_after:
                raise Death
        return outcome


@dataclass
class World:
    """One routed stream; the loader in this process, for its Spark is here already."""

    programs: Programs
    spark: SparkSession
    folder: Path
    topic: str
    servers: str
    sent: dict[Place, object] = field(default_factory=dict)
    """By partition and offset: a kind, `bad` or `gone`."""

    def __post_init__(self) -> None:
        self.tables = Troubled(self.spark, SystemClock())

    def config(self) -> Path:
        stream = {
            "app_id": "events",
            "topics": [self.topic],
            "table": f"{self.folder}/events",
            "columns": "id BIGINT, kind STRING",
            "derive": {"bucket": "CAST(id % 3 AS INT)"},
            "partition_by": ["bucket"],
            "route": "kind",
            "routes": {kind: f"{self.folder}/{name}" for kind, name in ROUTES.items()},
        }
        settings = pipeline_config(self.servers, self.folder, stream)
        return self.programs.config(settings)

    def produce(self, config: Path) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for partition in (0, 1):
            first = sum(place[0] == partition for place in self.sent)
            for number in range(first, first + COUNT):
                kind: object = KINDS[(number + partition) % len(KINDS)]
                kind = "bad" if number % 25 == 3 else "gone" if number % 41 == 7 else kind
                value = json.dumps({"id": "x" if kind == "bad" else number, "kind": kind})
                producer.produce(self.topic, None if kind == "gone" else value, partition=partition)
                self.sent[partition, number] = kind
        assert producer.flush(180) == 0
        self.programs.succeed("stage-writer", "run", config, "--until-caught-up")

    def load(self, config: Path) -> StreamReport:
        return in_process.load(config, self.spark, tables=self.tables)

    def where(self) -> dict[Place, list[str]]:
        """By record, the tables that have it, as often as they do."""
        names = ("events", "clicks", "views", "sales", "events_dead_letters")
        tables_of_record: dict[Place, list[str]] = {}
        for name in names:
            for row in rows_of(f"{self.folder}/{name}"):
                tables_of_record.setdefault(place_of(row)[1:], []).append(name)
        return tables_of_record

    def expected(self) -> dict[Place, list[str]]:
        """By record, the table that it belongs in."""
        tables = {**ROUTES, "bad": "events_dead_letters"}
        places = {place: [tables.get(str(kind), "events")] for place, kind in self.sent.items()}
        return {place: names for place, names in places.items() if self.sent[place] != "gone"}


@pytest.fixture
def world(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> World:
    return World(programs, spark, tmp_path, new_topic(2), kafka.bootstrap_servers)


def proved(report: Verified) -> bool:
    assert report.failure is None
    return {finding.verdict for finding in report.findings} <= {Verdict.PROVED, Verdict.NOTED} and all(
        partition.proved for partition in report.partitions
    )


def test_every_record_is_in_the_table_of_its_route_once(world: World) -> None:
    config = world.config()
    world.produce(config)
    # Killed when two of five tables have their rows.
    world.tables.dies_after = 2
    with pytest.raises(Death):
        world.load(config)
    world.tables.dies_after = None
    assert world.load(config).failure is None
    assert world.where() == world.expected()

    # A table that cannot be written to is told, and holds no other one.
    world.produce(config)
    world.tables.broken = "views"
    failure = world.load(config).failure
    assert failure is not None
    assert "views is skipped" in failure.problem
    report = in_process.verify(config, world.spark)
    assert (report.is_clean, proved(report)) == (True, False)
    assert world.where() == {
        place: names for place, names in world.expected().items() if place[1] < COUNT or names != ["views"]
    }
    world.tables.broken = None
    assert world.load(config).failure is None
    assert world.where() == world.expected()
    assert proved(in_process.verify(config, world.spark))
