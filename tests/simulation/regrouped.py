"""Histories of an operator who changes which topics a topology reads together, between any two steps.

The topology counts records over all of its topics, so they are one chain; each record is a row, and a record for a
Kafka topic. Topics come and go, and so the chain is another one; operators run the restart that its hold names.

Rules of the final check in addition to those of every edit:

1. No chain of the final config is held, unless the stage no longer says how far the table has its topics by another
   chain. Where a remedy asks for the former topics, they come back until what they left is complete.
2. Each record that a table has is in the topic that the topology writes to; more than once only behind a restart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from common.errors import KafkaDeltaExpressError
from common.settings import Settings
from common.spans import TopicPartition
from common.stage.markers import DONE, MarkerName, marker_from_bytes
from common.stage.merged import chain_topic, inputs_of
from common.tables.identity import identity_of, overlap
from common.tables.transactions import TxnIds
from stage_writer.outbox.ports import Outlets
from stage_writer.ports import Converter, RecordSource
from stage_writer.topologies import Processor, ProcessorContext, Record, Topology
from tests.simulation.delta_log import Place
from tests.simulation.editing import (
    CALM,
    STAGES,
    TOPICS,
    Config,
    EditedHistory,
    GroupBroker,
    Operated,
    Pipeline,
    settings_for,
)
from tests.simulation.joined import joining, merging, task_converter
from tests.simulation.kafka import GroupMember
from tests.simulation.kinds import Context
from tests.simulation.outgoing import Coordinator, SourceMessage, outlets
from tests.simulation.store import SimulatedStore
from tests.simulation.world import Chances, Process

REGROUPED = replace(CALM, steps=(400, 1200), edits=("topics",), edited=0.01, undelivered=0.01)
"""Topics are added and removed, and sometimes Kafka takes no transactions."""
_FORMER = re.compile(r"set topics: \[(.+?)\]")
_LOADS_LATER = 0.3
"""In how many histories nothing is loaded before the last edit."""
_RESTARTS = 0.01
"""For each step without faults: an operator follows the remedy of a held chain."""


class Passed(Processor):
    """Counts the records of all topics, and passes each on."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.counts = context.store("counts")

    def process(self, record: Record) -> None:
        """A row, and a record that names the message it was made for."""
        if record.value is None:
            return
        self.counts.put("all", (self.counts.get("all") or 0) + 1)
        about = self.context
        place = [about.topic, about.partition, about.offset, record.timestamp_ms]
        self.context.forward(record, "table")
        self.context.forward(record.with_value({"place": place}), "counted")


def build() -> Topology:
    """The topology that the settings name; each process makes its own, of the topics in its config."""
    return joining(TOPICS, Passed)


class JoinedPipeline(Pipeline):
    """A topology that joins the topics of its config."""

    coordinator: Coordinator

    def converter(self, process: Process) -> Converter:
        del process
        return task_converter(self.context.world, self.stream, joining(self.config.topics, Passed))

    def source(self, member: GroupMember, settings: Settings) -> RecordSource:
        del settings
        return merging(self.context.world, member, self.config.topics)

    def outlets(self, process: Process, store: SimulatedStore) -> Outlets:
        return outlets(self.coordinator, process, store, self.stream)


