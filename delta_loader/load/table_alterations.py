"""Streams with `evolution: add` or `widen`: the table is changed to accept staged rows before they are loaded.

Rules:

1. The staged schema decides, the oldest one first (plan/plan.py, rule 4): columns that the table lacks are added, at
   any depth, and with `widen` types are widened as far as Delta's type widening allows (tables/load_modes/casting.py).
   Each change is a separate commit. A crash in between is harmless: the next pass sees the table as it is then.
2. The table is never narrowed and no column is ever dropped. Loaders and writers of different configs therefore
   converge.
3. A change that the table does not take is reported, and staged rows are checked against the table as it is: cast value
   by value, or refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common import metrics as catalogue
from common.errors import SchemaError, TableError
from common.schema import schema_from_json
from common.schema.evolution import additions, extended
from common.settings.loading import Evolution
from delta_loader.tables.load_modes.casting import widenings

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from common.schema import StructType
    from common.settings import Stream
    from delta_loader.load.ports import Ports
    from delta_loader.plan.plan import TableShape
    from delta_loader.ports import ColumnAdder
    from delta_loader.tables.commits import Target
    from delta_loader.tables.load_modes.casting import Widening


class TableAlterations:
    """Changes one stream's tables, in one pass."""

    def __init__(self, stream: Stream, ports: Ports, adder: ColumnAdder, log: FilteringBoundLogger) -> None:
        self._stream = stream
        self._adder = adder
        self._metrics = ports.metrics
        self._log = log
        self._refused: set[tuple[str, Widening]] = set()

    @classmethod
    def of(cls, stream: Stream, ports: Ports, log: FilteringBoundLogger) -> TableAlterations | None:
        """The stream's shaper; None for a stream that changes no table."""
        if stream.evolution is Evolution.STRICT or ports.columns is None:
            return None
        return cls(stream, ports, ports.columns, log)

    def shape(self, table: Target, staged: TableShape) -> bool:
        """Change a table to accept files of a shape; returns whether it may have changed."""
        if table.url == self._stream.dead_letters or table.shape.schema == staged.schema:
            return False
        try:
            columns, wanted = schema_from_json(table.shape.schema), schema_from_json(staged.schema)
        except SchemaError:
            return False  # the comparison reports it
        changed = self._add(table.url, columns, wanted)
        if self._stream.evolution is Evolution.WIDEN:
            columns = extended(columns, wanted)
            due = [widening for widening in widenings(columns, wanted) if (table.url, widening) not in self._refused]
            changed = self._widen(table.url, due) or changed
        return changed

    def _add(self, url: str, columns: StructType, wanted: StructType) -> bool:
        added = additions(columns, wanted)
        if not added:
            return False
        try:
            self._adder.add_columns(url, added)
        except TableError as error:  # Another loader may have been faster: the next read shows it.
            self._log.warning(
                "columns not added", table=url, columns=[str(addition) for addition in added], problem=error.problem
            )
        else:
            self._metrics.add(catalogue.LOADER_COLUMNS_GAINED, len(added), app_id=self._stream.app_id)
            self._log.info("columns added", table=url, columns=[str(addition) for addition in added])
        return True

    def _widen(self, url: str, due: list[Widening]) -> bool:
        for widening in due:
            try:
                self._adder.widen(url, widening)
            except TableError as error:
                self._refused.add((url, widening))
                self._log.warning("column not widened", table=url, column=str(widening), problem=error.problem)
            else:
                self._log.info("column widened", table=url, column=str(widening))
        return bool(due)
