"""Tasks that are converted together yield the same rows as each task alone."""

import random
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from common.metrics import Metrics
from common.spans import Partition, Topic, TopicPartition
from common.stage.task_files import EMPTY_STATE
from common.storage.store import FsspecStore
from stage_writer.decode.batch import MessageBatch
from stage_writer.parquet.buffer import StagedRows
from stage_writer.ports import Converter, PartitionTask
from stage_writer.stage.state_files import StageState
from stage_writer.tasks.joint_converter import joint_converters
from stage_writer.tasks.kept import KeptTask
from stage_writer.tasks.shared import TaskEnvironment
from stage_writer.tasks.topology import TopologyConverter
from stage_writer.topologies import Processor, ProcessorContext, Record, Topology, Where
from stage_writer.topologies.stores import Stores
from stage_writer.topologies.task.inputs import Output
from stage_writer.topologies.task.task import Task
from tests.builders import instance, settings_of

VALUES = (b'{"n": 1}', b'{"n": 2}', b'{"n": 7}', b'{"n": 1.5}', b"{", None)


class Counts(Processor):
    """Counts records by their number; fails for every other 7."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.counts = context.store("counts")

    def process(self, record: Record) -> None:
        number = -1 if record.value is None else record.value["n"]
        self.counts.put(number, (self.counts.get(number) or 0) + 1)
        if number == 7 and self.counts.get(7) % 2:
            raise ValueError("seven")
        self.context.forward(record.with_value({"n": number, "seen": self.counts.get(number)}))


def build() -> Topology:
    topology = Topology()
    topology.add_source("orders", "orders", columns="n BIGINT")
    topology.add_step("ones", Where("n = 1"), "orders")
    topology.add_sink("bare", "ones", table="ones")
    topology.add_processor("counts", Counts, "orders")
    topology.add_state_store(Stores.key_value("counts"), "counts")
    topology.add_sink("rows", "counts")
    return topology


def converter() -> TopologyConverter:
    stream = {"app_id": "orders", "topics": ["orders"], "table": "memory://t", "topology": "any:build"}
    settings = settings_of({**stream, "columns": "n BIGINT, seen BIGINT", "routes": {"ones": "memory://ones"}})
    return TopologyConverter(settings.streams[0], build().check(), TaskEnvironment(lambda: 0, Metrics()))


def tasks(count: int) -> list[PartitionTask]:
    parent, store = converter(), StageState(FsspecStore("memory://together"))
    return [parent.restores(source(number), EMPTY_STATE, store)() for number in range(count)]


def source(number: int) -> TopicPartition:
    return TopicPartition(Topic("orders"), Partition(number))


def batch_of(dice: random.Random, number: int, start: int) -> MessageBatch:
    count = dice.randrange(1, 9)
    values = pa.array(dice.choices(VALUES, k=count), pa.binary())
    times = np.full(count, 1_000 + start)
    return MessageBatch(
        source(number), np.arange(start, start + count), times, values, pa.nulls(count, pa.binary()), None
    )


def summary(staged: StagedRows) -> list[object]:
    tables = [rows.to_pylist() for rows in staged.rows] + [[fmt.url, rows.to_pylist()] for fmt, rows in staged.routed]
    counts = [staged.end, staged.records, staged.tombstones, dict(staged.dead_letters), staged.exploded]
    return [*tables, *counts, staged.filtered_offsets.tolist()]


@pytest.mark.parametrize("seed", range(5))
def test_converting_tasks_together_does_not_change_their_results(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - a test's dice
    grouped, alone = tasks(4), tasks(4)
    for start in range(0, 100, 10):
        batches = [batch_of(dice, number, start) for number in range(4) if dice.random() < 0.8]
        both: list[list[object]] = []
        for made in (grouped, alone):
            by_task: list[tuple[Converter, MessageBatch]]
            by_task = [(made[int(batch.partition.partition)], batch) for batch in batches]
            fresh = [{task: [batch] for task, batch in by_task}]
            if made is alone:
                fresh = [{task: [batch]} for task, batch in by_task]
            summaries = [
                (int(batch.partition.partition), summary(staged))
                for some in fresh
                for converts, of_tasks in joint_converters(some)
                for part in converts.slices(of_tasks)
                for batch, staged in part
            ]
            both.append([list(pair) for pair in sorted(summaries, key=lambda pair: pair[0])])
        assert both[0] == both[1]


def test_closed_task_converts_nothing_while_others_do() -> None:
    dice = random.Random(1)  # noqa: S311 - a test's dice
    made = tasks(2)
    batches = [batch_of(dice, number, 0) for number in range(2)]
    ((converts, of_tasks),) = joint_converters({made[number]: [batches[number]] for number in range(2)})
    slices = converts.slices(of_tasks)
    made[0].close()
    assert [batch.partition for part in slices for batch, _ in part] == [source(1)]


def test_task_cannot_be_read_while_it_converts() -> None:
    dice = random.Random(2)  # noqa: S311 - a test's dice
    (made,) = tasks(1)
    task = instance(KeptTask, made)
    ((converts, of_tasks),) = joint_converters({task: [batch_of(dice, 0, 0), batch_of(dice, 0, 50)]})
    seen: list[bool] = []
    process = Task.finish

    def watched(self: Task, *arguments: object) -> Output:
        seen.append(task.gate.locked())
        return process(self, *arguments)  # type: ignore[arg-type]

    with patch.object(Task, "finish", watched):
        assert len(list(converts.slices(of_tasks))) == 1
    assert seen == [True, True]
    assert not task.gate.locked()


def test_messages_without_a_task_are_refused() -> None:
    parent = converter()
    batch = batch_of(random.Random(3), 0, 0)  # noqa: S311 - a test's dice
    with pytest.raises(TypeError, match="without a task"):
        list(joint_converters({parent: [batch]}))
