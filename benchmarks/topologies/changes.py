"""The cost of storing a flush's state changes: as a file in the stage, and in a changelog topic.

Wall time of single flushes in sequence, and of a restore of a hundred flushes. The S3 server and the broker are on this
machine: with a remote store, each PUT takes tens of milliseconds.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from common.clock import SystemClock
from common.metrics import Metrics
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.task_files import EMPTY_STATE, StateFileName, StateFiles, StateKind
from common.storage.chunks import ByteChunks
from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from devservices.s3 import S3Server
from stage_writer.changelog.changelog import TopicChangelog
from stage_writer.changelog.kafka import KafkaChangelogs
from stage_writer.stage.state_files import StageState

_SIZES = (1_000, 100_000, 1_000_000)
_FLUSHES = 100
_TOPIC, _TASK = Topic("changes"), TopicPartition(Topic("orders"), Partition(0))


@dataclass(frozen=True, slots=True)
class ChangeCost:
    size_bytes: int
    place: str
    flush_ms: float
    """Median time of a flush in milliseconds."""
    restore_s: float
    """Seconds to restore a hundred flushes."""

    def __str__(self) -> str:
        return f"{self.size_bytes:,} bytes, {self.place}: {self.flush_ms:.1f} ms, restored in {self.restore_s:.2f} s"


def measured_changes(kafka: KafkaCluster, server: S3Server) -> Iterator[ChangeCost]:
    """Measure each size, in the stage and in a topic."""
    kafka.create_topic(_TOPIC, 1)
    store = FsspecStore(server.create_bucket("changes"), server.storage_options)
    topics = KafkaChangelogs({"bootstrap.servers": kafka.bootstrap_servers}, "benchmark", 86_400.0)
    changelog = TopicChangelog(topics, SystemClock(), Metrics())
    places = {"stage (S3)": StageState(store), "topic": StageState(store, changelog, _TOPIC, "benchmark")}
    for size_bytes in _SIZES:
        for place, state in places.items():
            flush_ms, files = _written(state, size_bytes)
            read = partial(_restored, state, files, size_bytes)
            yield ChangeCost(size_bytes, place, flush_ms, statistics.median(_seconds(read) for _ in range(3)))


def changes_table(found: list[ChangeCost]) -> str:
    lines = ["| a flush's changes | where | a flush | restore of 100 |", "| ---: | --- | ---: | ---: |"]
    lines += (
        f"| {cost.size_bytes:,} bytes | {cost.place} | {cost.flush_ms:.1f} ms | {cost.restore_s:.2f} s |"
        for cost in found
    )
    return "\n".join([*lines, ""])


def _written(state: StageState, size_bytes: int) -> tuple[float, StateFiles]:
    data = ByteChunks([random.Random(size_bytes).randbytes(size_bytes)])  # noqa: S311 - like output of zstd
    files, took_s = EMPTY_STATE, []
    for number in range(_FLUSHES):
        name = StateFileName(_TASK, Position(number), 0, f"{size_bytes}-{number}", StateKind.CHANGES)
        began_s = time.perf_counter()
        change = state.write(name, data)
        took_s.append(time.perf_counter() - began_s)
        files = files.with_changes(change)
    return statistics.median(took_s) * 1000, files


def _restored(state: StageState, files: StateFiles, size_bytes: int) -> None:
    read = sum(len(data) for _, data in state.changes(_TASK, files))
    if read != size_bytes * _FLUSHES:
        msg = f"{read} of {size_bytes * _FLUSHES} bytes were read"
        raise RuntimeError(msg)


def _seconds(work: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s
