"""`route_table` of a stream: a template for the tables of routes, which appear as values of `route` appear.

Rules:

1. A value that is not in `routes` becomes a route, with the table that the template makes of it, unless it cannot name
   a folder (`is_name`), or `route_limit` is reached (common/stage/appeared_routes.py). Its table is like the main one.
2. The routes that appeared are in the stage. Each program reads them and continues with `with_routes`: for all that
   follows, they are routes as if the config had named them.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from common.settings.route_tables import AppearedTable
from common.settings.route_template import table_of
from common.settings.stream import Stream


def with_routes(
    stream: Stream, routes: Iterable[str], keys: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> Stream:
    """The stream with the tables of the routes that have appeared (rule 2); unchanged without a template.

    ``keys`` are those of tables with keys of their own; keys in the settings win over them.
    """
    template = stream.routing.route_table
    if template is None:
        return stream
    known = stream.routing.route_settings
    own = keys if stream.record.has_own_columns else {}
    made = {
        route: AppearedTable(table=table_of(template, route), keys=own.get(route, ()))
        for route in routes
        if route not in known or isinstance(known[route], AppearedTable)
    }
    settings = {**known, **made}
    return stream.model_copy(update={"route_settings": settings}) if settings != known else stream
