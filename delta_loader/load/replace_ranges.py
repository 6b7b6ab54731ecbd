"""Carries out requests to replace ranges, at the end of a stream's pass.

Rules:

1. Requests are carried out in the order in which they were made, so the later of two over one range wins. A request
   that has begun comes first (load/replace_steps.py, rule 4). Each is carried out step by step (rule 2 there). Then the
   request is deleted, and after it its data files.
2. The finished steps are read from the tables' txn actions and histories (load/replace_steps.py, rule 5) and never
   remembered.
3. A request that cannot be carried out holds only itself and later requests that overlap it. It is reported as a held
   partition is.
4. Its dead letters are sent to the stream's topic before it is deleted (load/refused_to_topic.py, rule 6).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.errors import BrokerError, MarkerError, SchemaError, TableError
from common.metrics import Metrics
from common.ports import ObjectStore
from common.schema import schema_from_json
from common.schema.evolution import additions
from common.settings import Stream
from common.settings.values import Evolution
from common.spans import Position, TopicPartition
from common.stage.markers import TableKind
from common.stage.replacements import REPLACE, ReplacementName, replacement_from_bytes
from common.tables.history import LoggedCommit
from common.tables.identity import identity_of
from common.tables.table_features import is_append_only
from common.tables.transactions import TxnIds
from delta_loader.load.replace_steps import (
    Request,
    RequestStep,
    append_only,
    behind,
    is_superseded,
    refusal_of_compacted,
    refusal_of_unnamed,
    rolled_back,
    rows_incompatibility,
    txn_id,
    waits,
)
from delta_loader.plan.held import Held
from delta_loader.plan.plan import TableShape
from delta_loader.ports import DeltaTables, NewId
from delta_loader.tables.commits import Target


class Replacer(Protocol):
    """Reads tables and replaces rows. Raises TableError."""

    def lost(self, request: Request, urls: tuple[str, ...]) -> int:
        """How many records of the range some tables have and the request does not."""

    def unnamed(self, request: Request, urls: tuple[str, ...]) -> int:
        """How many records of the request no table names; 0 where every table's rows name their records."""

    def replace(self, request: Request, url: str, step: RequestStep, *, keep_stale: bool, metadata: str) -> bool:
        """One commit; False when another commit conflicted with it."""

    def deletes(self, request: Request, url: str, step: RequestStep) -> bool:
        """Whether a step deletes rows; with `RequestStep.DROP`, others than the request's."""


SendReplayed = Callable[[Stream, Request], int]
"""Sends the dead letters of a request that was carried out, each once; returns how many. Raises BrokerError."""


class _ConflictError(Exception):
    """Another commit conflicted; the next pass continues."""


@dataclass(slots=True)
class ReplacementOutcome:
    carried_out: int = 0
    held: dict[TopicPartition, Held] = field(default_factory=dict)
    """The partitions whose requests have to wait, and why."""


