"""Worlds whose tasks fill several tables; those of routes have columns and a layout of their own.

Each counted record has rows in the main table as in `counting`, one in a table of notes, and, where it has several
rows, one in a third table. So there are records with rows in one table, in some and in all. The history checks that
each is there once, though tables fail at times; the model, that a row has the record's count in the columns of its
table, and that each table is laid out as declared.
"""

from collections.abc import Iterator

from common.schema import parse_ddl, schema_from_json
from common.settings.stream import KAFKA_COLUMNS
from stage_writer.ports import Converter
from stage_writer.topologies import Record, Topology
from stage_writer.topologies.stores import Stores
from tests.simulation.counting import ROWS, TOPOLOGY, TWO, Counts, converter, counts_of
from tests.simulation.delta_log import place_of
from tests.simulation.kinds import TABLE, Context, Counting, Wanted, settings_of
from tests.simulation.world import Process, WorldClock

NOTES, MANY = "memory://notes", "memory://many"
NOTED, OF_MANY = "n BIGINT, about STRING", "about STRING NOT NULL"
"""The columns of these tables."""


class Noted(Counts):
    """Counts, and forwards each count in the columns of other tables."""

    rows = "table"

    def process(self, record: Record) -> None:
        """The count, then a note; one more for a record with several rows."""
        super().process(record)
        if record.value is None:
            return
        key, rows = record.key or "none", record.value["n"]
        about = f"{key} {self.counts.get(key)}"
        self.context.forward(record.with_value({"n": rows, "about": about}), "notes")
        if rows > 1:
            self.context.forward(record.with_value({"about": about}), "many")


def build() -> Topology:
    made = Topology()
    made.add_source("orders", "orders")
    made.add_processor("counts", Noted, "orders")
    made.add_state_store(Stores.key_value("counts"), "counts")
    made.add_sink("table", "counts")
    made.add_sink("notes", "counts", table="notes")
    made.add_sink("many", "counts", table="many")
    return made


class Filling(Counting):
    """Tasks that fill three tables, some by files that wait for Spark."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        rng = context.world.rng
        notes = {"columns": NOTED, "load": rng.choice(["auto", "append"]), "partition_by": rng.choice([[], ["n"]])}
        many = {"columns": OF_MANY, "load": rng.choice(["auto", "append"])}
        routes = {"notes": NOTES, "many": MANY}
        self.settings = settings_of(**TOPOLOGY, routes=routes, route_tables={"notes": notes, "many": many})

    def converter(self, process: Process) -> Converter:
        del process
        return converter(self.stream, WorldClock(self.context.world).wall_ms, build)

    def wanted(self, value: bytes | None) -> Wanted:
        """Rows as counted, and a note for each counted record."""
        (tables,) = super().wanted(value)
        return ({**tables, **({NOTES: 1} if value in ROWS else {}), **({MANY: 1} if value == TWO else {})},)

    def problems(self) -> Iterator[str]:
        """Impossible counts in any of the tables, and tables of another shape."""
        yield from super().problems()
        broker = self.context.broker
        wanted = counts_of((*broker.past, broker.logs), self.context.given_up.has)
        for url in (NOTES, MANY):
            for row in self.log.rows(url):
                place = place_of(row)
                key, counts, _ = wanted.get(place, ("", set(), set()))
                if place in wanted and row["about"] not in {f"{key} {count}" for count in counts}:
                    yield f"{place} is noted as {row['about']} in {url}, and is {key} {sorted(counts)}"
        yield from self._misshapen()

    def _misshapen(self) -> Iterator[str]:
        for url, columns, partition_by in self._declared():
            table = self.log.tables.get(url)
            if table is not None:
                names = schema_from_json(table.schema).names
                if (names, table.partition_by) != ((*parse_ddl(columns).names, *KAFKA_COLUMNS), partition_by):
                    yield f"{url} has the columns {names}, by {table.partition_by}"

    def _declared(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        own = self.stream
        yield TABLE, own.record.columns, own.layout.partition_by
        for route in own.routing.route_tables:
            table = own.at(own.routing.routes[route])
            yield table.table, table.record.columns, table.layout.partition_by
