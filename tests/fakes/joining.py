"""Topologies over several topics: one joins two of them, the other counts by another key, through a topic."""

import os

from stage_writer.topologies import Processor, ProcessorContext, Record, Topology
from stage_writer.topologies.dsl import StreamsBuilder
from stage_writer.topologies.stores import Stores

TOPICS = "JOINING_TOPICS"
"""The variable with the topics' names: orders, payments, and where joined ones go; or visits, and those by country."""


class Paid(Processor):
    def init(self, context: ProcessorContext) -> None:
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
    """Each order with what was paid until then, into the table and a topic."""
    orders, payments, joined = os.environ[TOPICS].split()
    made = Topology()
    made.add_source("orders", orders, columns="id BIGINT")
    made.add_source("payments", payments, columns="amount BIGINT")
    made.add_processor("paid", Paid, "orders", "payments")
    made.add_state_store(Stores.key_value("paid"), "paid")
    made.add_sink("rows", "paid")
    made.add_topic_sink("joined", "paid", topic=joined)
    return made


def by_country() -> StreamsBuilder:
    """How many visits there were from each country; those of one are in many partitions."""
    visits, countries = os.environ[TOPICS].split()
    builder = StreamsBuilder()
    keyed = builder.stream(visits, columns="country STRING").select_key(lambda _, visit: visit["country"])
    counts = keyed.through(countries, columns="country STRING").group_by_key().count().to_stream()
    counts.map(lambda country, count: (country, {"country": country, "visits": count})).to()
    return builder
