"""The columns that streams have now: what was agreed on in the stage, and what was found for those that declare none.

Rules:

1. A field is in its column from its first record. Rows with a field that could be a column are not buffered: their
   partition waits (stage_writer/partitions/dependency_wait.py) until the writers have agreed on its column, and reads
   them again then. So they come with a new buffer, because all rows of a file have the same columns.
2. Each field is waited for once. Fields that the answer leaves out (a limit, a type of the table that JSON cannot fill)
   stay in the rescue column from then on.
3. A stage that fails is asked again with growing pauses, like one that takes no flush. One that refuses, or has an
   object that cannot be read, holds no record: the fields stay in the rescue column, and markers offer them to the
   loader.
4. Columns agreed on by other processes are read periodically. A failed refresh is logged, and tried again: a writer
   that knows fewer columns agrees on them when it meets their fields. At the start partitions wait for it
   (`read_first`): a merged event without a field would leave the row's value in a column that this writer does not
   know. The stage and the tables are read in the background, and a stream waits for no other's.
5. Columns that a stream does not declare are found elsewhere (stage_writer/columns/); what it gains is in addition.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf

from structlog.typing import FilteringBoundLogger

from common.backoff import Backoff
from common.errors import KafkaDeltaExpressError, MarkerError, StoreError, StoreRefusedError
from common.ports import Clock
from common.schema import StructType
from common.schema.evolution import NO_COLUMNS, additions, extended, joined_columns
from common.schema.naming import restricted
from common.settings import Stream
from common.stage.versions import Evolved
from stage_writer.decode.dependency import Dependency
from stage_writer.ports import ColumnFollower, Converter, Running, Workers
from stage_writer.stage.staging import ObjectStage

LOOK_AT_SCHEMAS_S = 30.0
LATE_AFTER_S = 60.0
"""After this, a partition that waits for the stage's answer, and for its flush, is reported."""


@dataclass(slots=True)
class GainedColumns:
    """The columns that one stream has gained or is gaining. Called by the loop's thread."""

    stage: ObjectStage
    workers: Workers
    clock: Clock
    log: FilteringBoundLogger
    by_route: bool = False
    """Whether each column is a route's, with the columns of its table (common/settings/own_columns.py)."""
    known: Evolved | None = None
    is_read: bool = False
    """Whether the stage has been read since the start."""
    is_awaited: bool = True
    """Whether partitions wait for that: it has not ended yet, or has failed in a way that may pass."""
    unread: StoreError | None = None
    """How it failed."""
    problem: KafkaDeltaExpressError | None = None
    """Why the last attempt to agree failed."""
    _left_out: StructType = NO_COLUMNS
    """Fields that were asked for (rule 2)."""
    _offers: dict[str, StructType] = field(default_factory=dict)
    """Fields to ask for, by the marker that comes with them."""
    _attempt: tuple[Running[Evolved], Mapping[str, StructType]] | None = None
    """Begins only while nothing is read, and the other way around."""
    _request_at_s: float = 0.0
    _reading: Running[Evolved | None] | None = None
    _read_at_s: float = -inf
    _read_backoff: Backoff = field(default_factory=Backoff)
    _refused_until_s: float = 0.0
    """Until then nothing is asked for, because the stage has refused it (rule 3)."""
    _backoff: Backoff = field(default_factory=Backoff)

    @property
    def columns(self) -> StructType:
        return NO_COLUMNS if self.known is None else self.known.columns

    def is_decided(self, offered: StructType) -> bool:
        """Whether each of these fields is a column, or never will be one."""
        if self.clock.monotonic_s() < self._refused_until_s:
            return True
        stays = self._paths(self._left_out) - self._paths(self.columns)  # with all that is in them
        decided = extended(self.columns, self._left_out)
        depth = 2 if self.by_route else 1
        return all(column.path[:depth] in stays for column in additions(decided, offered))

    def _paths(self, columns: StructType) -> set[tuple[str, ...]]:
        """The columns of the tables, below their routes where each has its own."""
        if not self.by_route:
            return {(name,) for name in columns.names}
        structs = ((field.name, field.type) for field in columns)
        return {(route, name) for route, part in structs if isinstance(part, StructType) for name in part.names}

    def want(self, offered: StructType, marker: str) -> None:
        self._offers[marker] = joined_columns(self._offers.get(marker, NO_COLUMNS), offered)

    def read(self, stream: Stream) -> bool:
        """Read the published columns when due, or take a finished read; whether there are new columns."""
        if self._reading is None:
            if self._attempt is not None or self.clock.monotonic_s() < self._read_at_s:
                return False
            self._reading = self.workers.start(partial(self._published, stream, again=self.is_read))
        if not self._reading.done():
            return False
        running, self._reading = self._reading, None
        self._read_at_s = self.clock.monotonic_s() + LOOK_AT_SCHEMAS_S
        self.unread = None
        try:
            published = running.result()
        except (StoreError, MarkerError) as error:
            self.log.warning("gained columns not read", problem=error.problem)
            if self.is_read or isinstance(error, StoreRefusedError | MarkerError):
                self.is_awaited = False
            else:
                self.unread = error
                self._read_at_s = self.clock.monotonic_s() + self._read_backoff.next_s()
            return False
        self.is_read, self.is_awaited = True, False
        if published is None or published == self.known:
            return False
        self.known, self._left_out = published, NO_COLUMNS
        return True

    def _published(self, stream: Stream, *, again: bool) -> Evolved | None:
        """In a worker's thread."""
        return self.stage.gained(stream.app_id, by_route=self.by_route) if again else self.stage.continued(stream)

    def agree(self, stream: Stream) -> bool:
        """Start due requests, and take finished ones; whether there are new columns."""
        if self._attempt is not None:
            return self._attempt[0].done() and self._ended(*self._attempt)
        if self._offers and self._reading is None and self.clock.monotonic_s() >= self._request_at_s:
            offers, self._offers = self._offers, {}
            self._attempt = self.workers.start(partial(self.stage.gain, stream, offers)), offers
        return False

    def _ended(self, running: Running[Evolved], offers: Mapping[str, StructType]) -> bool:
        self._attempt = None
        try:
            agreed = running.result()
        except (StoreError, MarkerError) as error:
            self._failed(error, offers)
            return False
        self.problem = None
        self._backoff.reset()
        self._leave_out(offers)
        if self.known is not None and agreed.version <= self.known.version:
            return False  # what was found in the meantime
        self.known = agreed
        return True

    def _failed(self, error: StoreError | MarkerError, offers: Mapping[str, StructType]) -> None:
        if isinstance(error, StoreRefusedError | MarkerError):  # rule 3
            self._leave_out(offers)
            self.problem, self._refused_until_s = None, self.clock.monotonic_s() + LOOK_AT_SCHEMAS_S
            self._backoff.reset()
            self.log.warning("new fields stay in the rescue column", problem=error.problem, remedy=error.remedy)
            return
        pause_s = self._backoff.next_s()
        self.problem, self._request_at_s = error, self.clock.monotonic_s() + pause_s
        for marker, offered in offers.items():
            self.want(offered, marker)
        self.log.warning("columns not agreed on, trying again", problem=error.problem, retry_in_s=pause_s)

    def _leave_out(self, offers: Mapping[str, StructType]) -> None:
        for offered in offers.values():
            self._left_out = extended(self._left_out, offered)


