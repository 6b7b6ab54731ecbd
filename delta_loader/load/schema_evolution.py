"""Changes of tables in front of a load: columns that they gain, and types that become wider.

Rules:

1. With `evolution: add` or `widen`, the table is changed to accept staged rows. The staged schemas decide, the oldest
   one first (plan/plan.py, rule 4). Columns that the table lacks are added, at any depth. With `widen`, types are also
   widened, as far as Delta's type widening allows (tables/load_modes/casting.py).
2. With `unknown_fields: evolve`, columns that staged files have and the table lacks are added, and so are columns that
   markers offer. Markers offer values in the rescue column of a writer of an older release, or of a writer that could
   not agree on the columns (stage_writer/schemas.py). The added columns are then published, with the table's types
   (common/stage/versions.py, common/schema/agreement.py).
3. Each change is a separate commit, in front of the load. A crash in between is harmless: the next pass meets the same
   markers, and sees the table as it is then.
4. The table is never narrowed and no column is ever dropped. Loaders and writers of different configs therefore
   converge.
5. A change that the table does not take is reported, and never blocks rows by itself. Staged rows are checked against
   the table as it is (cast value by value, or refused), and offered values stay in the rescue column.
6. A table of dead letters never gets columns for rows, nor the other way round: the config names the wrong table then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.errors import SchemaError, TableError
from common.schema import StructType, schema_from_json
from common.schema.agreement import PublishedColumns, joined_offers
from common.schema.evolution import NO_COLUMNS, Addition, additions, extended
from common.schema.naming import restricted
from common.settings import Stream
from common.settings.columns import agree_in_table, as_in_records
from common.settings.own_columns import columns_at, with_columns_at
from common.settings.values import Evolution
from common.stage.markers import Marker
from common.stage.versions import Evolved, agreed_columns, latest
from common.tables.dead_letters import is_for_another
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import Target
from delta_loader.tables.load_modes.casting import Widening, widenings

if TYPE_CHECKING:
    from delta_loader.load.ports import Ports

_ROUNDS = 3


class SchemaEvolution:
    def __init__(self, stream: Stream, ports: Ports, log: FilteringBoundLogger) -> None:
        self._stream = stream
        self._by_route = stream.gains_by_table
        self._stage = ports.stage.store
        self._tables = ports.tables
        self._clock = ports.clock
        self._log = log
        self._metrics = ports.metrics
        self._refused: set[Addition] = set()
        self._not_widened: set[tuple[str, Widening]] = set()

    @classmethod
    def if_configured(cls, stream: Stream, ports: Ports, log: FilteringBoundLogger) -> SchemaEvolution | None:
        """The evolution of a stream's tables; None for a stream that changes no table."""
        changes = stream.record.evolves or stream.evolution is not Evolution.STRICT
        return cls(stream, ports, log) if changes else None

    def evolve(self, table: Target, shape: TableShape, markers: Sequence[Marker]) -> bool:
        """Add the columns that files of a shape need and that markers offer; returns whether the table may differ.

        Where the table has other types than a file, they are published, so that writers stage with them from now on.

        Raises StoreError, MarkerError, and TableError when the table cannot be read.
        """
        if table.url == self._stream.dead_letters or not self._stream.record.evolves:
            return False
        offers = self._offers(markers)
        offered = columns_at(self._stream, table.url, joined_offers(offers.values()))
        columns, staged = schema_from_json(table.shape.schema), schema_from_json(shape.schema)
        if is_for_another(columns, staged):
            return False
        if not offered.fields and restricted(columns, staged) == restricted(staged, staged):
            return False
        stream, declared, changed = self._stream.at(table.url), self._declared_at(table.url), False
        for _ in range(_ROUNDS):
            published = latest(self._stage, self._stream.app_id, by_route=self._by_route)
            before = NO_COLUMNS if published is None else published.columns
            known = PublishedColumns(
                declared, columns_at(self._stream, table.url, before), self._stream.record.evolve_limit
            )
            agreement = agree_in_table(stream, columns, known, offered, staged, refused=self._refused)
            if agreement.added:
                self._gain(table.url, agreement.added)
                changed, columns = True, self._columns(table.url)
                offered = as_in_records(stream, columns, offered)  # the limit is for all rounds together
            elif self._publish(
                published, with_columns_at(self._stream, table.url, before, agreement.columns), declared, offers
            ):
                break
        return changed

    def _offers(self, markers: Sequence[Marker]) -> dict[str, StructType]:
        offered: dict[str, StructType] = {}
        for marker in markers:
            if marker.manifest is None:
                continue
            text = marker.manifest.offered_by_route if self._by_route else marker.manifest.offered
            if text is not None:
                try:
                    offered[marker.name.path] = schema_from_json(text)
                except SchemaError as error:
                    self._log.warning("offered columns not understood", marker=marker.name.path, problem=error.problem)
        return offered

    def _columns(self, url: str) -> StructType:
        state = self._tables.state(url)
        return NO_COLUMNS if state is None else schema_from_json(state.schema)

    def _gain(self, url: str, added: Sequence[Addition]) -> None:
        """Add columns; those that the table does not take are reported one by one (rule 5)."""
        error = self._add(url, added)
        if error is not None and len(added) == 1:
            self._refused.add(added[0])
            self._log.error("column not added", table=url, column=str(added[0]), problem=error.problem)
        elif error is not None:
            middle = len(added) // 2
            self._gain(url, added[:middle])
            self._gain(url, added[middle:])

    def _add(self, url: str, added: Sequence[Addition]) -> TableError | None:
        """Add columns by one commit; returns why the table does not take them."""
        try:
            self._tables.add_columns(url, added)
        except TableError as error:
            return error
        self._metrics.add(all_metrics.LOADER_COLUMNS_GAINED, len(added), app_id=self._stream.app_id)
        self._log.info("columns added", table=url, columns=[str(column) for column in added])
        return None

    def _declared_at(self, url: str) -> StructType:
        """A table's columns as declared; or those that the writers agreed on, once there is something to add."""
        record = self._stream.at(url).record
        if record.columns_from is None:
            return record.schema_of_columns
        agreed = agreed_columns(self._stage, self._stream.app_id)
        return NO_COLUMNS if agreed is None else agreed.columns

    def _publish(
        self, published: Evolved | None, columns: StructType, declared: StructType, offers: dict[str, StructType]
    ) -> bool:
        """Publish the agreed columns to writers; False if another loader was faster; read its publication."""
        last = published or Evolved.nothing(self._stream.app_id, by_route=self._by_route)
        if columns == last.columns:
            return True
        new = last.with_columns(columns, NO_COLUMNS if self._by_route else declared, offers, self._clock.wall_ms())
        gained = new.gained[len(last.gained) :]
        is_published = new.create(self._stage)
        if is_published:
            self._log.info(
                "columns published",
                version=new.version,
                columns=[gained_column.column for gained_column in gained],
                offered_by=sorted({gained_column.offered_by for gained_column in gained}),
            )
        return is_published

    def alter(self, table: Target, staged: TableShape) -> bool:
        """Change a table to accept files of a shape (rule 1); returns whether it may have changed."""
        if self._stream.evolution is Evolution.STRICT or table.url == self._stream.dead_letters:
            return False
        try:
            columns, wanted = schema_from_json(table.shape.schema), schema_from_json(staged.schema)
        except SchemaError:
            return False  # the comparison reports it
        if is_for_another(columns, wanted):
            return False
        added = additions(columns, wanted)
        error = self._add(table.url, added) if added else None
        if error is not None:  # Another loader may have been faster: the next read shows it.
            self._log.warning("columns not added", table=table.url, columns=[*map(str, added)], problem=error.problem)
        due: list[Widening] = []
        if self._stream.evolution is Evolution.WIDEN:
            wider = widenings(extended(columns, wanted), wanted)
            due = [widening for widening in wider if (table.url, widening) not in self._not_widened]
        for widening in due:
            self._widen(table.url, widening)
        return bool(added or due)

    def _widen(self, url: str, widening: Widening) -> None:
        try:
            self._tables.widen(url, widening)
        except TableError as error:
            self._not_widened.add((url, widening))
            self._log.warning("column not widened", table=url, column=str(widening), problem=error.problem)
        else:
            self._log.info("column widened", table=url, column=str(widening))
