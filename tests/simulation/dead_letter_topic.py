"""Worlds whose dead letters go to a Kafka topic too: those of unreadable records from the writers' outboxes, and those
of refused records from the loaders, out of the dead-letter table.

Each dead letter of the table is in the topic once. A given-up record may be in one of the two. Refused records of a
deleted topic are sent once more where the new topic reaches their offsets.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from delta_loader.load.ports import SendRefused
from delta_loader.load.refused_to_topic import RefusedToTopic
from stage_writer.decode.batch import MessageBatch
from stage_writer.outbox.ports import Outlets
from stage_writer.parquet.buffer import StagedRows
from stage_writer.ports import Converter
from tests.simulation.delta_log import Place, SimulatedTables
from tests.simulation.kinds import DEAD_LETTERS, Context, settings_of
from tests.simulation.outgoing import Coordinator, SourceMessage, outlets
from tests.simulation.refusing import NumbersConverter, RefusalPorts
from tests.simulation.store import SimulatedStore
from tests.simulation.world import Process

_TOPIC = "orders-errors"


def _source_messages(letters: pa.Table) -> list[SourceMessage]:
    """The source messages of dead letters, by their headers."""
    sources = []
    for headers, time_ms in zip(letters["headers"].to_pylist(), letters["timestamp_ms"].to_pylist(), strict=True):
        named = {header["name"].rpartition(".")[2]: header["value"].decode() for header in headers}
        sources.append(SourceMessage(named["topic"], int(named["partition"]), int(named["offset"]), time_ms))
    return sources


class DeadLetterConverter(NumbersConverter):
    def _convert(self, batch: MessageBatch) -> StagedRows:
        staged = super()._convert(batch)
        return staged if len(staged.rows[1]) else replace(staged, dead_letters={})


class DeadLetterTopic(RefusalPorts):
    """Tables that refuse records, and a topic for dead letters."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        stream = self.settings.streams[0]
        self.settings = settings_of(
            load=stream.load.value, partition_by=list(stream.layout.partition_by), dead_letters_topic=_TOPIC
        )
        self._coordinator = Coordinator(context.world, sources=_source_messages)

    def converter(self, process: Process) -> Converter:
        del process
        return DeadLetterConverter(self.stream, self.registry)

    def outlets(self, process: Process, store: SimulatedStore) -> Outlets:
        return outlets(self._coordinator, process, store, self.stream)

    def sends_refused(self, tables: SimulatedTables, store: SimulatedStore) -> SendRefused:
        return RefusedToTopic({}, "writers", tables.dead_letters, self._coordinator.begin, store)

    def inject_faults(self) -> None:
        """The constraint comes or goes; sometimes Kafka commits no transactions."""
        super().inject_faults()
        self._coordinator.inject_faults()

    def problems(self) -> Iterator[str]:
        """Dead letters that the topic has more than once, not at all, or that the table lacks."""
        yield from super().problems()
        there, sent = Counter(self.log.places(DEAD_LETTERS)), Counter(self._coordinator.committed)
        for partition, log, deleted in self.context.logs():
            for record in log:
                number = int(partition.partition)
                wanted = there[Place(number, record.offset, record.timestamp_ms)]
                count = sent[SourceMessage(str(partition.topic), number, record.offset, record.timestamp_ms)]
                may_lack = self.context.may_lack(partition, record.offset, deleted=deleted)
                if count != wanted and not deleted and not (may_lack and count <= 1):
                    yield f"{partition} offset {record.offset} is {count} times in {_TOPIC}, and {wanted} in the table"
