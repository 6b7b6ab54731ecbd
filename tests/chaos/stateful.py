"""The stream of a run as a topology whose rows count the earlier ones: state that differs from its marker's becomes
visible.

Each good record of a Kafka partition is counted, by its kind. The judge counts Kafka's records itself
(`tests.chaos.records.numbered`) and does not read the state.
"""

from enum import StrEnum

from stage_writer.topologies import Processor, ProcessorContext, Record, Topology
from stage_writer.topologies.stores import Stores
from tests.chaos.records import COLUMNS

TOPIC = "orders"
SEEN = "seen BIGINT"


class State(StrEnum):
    """Where a run's writers keep state, or that they have none and merge change events (tests/chaos/events.py)."""

    NONE = "none"
    STAGE = "stage"
    TOPIC = "topic"
    EVENTS = "events"

    @property
    def is_kept(self) -> bool:
        return self in (State.STAGE, State.TOPIC)


class Numbered(Processor):
    """Counts the records of each kind."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.counts = context.store("counts")

    def process(self, record: Record) -> None:
        if record.value is None:
            return
        seen = (self.counts.get(record.value["kind"]) or 0) + 1
        self.counts.put(record.value["kind"], seen)
        self.context.forward(record.with_value({**record.value, "seen": seen}))


def build() -> Topology:
    """A row for each good record, with its number."""
    topology = Topology()
    topology.add_source("records", TOPIC, columns=COLUMNS)
    topology.add_processor("numbered", Numbered, "records")
    topology.add_state_store(Stores.key_value("counts"), "numbered")
    topology.add_sink("table", "numbered")
    return topology
