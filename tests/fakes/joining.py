"""Topologies over several topics: one joins two topics, the other repartitions by another key and counts."""

import os

from stage_writer.topologies import Processor, ProcessorContext, Record, Topology
from stage_writer.topologies.dsl import StreamsBuilder
from stage_writer.topologies.stores import Stores

TOPICS = "JOINING_TOPICS"
"""The environment variable with the topics' names: orders, payments and joined; or visits and visits by country."""


class Paid(Processor):
    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.paid = context.store("paid")

    def process(self, record: Record) -> None:
        """Forward each order with what was paid before it; add up the payments."""
        paid = self.paid.get(record.key) or 0
        if record.value.get("amount") is not None:
            self.paid.put(record.key, paid + record.value["amount"])
        else:
            self.context.forward(record.with_value({"id": record.value["id"], "paid": paid}))


def build() -> Topology:
    """Writes each order, with what was paid before it, to the table and to a topic."""
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
    """Counts the visits by country; one country's visits are in many partitions."""
    visits, countries = os.environ[TOPICS].split()
    builder = StreamsBuilder()
    keyed = builder.stream(visits, columns="country STRING").select_key(lambda _, visit: visit["country"])
    counts = keyed.through(countries, columns="country STRING").group_by_key().count().to_stream()
    counts.map(lambda country, count: (country, {"country": country, "visits": count})).to()
    return builder
