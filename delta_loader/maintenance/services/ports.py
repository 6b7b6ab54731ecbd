"""The ports of the table services: one carries out tasks, one reads the tables' facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from delta_loader.maintenance.services.due import CommitPiece, TableRules
    from delta_loader.maintenance.services.facts import TableFacts
    from delta_loader.maintenance.services.outcomes import Outcome


class ServiceWork(Protocol):
    """Carries out maintenance tasks."""

    def carry_out(self, piece: CommitPiece, rules: TableRules) -> Outcome:
        """Carry out a task to its end; never raises for a table's errors."""

    def cancel(self) -> None:
        """End the running task, from another thread; it then results in `GivenUp`."""


class TableInspector(Protocol):
    """Reads the tables' facts."""

    def read(self, url: str, rules: TableRules) -> TableFacts | None:
        """A table's facts; None when it does not exist. Raises TableError and StoreError."""
