"""Kinds of worlds: a stream, the records that are sent to it, its converter, and the expected contents of its tables.

A kind knows its stream's rules and no others. Time, order and failure are the world's, and whether each record is there
once is checked by the history.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from common.errors import KafkaDeltaExpressError
from common.settings import Settings, Stream
from common.spans import TopicPartition
from common.stage.chain_origins import BEGIN
from common.stage.markers import Manifest, MarkerName, folder_of
from common.stage.merged import chain_topic
from common.stage.topic_owners import StageTopicOwners
from delta_loader.load.ports import RefusalPorts, SendRefused
from delta_loader.load.replace_ranges import Replacer
from delta_loader.load.report import StreamReport
from delta_loader.service import LoaderService
from stage_writer.notifications.notifier import NO_NOTIFIER, Notifier
from stage_writer.outbox.ports import NO_OUTLETS, Outlets
from stage_writer.parquet.buffer import FilePolicy
from stage_writer.ports import NO_CHANGELOG, Changelog, Converter, RecordSource
from stage_writer.stage.staging import ObjectStage
from tests.simulation.converter import BAD, GOOD, LEFT, RIGHT, ROUTES, PlainConverter, Registry
from tests.simulation.counting import COUNTED, KEYS, TOPOLOGY, CountModel, converter, wanted_rows
from tests.simulation.delta_log import DeltaLog, Place, SimulatedTables
from tests.simulation.evolving import GAINING, EvolvingConverter, Values
from tests.simulation.invariants import StageInvariants
from tests.simulation.kafka import Broker, GroupMember
from tests.simulation.kafka import Record as Sent
from tests.simulation.operators import GivenUpPositions, Operator
from tests.simulation.pausing import ProcessPauses
from tests.simulation.store import Bucket, SimulatedStore
from tests.simulation.world import Crash, Process, World, WorldClock

STAGE, TABLE, DEAD_LETTERS = "memory://stage", "memory://orders", "memory://orders_dead_letters"
Wanted = tuple["Mapping[str, int]", ...]
"""How many rows a record has in each table; several where more than one outcome is correct."""
Loads: TypeAlias = "Callable[[Callable[[], bool]], Sequence[StreamReport]]"
"""Loads what is due, unless it is to stop."""


def settings_of(**more: object) -> Settings:
    """The settings of a stream of one topic, with more."""
    stream = {"app_id": "orders", "topics": ["orders"], "table": TABLE, "columns": "n BIGINT", **more}
    return Settings.model_validate(
        {
            "kafka": {"bootstrap.servers": "nowhere:1"},
            "stage": {"url": STAGE},
            "loader": {"marker_retention": 0, "max_files": 20},
            "streams": [stream],
        }
    )


@dataclass(frozen=True, slots=True)
class Context:
    world: World
    broker: Broker
    bucket: Bucket
    given_up: GivenUpPositions

    def logs(self) -> Iterator[tuple[TopicPartition, list[Sent], bool]]:
        """Each Kafka partition's records, and whether its topic was deleted."""
        for logs in (*self.broker.past, self.broker.logs):
            for partition, log in logs.items():
                yield partition, log, logs is not self.broker.logs

    def may_lack(self, partition: TopicPartition, offset: int, *, deleted: bool) -> bool:
        """Whether a record may be missing: an operator gave it up, or its topic was deleted before it was staged."""
        return deleted or self.given_up.has(partition, offset)

    def has_chain(self, partition: TopicPartition) -> bool:
        """Whether something says where a partition's chain begins."""
        starts = (
            f"{STAGE}/{folder_of(partition)}",
            f"{STAGE}/stray/{folder_of(partition)}",
            f"{STAGE}/{BEGIN}/{partition.topic}/{partition.partition}/",
        )
        return any(path.startswith(starts) for path in self.bucket.objects)

    def spawn(self, name: str, run: Callable[[], None], ended: Callable[[], None] = lambda: None) -> None:
        world = self.world
        process = Process(f"{name}#{world.now_ms}")
        world.note(f"{process.name} starts")

        def until_it_ends() -> None:
            try:
                run()
            except KafkaDeltaExpressError as error:
                world.note(f"{process.name} ends: {error.problem}")
            except Crash:
                return
            finally:
                ended()
            process.alive = False

        world.spawn(process, until_it_ends)


