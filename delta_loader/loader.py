"""A loader that is ready to load: the parts of one process, for its loop and its pages."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

import structlog

from common.errors import BrokerError
from common.http.pages import Pausing
from common.stage.paused_streams import PausedStreams
from delta_loader.checks.readiness import ReadinessCheck
from delta_loader.lease.holder import LeaseThread, LoaderLease
from delta_loader.maintenance.services.runs import ScheduledServices
from delta_loader.scheduling.jobs import Jobs
from delta_loader.scheduling.listening import Listener
from delta_loader.scheduling.load_trigger import LoadTrigger
from delta_loader.service import LoaderService
from delta_loader.spark.checkpoint_threads import BackgroundCheckpoints

if TYPE_CHECKING:
    from delta_loader.scheduling.stream_scheduler import StreamScheduler


@dataclass(frozen=True, slots=True)
class Loader:
    service: LoaderService
    spark_stopped: Event
    """Set once Spark's process has ended."""
    lease: LoaderLease | None
    lease_thread: LeaseThread | None
    readiness_check: ReadinessCheck
    pausing: Pausing
    paused: PausedStreams
    trigger: LoadTrigger
    streams: StreamScheduler
    checkpoints: BackgroundCheckpoints
    jobs: Jobs
    services: ScheduledServices | None = None
    control: Listener | None = None

    @property
    def control_problem(self) -> BrokerError | None:
        """Why the control topic is not being read; None if it is."""
        return None if self.control is None else self.control.problem

    def end_streams(self) -> None:
        """Wait for the commits in progress. One that hangs is left: the next loader determines its result."""
        for app_id in self.streams.close():
            structlog.get_logger().warning("stopping although a commit hangs", app_id=app_id)

    def loading(self) -> AbstractContextManager[None]:
        """While a pass runs, no table service starts anything."""
        return nullcontext() if self.services is None else self.services.loading()

    def may_serve(self) -> bool:
        """Whether table services may run: a pass has finished, the loader is not paused, and no other one loads."""
        return self.service.ready and not self.pausing.is_on and self.may_load()

    def may_load(self) -> bool:
        """Whether there is a stream that no other loader loads."""
        return self.lease is None or bool(self.lease.held())

    @property
    def loaded_here(self) -> frozenset[str]:
        """The streams that no other loader loads."""
        return frozenset(self.service.stats.entries) if self.lease is None else self.lease.held()

    @property
    def loaded_elsewhere(self) -> frozenset[str]:
        """The streams that another loader is known to load."""
        return frozenset() if self.lease is None else self.lease.elsewhere
