"""What the table services need of the world: who carries a piece out, and who knows the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from delta_loader.core.services.due import Piece, TableRules
    from delta_loader.core.services.facts import TableFacts
    from delta_loader.core.services.outcomes import Outcome


class ServiceWork(Protocol):
    """Carries pieces out."""

    def carry_out(self, piece: Piece, rules: TableRules) -> Outcome:
        """Do it, to its end; never raises for what goes wrong with a table."""

    def cancel(self) -> None:
        """End what runs now, from another thread; it is then `GivenUp`."""


class TableLooker(Protocol):
    """Knows the tables."""

    def read(self, url: str, rules: TableRules) -> TableFacts | None:
        """What a table is like; None when there is none. Raises TableError and StoreError."""
