"""The state of a writer's loop at one time, as its pages read it from their own thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.remedies import CONFIG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from common.errors import KafkaDeltaExpressError
    from common.spans import TopicPartition
    from stage_writer.partitions.flush_decision import BackpressureState
    from stage_writer.partitions.partition import AssignedPartition, HeldPartition, StartingPartition
    from stage_writer.telemetry import WriterTelemetry

FAILING_REMEDY = (
    f"`stage-writer check {CONFIG}` says which of them does not answer, and why; its log names each failure"
)


@dataclass(frozen=True, slots=True)
class LoopSnapshot:
    """The loop's state at one time."""

    owned: Sequence[AssignedPartition]
    unread: Mapping[TopicPartition, StartingPartition]
    held: Mapping[TopicPartition, HeldPartition]
    pressure: BackpressureState
    joined: bool
    is_failing: bool
    """Whether the store, or Kafka, is failing now."""
    memory_bytes: int
    """The bound for all buffers."""
    telemetry: WriterTelemetry
    notes: tuple[str, ...] = ()
    """Why the control topic accepts no notifications."""
    changelogs: tuple[str, ...] = ()
    """Which changelog topics are no longer suitable."""
    undelivered: tuple[KafkaDeltaExpressError, ...] = ()
    """Which outboxes' deliveries fail."""

    @property
    def partitions(self) -> set[TopicPartition]:
        return {*(owned.partition for owned in self.owned), *self.unread, *self.held}
