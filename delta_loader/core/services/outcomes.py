"""What a run of the table services sees and does, as values; how a piece of it ends is closed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_loader.core.services.due import NOTHING

if TYPE_CHECKING:
    from delta_loader.core.services.due import Due, Piece, TableRules
    from delta_loader.core.services.facts import TableFacts


@dataclass(frozen=True, slots=True)
class Done:
    """It is in the table."""

    files_removed: int = 0
    files_added: int = 0
    bytes_removed: int = 0
    bytes_added: int = 0


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Another commit came in between, or it was stopped: nothing was changed, and the next run looks again."""

    problem: str


@dataclass(frozen=True, slots=True)
class Failed:
    """It could not be done."""

    problem: str


Outcome = Done | GivenUp | Failed


@dataclass(frozen=True, slots=True)
class PieceReport:
    """What a run did with one piece."""

    piece: Piece
    outcome: Outcome
    duration_s: float


@dataclass(frozen=True, slots=True)
class TableLook:
    """A table, and what is due for it."""

    url: str
    facts: TableFacts | None
    """None when there is no table yet, or it could not be looked at."""
    rules: TableRules
    due: Due = NOTHING
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class RunReport:
    """What one run did."""

    pieces: tuple[PieceReport, ...]
    looks: tuple[TableLook, ...]
    left: tuple[Piece, ...] = ()
    """What it did not come to."""
    stopped_by: str = ""
    """Why not; empty when nothing is left."""
