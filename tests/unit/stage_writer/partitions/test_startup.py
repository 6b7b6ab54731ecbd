"""Partitions whose tasks are restored before they are read."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import structlog

from common.errors import StoreError
from common.spans import Position
from stage_writer.chain_end import Lineage
from stage_writer.partitions.resume_points import ResumePoint
from stage_writer.partitions.startup import PartitionStartup, StartedPartition
from tests.builders import instance
from tests.fakes.group import HandClock
from tests.fakes.markers import ORDERS


def test_task_is_restored_once_at_a_time_and_again_after_a_failure() -> None:
    clock, restored, columns_known = HandClock(), list[Future[Any]](), [False, True]

    def start(_job: object) -> Future[Any]:
        restored.append(Future())
        return restored[-1]

    converter: Any = SimpleNamespace(stream=None, restores=lambda *_: lambda: None)
    begin = ResumePoint(None, Position(0), Lineage())
    schemas = SimpleNamespace(
        refresh=lambda: None, read_first=lambda _converter: columns_known.pop(0) if columns_known else True
    )
    fakes: tuple[Any, ...] = (
        SimpleNamespace(topic_ids=lambda _topics: {ORDERS.topic: "id"}),
        SimpleNamespace(of_all=lambda streams, _workers: dict.fromkeys(streams, begin)),
        schemas,
        SimpleNamespace(states=None),
        SimpleNamespace(start=start),
    )
    startup = PartitionStartup(*fakes, clock=clock, log=structlog.get_logger())
    startup.add(ORDERS, converter)
    assert (startup.due_outcomes(), len(restored)) == ({}, 0), "its stream's columns are not known yet"
    clock.now_s += 60
    assert (startup.due_outcomes(), len(restored)) == ({}, 1)
    startup.drop(ORDERS)
    startup.add(ORDERS, converter)
    assert (startup.due_outcomes(), len(restored)) == ({}, 1), "two restores would share files on disk"
    restored[0].set_exception(StoreError("it is away"))
    assert (startup.due_outcomes(), len(restored)) == ({}, 2)
    restored[1].set_exception(StoreError("it is away"))
    assert isinstance(startup.due_outcomes()[ORDERS], StoreError)
    clock.now_s += 60
    assert (startup.due_outcomes(), len(restored)) == ({}, 3)
    restored[2].set_result(SimpleNamespace(converter=converter))
    assert instance(StartedPartition, startup.due_outcomes()[ORDERS]).resume_point.lineage.topic_id == "id"
