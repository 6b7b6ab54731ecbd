"""A topology that joins two topics: each order with what was paid for it until then, into the table and a topic."""

from __future__ import annotations

import os

from stage_writer.topologies import Processor, ProcessorContext, Record, Topology
from stage_writer.topologies.stores import Stores

TOPICS = "JOINING_TOPICS"
"""The variable with the names of the topics: orders, payments, and where joined ones go."""


class Paid(Processor):
    """Adds payments up by their key."""

    def init(self, context: ProcessorContext) -> None:
        """Find the store."""
        self.context = context
        self.paid = context.store("paid")

    def process(self, record: Record) -> None:
        """Of an order tell what was paid before it; of a payment remember it."""
        paid = self.paid.get(record.key) or 0
        if record.value.get("amount") is not None:
            self.paid.put(record.key, paid + record.value["amount"])
        else:
            self.context.forward(record.with_value({"id": record.value["id"], "paid": paid}))


def build() -> Topology:
    """The topology."""
    orders, payments, joined = os.environ[TOPICS].split()
    made = Topology()
    made.add_source("orders", orders, columns="id BIGINT")
    made.add_source("payments", payments, columns="amount BIGINT")
    made.add_processor("paid", Paid, "orders", "payments")
    made.add_state_store(Stores.key_value("paid"), "paid")
    made.add_sink("rows", "paid")
    made.add_topic_sink("joined", "paid", topic=joined)
    return made
