"""Plain records in hostile surroundings: a few kinds of faults, chosen by the seed, between any two steps.

Hours pass at once; the store is away for some requests, or full, for longer than any timeout; objects are torn, and
restored later; markers are kept for a while; clocks differ by machine; `delta-loader clean` runs; others VACUUM,
OPTIMIZE, RESTORE and replace the tables, and operators accept that; Kafka's retention overtakes writers; partitions are
added; transactions stay open, and are aborted; operators pause and resume streams; some processes are of an older
release.

Rules of the final check in addition to those of every world:

1. Records lost by Kafka's retention, or by a rollback that is accepted as it is, were given up by an operator by name.
2. A marker stays for its retention, by the store's time. It is settled only when its tables have had all of its rows.
3. A file that a table has is never deleted; one that only an unloaded marker names, only by VACUUM.
4. A stream that starts at ``latest`` has all records of an added partition.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from common.settings import Settings
from common.settings.pace import RETRIES_S
from common.spans import Partition, Topic, TopicPartition
from common.stage.markers import DONE, Manifest, MarkerName
from delta_loader.maintenance.cleaning.clean import CleanUp
from delta_loader.ports import in_turn
from delta_loader.tables.commits import CommitOutcome, TableCommit
from tests.fakes.delta_tables import MemoryTable
from tests.simulation.invariants import Objects, first_origin
from tests.simulation.kinds import STAGE, TABLE, Context, Kind, settings_of
from tests.simulation.pausing import Operators, ProcessPauses
from tests.simulation.remedies import RemedyOperator
from tests.simulation.row_invariants import RowInvariants
from tests.simulation.store import SimulatedStore
from tests.simulation.vacuumed_log import VacuumedLog
from tests.simulation.world import Effect, Fault, Process

_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000
_SLACK_MS = 6_000
"""The greatest difference between two clocks, and the longest time on the way of a request."""
_MADE_WHOLE = 0.004
"""The fraction of torn objects that are restored, at each step."""
_TRAITS = ("clocks", "releases")
"""Faults that last for a while."""
_DRAWN = 5
"""The number of kinds of faults in a history."""


@dataclass(slots=True, kw_only=True)
class HostileInvariants(RowInvariants):
    """The invariants of the plain stage, by rows, with retention and VACUUM."""

    log: VacuumedLog
    kept_ms: int
    pinned: Callable[[TopicPartition, int], None]
    """Called with each origin of a chain."""
    pauses: Operators
    _since_ms: dict[str, int] = field(default_factory=dict)
    """When each marker's name appeared: a marker that a rewind overwrites counts as the one that a loader has listed.
    """

    def put(self, objects: Objects, path: str, data: bytes) -> None:
        super(HostileInvariants, self).put(objects, path, data)
        self.pauses.put(path)
        name = self._name(path)
        if name is not None:
            if path not in objects:
                self._since_ms[path] = self.log.world.now_ms
            for url in self.log.tables:
                _ = [self.log.places_in(path) for path in self._named if path.startswith(f"{url}/") and path in objects]
        begun = first_origin(objects, STAGE, path, data)
        if begun is not None:
            self.pinned(*begun)

    def delete(self, objects: Objects, path: str, process: str, *, is_late: bool) -> None:
        stored, name = objects.get(path), self._name(path)
        if stored is None:
            return
        self.pauses.delete(path)
        if path.endswith(".parquet"):
            self._goes(path, process)
            return
        is_settled = name is not None and not process.startswith(("writer", "operator")) and not is_late
        if is_settled and not self._is_put_aside(objects, path, stored[0]):
            age_ms = self.log.world.now_ms - self._since_ms[path]
            if age_ms < self.kept_ms - _SLACK_MS:
                self.problems.append(f"{path} is settled after {age_ms} ms, and kept for {self.kept_ms}")
        super(HostileInvariants, self).delete(objects, path, process, is_late=is_late)

    def committed(self, table: MemoryTable, commit: TableCommit) -> None:
        super(HostileInvariants, self).committed(table, commit)
        self.pauses.committed(commit)

    def _goes(self, path: str, process: str) -> None:
        if any(path == f"{url}/{name}" for url in self.log.tables for name in self.log.files(url)):
            self.problems.append(f"{path} is deleted by {process}, and a table has it")
        name = None if process.startswith("vacuum") else self._named.get(path)
        claim = None if name is None else self._claims.get(name.topic_partition, {}).get(name.start)
        if claim is not None and path in self._paths(claim.marker) and self._lacking(claim.marker):
            self.problems.append(f"{path} is deleted by {process}, and {claim.marker.name.path}, not loaded, names it")


class MixedReleases(VacuumedLog):
    """Some loaders are of a release whose commits contain less (tests/upgrades/files)."""

    old: frozenset[str] = frozenset()

    def commit(self, commit: TableCommit) -> CommitOutcome:
        if commit.metadata.commit_id.startswith(tuple(self.old)):
            older = replace(commit.metadata, positions={}, topic_ids={}, plain_topic=None, unproved=frozenset())
            commit = replace(commit, metadata=older)
        return super().commit(commit)


class Hostile(Kind):
    """The plain kind, in such surroundings."""

    operator = RemedyOperator
    follows_remedies = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        world = context.world
        rng = world.rng
        world.chances = replace(world.chances, recreated=0.0)
        self.log: MixedReleases = MixedReleases(world, context.bucket, STAGE)
        events = {
            "clean-up": (0.01, self._clean_up),
            "vacuum": (0.01, self._vacuum),
            "optimize": (0.01, self._optimize),
            "rollback": (0.008, self._put_back),
            "retention": (0.015, self._retention),
            "partitions": (0.005, self._add_partition),
            "away": (0.01, self._go_away),
            "torn": (0.02, self._tear),
            "transactions": (0.01, self._transact),
            "pauses": (0.03, self._pause),
        }
        names = (*sorted(events), *_TRAITS)
        first = names[world.seed % len(names)]  # each in as many histories as there are
        drawn = world.chances.surroundings or (
            first,
            *rng.sample([name for name in names if name != first], _DRAWN - 1),
        )
        self._events = ((0.01, self._hours), *(events[name] for name in drawn if name not in _TRAITS))
        self._is_skewed, self._is_mixed = ("clocks" in drawn), ("releases" in drawn)
        self._kept_s = rng.choice([0, 60, 600])
        self._starts_late = rng.random() < 0.4
        # With pauses, a load takes several commits, so that a pause comes between two of them.
        pace = {"flush_records": 4, "max_files": 1} if "pauses" in drawn else {}
        self.settings = _settings("latest" if self._starts_late else "earliest", self._kept_s, pace)
        self._away: tuple[int, Callable[[Process, Effect], bool]] | None = None
        self._torn: list[tuple[str, bytes, bytes]] = []
        self._running = 0
        """VACUUMs in progress."""
        self._old_writers: set[str] = set()
        self._pauses: Operators = Operators(context, STAGE, (self.stream.app_id,))
        self._has_pauses = "pauses" in drawn
        world.is_away = self._is_away

    def invariants(self) -> HostileInvariants:
        invariants = HostileInvariants(
            STAGE,
            self.stream,
            lambda: self.log.tables,
            log=self.log,
            kept_ms=self._kept_s * 1000,
            pinned=self._pinned,
            pauses=self._pauses,
        )
        self.log.stage_of = lambda path: STAGE if invariants.has_staged(path) else None
        self._pauses.problems = invariants.problems
        self._invariants = invariants
        return invariants

    # Processes.

    def starts(self, process: Process) -> None:
        """With its machine's clock and a release."""
        world = self.context.world
        if self._is_skewed:
            world.faults[Fault.SKEWED] += 1
            most_ms = _HOUR_MS // 2 if process.name.startswith("writer") else 5 * _HOUR_MS
            process.drift_ms = world.rng.randrange(-most_ms, most_ms)
        if self._is_mixed and world.rng.random() < 0.5:
            world.faults[Fault.OLD_RELEASE] += 1
            if process.name.startswith("writer"):
                self._old_writers.add(process.name)
            else:
                self.log.old |= {f"{process.name}-"}

    def pauses(self, process: Process, store: SimulatedStore) -> ProcessPauses:
        return self._pauses.of(process, store) if self._has_pauses else super().pauses(process, store)

    def claims(self, process: Process, name: MarkerName, data: bytes) -> None:
        self._pauses.claims(process.name, name, data)

    def manifest(self, writer: str, manifest: Manifest) -> Manifest:
        """Without the fields that the release does not know."""
        if writer not in self._old_writers:
            return manifest
        return replace(manifest, topic_id=None, last_record=None, undeclared=None)

    # Faults.

    def inject_faults(self) -> None:
        rng = self.context.world.rng
        for chance, event in self._events:
            if rng.random() < chance:
                event()
        for torn in [torn for torn in self._torn if rng.random() < _MADE_WHOLE]:
            self._put_bytes_back(torn)

    def on_faults_ended(self) -> None:
        self.context.world.is_away = None
        for torn in list(self._torn):
            self._put_bytes_back(torn)
        self.context.broker.unstable.clear()
        if self._has_pauses:
            self._pauses.on_faults_ended(self._open(STAGE))
        self.context.spawn("producer", self.end_logs)

    def _hours(self) -> None:
        """All machines stand still, or the store is away for all of that time; the group notices or does not."""
        world = self.context.world
        duration_ms = world.rng.choice([10 * _MINUTE_MS, 2 * _HOUR_MS, 30 * _HOUR_MS, *[80 * _HOUR_MS] * 3])
        if not world.leap(duration_ms):
            return
        world.faults[Fault.HOURS] += 1
        world.note(f"{duration_ms // _MINUTE_MS} minutes pass")
        if world.rng.random() < 0.5:
            for member in self.context.broker.members:
                member.process.last_heartbeat_ms = world.now_ms
        for event in [event for _, event in self._events if event in (self._clean_up, self._vacuum)]:
            if world.rng.random() < 0.5:
                event()  # by a schedule that was missed

    def _clean_up(self) -> None:
        """`delta-loader clean`, at the lowest age that it allows."""
        world = self.context.world
        world.faults[Fault.CLEAN_UP] += 1
        writer = self.settings.writer
        older_than_s = writer.flush_after_s + writer.revoke_timeout_s + RETRIES_S + self._kept_s

        def run() -> None:
            CleanUp(self.settings, self._open, in_turn).run(older_than_s, remove=True)

        self.context.spawn("cleaner", run)

    def _vacuum(self) -> None:
        """Another program's VACUUM, by the table's retention."""
        world = self.context.world
        if not self.log.tables:
            return
        url = world.rng.choice(sorted(self.log.tables))
        world.faults[Fault.VACUUM] += 1
        self._running += 1

        def run() -> None:
            store = self._open(url)
            for path in self.log.vacuumable(url):
                world.sleep_s(world.rng.choice([0, 5, 30, 60]))
                store.delete([path.removeprefix(f"{url}/")])

        def ended() -> None:
            self._running -= 1

        self.context.spawn("vacuum", run, ended)

    def _optimize(self) -> None:
        if self.log.tables:
            url = self.context.world.rng.choice(sorted(self.log.tables))
            self.context.world.faults[Fault.OPTIMIZE] += 1
            self.context.world.note(f"others OPTIMIZE {url}")
            self.log.optimize(url)

    def _put_back(self) -> None:
        """A RESTORE, or another table in place of the table."""
        world = self.context.world
        if not self.log.tables or self._running:
            return  # a RESTORE of what a VACUUM is deleting is Delta's own problem
        url = world.rng.choice([TABLE, TABLE, *sorted(self.log.tables)])
        if url not in self.log.tables:
            return
        if world.rng.random() < 0.3:
            world.faults[Fault.REPLACED] += 1
            world.note(f"{url} is replaced")
            self.log.replace(url)
        elif self.log.restorable(url):
            version = world.rng.choice(self.log.restorable(url))
            world.faults[Fault.RESTORED] += 1
            world.note(f"{url} is put back to version {version}")
            self.log.restore(url, version)

    def _retention(self) -> None:
        """Kafka deletes the oldest records, staged or not."""
        world, broker = self.context.world, self.context.broker
        partition = world.rng.choice(sorted(broker.logs))
        low, end = broker.begin(partition), broker.stable_end(partition)
        if low == end:
            return
        world.faults[Fault.RETENTION] += 1
        broker.low[partition] = world.rng.randint(low + 1, end)
        world.note(f"Kafka's records of {partition} begin at {broker.low[partition]}")
        if not self.context.has_chain(partition):
            self.context.given_up.give(partition, 0, broker.low[partition])  # it begins with the earliest record

    def _add_partition(self) -> None:
        world, broker = self.context.world, self.context.broker
        if len(broker.logs) == 6 or not self.context.has_chain(TopicPartition(Topic("orders"), Partition(0))):
            return
        partition = TopicPartition(Topic("orders"), Partition(len(broker.logs)))
        world.faults[Fault.PARTITION_ADDED] += 1
        world.note(f"{partition} is added")
        broker.logs[partition] = []
        for _ in range(world.rng.randrange(4)):
            broker.append(partition, *self.record(partition))
        broker.rebalance()

    def _go_away(self) -> None:
        """The store does not answer some requests, until long after every retry has ended."""
        world = self.context.world
        rng = world.rng
        number = rng.randrange(len(self.context.broker.logs))
        victim = rng.choice([member.process for member in self.context.broker.members] or [Process("no member")])
        is_full = rng.random() < 0.3
        reaches: Callable[[Process, Effect], bool] = rng.choice(
            [
                lambda _process, _effect: True,
                lambda process, _effect: process is victim,
                lambda _process, effect: effect.name.startswith(f"create {DONE}/orders/{number}/"),
                lambda _process, effect: effect.name.startswith("delete "),
            ]
        )
        if is_full:
            reaches = _adds
        world.faults[Fault.FULL if is_full else Fault.AWAY] += 1
        self._away = world.now_ms + rng.choice([_MINUTE_MS, 20 * _MINUTE_MS, 3 * _HOUR_MS]), reaches
        world.note("the disk is full" if is_full else "the store is away")

    def _is_away(self, process: Process, effect: Effect) -> bool:
        until_ms, reaches = self._away or (0, _adds)
        return self.context.world.now_ms < until_ms and reaches(process, effect)

    def _tear(self) -> None:
        """An object of the stage has other bytes, until someone restores them."""
        world, objects = self.context.world, self.context.bucket.objects
        whole = {path for path, (data, _) in objects.items() if data}.difference(path for path, _, _ in self._torn)
        kinds = [paths for folder in _TORN if (paths := sorted(path for path in whole if path.startswith(folder)))]
        if not kinds:
            return
        path = world.rng.choice(world.rng.choice([kinds[0], *kinds]))
        data, time_ms = objects[path]
        half = data[: len(data) // 2]
        world.faults[Fault.TORN] += 1
        world.note(f"{path} is torn")
        objects[path] = half, time_ms
        self._torn.append((path, data, half))

    def _put_bytes_back(self, torn: tuple[str, bytes, bytes]) -> None:
        path, data, half = torn
        objects = self.context.bucket.objects
        self._torn.remove(torn)
        is_aside = any(path.startswith(f"{STAGE}/stray/") and copy == half for path, (copy, _) in objects.items())
        if path in objects and objects[path][0] == half and not is_aside:
            objects[path] = data, objects[path][1]
            self.context.world.note(f"{path} is whole again")

    def _pause(self) -> None:
        self._pauses.inject_faults(self._open(STAGE))

    def _transact(self) -> None:
        """A transaction begins or ends: with its records, or without them."""
        world, broker = self.context.world, self.context.broker
        partition = world.rng.choice(sorted(broker.logs))
        if partition not in broker.unstable:
            broker.unstable[partition] = broker.end(partition)
            return
        begin, log = broker.unstable.pop(partition), broker.logs[partition]
        world.faults[Fault.TRANSACTION] += 1
        broker.hidden[partition] = broker.end(partition) + 1
        if world.rng.random() < 0.6:
            world.note(f"a transaction in {partition} from {begin} on is aborted")
            log[:] = [record for record in log if record.offset < begin or world.rng.random() < 0.3]

    # Internals.

    def _pinned(self, partition: TopicPartition, position: int) -> None:
        """A stream that starts at ``latest`` needs no earlier records, except of added partitions (rule 4)."""
        if self._starts_late and not self.context.has_chain(TopicPartition(Topic("orders"), Partition(0))):
            self.context.given_up.give(partition, 0, position)

    def _open(self, url: str) -> SimulatedStore:
        return SimulatedStore(self.context.world, self.context.bucket, url)

    def problems(self) -> list[str]:
        return self.log.problems


_TORN = tuple(f"{STAGE}/{folder}/" for folder in (DONE, "begin", "idle", "lease", "failures", "news", "paused"))


def _adds(_process: Process, effect: Effect) -> bool:
    """A request for which a disk needs room."""
    return effect.name.startswith(("create ", "write ", "copy ", "commit ", "alter ", "widen "))


def _settings(start: str, kept_s: int, pace: Mapping[str, int]) -> Settings:
    settings = settings_of(start=start, **pace)
    return settings.model_copy(
        update={"loader": settings.loader.model_copy(update={"marker_retention_s": float(kept_s)})}
    )
