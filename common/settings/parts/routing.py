"""The part of a stream's settings that says which of its tables a row goes to."""

from pydantic import Field

from common.settings.route_tables import Routes, RouteTable, TableOrUrl
from common.settings.route_template import ROUTE_LIMIT, RouteTemplate
from common.settings.section import SectionPart


class RoutingSettings(SectionPart):
    """The tables for rows in addition to the main one, and what goes there."""

    route: str | None = Field(
        default=None,
        description="Which of `routes` a record takes: one SQL expression over the record's fields and `kafka.*`, or a "
        "field's name. Text is one route; an array of texts gives the record to each of them. See "
        "[routing.md](routing.md).",
        examples=["kind", "regexp_extract(kafka.topic, '^shop-([a-z]+)', 1)"],
    )
    route_settings: Routes = Field(
        default_factory=dict,
        alias="routes",
        description="Values of `route`, and the table for such records: its URL, for a table like the stream's, or a "
        "section with its own columns and layout. Two values may share a table. See [routing.md](routing.md).",
        examples=[{"click": "s3://lake/tables/clicks"}],
    )
    route_table: RouteTemplate | None = Field(
        default=None,
        description="A URL with `{route}` in it, for values of `route` that are not in `routes`: a table like the main "
        "one appears with the first record of each. See [routing.md](routing.md#tables-that-appear).",
        examples=["s3://lake/tables/{route}"],
    )
    route_limit: int = Field(
        default=ROUTE_LIMIT,
        gt=0,
        le=10_000,
        description="How many tables may appear by `route_table`; records with other values are then `unrouted`.",
    )
    route_tables: dict[str, RouteTable] = Field(
        default_factory=dict,
        description="Sections as in `routes`, without the URLs: the form of earlier releases for a `topology`.",
        examples=[{"alerts": {"columns": "device STRING, day DATE, share DOUBLE", "partition_by": ["day"]}}],
    )
    other_tables: tuple[TableOrUrl, ...] = Field(
        default=(),
        alias="tables",
        description="Without `route`: several tables, each of which gets a row of every record. Each is a URL, for a "
        "table like the stream's, or a section. The first is the main table, unless `table` is given. See "
        "[routing.md](routing.md).",
        examples=[["s3://lake/tables/orders", "s3://archive/tables/orders"]],
    )
    unrouted: str = Field(
        default="table",
        pattern="^(table|dead_letters)$",
        description="Where records go if their route is null or not in `routes`: `table`, the main table, or "
        "`dead_letters`, with the error class `unrouted`.",
    )

    @property
    def routes(self) -> dict[str, str]:
        return {route: table.table for route, table in self.route_settings.items()}

    @property
    def sections(self) -> dict[str, tuple[str, RouteTable]]:
        """The tables with settings that differ from the stream's: their URL and settings, by the key of these."""
        sections: dict[str, tuple[str, RouteTable]] = {
            f"routes.{route}": (table.table, table) for route, table in self.route_settings.items() if table.given
        }
        routes = self.routes
        more = ((route, table) for route, table in self.route_tables.items() if route in routes)  # see checks
        sections |= {f"route_tables.{route}": (routes[route], table) for route, table in more}
        tables = enumerate(self.other_tables)
        return sections | {f"tables[{number}]": (table.table, table) for number, table in tables if table.given}
