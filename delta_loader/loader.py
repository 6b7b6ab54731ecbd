"""A loader that is ready to load: the parts of one process, for its loop and its pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.http.pausing import Pausing
    from delta_loader.clean_schedule import ScheduledCleanUp
    from delta_loader.fitness import Fitness
    from delta_loader.lease import LeaseThread, LoaderLease
    from delta_loader.on_marker.turns import Turns
    from delta_loader.service import LoaderService


@dataclass(frozen=True, slots=True)
class Loader:
    """The parts."""

    service: LoaderService
    spark_is_alive: Callable[[], bool]
    lease: LoaderLease | None
    """None when the settings want none."""
    lease_thread: LeaseThread | None
    clean_up: ScheduledCleanUp
    fitness: Fitness
    pausing: Pausing
    turns: Turns

    def may_load(self) -> bool:
        """Whether no other loader does."""
        return self.lease is None or self.lease.held()
