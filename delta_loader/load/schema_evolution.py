"""Streams with `unknown_fields: evolve`: the table gains the columns that writers stage or offer.

Rules:

1. Columns that staged files have and the table lacks are added by a separate commit, in front of the load. A crash in
   between is harmless: the next pass meets the same markers, and the table has the columns.
2. Columns that markers offer are values in the rescue column: of a writer of an older release, or of one that could not
   agree on them (stage_writer/schemas.py). The table gains them in the same way; then they are published, with the
   table's types (common/stage/evolved.py, common/schema/agreement.py).
3. An offer never blocks the loading of rows: a column that the table does not take is reported, and its values stay in
   the rescue column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common import metrics as catalogue
from common.errors import SchemaError, TableError
from common.schema import schema_from_json
from common.schema.agreement import PublishedColumns, agree, joined_offers
from common.schema.evolution import NO_COLUMNS, restricted
from common.settings.own_columns import columns_at, with_columns_at
from common.stage.agreed_columns import agreed_columns
from common.stage.evolved import Evolved, latest, publish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structlog.typing import FilteringBoundLogger

    from common.schema import StructType
    from common.schema.evolution import Addition
    from common.settings import Stream
    from common.stage.markers import Marker
    from delta_loader.load.ports import Ports
    from delta_loader.plan.plan import TableShape
    from delta_loader.ports import ColumnAdder
    from delta_loader.tables.commits import Target

_ROUNDS = 3


class SchemaEvolution:
    """Adds columns to one stream's tables, in one pass."""

    def __init__(self, stream: Stream, ports: Ports, adder: ColumnAdder, log: FilteringBoundLogger) -> None:
        self._stream = stream
        self._declared = stream.record.schema_of_columns
        """Of a stream that declares none, those that its writers agreed on, once there is something to add."""
        self._stage = ports.stage.store
        self._tables = ports.tables
        self._adder = adder
        self._clock = ports.clock
        self._log = log
        self._metrics = ports.metrics
        self._refused: set[Addition] = set()

    @classmethod
    def of(cls, stream: Stream, ports: Ports, log: FilteringBoundLogger) -> SchemaEvolution | None:
        """The stream's evolver; None for a stream that gains no columns."""
        return cls(stream, ports, ports.columns, log) if stream.record.evolves and ports.columns is not None else None

    def evolve(self, table: Target, shape: TableShape, markers: Sequence[Marker]) -> bool:
        """Add the columns that files of a shape need and that markers offer; returns whether the table may differ.

        Where the table has other types than a file, they are published, so that writers stage with them from now on.

        Raises StoreError, MarkerError, and TableError when the table cannot be read.
        """
        if table.url == self._stream.dead_letters:
            return False
        offers = self._offers(markers)
        offered = columns_at(self._stream, table.url, joined_offers(offers.values()))
        columns, staged = schema_from_json(table.shape.schema), schema_from_json(shape.schema)
        if not offered.fields and restricted(columns, staged) == restricted(staged, staged):
            return False
        if self._stream.record.columns_from is not None:
            agreed = agreed_columns(self._stage, self._stream.app_id)
            self._declared = NO_COLUMNS if agreed is None else agreed.columns
        changed = False
        for _ in range(_ROUNDS):
            published = latest(self._stage, self._stream.app_id)
            before = NO_COLUMNS if published is None else published.columns
            known = PublishedColumns(
                self._declared, columns_at(self._stream, table.url, before), self._stream.record.evolve_limit
            )
            agreement = agree(columns, known, offered, staged, self._refused)
            if agreement.added:
                self._add(table.url, agreement.added)
                changed, columns = True, self._columns(table.url)
            elif self._publish(published, with_columns_at(self._stream, table.url, before, agreement.columns), offers):
                break
        return changed

    def _offers(self, markers: Sequence[Marker]) -> dict[str, StructType]:
        offered: dict[str, StructType] = {}
        for marker in markers:
            text = None if marker.manifest is None else marker.manifest.offered
            if text is not None:
                try:
                    offered[marker.name.path] = schema_from_json(text)
                except SchemaError as error:
                    self._log.warning("offered columns not understood", marker=marker.name.path, problem=error.problem)
        return offered

    def _columns(self, url: str) -> StructType:
        state = self._tables.state(url)
        return NO_COLUMNS if state is None else schema_from_json(state.schema)

    def _add(self, url: str, added: Sequence[Addition]) -> None:
        """Add columns; those that the table does not take are reported one by one (rule 3)."""
        try:
            self._adder.add_columns(url, added)
        except TableError as error:
            if len(added) == 1:
                self._refused.add(added[0])
                self._log.error("column not added", table=url, column=str(added[0]), problem=error.problem)
            else:
                middle = len(added) // 2
                self._add(url, added[:middle])
                self._add(url, added[middle:])
        else:
            self._metrics.add(catalogue.LOADER_COLUMNS_GAINED, len(added), app_id=self._stream.app_id)
            self._log.info("columns added", table=url, columns=[str(column) for column in added])

    def _publish(self, published: Evolved | None, columns: StructType, offers: dict[str, StructType]) -> bool:
        """Publish what is agreed to writers; False when another loader was faster and its publication must be read."""
        last = published or Evolved.nothing(self._stream.app_id)
        if columns == last.columns:
            return True
        declared = NO_COLUMNS if self._stream.record.has_own_columns else self._declared
        new = last.with_columns(columns, declared, offers, self._clock.wall_ms())
        gained = new.gained[len(last.gained) :]
        is_published = publish(self._stage, new)
        if is_published:
            self._log.info(
                "columns published",
                version=new.version,
                columns=[gained_column.column for gained_column in gained],
                offered_by=sorted({gained_column.offered_by for gained_column in gained}),
            )
        return is_published
