"""The converter of a stream with a topology, in place of a `StreamConverter`.

A writer without such a stream imports nothing of topologies, their stores and tasks: that would be a third of its
startup cost. A topology that works on columns only has no tasks, and imports nothing of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from common.clock import SystemClock
from common.errors import ConfigError
from common.metrics import Metrics
from common.settings import Settings, Stream
from stage_writer.changelog.topic import snapshot_after_s
from stage_writer.decode.decode_options import MakeNativeDecoder
from stage_writer.stopping import Stopping
from stage_writer.tasks.loading import topology_of

if TYPE_CHECKING:
    from stage_writer.tasks.columns import ColumnsConverter
    from stage_writer.tasks.look_ups import LookUps
    from stage_writer.tasks.topology import TopologyConverter

    AnyTopologyConverter = TopologyConverter | ColumnsConverter


def topology_converter(
    settings: Settings,
    stream: Stream,
    native_decoder: MakeNativeDecoder,
    *,
    metrics: Metrics | None,
    look_ups: LookUps | None,
    unsuitable_topics: Collection[str],
    stopping: Stopping,
) -> AnyTopologyConverter:
    """The stream's converter; without ``metrics`` it is only checked. Raises ConfigError or a subclass."""
    topology = topology_of(stream)
    if topology.is_columns_only:
        from stage_writer.tasks.columns import ColumnsConverter  # noqa: PLC0415 - as above

        if stream.state_changelog is not None:
            msg = f"topology {stream.topology!r} only transforms columns, and has no state for a state_changelog"
            raise ConfigError(msg, "remove state_changelog")
        return ColumnsConverter(stream, topology, native_decoder)
    from stage_writer.tasks.shared import SnapshotsWhen, TaskEnvironment  # noqa: PLC0415 - as above
    from stage_writer.tasks.topology import TopologyConverter  # noqa: PLC0415 - as above

    if stream.state_changelog in topology.topics_written:
        msg = f"topology {stream.topology!r} writes records to {stream.state_changelog!r}, its state_changelog"
        raise ConfigError(msg, "use a separate topic for the changes of its state")
    context = TaskEnvironment(
        SystemClock().wall_ms,
        metrics or Metrics(),
        native_decoder,
        state_folder=settings.writer.state_folder,
        when=SnapshotsWhen(oldest_s=snapshot_after_s(settings.writer.state_keep_s)),
        look_ups=look_ups,
        unsuitable_topics=unsuitable_topics,
        stopping=stopping,
    )
    return TopologyConverter(stream, topology, context)