@dataclass(frozen=True, slots=True)
class Replacements:
    store: ObjectStore
    tables: DeltaTables
    replacer: Replacer
    new_id: NewId
    log: FilteringBoundLogger
    metrics: Metrics = field(default_factory=Metrics)
    sends: SendReplayed = lambda _stream, _request: 0
    stepped: Callable[[], None] = lambda: None
    """Called after each finished step, which may be a Spark job over a whole range."""

    def run(
        self,
        stream: Stream,
        position: Callable[[TopicPartition], Position | None],
        stop: Callable[[], bool],
        stepped: Callable[[], None] = lambda: None,
    ) -> ReplacementOutcome:
        """Carry out what can be. ``stepped`` is called after each step, so long work does not count as hanging.

        Raises StoreError.
        """
        outcome = ReplacementOutcome()
        held = outcome.held
        reporting = replace(self, stepped=stepped)
        left: list[Request] = []
        unreadable: list[ReplacementName] = []
        requests = list(self._requests(stream, held, unreadable))
        in_order: list[Request] = []
        try:
            in_order = self._in_order(requests, stream)
        except TableError as error:  # which has begun is unknown, and none may come between its steps
            for request in requests:
                failed = request.held("replacement_failed", error.problem, f"{error.remedy}; or {request.give_up}")
                held.setdefault(request.name.topic_partition, failed)
            left = requests
        for request in in_order:
            if stop():
                break
            reason = behind(request, left)
            if reason is None:
                reason = waits(request, stream, position(request.name.topic_partition))
            if reason is None:
                try:
                    reason = reporting._carry_out(request, stream)  # noqa: SLF001 - its own
                except _ConflictError:
                    self.log.info("replacement conflicted with another commit, trying again", request=request.name.path)
                    self.metrics.add(all_metrics.LOADER_CONFLICTS, app_id=stream.app_id)
                    left.append(request)
                    continue
                except (BrokerError, TableError) as error:
                    reason = request.held("replacement_failed", error.problem, f"{error.remedy}; or {request.give_up}")
            if reason is None:
                outcome.carried_out += 1
                self.metrics.add(all_metrics.LOADER_REPLACEMENTS, app_id=stream.app_id)
            else:
                left.append(request)
                held.setdefault(request.name.topic_partition, reason)
        self.metrics.set(all_metrics.LOADER_REPLACEMENTS_LEFT, len(left) + len(unreadable), app_id=stream.app_id)
        return outcome

    def _requests(
        self, stream: Stream, held: dict[TopicPartition, Held], unreadable: list[ReplacementName]
    ) -> Iterator[Request]:
        for item in self.store.list(f"{REPLACE}/"):
            name = ReplacementName.parse(item.path)
            if name is None or not stream.takes(name.topic_partition.topic):
                continue
            data = self.store.read(item.path)
            if data is None:
                continue  # another loader carried it out in the meantime
            try:
                yield Request(name, replacement_from_bytes(name, data))
            except MarkerError as error:
                unreadable.append(name)
                held[name.topic_partition] = Held("replacement_refused", error.problem, error.remedy)

    def _in_order(self, requests: list[Request], stream: Stream) -> list[Request]:
        """The requests in the order in which they are carried out (rule 1)."""
        tables = [target for target in map(self._target, stream.tables) if target is not None] if requests[1:] else []

        def order(request: Request) -> tuple[bool, int, ReplacementName]:
            has_begun = any(_done(target, request) for target in tables)
            return not has_begun, request.content.created_ms, request.name

        return sorted(requests, key=order)

    def _carry_out(self, request: Request, stream: Stream) -> Held | None:
        """Take the steps of a request that are not done yet.

        Returns why one cannot be taken, or None when all are done.
        """
        rows = self._target(stream.table)
        if rows is None:
            return request.held("replacement_waits", f"there is no table {stream.table}", request.give_up)
        done = _done(rows, request)
        gone = self._missing_file(request)
        if done < RequestStep.ROWS or (gone is None and not is_superseded(request, self._history(rows))):
            secondary_targets = self._secondary_targets(request, stream)
            refused = (
                self._taken_back(request, stream)
                or self._refused(request, stream, (rows, *secondary_targets), gone)
                or self._take_steps(request, stream, rows, secondary_targets)
            )
            if refused is not None:
                return refused
            if sent := self.sends(stream, request):
                self.log.info("dead letters sent", app_id=stream.app_id, dead_letters=sent, request=request.name.path)
        # Otherwise, a request that was already carried out has been put back.
        self.store.delete([request.name.path])
        self.store.delete(file.path for table in request.content.tables for file in table.files)
        return None

    def _history(self, table: Target) -> Iterator[LoggedCommit]:
        return self.tables.history(table.url, table.version)

    def _taken_back(self, request: Request, stream: Stream) -> Held | None:
        """Why it cannot continue: a table has recorded a step but lacks its rows. Reads the tables again."""
        for target in map(self._target, stream.tables):
            if target is not None and _done(target, request):
                reason = rolled_back(request, target.url, self._history(target))
                if reason is not None:
                    return reason
        return None

    def _secondary_targets(self, request: Request, stream: Stream) -> tuple[Target, ...]:
        """The secondary tables that exist or that the request needs; those that it needs are created."""
        targets: list[Target] = []
        for url in stream.secondary_tables:
            target, staged = self._target(url), request.content.of(url)
            if target is None and staged is not None and staged.files:
                partition_by = () if url == stream.dead_letters else stream.at(url).layout.partition_by
                self.tables.create(url, TableShape(staged.schema, partition_by))
                target = self._target(url)
            if target is not None:
                targets.append(target)
        return tuple(targets)

    def _missing_file(self, request: Request) -> str | None:
        files = (file.path for table in request.content.tables for file in table.files)
        return next((path for path in files if self.store.stat(path) is None), None)

    def _refused(self, request: Request, stream: Stream, targets: tuple[Target, ...], gone: str | None) -> Held | None:
        """Why a request cannot be carried out, or None; the main table is the first of ``targets``."""
        partition, rows = request.name.topic_partition, targets[0]
        if gone is not None:
            return request.held("replacement_refused", f"its data file {gone} is gone", request.give_up)
        if self._ids(stream, rows).generation(rows.transactions, partition):
            problem = "its topic was recreated, and rows of both topics have the same offsets"
            return request.held("replacement_refused", problem, request.give_up)
        for target in targets:
            refused = self._append_only(request, target)
            if refused is not None:
                return refused
        wide = (self._with_columns_of(request, stream, target) for target in targets)
        refused = next((reason for target in wide if (reason := rows_incompatibility(request, target))), None)
        if refused is not None or _done(rows, request):
            return refused
        urls = tuple(target.url for target in targets)
        lost = self.replacer.lost(request, urls)
        self.stepped()
        return refusal_of_compacted(request, lost) or refusal_of_unnamed(request, self.replacer.unnamed(request, urls))

    def _append_only(self, request: Request, target: Target) -> Held | None:
        """Why a table's rows cannot be replaced, before any table has a row of the request."""
        state = self.tables.state(target.url)
        if state is None or not is_append_only(state):
            return None
        step = RequestStep.DROP if _done(target, request) else RequestStep.ROWS
        deletes = self.replacer.deletes(request, target.url, step)
        self.stepped()
        return append_only(request, target.url) if deletes else None

    def _with_columns_of(self, request: Request, stream: Stream, target: Target) -> Target:
        """The table with the columns that only the staged rows have, where the stream's tables gain columns."""
        table, gains = request.content.of(target.url), stream.record.evolves or stream.evolution is not Evolution.STRICT
        if not gains or table is None or table.kind is not TableKind.ROWS:
            return target
        try:
            lacking = additions(schema_from_json(target.shape.schema), schema_from_json(table.schema))
        except SchemaError:
            return target  # the comparison reports it
        if lacking and table.files:
            self.tables.add_columns(target.url, lacking)
            self.log.info("columns added", table=target.url, columns=[str(column) for column in lacking])
            return self._target(target.url) or target
        return target

    def _ids(self, stream: Stream, rows: Target) -> TxnIds:
        ids = TxnIds(stream.app_id, stream.several_topics)
        return ids.in_table(identity_of(self._history(rows), stream, ids, rows.transactions).plain_topic)

    def _take_steps(
        self, request: Request, stream: Stream, rows: Target, secondary_targets: tuple[Target, ...]
    ) -> Held | None:
        """Make the missing commits in order (replace_steps.py, rules 2 and 5); returns why, if that is not possible."""
        metadata, done = request.metadata(self.new_id()).to_json(), _done(rows, request)
        for target in secondary_targets:
            staged = request.content.of(target.url)
            if staged is not None and staged.files and _done(target, request) < RequestStep.ADD:
                self._commit(request, target.url, RequestStep.ADD, metadata, keep_stale=True)
        if done < RequestStep.ROWS:
            self._commit(request, rows.url, RequestStep.ROWS, metadata)
        for target in secondary_targets:
            reason = self._taken_back(request, stream)
            if reason is not None:
                return reason
            if _done(target, request) < RequestStep.DROP:
                self._commit(request, target.url, RequestStep.DROP, metadata)
        return self._taken_back(request, stream)

    def _commit(
        self, request: Request, url: str, step: RequestStep, metadata: str, *, keep_stale: bool = False
    ) -> None:
        is_done = self.replacer.replace(request, url, step, keep_stale=keep_stale, metadata=metadata)
        self.stepped()
        if not is_done:
            raise _ConflictError
        self.log.info(
            "replaced",
            table=url,
            topic=request.name.topic_partition.topic,
            partition=request.name.topic_partition.partition,
            start=request.content.span.start,
            end=request.content.span.end,
            request=request.name.request,
        )

    def _target(self, url: str) -> Target | None:
        state = self.tables.state(url)
        if state is None:
            return None
        return Target(
            url, state.table_id, TableShape(state.schema, state.partition_by), state.transactions, state.version
        )


def _done(target: Target, request: Request) -> int:
    """The last step of a request that a table has recorded; 0 for none."""
    return target.transactions.get(txn_id(request.name.request), 0)
