"""Checks across the sections of a stream's settings; each section, and the stream itself, checks what is its own."""

from common.settings.checks.columns import check_columns
from common.settings.checks.columns_from import check_columns_from, check_evolving
from common.settings.checks.merge import check_envelope, check_merge
from common.settings.checks.tables import (
    check_catalog_tables,
    check_own_columns,
    check_route_tables,
    check_routes,
    check_template,
)
from common.settings.checks.topology import check_topology
from common.settings.stream import Stream


def checked(stream: Stream) -> Stream:
    """The stream unchanged; raises ValueError for settings that contradict each other."""
    check_evolving(stream)
    check_columns_from(stream)
    if stream.record.columns_from is None:
        check_columns(stream)
    check_topology(stream)
    check_envelope(stream)
    check_catalog_tables(stream)
    check_routes(stream)
    check_merge(stream)
    check_route_tables(stream)
    check_template(stream)
    check_own_columns(stream)
    return stream
