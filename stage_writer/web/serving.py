"""The writer's HTTP server, and the watch on Kafka's ends for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from common.http.pages import Pausing, pausing_calls, service_pages
from common.http.server import HttpServer, Page, Routes
from common.lagging.history import EndHistory
from common.lagging.watch import EndWatch, KafkaEnds
from common.metrics import Metrics
from common.pages.assets import status_pages
from common.ports import Clock
from common.settings import Settings
from common.settings.pace import writer_of
from common.stage.paused_streams import PausedStreams
from stage_writer.loop import StageWriter
from stage_writer.web.view import WriterView

if TYPE_CHECKING:
    from stage_writer.tasks.look_ups import LookUps


class WriterServing:
    """Starts to serve immediately, if the settings enable it."""

    def __init__(
        self,
        settings: Settings,
        service: StageWriter,
        pausing: Pausing,
        paused: PausedStreams,
        *,
        clock: Clock,
        log: FilteringBoundLogger,
        metrics: Metrics,
        look_ups: LookUps | None = None,
    ) -> None:
        """Raises ConfigError when the address is wrong or taken."""
        self._parts = ExitStack()
        self.port: int | None = None
        """Its port; None if it does not serve."""
        if settings.writer.http is None:
            return
        metrics.with_process()
        history = EndHistory()
        latencies = {stream.app_id: writer_of(settings.writer, stream).flush_after_s for stream in settings.streams}
        view = WriterView(history, clock, metrics, pausing, flush_after_s=latencies.__getitem__, paused=paused)
        pages = service_pages("stage-writer", service.health, service.ready, metrics.exposition)
        pages |= status_pages(lambda: view.status(service.snapshot()))
        reads = {} if look_ups is None else _state_reads(look_ups)
        routes = Routes(pages, pausing_calls(pausing, paused), settings.writer.http_token, reads)
        server = HttpServer(settings.writer.http, routes, settings.writer.http_hosts)
        self._parts.callback(server.close)
        watch = EndWatch(
            KafkaEnds(settings.kafka, log),
            lambda: service.snapshot().partitions,
            lambda: view.refresh(service.snapshot()),
            history=history,
            clock=clock,
            log=log,
        )
        self._parts.callback(watch.close)
        self.port = server.port
        log.info("serving", port=server.port)

    def close(self) -> None:
        self._parts.close()


def _state_reads(look_ups: LookUps) -> dict[str, Callable[[str, Mapping[str, str]], Page]]:
    from stage_writer.web.state_pages import state_reads  # noqa: PLC0415 - only with topologies

    return state_reads(look_ups)
