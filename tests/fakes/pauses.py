"""The pauses of streams, in a stage in memory or in a folder."""

import uuid
from collections.abc import Collection

import structlog

from common import metrics as all_metrics
from common.metrics import Metrics
from common.ports import ObjectStore
from common.stage.paused import StreamPart
from common.stage.paused_streams import PausedStreams
from common.storage.store import FsspecStore
from tests.fakes.group import HandClock


def paused_streams(
    app_ids: Collection[str] = ("orders",),
    part: StreamPart = StreamPart.LOADING,
    store: ObjectStore | None = None,
    metrics: Metrics | None = None,
) -> PausedStreams:
    made = PausedStreams(
        store or FsspecStore(f"memory://pauses-{uuid.uuid4().hex}"),
        part,
        app_ids,
        clock=HandClock(),
        log=structlog.get_logger(),
        metrics=metrics or Metrics(),
        metric=all_metrics.LOADER_STREAM_PAUSED if part is StreamPart.LOADING else all_metrics.WRITER_STREAM_PAUSED,
    )
    made.refresh()
    return made