class RegroupedHistory(EditedHistory):
    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        super().__init__(seed, chances or REGROUPED)
        self._pipelines = [Operated("one", [Config(topology="tests.simulation.regrouped:build")])]
        self._coordinator = Coordinator(self.world)
        self._wanted: Config | None = None
        """The edited config, while the one before is completed."""
        self._loads_later = self.world.rng.random() < _LOADS_LATER
        self._unknown: set[TopicPartition] = set()
        """Chains of which it is no longer known how far the table has their topics."""

    def _kind(self, context: Context, config: Config) -> Pipeline:
        kind = JoinedPipeline(context, config, self.log)
        kind.coordinator = self._coordinator
        return kind

    def _group(self, pipeline: Operated, cluster: int) -> GroupBroker:
        group = super()._group(pipeline, cluster)
        group.together = group.eager = True
        return group

    def _keep_running(self, pipeline: Operated, role: str) -> None:
        """In some histories the loader is started once all edits are made."""
        if not (self._loads_later and not self.world.faults_ended and "loader" in role):
            super()._keep_running(pipeline, role)

    def _step(self, produce: float) -> None:
        super()._step(produce)
        if self.world.faults_ended and self.world.rng.random() < _RESTARTS:
            self._operate(self._pipelines[0])

    def _operate(self, pipeline: Operated) -> None:
        """Follow the remedies of what is held."""
        self._restart(pipeline)
        for process, _ in pipeline.running.values():
            for report in self._services.reports.get(process.name, ()) if process.alive else ():
                for held in report.held.values():
                    self._go_back(held.remedy)
        if self._wanted is not None and self._is_complete(pipeline.config):
            config, self._wanted = self._wanted, None
            self._become(config)

    def _refused(self, partition: TopicPartition, error: KafkaDeltaExpressError) -> None:
        if "it is no longer known up to which offset" in error.problem:
            self._unknown.add(partition)
        self._go_back(error.remedy)

    def _go_back(self, remedy: str) -> None:
        """To the former topics, until what they left is complete."""
        former, (pipeline,) = _FORMER.search(remedy), self._pipelines
        if former is None or not self.world.faults_ended or self._wanted is not None:
            return
        self._wanted = pipeline.config
        self._become(replace(pipeline.config, topics=tuple(former[1].split(", "))))

    def _become(self, config: Config) -> None:
        (pipeline,) = self._pipelines
        pipeline.configs.append(config)
        self.world.note(f"the topics become {config.topics}")

    def _is_complete(self, config: Config) -> bool:
        """Whether the records of its topics for Kafka topics are sent, and all tables have the same chains."""
        topic = chain_topic(config.topics)
        chains = (TopicPartition(topic, partition.partition) for partition in self._clusters[0])
        return self._is_sent(topic) and not any(self._is_uneven(config, chain) for chain in chains)

    def _is_sent(self, topic: str) -> bool:
        objects = self.bucket.objects
        named = {
            outbox
            for path, (data, _) in objects.items()
            if path.startswith(f"{STAGES[0]}/{DONE}/{topic}/")
            and (name := MarkerName.parse(path[len(STAGES[0]) + 1 :]))
            if (manifest := marker_from_bytes(name, data).manifest) is not None
            for outbox in manifest.outboxes
        }
        return not any(f"{STAGES[0]}/{outbox}" in objects for outbox in named)

    def _happens(self) -> None:
        super()._happens()
        self._coordinator.inject_faults()

    def _held(self, pipeline: Operated) -> dict[TopicPartition, str]:
        held = super()._held(pipeline)
        return held | {partition: reason for chain, reason in held.items() for partition in inputs_of(chain)}

    def problems(self) -> tuple[str, ...]:
        """Rows that are missing or held, and records that the topology has not sent."""
        (pipeline,) = self._pipelines
        held = (
            f"{chain} is held: {reason}"
            for chain, reason in super()._held(pipeline).items()
            if chain not in self._unknown
        )
        waiting = () if self._wanted is None else (f"the former topics {pipeline.config.topics} are not complete",)
        return (*super().problems(), *waiting, *held, *self._unsent())

    def _is_uneven(self, config: Config, chain: TopicPartition) -> bool:
        """Whether the dead-letter table has something of a chain, or of one in its place, that the main table lacks."""
        stream = settings_for(config).streams[0]
        known: list[set[TopicPartition]] = []
        for url in (stream.dead_letters, stream.table):
            state = self.log.state(url)
            if state is None:
                known.append(set())
                continue
            ids = TxnIds(stream.app_id, stream.several_topics)
            identity = identity_of(self.log.history(url, state.version), stream, ids, state.transactions)
            known.append({other for other in identity.chains if overlap(other, chain)})
        return not known[0] <= known[1]

    def _unsent(self) -> Iterator[str]:
        sent = Counter(self._coordinator.committed)
        (pipeline,) = self._pipelines
        places, held = set(self.log.places(pipeline.config.table)), self._held(pipeline)
        for partition, log in self._clusters[0].items():
            for record in log if partition.topic in pipeline.config.topics and partition not in held else ():
                message = SourceMessage(
                    str(partition.topic), int(partition.partition), record.offset, record.timestamp_ms
                )
                if Place.of(partition, record) in places and not sent[message]:
                    yield f"{message} is in the table, and not in the topic"