class Kind:
    """The plain kind: records are rows, dead letters or tombstones. Others override what differs."""

    settings = settings_of()
    values: tuple[bytes | None, ...] = (GOOD, GOOD, GOOD, GOOD, BAD, None)
    file_policy = FilePolicy()
    topics: tuple[str, ...] = ("orders",)
    operator: Callable[..., Operator] = Operator
    follows_remedies = False
    """Whether operators follow remedies in the quiet phase, regardless of the world's profile."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.registry = Registry(context.world)
        self.log = DeltaLog(context.bucket, STAGE)

    @property
    def stream(self) -> Stream:
        return self.settings.streams[0]

    def invariants(self) -> StageInvariants:
        """What is checked at each change of the stage and of the tables."""
        return StageInvariants(STAGE, self.stream, lambda: self.log.tables)

    def starts(self, process: Process) -> None: ...

    def manifest(self, writer: str, manifest: Manifest) -> Manifest:
        del writer
        return manifest

    def stream_of(self, chain: TopicPartition) -> Stream:
        del chain
        return self.stream

    def read_settings(self, process: Process) -> Settings:
        del process
        return self.settings

    def owners(self, settings: Settings, store: SimulatedStore) -> StageTopicOwners | None:
        del settings, store
        return None

    def converters(self, process: Process, settings: Settings) -> list[Converter]:
        del settings
        return [self.converter(process)]

    def converter(self, process: Process) -> Converter:
        del process
        return PlainConverter(self.stream, self.registry)

    def source(self, member: GroupMember, settings: Settings) -> RecordSource:
        del settings
        return member

    def outlets(self, process: Process, store: SimulatedStore) -> Outlets:
        del process, store
        return NO_OUTLETS

    def notifier(self, stage: ObjectStage) -> Notifier:
        del stage
        return NO_NOTIFIER

    def loads(self, service: LoaderService, store: SimulatedStore) -> Loads:
        """What a loader does each time; by default a pass, unless it is to stop."""
        del store
        return lambda stop: () if stop() else service.run_pass(stop)

    def pauses(self, process: Process, store: SimulatedStore) -> ProcessPauses:
        del process, store
        return ProcessPauses()

    def claims(self, process: Process, name: MarkerName, data: bytes) -> None: ...

    def changelog(self, process: Process) -> Changelog:
        del process
        return NO_CHANGELOG

    def chains(self) -> list[TopicPartition]:
        partitions = {topic_partition.partition for topic_partition in self.context.broker.logs}
        return [TopicPartition(chain_topic(self.topics), partition) for partition in sorted(partitions)]

    def record(self, partition: TopicPartition) -> tuple[bytes | None, bytes | None]:
        del partition
        return self.context.world.rng.choice(self.values), None

    def wanted(self, value: bytes | None) -> Wanted:
        places = {GOOD: TABLE, BAD: DEAD_LETTERS, **ROUTES, **dict.fromkeys(GAINING, TABLE)}
        return ({} if value is None else {places[value]: 1},)

    def is_in_order(self, partition: TopicPartition, record: Sent, have: Mapping[str, int], *, deleted: bool) -> bool:
        """Whether a record has the expected rows, by table."""
        wanted = self.wanted(record.value)
        # A given-up record may be in some of its tables: one that was left out gets it if it is staged again.
        may_lack = self.context.may_lack(partition, record.offset, deleted=deleted)
        return have in wanted or (may_lack and any(have.items() <= whole.items() for whole in wanted))

    def urls(self) -> Iterable[str]:
        return self.stream.tables

    def inject_faults(self) -> None:
        """The faults of this kind of world, at each step of the fault phase."""

    def on_faults_ended(self) -> None: ...

    def end_logs(self) -> None:
        """A process that adds a last record to each log, which shows its end, once it is known where its chain begins.

        Without one, a chain that begins at the end of its log has no position.
        """
        broker = self.context.broker
        for partition in sorted(broker.logs):  # added partitions last: one without records has no chain
            while not self.context.has_chain(partition):
                self.context.world.sleep_s(1)
            broker.append(partition, *self.record(partition))

    def refusing(self, tables: SimulatedTables) -> RefusalPorts | None:
        del tables
        return None

    def sends_refused(self, tables: SimulatedTables, store: SimulatedStore) -> SendRefused | None:
        del tables, store
        return None

    def replacer(self, tables: SimulatedTables) -> Replacer | None:
        del tables
        return None

    def problems(self) -> Iterable[str]:
        return ()

    def close(self) -> None: ...


class Routed(Kind):
    """Records for several tables, some of which break."""

    settings = settings_of(route="CAST(n AS VARCHAR)", routes={"2": LEFT, "3": RIGHT})
    values = (GOOD, GOOD, *ROUTES, *ROUTES, BAD, None)


class Evolving(Kind):
    settings = settings_of(unknown_fields="evolve")
    values: tuple[bytes | None, ...] = (GOOD, *GAINING, *GAINING, BAD, None)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._model = Values(self.log.read, self.stream.record.rescue_column)

    def converter(self, process: Process) -> Converter:
        del process
        return EvolvingConverter(self.stream, self.registry)

    def problems(self) -> Iterable[str]:
        sent = {
            Place.of(partition, record): record.value
            for partition, log, _ in self.context.logs()
            for record in log
            if record.value is not None and record.value != BAD
        }
        for url in self.stream.row_tables:
            yield from self._model.problems(url, self.log.tables.get(url), sent)


class Keyed(Kind):
    """Tasks: records have keys, and as many rows as their values say (counting.py)."""

    def record(self, partition: TopicPartition) -> tuple[bytes | None, bytes | None]:
        value, _ = super().record(partition)
        return value, self.context.world.rng.choice(KEYS)

    def wanted(self, value: bytes | None) -> Wanted:
        """As many rows as its value says."""
        return (wanted_rows(value, TABLE, DEAD_LETTERS),)


class Counting(Keyed):
    """Tasks with state: a count of each key's records (counting.py)."""

    settings = settings_of(**TOPOLOGY)
    values = COUNTED

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._model = CountModel(self.log.read)

    def converter(self, process: Process) -> Converter:
        del process
        return converter(self.stream, WorldClock(self.context.world).wall_ms)

    def problems(self) -> Iterable[str]:
        broker = self.context.broker
        logs = (*broker.past, broker.logs)
        return self._model.problems(TABLE, self.log.tables.get(TABLE), logs, self.context.given_up.has)
