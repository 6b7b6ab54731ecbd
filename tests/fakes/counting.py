"""A writer of one partition with a counting task, stepped by hand, and the contents of its stage."""

from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pyarrow.parquet as pq

from common.metrics import Metrics
from common.spans import Partition, Topic, TopicPartition
from common.stage.markers import Manifest
from common.stage.task_files import MarkedState
from common.storage.store import FsspecStore
from stage_writer.changelog.changelog import TopicChangelog
from stage_writer.loop import StageWriter
from stage_writer.stage.staging import ObjectStage
from stage_writer.stopping import Stopping
from stage_writer.tasks.look_ups import LookUps
from stage_writer.tasks.shared import SnapshotsWhen, TaskEnvironment
from stage_writer.tasks.topology import TopologyConverter
from stage_writer.topologies import Processor, ProcessorContext, Record, Topology
from stage_writer.topologies.stores import Stores
from tests.builders import settings_of
from tests.fakes.changelog import MemoryTopics
from tests.fakes.group import HandClock, LonelyMember
from tests.fakes.writers import new_writer, runtime_of
from tests.staged import manifests

ORDERS = Topic("orders")
FIRST = TopicPartition(ORDERS, Partition(0))
MESSAGE_BYTES = 20
"""For changes in a topic: small, so that a flush has several messages."""


class Counts(Processor):
    """Counts records by the parity of their ids."""

    def __init__(self, store: str = "counts") -> None:
        self.store = store

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.counts = context.store(self.store)

    def process(self, record: Record) -> None:
        key = record.value["id"] % 2
        seen = (self.counts.get(key) or 0) + 1
        self.counts.put(key, seen)
        if record.value["id"] == 30:
            self.context.commit()
        self.context.forward(record.with_value({"id": record.value["id"], "seen": seen}))


def build(*, persistent: bool = False, store: str = "counts") -> Topology:
    topology = Topology()
    topology.add_source("orders", "orders", columns="id INT")
    topology.add_processor("counts", lambda: Counts(store), "orders")
    topology.add_state_store(Stores.key_value(store, persistent=persistent), "counts")
    topology.add_sink("rows", "counts")
    return topology


class World:
    """One partition, and a writer that is stepped by hand."""

    def __init__(self, folder: Path, end: int) -> None:
        self.folder = folder
        self.store = FsspecStore(f"{folder}/stage")
        self.table = FsspecStore(f"{folder}/table")
        self.clock = HandClock()
        self.group = LonelyMember(self.clock, {FIRST: end}, ids={ORDERS: "first"})
        stream = {"app_id": "orders", "topics": ["orders"], "table": f"{folder}/table", "topology": "any:build"}
        self.settings = settings_of({**stream, "columns": "id INT, seen BIGINT NOT NULL"}, folder=str(folder))
        self.names = iter(range(1_000))
        self.topics = MemoryTopics()
        self.writer = self.new_writer()

    def new_writer(
        self,
        when: SnapshotsWhen = SnapshotsWhen(),  # noqa: B008 - frozen
        *,
        disk: Path | None = None,
        look_ups: LookUps | None = None,
        topic: str | None = None,
        unfit: Collection[str] = (),
        counts: str = "counts",
    ) -> StageWriter:
        """One that has just started, and counts in the store ``counts``.

        Its stream has ``topic`` as its `state_changelog`, unless that is ``unfit``.
        """
        self.metrics = Metrics()
        stage = ObjectStage(
            self.store,
            lambda _: self.table,
            self.clock,
            lambda: f"{next(self.names):032x}",
            "w",
            changelog=TopicChangelog(self.topics, self.clock, self.metrics, MESSAGE_BYTES, unfit),
        )
        stream = self.settings.streams[0].model_copy(update={"state_changelog": topic})
        self.group.joined = False
        self.group.positions.clear()
        self.group.paused.clear()
        folder = None if disk is None else str(disk)
        self.stopping = Stopping(self.clock.monotonic_s, 5.0)
        surroundings = TaskEnvironment(
            self.clock.wall_ms,
            self.metrics,
            when=when,
            state_folder=folder,
            look_ups=look_ups,
            unsuitable_topics=unfit,
            stopping=self.stopping,
        )
        topology = build(persistent=disk is not None, store=counts).check()
        self.writer = new_writer(
            TopologyConverter(stream, topology, surroundings),
            source=self.group,
            stage=stage,
            runtime=runtime_of(self.clock, stopping=self.stopping),
        )
        self.group.subscribe(self.settings.streams, self.writer)
        return self.writer

    def steps(self, number: int = 8, timeout_s: float = 0.5) -> None:
        for _ in range(number):
            self.writer.step(timeout_s)

    def grow(self, end: int) -> None:
        self.group.ends[FIRST] = end
        self.steps()

    def restored_bytes(self) -> float:
        """The number of bytes of state files that the writer has read."""
        (line,) = [
            line
            for line in self.metrics.exposition().decode().splitlines()
            if line.startswith("stage_writer_state_restored_bytes_total")
        ]
        return float(line.rpartition(" ")[2])

    def manifests(self) -> list[Manifest]:
        return manifests(self.store, "done/orders/0")

    def states(self) -> list[MarkedState]:
        """The states that the chain's markers name."""
        return [manifest.state for manifest in self.manifests() if manifest.state is not None]

    def staged(self) -> list[tuple[int, int]]:
        """Ids and counts of all rows in files that markers name."""
        rows = []
        for file in (file for manifest in self.manifests() for table in manifest.tables for file in table.files):
            table = pq.read_table(self.folder / "table" / file.path, partitioning=None)
            rows += list(zip(table["id"].to_pylist(), table["seen"].to_pylist(), strict=True))
        return sorted(rows)


def counted(end: int) -> list[tuple[int, int]]:
    seen: Counter[int] = Counter()
    rows = []
    for number in range(end):
        seen[number % 2] += 1
        rows.append((number, seen[number % 2]))
    return rows
