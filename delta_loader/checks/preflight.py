"""Checks everything that the loader needs before it starts: for `delta-loader check`, and on each start.

Rules:

1. Nothing of the user's is changed. Objects created to prove a right have a unique name and are removed.
2. The loader needs to list, read, create and delete in the stage; to list and read a table's folder, and to create
   below it, which Spark does for commits and this program for the probe of a right.
3. A store that does not answer is an error that may resolve by itself (`Check.away`); a store that denies access is an
   error that a person has to fix. Kafka only produces warnings, because loading does not need it.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from common.errors import ExitCode, KafkaDeltaExpressError, StoreError, StoreRefusedError, TableError, UnsafeStoreError
from common.ports import Clock, ObjectStore
from common.settings import Settings, Stream
from common.settings.pace import loader_of
from common.sizes import counted
from common.stage.merged import kafka_topic
from common.stage.paused import StreamPart, pause_of
from common.storage.store import PROBES, prove_exclusive_create
from common.tables.delta_log import read_table_state
from common.tables.identity import NO_IDENTITY, TableIdentity
from common.tables.state import TableState
from common.tables.stream_columns import before_agreement, found_columns
from common.tables.stream_history import StreamHistory, read_histories
from delta_loader.check_result import Check, Level, StreamChecks
from delta_loader.checks.abandoned_topics import abandoned_topics
from delta_loader.checks.readiness import SideBySide
from delta_loader.checks.requirements import (
    columns_from_check,
    merge_checks,
    property_checks,
    shared_tables,
    shared_topic_checks,
    table_checks,
    vacuum_check,
)
from delta_loader.load.rollback import held_by
from delta_loader.ports import EndsOf, OpenStore
from delta_loader.stage.reading import Stage, oldest_waiting_ms

_TABLE_PROBES = "_probe"  # readers of tables and VACUUM ignore names with this prefix


@dataclass(frozen=True, slots=True)
class Preflight:
    settings: Settings
    store: ObjectStore
    stage: Stage
    open_store: OpenStore
    kafka_ends: EndsOf
    clock: Clock
    require_control_topic: Callable[[], None] | None = None
    """Raises an error if the control topic cannot be read. None without a control topic."""
    side_by_side: SideBySide = field(default_factory=SideBySide)

    def checks(self) -> Iterator[Check]:
        """The stage's checks first, then the streams', whose tables are checked in parallel."""
        streams = self.settings.streams
        yield Check("config", Level.OK, counted(len(streams), "stream"))
        stage = self._stage()
        yield stage
        if stage.away:
            return  # every further check would take as long to find the same
        yield from shared_tables(streams)
        by_id = {stream.app_id: stream for stream in streams}
        checks = self.side_by_side(lambda app_id: self._checked(by_id[app_id]), list(by_id))
        for stream in streams:
            yield from checks[stream.app_id]
            yield self._kafka(stream)
            yield from self._pauses(stream)
        yield from shared_topic_checks(streams, {topic for stream in streams for topic in self._topics(stream)})
        yield from self._abandoned_topics(None)
        if self.require_control_topic is not None:
            yield self._control(self.require_control_topic)

    def stream_checks(self, app_id: str) -> Iterator[Check]:
        for stream in self.settings.streams:
            if stream.app_id == app_id:
                yield from self._checked(stream)
        yield from self._abandoned_topics(app_id)

    def _pauses(self, stream: Stream) -> Iterator[Check]:
        try:
            for pause in (pause_of(self.store, part, stream.app_id) for part in StreamPart):
                if pause is not None:
                    yield StreamChecks(stream.app_id).warning("paused", pause.text, pause.remedy)
        except KafkaDeltaExpressError as error:
            yield failed("paused", error, stream.app_id)

    def _checked(self, stream: Stream) -> Iterator[Check]:
        try:
            yield from self._stream(stream)
        except KafkaDeltaExpressError as error:
            yield failed("table", error, stream.app_id)

    def _abandoned_topics(self, app_id: str | None) -> Iterator[Check]:
        """Checks for topics that were removed from a stream, or from any."""
        try:
            yield from abandoned_topics(self.stage, self.settings.streams, self.open_store, app_id)
        except KafkaDeltaExpressError as error:
            yield failed("topics", error, app_id)

    def _stage(self) -> Check:
        try:
            prove_exclusive_create(self.store)
            _try_rights(self.store, PROBES)
        except KafkaDeltaExpressError as error:
            return failed("stage", error)
        url = self.settings.stage.url
        return Check("stage", Level.OK, f"{url} refuses a second exclusive create; list, read, create and delete work")

    def _stream(self, stream: Stream) -> Iterator[Check]:
        app_id = stream.app_id
        state = read_table_state(self.open_store(stream.table))
        if stream.record.columns_from is not None:
            with_its = found_columns(stream, self.store, self.open_store) or before_agreement(stream, state)
            yield columns_from_check(stream, with_its)
            stream = with_its or stream
        yield from table_checks(stream, state)
        if state is None:
            yield from self._template(stream)
        sides = {
            url: table_state
            for url in stream.secondary_tables
            if (table_state := read_table_state(self.open_store(url)))
        }
        for url, table_state in sides.items():
            if url == stream.dead_letters:
                yield from property_checks(app_id, url, table_state)
            else:
                yield from table_checks(stream, table_state, url)
        for url in (table for table in stream.row_tables[1:] if table not in sides):
            yield from self._template(stream.at(url))
        for url in stream.tables:
            try:
                _try_rights(self.open_store(url), _TABLE_PROBES)
            except KafkaDeltaExpressError as error:
                yield failed("rights", error, app_id)
        tables = sides if state is None else {stream.table: state, **sides}
        histories = read_histories(stream, tables, self.open_store)
        own = NO_IDENTITY if state is None else histories[stream.table].identity(state.transactions)
        yield from _rollback_checks(stream, histories, own)
        for url in (table_url for table_url in stream.row_tables if table_url in tables):
            yield from merge_checks(stream, url, histories[url].identity(tables[url].transactions))
        retention_ms = int(loader_of(self.settings.loader, stream).marker_retention_s * 1000)
        oldest_ms = self._oldest_ms(stream, state, histories.get(stream.table))
        yield vacuum_check(app_id, stream.table, state, oldest_ms, retention_ms)
        for url, table_state in sides.items():
            yield vacuum_check(app_id, url, table_state, oldest_ms, retention_ms)

    def _template(self, stream: Stream) -> Iterator[Check]:
        """The check of the template of a table to be created, which is the given ``stream``'s main table."""
        if stream.layout.template and read_table_state(self.open_store(stream.layout.template)) is None:
            problem = f"the template {stream.layout.template} of {stream.table} does not exist"
            remedy = "create it, or name another table as the template"
            yield StreamChecks(stream.app_id).error("table", problem, remedy)

    def _oldest_ms(self, stream: Stream, state: TableState | None, history: StreamHistory | None) -> int | None:
        """The age of the oldest marker that the table does not have."""
        identity = NO_IDENTITY if state is None or history is None else history.identity(state.transactions)
        written_ms = oldest_waiting_ms(self.stage, stream, state, identity)
        return None if written_ms is None else self.clock.wall_ms() - written_ms

    def _kafka(self, stream: Stream) -> Check:
        checks = StreamChecks(stream.app_id)
        try:
            ends = self.kafka_ends(stream)
        except KafkaDeltaExpressError as error:
            return checks.warning("kafka", error.problem, error.remedy)
        servers = self.settings.kafka["bootstrap.servers"]
        if ends is None:
            return checks.warning(
                "kafka",
                f"Kafka at {servers} did not list its topics in time; loading does not need Kafka",
                "check kafka.bootstrap.servers and the topics: status shows no lag without Kafka",
            )
        if not ends:
            return checks.warning(
                "kafka",
                f"Kafka at {servers} has no topic {', '.join(stream.topics)} that this user may see",
                "create it, allow this user to Describe it, or fix the stream's topics: until then nothing is staged",
            )
        return Check("kafka", Level.OK, f"{stream.app_id} has {counted(len(ends), 'partition')}", app_id=stream.app_id)

    def _topics(self, stream: Stream) -> set[str]:
        """The topics of a stream, as far as Kafka reports them."""
        try:
            return {str(kafka_topic(partition.topic)) for partition in self.kafka_ends(stream) or ()}
        except KafkaDeltaExpressError:
            return set()

    def _control(self, require: Callable[[], None]) -> Check:
        topic = self.settings.loader.control_topic
        try:
            require()
        except KafkaDeltaExpressError as error:
            text = f"{error.problem}; until then the loader finds new markers by listing the stage"
            return Check("control", Level.WARNING, text, error.remedy)
        return Check("control", Level.OK, f"{topic} exists and can be read")


def _try_rights(store: ObjectStore, folder: str) -> None:
    """Create, list, read and delete one object (rules 1 and 2). Raises StoreError."""
    path = f"{folder}/{uuid.uuid4().hex}"
    store.create(path, b"probe")
    try:
        list(store.list(folder))
        store.read(path)
    finally:
        store.delete([path])


def failed(name: str, error: KafkaDeltaExpressError, app_id: str | None = None) -> Check:
    """The check for an error (rule 3)."""
    message = error.problem if app_id is None else f"{app_id}: {error.problem}"
    away = isinstance(error, StoreError) and not isinstance(error, StoreRefusedError | UnsafeStoreError)
    code = ExitCode.HELD if isinstance(error, TableError) else error.exit_code
    return Check(name, Level.ERROR, message, error.remedy, app_id, away, code)


def _rollback_checks(stream: Stream, histories: Mapping[str, StreamHistory], own: TableIdentity) -> Iterator[Check]:
    positions = {partition: chain.position for partition, chain in own.chains.items()}
    for url, history in histories.items():
        if history.rollback is not None:
            reason = held_by(url, stream, history.rollback, positions)
            yield StreamChecks(stream.app_id).warning("history", f"{reason.problem}; the stream waits", reason.remedy)
