"""Orders with their customer's data: a stream joined with a table topic.

Both topics are keyed by the customer and have the same number of partitions. An order is joined with the customer's row
at the time of the order; an order without a customer is kept, with nulls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stage_writer.topologies import Materialized, StreamsBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping


def build() -> StreamsBuilder:
    """Orders and customers in, orders with names and countries out."""
    builder = StreamsBuilder()
    customers = builder.table(
        "customers", columns="name STRING, country STRING", materialized=Materialized("customers")
    )
    orders = builder.stream("orders", columns="id BIGINT, amount DECIMAL(10, 2)")
    orders.filter(lambda _customer, order: order is not None).left_join(customers, with_customer).to()
    return builder


def with_customer(order: Mapping[str, Any], customer: Mapping[str, Any] | None) -> dict[str, Any]:
    """The order's row."""
    known = customer or {"name": None, "country": None}
    return {"id": order["id"], "amount": order["amount"], "customer": known["name"], "country": known["country"]}
