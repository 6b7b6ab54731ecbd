"""Templates of `route_table`: URLs with a place for a value of `route`."""

import re
from typing import Annotated

from pydantic import AfterValidator

from common.settings.catalog import require_location
from common.settings.refusing import refuse

VALUE = "{route}"
ROUTE_LIMIT = 100
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_IS_NAME = re.compile(NAME)
NAMES = "up to 100 letters, digits, '.', '_' and '-', beginning with a letter or digit"


def is_name(route: str) -> bool:
    """Whether a value of `route` can name a table's folder."""
    return _IS_NAME.fullmatch(route) is not None


def table_of(template: str, route: str) -> str:
    return template.replace(VALUE, route)


def require_template(url: str) -> str:
    """The template unchanged; raises ValueError for one that does not make a folder for each value."""
    _, _, location = url.rpartition("://")
    if url.count(VALUE) != 1 or VALUE in location.partition("/")[0]:
        refuse(f"does not have {VALUE} once, in a folder's name; write for example s3://lake/tables/{VALUE}")
    require_location(table_of(url, "x"))
    return url


RouteTemplate = Annotated[str, AfterValidator(require_template)]