@dataclass(frozen=True, slots=True)
class NewFields(Dependency):
    """Waits for columns for fields of a stream."""

    gained: GainedColumns
    app_id: str
    offered: StructType
    since_s: float
    """When it began, by the monotonic clock."""

    @property
    def is_expected(self) -> bool:
        """Whether the stage has not failed yet, and is not late."""
        is_late = self.gained.clock.monotonic_s() - self.since_s > LATE_AFTER_S
        return self.gained.problem is None and not is_late

    @property
    def changes_columns(self) -> bool:
        return True

    @property
    def error(self) -> KafkaDeltaExpressError:
        msg = f"{self.app_id} gains columns for the new fields {', '.join(self.offered.names[:5])}"
        return self.gained.problem or StoreError(msg, "check that the stage's store responds")

    def is_over(self) -> bool:
        """Whether they are agreed on. `Schemas.refresh` starts the attempts."""
        return self.gained.is_decided(self.offered)


class Schemas:
    def __init__(
        self,
        converters: Collection[Converter],
        stage: ObjectStage,
        workers: Workers,
        clock: Clock,
        log: FilteringBoundLogger,
        *,
        columns: Mapping[str, ColumnFollower],
    ) -> None:
        """Reads nothing yet."""
        self._declared = {
            converter.stream.app_id: converter for converter in converters if converter.stream.record.evolves
        }
        self._newest = dict(self._declared)
        self._gained = {
            app_id: GainedColumns(
                stage, workers, clock, log.bind(app_id=app_id), by_route=converter.stream.gains_by_table
            )
            for app_id, converter in self._declared.items()
        }
        self._columns = columns
        self._clock = clock
        self._log = log

    def newest(self, converter: Converter) -> Converter:
        """The conversion for records read from now on."""
        return self._newest.get(converter.stream.app_id, converter)

    def read_first(self, converter: Converter) -> bool:
        """Whether partitions go on: it is known what the stream gained before this writer started (rule 4).

        Raises StoreError where that could not be read.
        """
        gained = self._gained.get(converter.stream.app_id)
        if gained is None or not gained.is_awaited:
            return True
        self.refresh()
        if gained.unread is not None:
            raise gained.unread
        return not gained.is_awaited

    def waits(self, converter: Converter, offered: StructType, marker: str) -> NewFields | None:
        """The request that rows with new fields wait for (rule 1); None if the fields stay where they are.

        ``marker`` is the one that the rows come with.
        """
        app_id = converter.stream.app_id
        gained = self._gained[app_id]
        wait = NewFields(gained, app_id, offered, self._clock.monotonic_s())
        if not wait.is_over():
            gained.want(offered, marker)
            return wait
        is_older = self._newest[app_id] is not converter
        return wait if is_older and restricted(gained.columns, offered).fields else None

    def refresh(self) -> None:
        """Take up columns that were found or agreed on, and refresh the published ones if that is due."""
        for app_id, followed in self._columns.items():
            if (converter := followed.poll()) is None:
                continue
            if converter.stream.record.evolves:
                self._declared[app_id] = converter
            gained = self._gained.get(app_id)
            self._newest[app_id] = converter if gained is None or gained.known is None else converter.at(gained.columns)
        for app_id, gained in self._gained.items():
            stream = self._newest[app_id].stream  # it knows the tables that have appeared
            if gained.agree(stream):
                self._take(app_id)
            if gained.read(stream):
                self._take(app_id)

    def _take(self, app_id: str) -> None:
        columns = self._gained[app_id].columns
        self._newest[app_id] = self._newest[app_id].at(columns)
        self._log.info("columns gained", app_id=app_id, columns=list(columns.names))
