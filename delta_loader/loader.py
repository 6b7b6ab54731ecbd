"""A loader that is ready to load: the parts of one process, for its loop and its pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.http.pausing import Pausing
    from delta_loader.clean_schedule import ScheduledCleanUp
    from delta_loader.fitness import Fitness
    from delta_loader.lease import LeaseThread, LoaderLease
    from delta_loader.on_marker.turns import Turns
    from delta_loader.service import LoaderService
    from delta_loader.streams.turns import StreamTurns


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
    streams: StreamTurns

    def end_streams(self) -> None:
        """Wait for the commits under way. One that hangs is left: whoever loads next finds what became of it."""
        for app_id in self.streams.close():
            structlog.get_logger().warning("stopping while a commit hangs", app_id=app_id)

    def may_load(self) -> bool:
        """Whether no other loader does."""
        return self.lease is None or self.lease.held()
