"""``explain`` over real tables: after loads, OPTIMIZE, RESTORE, a replay of it, and a log that was cleaned up."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.settings import Stream
from common.spans import Offset, Position, TopicPartition
from delta_loader.inspect.explain.offsets import OffsetLocation, OffsetReport
from delta_loader.inspect.explain.reading import Explainer
from delta_loader.inspect.explain.view import offset_to_text, version_to_json, version_to_text
from delta_loader.ports import in_turn
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.stage.reading import Stage
from delta_loader.tables.valid_through import PROPERTY, moment_text
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging

pytestmark = pytest.mark.spark


class World:
    """One stream, and who explains it."""

    def __init__(self, staging: Staging, spark: SparkSession) -> None:
        self.staging = staging
        self.spark = spark
        self.explainer = Explainer(
            Stage(staging.store(staging.stage_url), in_turn), staging.store, in_turn, self.kafka_ends
        )
        self.stream = settings_for(staging).streams[0]

    def kafka_ends(self, stream: Stream) -> Mapping[TopicPartition, Position]:
        return {self.staging.source(0): Position(100)} if stream.takes(self.staging.topic) else {}

    def load(self) -> None:
        (report,) = loader_for(self.staging, SparkDeltaTables(self.spark, SystemClock())).run_pass()
        assert report.failure is None

    def sql(self, text: str) -> None:
        self.spark.sql(text.replace("{table}", f"delta.`{self.staging.table}`"))

    def offset(self, offset: int) -> OffsetReport:
        return self.explainer.offset(self.stream, self.staging.source(0), Offset(offset))

    def places(self, *offsets: int) -> list[OffsetLocation]:
        return [self.offset(offset).place for offset in offsets]

    def loaded(self, offset: int) -> int | None:
        commit = self.offset(offset).loaded.commit
        return None if commit is None else commit.version


def test_offsets_and_versions_are_explained_through_a_tables_life(tmp_path: Path, spark: SparkSession) -> None:
    world = World(Staging.below(tmp_path), spark)
    staging = world.staging
    first = staging.flush(0, 0, 10, days=["2026-01-01", "2026-01-02"], dead=[3])
    world.load()
    staging.flush(0, 10, 20, days=["2026-01-01"])
    world.load()
    staging.flush(0, 20, 30)

    assert world.places(2, 3, 12, 25, 60, 100) == [
        OffsetLocation.ROW,
        OffsetLocation.DEAD_LETTER,
        OffsetLocation.ROW,
        OffsetLocation.STAGED,
        OffsetLocation.NOT_STAGED,
        OffsetLocation.NOT_IN_KAFKA,
    ]
    assert (world.loaded(2), world.loaded(12)) == (1, 2)
    assert [holder.rows for holder in world.offset(2).holders if holder.rows] == [1]
    assert "not_json: no" in offset_to_text(world.offset(3))

    story = world.explainer.version(staging.table, 1)
    text = version_to_text(story)
    assert "orders/0 [0, 10): 10 records, 9 rows, 1 dead letter" in text
    assert f"from the flush {first.name.path} (its marker still exists)" in text
    assert "2 files of these still in the table (version 2)" in text

    world.sql("OPTIMIZE {table}")
    assert world.places(2, 12) == [OffsetLocation.ROW, OffsetLocation.ROW]
    assert (world.loaded(2), world.loaded(12)) == (1, 2)
    assert "1 file of these rewritten with the same rows by version 3 (OPTIMIZE" in version_to_text(
        world.explainer.version(staging.table, 1)
    )
    assert "changed no rows, only their files: 2 files removed, 1 added" in version_to_text(
        world.explainer.version(staging.table, 3)
    )
    world.sql("DELETE FROM {table} WHERE _kafka_offset = 12")
    assert world.places(12) == [OffsetLocation.NO_ROW]
    assert "a row that was deleted since" in offset_to_text(world.offset(12))

    world.sql("RESTORE {table} TO VERSION AS OF 1")
    assert world.places(2, 12, 25) == [OffsetLocation.ROW, OffsetLocation.TAKEN_BACK, OffsetLocation.HELD]
    assert "what version 2 had loaded, version 5" in offset_to_text(world.offset(12))
    assert "table_restored" in offset_to_text(world.offset(25))
    document = version_to_json(world.explainer.version(staging.table, 1))
    assert isinstance(document, dict)
    assert document["live_files"] == 2  # the RESTORE put them back

    tables = SparkDeltaTables(spark, SystemClock())
    tables.set_property(staging.table, PROPERTY, moment_text(1_772_359_265_000))
    state = tables.state(staging.table)
    assert state is not None
    assert state.properties[PROPERTY] == "2026-03-01T10:01:05.000Z"

    forget(world, keep_from=5)
    assert world.places(2, 3) == [OffsetLocation.ROW, OffsetLocation.DEAD_LETTER]
    assert "no longer known: the log begins with version 5" in offset_to_text(world.offset(2))
    assert "version 1 of" in version_to_text(world.explainer.version(staging.table, 1))
    assert "is no longer known" in version_to_text(world.explainer.version(staging.table, 1))


def forget(world: World, keep_from: int) -> None:
    """What Delta's clean-up of the log leaves."""
    tables = SparkDeltaTables(world.spark, SystemClock())
    state = tables.state(world.staging.table)
    assert state is not None
    log = world.spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(world.spark._jsparkSession, world.staging.table)
    log.checkpoint()
    folder = Path(world.staging.table) / "_delta_log"
    for version in range(keep_from):
        (folder / f"{version:020d}.json").unlink()


def test_stream_without_offset_columns_is_explained_as_far_as_possible(tmp_path: Path, spark: SparkSession) -> None:
    world = World(Staging.below(tmp_path), spark)
    world.staging.touch(0, 9)
    world.staging.flush(0, 10, 20)
    world.load()
    (world.stream,) = settings_for(world.staging, {"kafka_columns": False}).streams
    assert world.places(9, 12) == [OffsetLocation.GIVEN_UP, OffsetLocation.LOADED]
