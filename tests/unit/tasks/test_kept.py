"""A writer whose stream has a topology: rows and state move together, whatever becomes of a flush."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
import structlog

from common.markers import MarkerName, marker_from_bytes
from common.metrics import Metrics
from common.settings import Settings
from common.spans import Partition, Topic, TopicPartition
from common.store import FsspecStore
from stage_writer.core.flushing import Limits
from stage_writer.service import LOOK_AT_HELD_S, StageWriter
from stage_writer.shell.staging import ObjectStage
from stage_writer.tasks.kept import SnapshotsWhen
from stage_writer.tasks.look_ups import Asked, LookUps
from stage_writer.tasks.topology import Surroundings, TopologyConverter
from stage_writer.topologies import Processor, Topology
from stage_writer.topologies.stores import StoreKind, Stores
from tests.fakes.group import HandClock, InTurn, LonelyMember

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from common.state_files import MarkedState
    from stage_writer.topologies import ProcessorContext, Record

ORDERS = Topic("orders")
FIRST = TopicPartition(ORDERS, Partition(0))


class Counts(Processor):
    """Counts records by the parity of their ids."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.counts = context.store("counts")

    def process(self, record: Record) -> None:
        key = record.value["id"] % 2
        seen = (self.counts.get(key) or 0) + 1
        self.counts.put(key, seen)
        if record.value["id"] == 30:
            self.context.commit()
        self.context.forward(record.with_value({"id": record.value["id"], "seen": seen}))


def build(*, persistent: bool = False) -> Topology:
    topology = Topology()
    topology.add_source("orders", "orders", columns="id INT")
    topology.add_processor("counts", Counts, "orders")
    topology.add_state_store(Stores.key_value("counts", persistent=persistent), "counts")
    topology.add_sink("rows", "counts")
    return topology


