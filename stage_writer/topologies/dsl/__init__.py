"""The DSL of topologies: streams, tables, windows and joins, as in Kafka Streams, over processors and stores."""

from stage_writer.topologies.dsl.graph import Materialized
from stage_writer.topologies.dsl.streams import (
    KGroupedStream,
    KGroupedTable,
    KStream,
    KTable,
    SessionWindowedKStream,
    StreamsBuilder,
    TimeWindowedKStream,
)
from stage_writer.topologies.dsl.suppress import Suppressed
from stage_writer.topologies.dsl.windows import JoinWindows, SessionWindows, TimeWindows
from stage_writer.topologies.stores.keys import Windowed

__all__ = [
    "JoinWindows",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "Materialized",
    "SessionWindowedKStream",
    "SessionWindows",
    "StreamsBuilder",
    "Suppressed",
    "TimeWindowedKStream",
    "TimeWindows",
    "Windowed",
]
