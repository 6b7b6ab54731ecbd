"""The notifications of a writer, by its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.settings.on_marker import streams_on_marker
from stage_writer.notifications.notifier import LoaderNotifier
from stage_writer.notifications.ports import NO_NOTIFIER
from stage_writer.notifications.topic import KafkaControlTopic

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from common.metrics import Metrics
    from common.ports import Clock
    from common.settings import Settings
    from stage_writer.notifications.ports import Notifier
    from stage_writer.ports import WriterStage


def notifier_of(
    settings: Settings, stage: WriterStage, clock: Clock, log: FilteringBoundLogger, metrics: Metrics
) -> Notifier:
    """Notifies the loaders of streams that wait for markers."""
    waiting = frozenset(stream.app_id for stream in streams_on_marker(settings.loader.schedule, settings.streams))
    if not waiting:
        return NO_NOTIFIER
    topic = settings.loader.control_topic
    control = None if topic is None else KafkaControlTopic(settings.kafka, topic, log, metrics)
    return LoaderNotifier(stage, clock, log, metrics, control, app_ids=waiting)
