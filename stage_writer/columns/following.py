"""The columns of streams that do not declare them, found in the background and followed.

Rules:

1. The loop never blocks: stores and Kafka are asked in a thread of its own, one attempt at a time and stream. A failed
   attempt is tried again with growing pauses; what is known stays in use meanwhile.
2. A stream whose columns are not known has a `PendingConverter`: its partitions wait with their first records, which
   are read again once the columns are known. Its health line says what it waits for.
3. Columns of a table are looked at every half minute. New ones are used from the next buffer on, because all rows of a
   file have the same columns.
4. Columns that the stream's settings cannot use (a partition column is gone) are reported, and those before stay.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from common.backoff import Backoff
from common.errors import ConfigError, KafkaDeltaExpressError
from common.settings.columns_from import ColumnsFrom

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from common.ports import Clock
    from common.schema import StructType
    from common.settings import Stream
    from common.spans import TopicPartition
    from stage_writer.columns.finding import FindsColumns
    from stage_writer.decode.batch import MessageBatch
    from stage_writer.parquet.buffer import StagedRows, TableFormat
    from stage_writer.ports import Converter

    MakeConverter = Callable[[Stream], Converter]

LOOK_AT_TABLES_S = 30.0


def in_thread(work: Callable[[], None]) -> None:
    """Run it in a daemon thread: an attempt that hangs does not keep the process from ending."""
    threading.Thread(target=work, name="columns", daemon=True).start()


@dataclass(slots=True)
class _Attempt:
    """One search, whose outcome is set in its thread, last of all."""

    outcome: Stream | KafkaDeltaExpressError | None = None


@dataclass(slots=True)
class FollowedColumns:
    """The columns of one stream. Called by the loop's thread."""

    finder: FindsColumns
    make: MakeConverter
    clock: Clock
    log: FilteringBoundLogger
    found: Stream | None
    """The stream with the columns in use; None while they are not known."""
    start: Callable[[Callable[[], None]], None] = in_thread
    problem: KafkaDeltaExpressError | None = None
    """Why the last attempt failed."""
    wanted: bool = False
    """Whether records wait for the columns."""
    _attempt: _Attempt | None = None
    _look_at_s: float = 0.0
    _backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        if self.found is not None:
            self._look_at_s = self.clock.monotonic_s() + LOOK_AT_TABLES_S

    def look(self) -> Converter | None:
        """The conversion for new columns, once each; starts an attempt when one is due."""
        attempt = self._attempt
        if attempt is None:
            if self._is_due():
                self._attempt = attempt = _Attempt()
                self.start(partial(self._search, attempt))
            return None
        if attempt.outcome is None:
            return None
        self._attempt = None
        return self._ended(attempt.outcome)

    def _is_due(self) -> bool:
        follows = self.finder.stream.columns_from is ColumnsFrom.TABLE
        is_wanted = follows if self.found is not None else self.wanted
        return is_wanted and self.clock.monotonic_s() >= self._look_at_s

    def _search(self, attempt: _Attempt) -> None:
        try:
            attempt.outcome = self.finder.find()
        except KafkaDeltaExpressError as error:
            attempt.outcome = error
        except Exception as error:  # noqa: BLE001 - the loop must hear of it, in whichever form it comes
            attempt.outcome = KafkaDeltaExpressError(f"columns not found: {type(error).__name__}: {error}")

    def _ended(self, outcome: Stream | KafkaDeltaExpressError) -> Converter | None:
        now_s, app_id = self.clock.monotonic_s(), self.finder.stream.app_id
        if not isinstance(outcome, KafkaDeltaExpressError):
            try:
                return self._taken(outcome, now_s)
            except ConfigError as error:  # rule 4
                outcome = error
        pause_s = max(self._backoff.next_s(), LOOK_AT_TABLES_S if self.found is not None else 0.0)
        self.problem, self._look_at_s = outcome, now_s + pause_s
        self.log.warning("columns not found, trying again", app_id=app_id, problem=outcome.problem, retry_in_s=pause_s)
        return None

    def _taken(self, stream: Stream, now_s: float) -> Converter | None:
        self._look_at_s = now_s + LOOK_AT_TABLES_S
        new = None
        if stream != self.found:
            new = self.make(stream)
            self.found = stream
            source = self.finder.stream.columns
            self.log.info("columns found", app_id=stream.app_id, columns=stream.columns, source=source)
        self.problem = None
        self._backoff.reset()
        return new


class StreamColumns:
    """A `FollowsColumns` (stage_writer/ports.py) for all streams of a writer."""

    def __init__(self, followed: Collection[FollowedColumns]) -> None:
        self._followed = {one.finder.stream.app_id: one for one in followed}

    def look(self) -> Mapping[str, Converter]:
        """See the port."""
        found = {app_id: one.look() for app_id, one in self._followed.items()}
        return {app_id: converter for app_id, converter in found.items() if converter is not None}


@dataclass(frozen=True, slots=True)
class ColumnsWait:
    """A `stage_writer.ports.Dependency` on a stream's columns."""

    columns: FollowedColumns

    @property
    def error(self) -> KafkaDeltaExpressError:
        """What is missing."""
        msg = f"the columns of {self.columns.finder.stream.app_id} are being inferred from its first records"
        return self.columns.problem or KafkaDeltaExpressError(msg, "see whether Kafka and the stage's store answer")

    def is_over(self) -> bool:
        """Whether they are known."""
        return self.columns.found is not None


class PendingConverter:
    """The converter of a stream whose columns are not known yet: it converts nothing (rule 2)."""

    def __init__(self, stream: Stream, dead_letters: TableFormat) -> None:
        self._stream = stream
        self._formats = (dead_letters,)
        self.columns: FollowedColumns | None = None
        """Set before the first message is read."""

    @property
    def stream(self) -> Stream:
        """The stream as its settings have it."""
        return self._stream

    @property
    def formats(self) -> tuple[TableFormat, ...]:
        """Only the table for dead letters is known."""
        return self._formats

    @property
    def needs_headers(self) -> bool:
        """Whether the rows need the records' headers. An expression that uses them has to name them."""
        stream = self._stream
        operation = None if stream.merge is None else stream.merge.operation
        rules = (each.rule for each in stream.expect.values())
        derived = (text for _, one in stream.sections.values() for text in one.derive.values())
        made = (*stream.derive.values(), *stream.jmespath.values(), *derived)
        texts = (*made, *rules, stream.where, stream.route, operation)
        reads_them = bool(stream.include) or stream.framing == "confluent_header"
        return reads_them or any("headers" in text.casefold() for text in texts if text is not None)

    def waits(self, batch: MessageBatch) -> ColumnsWait:  # noqa: ARG002 - the port's signature
        """The stream's columns, which are wanted from now on."""
        if self.columns is None:
            msg = f"nothing finds the columns of {self._stream.app_id}"
            raise TypeError(msg)
        self.columns.wanted = True
        return ColumnsWait(self.columns)

    def at(self, gained: StructType) -> PendingConverter:  # noqa: ARG002
        """This converter: nothing can be gained yet."""
        return self

    def restores(self, source: TopicPartition, state: object, store: object) -> None:
        """There is no state."""

    def slices(self, batches: Sequence[MessageBatch]) -> Iterator[Sequence[tuple[MessageBatch, StagedRows]]]:
        """Never called: all batches wait."""
        msg = f"the columns of {self._stream.app_id} are not known, and {len(batches)} batches were to be converted"
        raise TypeError(msg)
