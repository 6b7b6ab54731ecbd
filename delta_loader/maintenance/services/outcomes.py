"""Findings and results of a run of the table services, as values; the results of a task are a closed set."""

from dataclasses import dataclass

from delta_loader.maintenance.services.due import NOTHING, Due, MaintenanceTask, TableRules
from delta_loader.maintenance.services.facts import TableFacts


@dataclass(frozen=True, slots=True)
class Done:
    """The task's commit is in the table."""

    files_removed: int = 0
    files_added: int = 0
    bytes_removed: int = 0
    bytes_added: int = 0


@dataclass(frozen=True, slots=True)
class TaskAborted:
    """Another commit came in between, or the run was stopped: nothing was changed, and the next run checks again."""

    problem: str


@dataclass(frozen=True, slots=True)
class TaskFailed:
    problem: str


Outcome = Done | TaskAborted | TaskFailed


@dataclass(frozen=True, slots=True)
class TaskReport:
    task: MaintenanceTask
    outcome: Outcome
    duration_s: float


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    url: str
    facts: TableFacts | None
    """None when there is no table yet, or it could not be read."""
    rules: TableRules
    due: Due = NOTHING
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class RunReport:
    tasks: tuple[TaskReport, ...]
    snapshots: tuple[TableSnapshot, ...]
    left: tuple[MaintenanceTask, ...] = ()
    stopped_by: str = ""
    """Why; empty when nothing is left."""
