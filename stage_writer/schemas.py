"""The columns that streams have now: what the loader published, and what was found for those that declare none.

Rules:

1. Writers do not coordinate with each other: a column is used from when the loader has published it, and only in a new
   buffer, because all rows of a file have the same columns.
2. It does not matter when a writer refreshes: one that knows fewer columns keeps their fields in the rescue column. So
   a failed refresh is logged, and tried again.
3. Columns that a stream does not declare are found elsewhere (stage_writer/columns/); what it gains is in addition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import MarkerError, StoreError
from stage_writer.ports import DECLARED_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Collection

    from structlog.typing import FilteringBoundLogger

    from common.ports import Clock
    from common.schema import StructType
    from stage_writer.ports import Converter, FollowsColumns, WriterStage

LOOK_AT_SCHEMAS_S = 30.0


class Schemas:
    """The newest conversion of each stream."""

    def __init__(
        self,
        converters: Collection[Converter],
        stage: WriterStage,
        clock: Clock,
        log: FilteringBoundLogger,
        columns: FollowsColumns = DECLARED_COLUMNS,
    ) -> None:
        """Reads nothing yet."""
        self._declared = {one.stream.app_id: one for one in converters if one.stream.evolves}
        self._newest = dict(self._declared)
        self._known: dict[str, StructType] = {}
        self._columns = columns
        self._stage = stage
        self._clock = clock
        self._log = log
        self._look_at_s = clock.monotonic_s()

    def newest(self, converter: Converter) -> Converter:
        """The conversion for what is read from now on."""
        return self._newest.get(converter.stream.app_id, converter)

    def look(self) -> None:
        """Take up columns that were found, and refresh the published ones if that is due."""
        for app_id, found in self._columns.look().items():
            if found.stream.evolves:
                self._declared[app_id] = found
            gained = self._known.get(app_id)
            self._newest[app_id] = found if gained is None else found.at(gained)
        now_s = self._clock.monotonic_s()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_AT_SCHEMAS_S
        for app_id, declared in self._declared.items():
            try:
                gained = self._stage.gained(app_id)
            except (StoreError, MarkerError) as error:
                self._log.warning("gained columns not looked at", app_id=app_id, problem=error.problem)
                continue
            if gained is not None and gained != self._known.get(app_id):
                self._known[app_id] = gained
                self._newest[app_id] = declared.at(gained)
                self._log.info("columns gained", app_id=app_id, columns=list(gained.names))
