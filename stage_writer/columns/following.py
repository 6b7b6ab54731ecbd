"""The columns of streams that do not declare them, found in the background and followed.

Rules:

1. The loop never blocks: stores and Kafka are asked in a thread of its own, one attempt at a time and stream. A failed
   attempt is tried again with growing pauses; what is known stays in use meanwhile.
2. A stream whose columns are not known has a `PendingConverter`: its partitions wait with their first records, which
   are read again once the columns are known. Its health line says what it waits for.
3. Columns of a table are looked at every half minute. New ones are used from the next buffer on, because all rows of a
   file have the same columns.
4. Columns that the stream's settings cannot use (a partition column is gone) are reported, and those before stay.
5. Columns of a registry are those of the schemas that records name: records of a schema that they do not cover wait
   until they do, and are then decoded into a new buffer. So a new field is in its column from its first record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from structlog.typing import FilteringBoundLogger

from common.backoff import Backoff
from common.errors import ConfigError, KafkaDeltaExpressError, RegistryError
from common.ports import Clock
from common.schema import StructType
from common.settings import Stream
from common.settings.columns_from import ColumnsFrom
from stage_writer.columns.finding import ColumnDiscovery, DiscoveredColumns
from stage_writer.decode.batch import MessageBatch
from stage_writer.decode.dependency import Dependency
from stage_writer.decode.envelopes.framing import SchemaKey, schema_keys
from stage_writer.parquet.buffer import TableFormat
from stage_writer.ports import Converter
from stage_writer.shape.slicing import StatelessConverter

MakeConverter = Callable[[Stream, "CoveredSchemas | None"], Converter]

LOOK_AT_TABLES_S = 30.0


def in_thread(work: Callable[[], None]) -> None:
    """Run it in a daemon thread: an attempt that hangs does not keep the process from ending."""
    threading.Thread(target=work, name="columns", daemon=True).start()


@dataclass(slots=True)
class _Attempt:
    """One search, whose outcome is set in its thread, last of all."""

    ids: frozenset[SchemaKey]
    outcome: DiscoveredColumns | KafkaDeltaExpressError | None = None


@dataclass(slots=True)
class FollowedColumns:
    finder: ColumnDiscovery
    make: MakeConverter
    clock: Clock
    log: FilteringBoundLogger
    agreed: Stream | None
    """The stream with the columns in use; None while they are not known."""
    start: Callable[[Callable[[], None]], None] = in_thread
    problem: KafkaDeltaExpressError | None = None
    """Why the last attempt failed."""
    wanted: bool = False
    """Whether records wait for the columns."""
    covered: frozenset[SchemaKey] = frozenset()
    """The schemas of a registry whose fields are among the columns."""
    _wanted_ids: frozenset[SchemaKey] = frozenset()
    _checked_ids: frozenset[SchemaKey] = frozenset()
    _attempt: _Attempt | None = None
    _check_at_s: float = 0.0
    _backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if self.agreed is not None:
            self._check_at_s = self.clock.monotonic_s() + LOOK_AT_TABLES_S

    def poll(self) -> Converter | None:
        """The conversion for new columns, once each; starts an attempt when it is due."""
        attempt = self._attempt
        if attempt is None:
            if self._is_due():
                self._attempt = attempt = _Attempt(self._wanted_ids)
                self.start(partial(self._search, attempt))
            return None
        if attempt.outcome is None:
            return None
        self._attempt = None
        return self._ended(attempt)

    def want(self, ids: Collection[SchemaKey] = (), *, are_checked: bool = False) -> None:
        """Find the columns, with those of these schemas; ``are_checked``: the registry has them in the right format."""
        self.wanted = True
        self._checked_ids |= frozenset(ids if are_checked else ())
        new = frozenset(ids) - self.covered
        if not self._wanted_ids.issuperset(new):
            self._wanted_ids |= new
            self._check_at_s = self._check_at_s if self.problem is not None else 0.0

    def _is_due(self) -> bool:
        follows = self.finder.stream.record.columns_from is ColumnsFrom.TABLE
        is_wanted = follows or bool(self._wanted_ids) if self.agreed is not None else self.wanted
        return is_wanted and self.clock.monotonic_s() >= self._check_at_s

    def _search(self, attempt: _Attempt) -> None:
        try:
            attempt.outcome = self.finder.find(attempt.ids)
        except KafkaDeltaExpressError as error:
            attempt.outcome = error
        except Exception as error:  # noqa: BLE001 - the loop must hear of it, in whichever form it comes
            attempt.outcome = KafkaDeltaExpressError(f"columns not determined: {type(error).__name__}: {error}")

    def _ended(self, attempt: _Attempt) -> Converter | None:
        outcome, new = attempt.outcome, None
        if isinstance(outcome, DiscoveredColumns):
            try:
                new = self._taken(outcome)
            except ConfigError as error:  # rule 4
                outcome = error
            else:
                outcome = self._lacking(attempt)
        now_s, follows = self.clock.monotonic_s(), self.finder.stream.record.columns_from is ColumnsFrom.TABLE
        self.problem = outcome
        if outcome is None:
            self._backoff.reset()
            self._wanted_ids -= attempt.ids
            self._check_at_s = now_s if self._wanted_ids else now_s + LOOK_AT_TABLES_S
            return new
        pause_s = max(self._backoff.next_s(), LOOK_AT_TABLES_S if follows and self.agreed is not None else 0.0)
        self._check_at_s = now_s + pause_s
        app_id = self.finder.stream.app_id
        self.log.warning(
            "columns not determined, trying again", app_id=app_id, problem=outcome.problem, retry_in_s=pause_s
        )
        return new

    def _taken(self, columns: DiscoveredColumns) -> Converter | None:
        """The conversion for the columns found; None if they are the same. A ConfigError changes nothing."""
        new, stream, ids = None, columns.stream, self.covered | columns.ids
        if stream != self.agreed:
            source = self.finder.stream.record.columns_from
            covers = CoveredSchemas(self, stream.record.columns, ids) if source is ColumnsFrom.REGISTRY else None
            new = self.make(stream, covers)
            self.log.info("columns found", app_id=stream.app_id, columns=stream.record.columns, source=source)
        self.agreed, self.covered = stream, ids
        return new

    def _lacking(self, attempt: _Attempt) -> RegistryError | None:
        """The problem where the registry lacks a schema, of which records of the stream were decoded by its type."""
        lacking = attempt.ids & self._checked_ids - self.covered
        if not lacking:
            return None
        msg = f"the registry has no schema {', '.join(sorted(map(str, lacking)))} for {self.finder.stream.app_id}"
        return RegistryError(msg, "register it again, as the producers use it")


@dataclass(frozen=True, slots=True)
class ColumnsWait(Dependency):
    columns: FollowedColumns
    ids: frozenset[SchemaKey] = frozenset()

    @property
    def is_expected(self) -> bool:
        return self.columns.problem is None

    @property
    def changes_columns(self) -> bool:
        return True

    @property
    def error(self) -> KafkaDeltaExpressError:
        app_id = self.columns.finder.stream.app_id
        msg = f"the columns of {app_id} are being looked up"
        if self.ids:
            msg = f"the columns of {app_id} for the schema {', '.join(sorted(map(str, self.ids)))} are being looked up"
        return self.columns.problem or KafkaDeltaExpressError(msg, "check that Kafka and the stage's store respond")

    def is_over(self) -> bool:
        return self.columns.agreed is not None and self.columns.covered.issuperset(self.ids)


class CoveredSchemas:
    """A `stage_writer.decode.envelopes.framing.SchemaCoverage` of one conversion (rule 5)."""

    def __init__(self, columns: FollowedColumns, used: str, ids: frozenset[SchemaKey]) -> None:
        """``used`` are the columns of the conversion, which have the fields of the schemas ``ids``."""
        self._columns = columns
        self._used = used
        self._ids = ids

    def waits(self, ids: Collection[SchemaKey]) -> ColumnsWait | None:
        new = frozenset(ids) - self._ids
        stream = self._columns.agreed
        if new and stream is not None and stream.record.columns == self._used:  # a schema may add no field
            self._ids |= self._columns.covered
            new -= self._ids
        if not new:
            return None
        self._columns.want(new, are_checked=True)
        return ColumnsWait(self._columns, new)


class PendingConverter(StatelessConverter):
    """The converter of a stream whose columns are not known yet: it converts nothing (rule 2)."""

    def __init__(self, stream: Stream, dead_letters: TableFormat) -> None:
        self.stream = stream
        self.formats = (dead_letters,)
        self.columns: FollowedColumns | None = None
        """Set before the first message is read."""

    @property
    def needs_headers(self) -> bool:
        """Whether the rows need the records' headers. An expression that uses them has to name them."""
        stream = self.stream
        operation = None if stream.merge is None else stream.merge.operation
        rules = (each.rule for each in stream.shaping.expect.values())
        derived = (text for _, route_table in stream.routing.sections.values() for text in route_table.derive.values())
        made = (*stream.shaping.derive.values(), *stream.record.jmespath.values(), *derived)
        texts = (*made, *rules, stream.shaping.where, stream.routing.route, operation)
        reads_them = bool(stream.include) or stream.record.framing == "confluent_header"
        return reads_them or any("headers" in text.casefold() for text in texts if text is not None)

    def waits(self, batch: MessageBatch) -> ColumnsWait:
        """The stream's columns, which are wanted from now on."""
        if self.columns is None:
            raise TypeError(f"nothing determines the columns of {self.stream.app_id}")
        is_registered = self.stream.record.columns_from is ColumnsFrom.REGISTRY
        in_headers = self.stream.record.framing == "confluent_header"
        self.columns.want(schema_keys(batch, in_headers=in_headers) if is_registered else ())
        return ColumnsWait(self.columns)

    def at(self, gained: StructType) -> PendingConverter:  # noqa: ARG002
        """This converter: nothing can be gained yet."""
        return self
