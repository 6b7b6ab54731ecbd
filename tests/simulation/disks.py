"""Worlds whose tasks keep their state on disk: one disk for each writer's machine, which outlives its processes.

Rules:

1. A process that dies leaves what it had applied, and its lock is free; it closes nothing. A process that ends closes
   its state, which is then safely on the disk.
2. A machine that stops has another boot id when it is back, and may have lost any part of what was not closed.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import lmdb

from common.metrics import Metrics
from common.spans import TopicPartition
from stage_writer.ports import Converter
from stage_writer.tasks.shared import SnapshotsWhen, TaskEnvironment
from stage_writer.tasks.task_storage import TaskStorage
from stage_writer.tasks.topology import TopologyConverter
from stage_writer.topologies.stores import Backend, StoreBuilder, disk
from tests.simulation.counting import topology
from tests.simulation.kinds import Context, Counting
from tests.simulation.world import Fault, Process, World, WorldClock

_STOPS = 0.4
"""The fraction of dead processes whose machine stopped."""
_LOSES = 0.7


class Kept(disk.DiskBackend):
    def __init__(self, place: Path, lock: int, process: Process) -> None:
        self.place = place
        self.is_open = True
        self._process = process
        super().__init__(place, lock)

    def close(self) -> None:
        """Close by a living process; a dead one has no effect (rule 1)."""
        if self._process.alive and self.is_open:
            super().close()
            self.is_open = False

    def die(self) -> None:
        """What the kernel does for a process that has died."""
        if self.is_open:
            self.is_open = False
            self._release()
            with suppress(OSError):
                os.close(self._lock)

    def lose(self, world: World) -> None:
        """One entry was not written yet when the machine stopped."""
        with lmdb.open(str(self.place / "lmdb"), max_dbs=256) as environment:
            with environment.begin() as reading:
                names = [name for name, _ in reading.cursor() if bytes(name).startswith(b"space/")]
            for name in names:
                database = environment.open_db(bytes(name))
                with environment.begin(write=True) as writing:
                    keys = [bytes(key) for key, _ in writing.cursor(database)]
                    if keys:
                        writing.delete(world.rng.choice(keys), db=database)


@dataclass(slots=True)
class Machine:
    folder: Path
    starts: int = 0
    kept: list[Kept] = field(default_factory=list)


class KeptOnDisk(TaskStorage):
    def __init__(self, machine: Machine, process: Process) -> None:
        super().__init__("orders", Metrics(), str(machine.folder))
        self._machine = machine
        self._process = process

    def backend(self, partition: TopicPartition, builders: Iterable[StoreBuilder]) -> Backend:
        def opened(place: Path, lock: int) -> Kept:
            made = Kept(place, lock, self._process)
            self._machine.kept.append(made)
            return made

        name = f"{self._machine.folder.name} {self._machine.starts}"
        with patch.object(disk, "_machine", lambda: name), patch.object(disk, "DiskBackend", opened):
            return super().backend(partition, builders)


class OnDisk(Counting):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._root = Path(tempfile.mkdtemp(prefix="simulated-disks-"))
        self._machines: dict[str, Machine] = {}

    def converter(self, process: Process) -> Converter:
        """The real converter; the earlier process on this machine has died."""
        name = process.name.partition("#")[0]
        machine = self._machines.setdefault(name, Machine(self._root / name))
        self._begin(machine)
        when = SnapshotsWhen(most_changes=4, least_bytes=500)
        wall_ms = WorldClock(self.context.world).wall_ms
        context = TaskEnvironment(wall_ms, Metrics(), state_folder=str(machine.folder), when=when)
        made = TopologyConverter(self.stream, topology(persistent=True).check(), context)
        made.storage = KeptOnDisk(machine, process)
        return made

    def _begin(self, machine: Machine) -> None:
        world, left = self.context.world, [kept for kept in machine.kept if kept.is_open]
        for kept in left:
            kept.die()
        machine.kept.clear()
        if left and world.rng.random() < _STOPS:
            world.faults[Fault.MACHINE] += 1
            world.note(f"it was {machine.folder.name}'s machine that had stopped")
            machine.starts += 1
            for kept in left:
                if world.rng.random() < _LOSES:
                    kept.lose(world)

    def close(self) -> None:
        for machine in self._machines.values():
            for kept in machine.kept:
                kept.die()
        shutil.rmtree(self._root, ignore_errors=True)
