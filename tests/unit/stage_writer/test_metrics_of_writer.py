"""A writer's metrics count the records, rows and files of a run."""

from pathlib import Path

import pyarrow as pa
import pytest

from common.spans import TopicPartition
from stage_writer.decode.batch import MessageBatch
from tests.fakes.group import LonelyMember
from tests.fakes.markers import chain_of, put
from tests.fakes.metrics import numbers
from tests.staged import manifests
from tests.unit.stage_writer.test_service import FIRST, SECOND, World

SENT = (b'{"id": 1, "x": 1}', b'{"id": 2}', None, b"no JSON", b'{"id": 9}', b'{"id": 3}', b'{"id": 4}')


def test_metrics_of_one_flush_are_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def batch(member: LonelyMember, partition: TopicPartition) -> MessageBatch:
        sent = real(member, partition)
        taken = pa.array([SENT[int(offset)] for offset in sent.offsets], pa.binary())
        return MessageBatch(partition, sent.offsets, sent.timestamps_ms, taken, sent.keys, None)

    real = LonelyMember._batch
    monkeypatch.setattr(LonelyMember, "_batch", batch)
    world = World(tmp_path, {FIRST: len(SENT)}, where="id <> 2", expect={"small": "id < 5"}, on_fail="count")
    world.steps()
    (manifest,) = manifests(world.store, "done")
    size_bytes = sum(file.size_bytes for table in manifest.tables for file in table.files)
    assert numbers(world.metrics) == {
        "assigned_partitions{}": 1,
        "records_total{topic=orders}": 7,
        "value_bytes_total{topic=orders}": pa.array(SENT, pa.binary()).nbytes,
        "batch_records_count{}": 1,
        "batch_records_sum{}": 7,
        "convert_seconds_count{}": 1,
        "convert_seconds_sum{}": 0,
        "tombstones_total{topic=orders}": 1,
        "filtered_total{app_id=orders}": 1,
        "expectation_violations_total{app_id=orders, rule=small}": 1,
        "dead_letters_total{app_id=orders, error_class=invalid_json}": 1,
        "dead_letter_share{app_id=orders}": 0,
        "sampled_records{app_id=orders}": 5,
        "sampled_undeclared_fields{app_id=orders, field=x}": 1,
        "buffered_bytes{}": 0,
        "paused{}": 0,
        "flushes_total{app_id=orders, reason=age}": 1,
        "files_total{app_id=orders}": 2,
        "bytes_total{app_id=orders}": size_bytes,
        "rows_total{app_id=orders}": 4,
        "flush_seconds_count{}": 1,
        "flush_seconds_sum{}": 0.5,
        "file_bytes_count{}": 2,
        "file_bytes_sum{}": size_bytes,
        "last_flush_timestamp_seconds{}": 1002,
        "staged_position{partition=0, topic=orders}": 7,
    }


def test_reread_records_are_counted(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5})
    world.steps(1)
    world.group.positions[FIRST] = 2
    world.group.ends[FIRST] = 6
    world.steps()
    counted = numbers(world.metrics)
    assert (counted["records_total{topic=orders}"], counted["repeated_records_total{topic=orders}"]) == (9, 3)
    assert world.spans() == [(0, 6)]


def test_dropped_buffers_are_counted_once(tmp_path: Path) -> None:
    """For a lost partition, and for a lost claim."""
    world = World(tmp_path, {FIRST: 5, SECOND: 5})
    world.steps(1)
    put(world.store, *chain_of(0, 5, partition=FIRST))
    world.writer.lost([SECOND])
    world.steps()
    counted = numbers(world.metrics)
    assert counted["lost_claims_total{topic=orders}"] == 1
    assert {key: number for key, number in counted.items() if key.startswith("dropped")} == {
        "dropped_buffers_total{reason=chain}": 1,
        "dropped_buffers_total{reason=lost}": 1,
    }


def test_memory_pauses_are_counted(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 5})
    world.writer = world.new_writer(memory_bytes=1)
    world.steps(1)
    counted = numbers(world.metrics)
    assert (counted["paused{}"], counted["pauses_total{}"]) == (2, 2)
    assert counted["buffered_bytes{}"] > 0
    world.steps()
    assert numbers(world.metrics)["paused{}"] == 0