class World:
    """One partition, and a writer that is asked to step."""

    def __init__(self, folder: Path, end: int) -> None:
        self.folder = folder
        self.store = FsspecStore(f"{folder}/stage")
        self.table = FsspecStore(f"{folder}/table")
        self.clock = HandClock()
        self.group = LonelyMember(self.clock, {FIRST: end}, ids={ORDERS: "first"})
        stream = {"app_id": "orders", "topics": ["orders"], "table": f"{folder}/table", "topology": "any:build"}
        self.settings = Settings.model_validate(
            {
                "kafka": {"bootstrap.servers": "nowhere:1"},
                "stage": {"url": f"{folder}/stage"},
                "streams": [{**stream, "columns": "id INT, seen BIGINT NOT NULL"}],
            }
        )
        self.names = iter(range(1_000))
        self.writer = self.new_writer()

    def new_writer(
        self,
        when: SnapshotsWhen = SnapshotsWhen(),  # noqa: B008 - frozen
        *,
        disk: Path | None = None,
        look_ups: LookUps | None = None,
    ) -> StageWriter:
        stage = ObjectStage(self.store, lambda _: self.table, self.clock, lambda: f"{next(self.names):032x}", "w")
        self.group.joined = False
        self.group.positions.clear()
        self.group.paused.clear()
        self.metrics = Metrics()
        folder = None if disk is None else str(disk)
        around = Surroundings(self.clock.wall_ms, self.metrics, when=when, state_folder=folder, look_ups=look_ups)
        topology = build(persistent=disk is not None).check()
        self.writer = StageWriter(
            converters=[TopologyConverter(self.settings.streams[0], topology, around)],
            limits=Limits(flush_after_s=1, flush_bytes=10**9, flush_records=10**9, memory_bytes=10**9),
            revoke_timeout_s=5.0,
            report_positions=False,
            source=self.group,
            stage=stage,
            workers=InTurn(),
            clock=self.clock,
            log=structlog.get_logger(),
            metrics=Metrics(),
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
        """How many bytes of state files the writer has read."""
        (line,) = [
            line
            for line in self.metrics.exposition().decode().splitlines()
            if line.startswith("stage_writer_state_restored_bytes_total")
        ]
        return float(line.rpartition(" ")[2])

    def states(self) -> list[MarkedState]:
        """What the chain's markers say of the state."""
        found = []
        for item in sorted(self.store.list("done/orders/0"), key=lambda item: item.path):
            name = MarkerName.parse(item.path)
            assert name is not None
            manifest = marker_from_bytes(name, self.store.read(item.path) or b"").manifest
            if manifest is not None and manifest.state is not None:
                found.append(manifest.state)
        return found

    def staged(self) -> list[tuple[int, int]]:
        """Ids and counts of all rows that markers name."""
        rows = []
        for item in self.store.list("done/orders/0"):
            name = MarkerName.parse(item.path)
            assert name is not None
            for table in marker_from_bytes(name, self.store.read(item.path) or b"").tables:
                for file in table.files:
                    found = pq.read_table(self.folder / "table" / file.path, partitioning=None)
                    rows += list(zip(found["id"].to_pylist(), found["seen"].to_pylist(), strict=True))
        return sorted(rows)


def counted(end: int) -> list[tuple[int, int]]:
    seen: Counter[int] = Counter()
    rows = []
    for number in range(end):
        seen[number % 2] += 1
        rows.append((number, seen[number % 2]))
    return rows


def test_a_new_owner_counts_on(tmp_path: Path) -> None:
    world = World(tmp_path, 10)
    world.steps()
    world.grow(15)
    world.new_writer()
    world.grow(21)
    assert world.staged() == counted(21)
    assert [len(state.files.changes) for state in world.states()] == [1, 2, 3]


def test_snapshots_come_now_and_then_and_say_all(tmp_path: Path) -> None:
    world = World(tmp_path, 10)
    world.new_writer(SnapshotsWhen(most_changes=2))
    for end in (10, 12, 14, 16):
        world.grow(end)
    states = world.states()
    assert [(state.files.snapshot is not None, len(state.files.changes)) for state in states] == [
        (False, 1),
        (False, 2),
        (True, 0),
        (True, 1),
    ]
    assert states[2].before == states[1].files
    world.new_writer()
    world.grow(20)
    assert world.staged() == counted(20)


def test_a_lost_claim_takes_the_state_with_the_rows(tmp_path: Path) -> None:
    world = World(tmp_path, 10)
    world.steps()
    world.group.ends[FIRST] = 14
    world.writer.step(0.2)  # read and counted, and not flushed
    # Somebody else stages the very records meanwhile.
    other = World(tmp_path, 13)
    other.names = iter(range(2_000, 3_000))
    other.steps()
    world.grow(20)
    assert world.staged() == counted(20)


def test_a_rewind_takes_the_state_back(tmp_path: Path) -> None:
    world = World(tmp_path, 10)
    world.steps()
    world.grow(15)
    last = max(item.path for item in world.store.list("done/orders/0"))
    data = world.store.read(last)
    assert data is not None
    world.store.write(f"stray/{last}", data)
    world.store.delete([last])
    world.grow(20)  # the next claim is withdrawn
    world.steps()
    assert world.staged() == counted(20)


def test_a_state_that_is_gone_holds_the_partition_until_it_is_back(tmp_path: Path) -> None:
    world = World(tmp_path, 10)
    world.steps()
    (path,) = world.states()[0].files.changes
    data = world.store.read(path)
    assert data is not None
    world.store.delete([path])
    world.new_writer()
    world.grow(12)
    held = world.writer.snapshot().held[FIRST]
    assert (held.reason, path in held.problem) == ("state", True)
    assert "--to 0 --below-table" in held.remedy
    world.store.write(path, data[:-3])
    world.clock.sleep_s(LOOK_AT_HELD_S)
    world.steps()
    assert "cannot be read" in world.writer.snapshot().held[FIRST].problem
    world.store.write(path, data)
    world.clock.sleep_s(LOOK_AT_HELD_S)
    world.steps()
    assert world.staged() == counted(12)


def test_a_processor_asks_for_a_flush(tmp_path: Path) -> None:
    world = World(tmp_path, 30)
    world.steps()
    world.group.ends[FIRST] = 31
    world.writer.step(0.01)
    world.writer.step(0.01)
    assert world.staged() == counted(31)


@pytest.mark.parametrize(
    "change", [lambda world: world.writer.lost([FIRST]), lambda world: world.writer.revoked([FIRST])]
)
def test_a_partition_that_goes_takes_its_task_with_it(tmp_path: Path, change: Callable[[World], None]) -> None:
    world = World(tmp_path, 10)
    world.steps()
    world.group.ends[FIRST] = 14
    world.writer.step(0.2)
    change(world)
    world.group.joined = False
    world.group.positions.clear()
    world.grow(20)
    assert world.staged() == counted(20)


def test_a_task_goes_on_from_its_disk_and_reads_nothing_from_the_stage(tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    disk = tmp_path / "disk"
    world.new_writer(disk=disk)
    world.grow(10)
    world.writer.revoked([FIRST])
    world.new_writer(disk=disk)
    world.grow(17)
    assert world.restored_bytes() == 0
    # The writer before has not let go of its disk: this one makes do with another place, and the stage.
    world.new_writer(disk=disk)
    world.grow(21)
    assert world.restored_bytes() > 0
    assert world.staged() == counted(21)


def test_a_disk_that_another_writer_has_overtaken_is_thrown_away(tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    disk = tmp_path / "disk"
    world.new_writer(disk=disk)
    world.grow(10)
    world.writer.revoked([FIRST])
    world.new_writer()
    world.grow(15)
    world.writer.revoked([FIRST])
    world.new_writer(disk=disk)
    world.grow(21)
    assert world.restored_bytes() > 0
    assert world.staged() == counted(21)


def test_look_ups_see_what_is_not_flushed_yet_and_no_task_that_has_gone(tmp_path: Path) -> None:
    world = World(tmp_path, 0)
    look_ups = LookUps()
    world.new_writer(look_ups=look_ups)
    world.grow(10)
    world.group.ends[FIRST] = 14
    world.writer.step(0.2)
    (task,) = look_ups.tasks("orders")
    asked = Asked(keys=(0,))
    assert [found.value for found in task.find("counts", StoreKind.KEY_VALUE, asked) or ()] == [7]
    assert len(world.staged()) == 10
    world.writer.lost([FIRST])
    assert task.find("counts", StoreKind.KEY_VALUE, asked) is None
    assert look_ups.tasks("orders") == []
