"""Topologies: stateful processing of records between Kafka and the stream's tables, inside the stage writer."""

from stage_writer.topologies.built import BuiltTopology, TaskGroup
from stage_writer.topologies.dsl import (
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Windowed,
)
from stage_writer.topologies.errors import TopologyError
from stage_writer.topologies.nodes import KeyType, ValueType
from stage_writer.topologies.records import Headers, Key, Record, TopicRecord, Value
from stage_writer.topologies.steps import BatchStep, Derive, MapBatches, Select, Where
from stage_writer.topologies.task.clock import PunctuationType
from stage_writer.topologies.task.clock import Timer as Cancellable
from stage_writer.topologies.task.context import Processor, ProcessorContext
from stage_writer.topologies.topology import Late, OnError, Topology

__all__ = [
    "BatchStep",
    "BuiltTopology",
    "Cancellable",
    "Derive",
    "Headers",
    "JoinWindows",
    "KStream",
    "KTable",
    "Key",
    "KeyType",
    "Late",
    "MapBatches",
    "Materialized",
    "OnError",
    "Processor",
    "ProcessorContext",
    "PunctuationType",
    "Record",
    "Select",
    "SessionWindows",
    "StreamsBuilder",
    "Suppressed",
    "TaskGroup",
    "TimeWindows",
    "TopicRecord",
    "Topology",
    "TopologyError",
    "Value",
    "ValueType",
    "Where",
    "Windowed",
]
