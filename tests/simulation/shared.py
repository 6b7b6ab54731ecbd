"""Two streams that read one topic, each with chains and a pace of its own: the stage has the owner of the plain chains.

The config is edited: its streams change their order, one of them leaves it or comes back, and processes run by the
config that they started with until they are restarted. The second stream is added once the first has staged a record,
as the docs ask. One of the two may be paused, may wait for its registry, and may start at the topic's end.

Rules of the final check in addition to those of every world:

1. Each record is once in the tables of each stream. A record given up in one chain is not missing in the other stream.
2. The owner of the topic's plain chains never changes. A chain's markers belong to its stream, and name its tables
   only.
3. A commit belongs to the stream whose table it changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from bootstrap.plans.state import PartitionState
from common.errors import MarkerError, UsageError
from common.settings import Settings, Stream
from common.spans import Position, Topic, TopicPartition
from common.stage.markers import DONE, Marker, MarkerName, marker_from_bytes
from common.stage.merged import kafka_partition, shared_chain, stream_of
from common.stage.topic_owners import StageTopicOwners, owner_path
from delta_loader.tables.commits import TableCommit
from stage_writer.fetch.shared.source import SharedTopicSource
from stage_writer.ports import Converter, RecordSource
from tests.builders import settings_of
from tests.fakes.delta_tables import MemoryTable
from tests.simulation.converter import BAD, GOOD, PlainConverter, Registry
from tests.simulation.invariants import Objects, StageInvariants, first_origin
from tests.simulation.kafka import GroupMember, Record
from tests.simulation.kinds import STAGE, TABLE, Context, Kind
from tests.simulation.operators import Operator
from tests.simulation.pausing import Operators, ProcessPauses
from tests.simulation.store import SimulatedStore
from tests.simulation.world import Fault, Process, WorldClock

ORDERS, AUDIT = "orders", "audit"
TOPIC = Topic("orders")
TABLES = {ORDERS: TABLE, AUDIT: "memory://audit"}
PACES: dict[str, dict[str, object]] = {ORDERS: {}, AUDIT: {"flush_after": "1s", "flush_records": 5, "max_files": 2}}
OWNER = f"{STAGE}/{owner_path(TOPIC)}"
_ALONE, _LATE, _PAUSED, _EDITED = 0.4, 0.3, 0.6, 0.6
"""How many of the worlds begin with one stream, start the other one at the end, have pauses, and have edits."""
_PAUSE, _EDIT, _OUTDATED_ENDS = 0.02, 0.02, 0.02
"""For each step."""


def _settings(app_ids: tuple[str, ...], starts: Mapping[str, str]) -> Settings:
    def stream(app_id: str) -> dict[str, Any]:
        columns = {"columns": "n BIGINT", "start": starts[app_id]}
        return {"app_id": app_id, "topics": [str(TOPIC)], "table": TABLES[app_id], **columns, **PACES[app_id]}

    return settings_of(
        *(stream(app_id) for app_id in app_ids), stage={"url": STAGE}, loader={"marker_retention": 0, "max_files": 20}
    )


@dataclass(slots=True, kw_only=True)
class SharedInvariants(StageInvariants):
    """The invariants of every stage, for each chain by its stream."""

    kind: Shared

    def put(self, objects: Objects, path: str, data: bytes) -> None:
        super(SharedInvariants, self).put(objects, path, data)
        self.kind.paused.put(path)
        before = objects.get(path)
        if path == OWNER and before is not None and before[0] != data:
            self.problems.append(f"{path} names another owner")
        name = self._name(path)
        if name is not None:
            self._require_own(name, data)
        begun = first_origin(objects, STAGE, path, data)
        if begun is not None and kafka_partition(begun[0]) in self.kind.context.broker.logs:
            self.kind.begun(*begun)

    def delete(self, objects: Objects, path: str, process: str, *, is_late: bool) -> None:
        super(SharedInvariants, self).delete(objects, path, process, is_late=is_late)
        self.kind.paused.delete(path)
        if path == OWNER:
            self.problems.append(f"{path} is deleted")

    def committed(self, table: MemoryTable, commit: TableCommit) -> None:
        app_id = commit.metadata.app_id
        self.stream = self.kind.streams[app_id]
        if commit.target.url not in self.stream.tables:
            self.problems.append(f"{app_id} commits to {commit.target.url}")
        super(SharedInvariants, self).committed(table, commit)
        self.kind.paused.committed(commit)

    def _require_own(self, name: MarkerName, data: bytes) -> None:
        try:
            marker = marker_from_bytes(name, data)
        except MarkerError:
            return
        app_id = self.kind.app_id_of(name.topic_partition)
        if marker.manifest is None or app_id is None:
            return
        if marker.manifest.app_id != app_id:
            self.problems.append(f"{name.path} is of {marker.manifest.app_id}, and its chain of {app_id}")
        others = [table.url for table in marker.tables if table.url not in self.kind.streams[app_id].tables]
        if others:
            self.problems.append(f"{name.path} of {app_id} names {others}")

    def _lacking(self, marker: Marker) -> list[str]:
        self.stream = self.kind.stream_of(marker.name.topic_partition)
        return super(SharedInvariants, self)._lacking(marker)


class SharedOperator(Operator):
    """An operator with the newest config, who agrees with all others on the owner before anything is changed."""

    def __init__(self, kind: Shared, *about: Any, **more: Any) -> None:  # noqa: ANN401 - the base's
        super().__init__(*about, **more)
        self._kind = kind

    def _read_state(self, partition: TopicPartition) -> PartitionState:
        self._settings = self._kind.newest()
        StageTopicOwners(self._settings, self._store, make=False).read_all()
        stream = self._settings.stream_of(partition.topic)
        if stream is None:
            msg = f"no stream of the config reads {partition.topic}"
            raise UsageError(msg, "")
        self._stream = stream
        return super()._read_state(partition)

    def _skip(self, state: PartitionState) -> None:
        self._agree()
        super()._skip(state)

    def _rewind(self, state: PartitionState, to: Position, *, below_table: bool) -> None:
        self._agree()
        super()._rewind(state, to, below_table=below_table)

    def _restart(self, state: PartitionState, *, give_up: bool) -> None:
        self._agree()
        super()._restart(state, give_up=give_up)

    def _agree(self) -> None:
        owners = StageTopicOwners(self._settings, self._store, make=True)
        expected = self._settings.owners.expected
        owners.read_all()
        owners.require(expected)
        if any(self._settings.owners.by_topic[topic] != owner for topic, owner in expected.items()):
            msg = "another program has decided meanwhile"
            raise UsageError(msg, "")


class Shared(Kind):
    """Two streams, one topic."""

    follows_remedies = True
    values = (GOOD, GOOD, GOOD, GOOD, BAD, None)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        rng = context.world.rng
        self._order = tuple(rng.sample([ORDERS, AUDIT], 2))
        self._starts = dict.fromkeys(self._order, "earliest")
        if rng.random() < _LATE:
            self._starts[self._order[1]] = "latest"
        self._begins_alone = rng.random() < _ALONE
        self._names = self._order[:1] if self._begins_alone else self._order
        self.settings = _settings(self._order, self._starts)
        self.streams = {stream.app_id: stream for stream in self.settings.streams}
        self.operator = partial(SharedOperator, self)
        self.paused = Operators(context, STAGE, self._order)
        self._has_pauses, self._is_edited = rng.random() < _PAUSED, rng.random() < _EDITED
        self._registries = {app_id: Registry(context.world) for app_id in self._order}
        self._running: list[tuple[Process, tuple[str, ...]]] = []

    def invariants(self) -> SharedInvariants:
        invariants = SharedInvariants(STAGE, self.stream, lambda: self.log.tables, kind=self)
        self.paused.problems = invariants.problems
        return invariants

    # What the stage says.

    @property
    def owner(self) -> str | None:
        """The owner of the topic's plain chains, once it is decided."""
        data = self.context.bucket.objects.get(OWNER)
        return None if data is None else str(json.loads(data[0])["owner"])

    def app_id_of(self, chain: TopicPartition) -> str | None:
        """The stream of a chain; None until that is decided."""
        return stream_of(chain.topic) or self.owner

    def stream_of(self, chain: TopicPartition) -> Stream:
        """The stream of a chain; the only stream until that is decided."""
        return self.streams[self.app_id_of(chain) or self._order[0]]

    def chain_of(self, app_id: str, partition: TopicPartition) -> TopicPartition:
        is_plain = app_id == (self.owner or self._order[0])
        return TopicPartition(TOPIC if is_plain else shared_chain(TOPIC, app_id), partition.partition)

    def chains(self) -> list[TopicPartition]:
        logs = sorted(self.context.broker.logs)
        app_ids = self._order[:1] if self.owner is None else self._order
        return [self.chain_of(app_id, partition) for partition in logs for app_id in app_ids]

    def begun(self, chain: TopicPartition, position: int) -> None:
        """A chain has its first origin: earlier records are not required."""
        self.context.given_up.give(chain, 0, position)

    def _has_staged(self) -> bool:
        """Whether something says whose the plain chains are."""
        for path, (data, _) in self.context.bucket.objects.items():
            name = MarkerName.parse(path.removeprefix(f"{STAGE}/")) if path.startswith(f"{STAGE}/{DONE}/") else None
            if name is not None and marker_from_bytes(name, data).manifest is not None:
                return True
        return False

    # Processes.

    def newest(self) -> Settings:
        """The config as read now; until the owner is decided, each program may have its streams in another order."""
        names = self._names if self.owner is not None else self.context.world.rng.sample(self._names, len(self._names))
        return _settings(tuple(names), self._starts)

    def read_settings(self, process: Process) -> Settings:
        self._running = [(running, names) for running, names in self._running if running.alive]
        self._running.append((process, self._names))
        return self.newest()

    def owners(self, settings: Settings, store: SimulatedStore) -> StageTopicOwners:
        return StageTopicOwners(settings, store, make=True)

    def converters(self, process: Process, settings: Settings) -> list[Converter]:
        del process
        return [PlainConverter(stream, self._registries[stream.app_id]) for stream in settings.streams]

    def source(self, member: GroupMember, settings: Settings) -> RecordSource:
        if not settings.may_share:
            return member
        return SharedTopicSource(member, settings.chains_of, WorldClock(self.context.world))

    def pauses(self, process: Process, store: SimulatedStore) -> ProcessPauses:
        return self.paused.of(process, store) if self._has_pauses else super().pauses(process, store)

    def claims(self, process: Process, name: MarkerName, data: bytes) -> None:
        self.paused.claims(process.name, name, data)

    # Faults.

    def inject_faults(self) -> None:
        """Pauses, edits, and processes that are restarted."""
        rng = self.context.world.rng
        if self._has_pauses and rng.random() < _PAUSE:
            self.paused.inject_faults(self._store())
        if self._is_edited and rng.random() < _EDIT:
            self._edit()
        if rng.random() < _OUTDATED_ENDS:
            self._end_outdated()

    def on_faults_ended(self) -> None:
        """All processes know both streams in the end, and each log ends with a required record."""
        if self._has_pauses:
            self.paused.on_faults_ended(self._store())

        def end() -> None:
            world = self.context.world
            while self.owner is None or not all(map(self.context.has_chain, self.chains())):
                may_share = self.owner is not None or not self._begins_alone or self._has_staged()
                self._become(self._order if may_share else self._order[:1])
                self._end_outdated(of_all=True)
                world.sleep_s(5)
            self._become(self._order)
            self._end_outdated(of_all=True)
            for partition in sorted(self.context.broker.logs):
                self.context.broker.append(partition, *self.record(partition))

        self.context.spawn("producer", end)

    def _edit(self) -> None:
        rng = self.context.world.rng
        if self.owner is None:
            if len(self._names) == 1 and self._has_staged():
                self._become(tuple(rng.sample(self._order, 2)))
            return
        self._become(tuple(rng.sample(self._order, rng.choice([1, 2, 2]))))

    def _become(self, names: tuple[str, ...]) -> None:
        if names != self._names:
            self.context.world.faults[Fault.EDITED] += 1
            self.context.world.note(f"the config has the streams {', '.join(names)}")
            self._names = names

    def _end_outdated(self, *, of_all: bool = False) -> None:
        """A process with an outdated config is stopped, to be restarted."""
        outdated = [process for process, names in self._running if process.alive and names != self._names]
        if outdated and not of_all:
            outdated = [self.context.world.rng.choice(outdated)]
        for process in outdated:
            self.context.world.crash(process)

    def _store(self) -> SimulatedStore:
        return SimulatedStore(self.context.world, self.context.bucket, STAGE)

    # The final check.

    def is_in_order(self, partition: TopicPartition, record: Record, have: Mapping[str, int], *, deleted: bool) -> bool:
        """Each stream separately (rule 1)."""
        for app_id, stream in self.streams.items():
            mine = {url: count for url, count in have.items() if url in stream.tables}
            places = {GOOD: stream.table, BAD: stream.dead_letters}
            wanted = {} if record.value is None else {places[record.value]: 1}
            may_lack = deleted or self.context.given_up.has(self.chain_of(app_id, partition), record.offset)
            if mine != wanted and not (may_lack and mine.items() <= wanted.items()):
                return False
        return True

    def urls(self) -> list[str]:
        return [url for stream in self.streams.values() for url in stream.tables]
