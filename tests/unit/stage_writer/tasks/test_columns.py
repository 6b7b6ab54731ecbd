"""Topologies of steps on columns are converted without tasks, with the same result as with a task."""

import random

import numpy as np
import pyarrow as pa
import pytest

from common.metrics import Metrics
from common.settings import Settings
from common.spans import Partition, Topic, TopicPartition
from common.stage.task_files import EMPTY_STATE
from common.storage.store import FsspecStore
from stage_writer.decode.batch import MessageBatch
from stage_writer.parquet.buffer import StagedRows
from stage_writer.ports import Converter
from stage_writer.stage.state_files import StageState
from stage_writer.tasks.columns import ColumnsConverter
from stage_writer.tasks.joint_converter import joint_converters
from stage_writer.tasks.shared import TaskEnvironment
from stage_writer.tasks.topology import TopologyConverter
from stage_writer.topologies import Select, Topology, Where
from tests import builders

VALUES = (b'{"n": 1}', b'{"n": 2, "text": "12"}', b'{"n": 7, "text": "x"}', b'{"n": 1.5}', b"{", b"{}", None)
COLUMNS = "n INT, text STRING"
TOPICS = ("orders", "notes")


def one_path(topology: Topology) -> None:
    topology.add_step("some", Where("n < 7 OR n IS NULL"), "orders")
    topology.add_step("fewer", Where("n <> 2 OR text = '12'"), "some")
    topology.add_step("made", Select({"text": "CAST(CAST(text AS INT) + 1 AS VARCHAR)", "n": "n"}), "fewer")
    topology.add_sink("rows", "made")


def a_route(topology: Topology) -> None:
    topology.add_sink("all", "orders", table="ones")


def several_sinks(topology: Topology) -> None:
    topology.add_step("ones", Where("n = 1"), "orders")
    topology.add_sink("first", "ones", table="ones")
    topology.add_step("texts", Where("CAST(text AS INT) > 0"), "orders")
    topology.add_sink("second", "texts", "ones", table="twos")
    topology.add_sink("third", "texts", "orders")


def settings_of(routes: dict[str, str], *, kafka_columns: bool, **given: object) -> Settings:
    stream = {"app_id": "orders", "topics": list(TOPICS), "table": "memory://t", "topology": "any:build"}
    more = {"columns": "n INT NOT NULL, text STRING", "routes": routes, "kafka_columns": kafka_columns}
    return builders.settings_of(stream | more | given)


def batch_of(dice: random.Random, partition: TopicPartition, start: int) -> MessageBatch:
    count = dice.randrange(1, 30)
    values = pa.array(dice.choices(VALUES, k=count), pa.binary())
    offsets = np.arange(start, start + count)
    return MessageBatch(partition, offsets, 1_000 + offsets, values, pa.nulls(count, pa.binary()), None)


SHAPES = {"columns": "text STRING NOT NULL, n BIGINT, more DATE", "partition_by": ["more"], "load": "append"}
"""A routed table with other columns, order, types and load mode."""


def summary(staged: StagedRows) -> list[object]:
    routed = [[fmt, rows.schema == fmt.arrow_schema, rows.to_pylist()] for fmt, rows in staged.routed]
    tables = [[rows.schema, rows.to_pylist()] for rows in staged.rows] + sorted(routed, key=str)
    counts = [staged.end, staged.records, staged.tombstones, dict(staged.dead_letters), staged.exploded]
    return [*tables, *counts, staged.filtered_offsets.tolist(), staged.timestamp_bounds_ms]


def converted(parent: Converter, batches: list[MessageBatch]) -> dict[TopicPartition, list[object]]:
    store = StageState(FsspecStore("memory://columns"))
    fresh: dict[Converter, list[MessageBatch]] = {}
    for batch in batches:
        job = parent.restores(batch.partition, EMPTY_STATE, store)
        fresh.setdefault(parent if job is None else job(), []).append(batch)
    by_converter = [(parent, batches)] if isinstance(parent, ColumnsConverter) else joint_converters(fresh)
    parts = [part for converts, some in by_converter for part in converts.slices(some)]
    return {batch.partition: summary(staged) for part in parts for batch, staged in part}


@pytest.mark.parametrize("fill", [one_path, a_route, several_sinks])
@pytest.mark.parametrize("kafka_columns", [False, True])
@pytest.mark.parametrize("route_tables", [{}, {"ones": SHAPES}])
def test_columns_converter_matches_the_task_converter(
    fill: object, route_tables: dict[str, object], *, kafka_columns: bool
) -> None:
    assert callable(fill)
    topology = Topology()
    topology.add_source("orders", *TOPICS, columns=COLUMNS)
    fill(topology)
    built = topology.check()
    routes = {"ones": "memory://1", "twos": "memory://2"}
    (stream,) = settings_of(routes, kafka_columns=kafka_columns, route_tables=route_tables).streams
    surroundings = TaskEnvironment(lambda: 0, Metrics())
    ours, tasks = (
        ColumnsConverter(stream, built, surroundings.native_decoder),
        TopologyConverter(stream, built, surroundings),
    )
    assert ours.formats == tasks.formats
    dice = random.Random(3)  # noqa: S311 - a test's dice
    partitions = [TopicPartition(Topic(topic), Partition(number)) for topic in TOPICS for number in range(3)]
    for start in range(0, 120, 30):
        batches = [batch_of(dice, partition, start) for partition in partitions if dice.random() < 0.8]
        assert converted(ours, batches) == converted(tasks, batches)
