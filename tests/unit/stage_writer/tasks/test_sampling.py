"""``check`` on a sample of a stream with a topology."""

import numpy as np
import pyarrow as pa
import pytest

from common.metrics import Metrics
from common.spans import Partition, Topic, TopicPartition
from stage_writer.decode.batch import MessageBatch
from stage_writer.sample import StreamSample
from stage_writer.tasks.shared import TaskEnvironment
from stage_writer.tasks.topology import SampledTasks, TopologyConverter
from stage_writer.topologies import KTable, StreamsBuilder, TopologyError
from tests.builders import settings_of


def build() -> StreamsBuilder:
    """Orders joined with customers from another topic."""
    builder = StreamsBuilder()
    customers: KTable = builder.table("customers", columns="name STRING")
    orders = builder.stream("orders", columns="id INT")
    orders.join(customers, lambda order, customer: {"id": order["id"], "name": customer["name"]}).to()
    return builder


def sampled(columns: str) -> tuple[SampledTasks, StreamSample]:
    stream = {"app_id": "o", "topics": ["customers", "orders"], "table": "memory://t", "topology": "any:build"}
    settings = settings_of({**stream, "columns": columns})
    parent = TopologyConverter(settings.streams[0], build().check(), TaskEnvironment(lambda: 0, Metrics()))
    return SampledTasks(parent), StreamSample(settings.streams[0], None)


def batch(topic: str, value: bytes) -> MessageBatch:
    partition = TopicPartition(Topic(topic), Partition(0))
    values, keys = pa.array([value], pa.binary()), pa.array([b"ada"], pa.binary())
    return MessageBatch(partition, np.array([7]), np.array([1_000]), values, keys, None)


def test_topics_of_one_task_are_sampled_together() -> None:
    tasks, sample = sampled("id TINYINT, name STRING")
    sample.add(tasks, [batch("customers", b'{"name": "Ada"}'), batch("orders", b'{"id": 3}')])
    sample.add(tasks, [batch("orders", b'{"id": 1000}')])
    assert (sample.records, dict(sample.dead_letters)) == (3, {"topology": 1})


def test_unknown_field_in_a_sample_is_named() -> None:
    tasks, sample = sampled("id INT, nam STRING")
    with pytest.raises(TopologyError, match="field 'name', but the stream's table has no such column") as raised:
        sample.add(tasks, [batch("customers", b'{"name": "Ada"}'), batch("orders", b'{"id": 3}')])
    assert "did you mean 'nam'? " in (raised.value.remedy or "")
