"""The topologies that the writers of integration tests run."""

import json
import os

from stage_writer.topologies import Processor, ProcessorContext, Record, Topology
from stage_writer.topologies.stores import Stores

NEGATIVE = -1
"""An amount for which the code fails, once it has counted."""


class Counts(Processor):
    """Counts and adds up each key's records; a tombstone begins them again."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.sums = context.store("sums")

    def process(self, record: Record) -> None:
        if record.value is None:
            self.sums.delete(record.key)
            return
        count, total = self.sums.get(record.key) or (0, 0)
        amount = record.value["amount"]
        self.sums.put(record.key, (count + 1, total + amount))
        if amount == NEGATIVE:
            msg = "an amount below nothing"
            raise ValueError(msg)
        self.context.forward(record.with_value({"key": record.key, "count": count + 1, "total": total + amount}))


def counts() -> Topology:
    """A row for each record, with the count and the sum of its key up to there."""
    topology = Topology()
    topology.add_source("amounts", os.environ["COUNTED_TOPIC"], columns="amount BIGINT")
    topology.add_processor("counts", Counts, "amounts")
    topology.add_state_store(Stores.key_value("sums"), "counts")
    topology.add_sink("table", "counts")
    return topology


def is_dead(value: bytes) -> bool:
    try:
        return bool(json.loads(value)["amount"] == NEGATIVE)
    except ValueError:
        return True
