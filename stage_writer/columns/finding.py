"""Where a writer finds the columns of a stream that does not declare them. Each call reads stores, and may block.

Rule: columns that are inferred are agreed on before they are used. They are tried with the stream's settings first, so
that nothing is agreed on that no writer can use; then they are proposed to the stage by exclusive create. A writer
whose proposal comes second takes the first one's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from common.errors import BrokerError, ConfigError
from common.ports import Clock, ObjectStore
from common.remedies import CONFIG
from common.schema.inference import JsonShape
from common.settings import Stream
from common.settings.columns_from import ColumnsFrom
from common.settings.envelopes import DEBEZIUM, is_envelope_open
from common.stage.versions import AgreedColumns
from common.tables.stream_columns import columns_as_agreed, found_columns, state_of, table_columns, with_envelope
from stage_writer.columns.proposing import are_events, proposed
from stage_writer.decode.envelopes.framing import SchemaKey


@dataclass(frozen=True, slots=True)
class DiscoveredColumns:
    stream: Stream
    ids: frozenset[SchemaKey] = frozenset()
    """The schemas of a registry whose fields are among the columns."""


class ColumnDiscovery(Protocol):
    @property
    def stream(self) -> Stream: ...

    def find(self, ids: frozenset[SchemaKey]) -> DiscoveredColumns:
        """The stream with its columns as they are now, and with those of schemas that its records name.

        Raises KafkaDeltaExpressError.
        """

    def known(self) -> Stream | None:
        """The stream with its columns, without agreeing on anything; None where its settings have none yet."""

    def preview(self) -> Stream | None:
        """The stream with the columns that this writer would propose; None where nothing can be inferred yet."""


@dataclass(frozen=True, slots=True)
class ColumnFinder:
    """A `ColumnDiscovery` of a stream with columns from its table, or from records."""

    stream: Stream
    stage: ObjectStore
    open_table: Callable[[str], ObjectStore]
    sample: Callable[[Stream], JsonShape]
    """The structure of some of a stream's records. Raises BrokerError."""
    clock: Clock

    def known(self) -> Stream | None:
        return found_columns(self.stream, self.stage, self.open_table)

    def preview(self) -> Stream | None:
        known = self.known()
        if known is not None:
            return known
        proposal = self._proposed()
        return None if proposal is None else proposal[1]

    def find(self, ids: frozenset[SchemaKey] = frozenset()) -> DiscoveredColumns:  # noqa: ARG002 - the port's
        while True:
            known = self.known()
            if known is not None:
                return DiscoveredColumns(known)
            proposal = self._proposed()
            if proposal is None:
                raise nothing_to_infer_from(self.stream)
            if proposal[0].create(self.stage):
                return DiscoveredColumns(proposal[1])

    def _proposed(self) -> tuple[AgreedColumns, Stream] | None:
        """The proposal, and the stream with it; None where nothing is known of its records."""
        (stream, records), state = self._sampled(), state_of(self.stream, self.open_table)
        columns, formats = proposed(stream, table_columns(stream, state), records)
        if not columns.fields:
            return None
        source, envelope = ColumnsFrom.RECORDS.value, stream.record.envelope if stream is not self.stream else None
        agreed = AgreedColumns(stream.app_id, 1, columns, source, self.clock.wall_ms(), formats, envelope=envelope)
        try:
            return agreed, columns_as_agreed(self.stream, agreed, state)
        except ConfigError as error:
            if not are_events(records):
                raise
            problem = f"{error.problem}. The records look like Debezium change events"
            raise ConfigError(
                problem, f"set envelope: debezium in {stream.app_id}, so that its columns are those of the rows"
            ) from None

    def _sampled(self) -> tuple[Stream, JsonShape]:
        """Some records, and the stream with the envelope that they have; of events, the rows' images."""
        records = self.sample(self.stream)
        if not (is_envelope_open(self.stream) and are_events(records)):
            return self.stream, records
        opened = with_envelope(self.stream, DEBEZIUM)
        return opened, self.sample(opened)


def nothing_to_infer_from(stream: Stream) -> BrokerError:
    """The error while a stream's columns cannot be inferred."""
    msg = f"the topics of {stream.app_id} have no JSON object from which columns can be inferred"
    return BrokerError(msg, f"send some records, or declare the columns of {stream.app_id} instead of from_records")


def require_known(finder: ColumnDiscovery) -> Stream:
    """The stream with its columns, without agreeing on anything. Raises ConfigError where it has none yet."""
    known = finder.known()
    if known is None:
        app_id = finder.stream.app_id
        msg = f"the columns of {app_id} are not known yet: its writer finds them with the first records"
        if finder.stream.record.columns_from is ColumnsFrom.SCHEMA_FILE:
            msg = f"the columns of {app_id} are not yet those of its schema_file: its writer agrees on them at start"
        if finder.stream.record.columns_from is ColumnsFrom.REGISTRY:
            settings = "its message, its envelope and its registry"
            msg = f"the columns of {app_id} are not yet those of {settings}: its writer finds them with the next record"
        raise ConfigError(msg, f"run the writer first: stage-writer run {CONFIG}")
    return known


def columns_text(stream: Stream, new: Stream | None) -> str:
    source = "" if stream.record.columns_from is None else stream.record.columns_from.value
    if new is None:
        later = "inferred from the first records"
        if stream.record.columns_from is ColumnsFrom.REGISTRY:
            later = "those of the schemas that the first records name"
        return f"ok: {stream.app_id}: {source}: none yet; they are {later}"
    if new.record.envelope != stream.record.envelope:
        source += f", envelope: {new.record.envelope}"
    return f"ok: {stream.app_id}: {source}: {new.record.columns}"
