"""The tables of a stream in addition to its main one: `routes`, `tables`, `route_tables` and `route_table`.

Rules:

1. A URL alone is a table like the main one. A section without ``columns`` changes only the settings that it gives.
2. A section with ``columns`` describes its table in full: it inherits nothing of the main table's columns, of what
   makes them (`derive`, `drop` and the like) and of its layout; missing settings have a stream's default.
3. Everything else (`where`, Kafka's columns, dead letters, evolution) is the stream's.
"""

import re
from enum import StrEnum
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from common.errors import SchemaError
from common.schema import parse_ddl
from common.settings.catalog import require_location
from common.settings.columns_from import names_source
from common.settings.formats import ValueFormat
from common.settings.section import Section, refuse
from common.settings.values import LoadSetting

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


LAYOUT = ("partition_by", "cluster_by", "table_properties", "template", "load")
"""A table's settings that do not concern its records, except for `z_order`."""
MAKING = ("derive", "explode", "drop", "rename", "field_names", "formats")
"""The settings that make a table's columns of a record's fields."""


class FieldNames(StrEnum):
    """The names that a table has for a record's fields."""

    AS_IS = "as_is"
    SNAKE_CASE = "snake_case"


def require_columns(value: str) -> str:
    """The columns unchanged; raises ValueError for invalid ones."""
    try:
        parse_ddl(value)
    except SchemaError as error:
        raise ValueError(f"cannot be read: {error.problem}; {error.remedy}") from None
    return value


def require_map(routes: object) -> object:
    if isinstance(routes, str):
        msg = "is not a map; write routes: {value: table URL}, a line for each value, or route_table: URL with {route}"
        raise ValueError(msg)  # noqa: TRY004 - pydantic takes a ValueError for a refusal
    return routes


class RouteTable(Section):
    """The settings of one table."""

    columns: str | None = Field(
        default=None,
        min_length=1,
        description="Its columns and their types, as in Spark's `CREATE TABLE`: the section then inherits nothing of "
        "the stream's columns and layout. Without them it has the stream's, and only the settings given here differ.",
    )
    derive: dict[str, str] = Field(default_factory=dict, description="As the stream's `derive`; with `columns`.")
    explode: str | None = Field(default=None, min_length=1, description="As the stream's `explode`; with `columns`.")
    drop: tuple[str, ...] = Field(default=(), description="As the stream's `drop`; with `columns`.")
    rename: dict[str, str] = Field(default_factory=dict, description="As the stream's `rename`; with `columns`.")
    field_names: FieldNames = Field(
        default=FieldNames.AS_IS, description="As the stream's `field_names`; with `columns`."
    )
    formats: dict[str, ValueFormat] = Field(
        default_factory=dict, description="As the stream's `formats`; with `columns`."
    )
    partition_by: tuple[str, ...] = Field(default=(), description="Its partition columns, in order.")
    cluster_by: tuple[str, ...] = Field(default=(), description="As the stream's `cluster_by`.")
    table_properties: dict[str, str] = Field(default_factory=dict, description="As the stream's `table_properties`.")
    template: str | None = Field(default=None, min_length=1, description="As the stream's `template`.")
    load: LoadSetting = Field(default=LoadSetting.AUTO, description="As the stream's `load`; `merge` is refused.")
    z_order: tuple[str, ...] = Field(default=(), description="As the stream's `table_services.z_order`.")

    @field_validator("columns")
    @classmethod
    def _columns(cls, value: str | None) -> str | None:
        if value is not None and names_source(value):
            msg = (
                f"is {value.strip()}, which only a stream's columns can be; write this table's as in CREATE TABLE, or "
            )
            raise ValueError(msg + "leave them out: it then has the stream's")
        return None if value is None else require_columns(value)

    @property
    def given(self) -> frozenset[str]:
        """The settings that differ from the stream's (rules 1 and 2)."""
        if self.columns is not None:
            return frozenset(RouteTable.model_fields)
        return frozenset(self.model_fields_set.intersection(RouteTable.model_fields)) - {"columns"}

    @property
    def overrides(self) -> dict[str, object]:
        """The stream's settings, except for `table_services`, for this table."""
        overridden: dict[str, object] = {name: getattr(self, name) for name in (*LAYOUT, *MAKING) if name in self.given}
        return overridden if self.columns is None else {**overridden, "columns": self.columns, "jmespath": {}}

    @model_serializer(mode="wrap")
    def _as_given(self, serialized: SerializerFunctionWrapHandler) -> object:
        """Only what was given: by rule 1, a setting that is not given is not the same as its default."""
        values = serialized(self)
        return {name: value for name, value in values.items() if name in self.model_fields_set}


def _section(value: object) -> object:
    return {"table": value} if isinstance(value, str) else value


class OtherTable(RouteTable):
    """A table and its settings."""

    table: str = Field(description="URL of the Delta table, or its name where `catalog_tables` has it.")

    @model_serializer(mode="wrap")
    def _as_given(self, serialized: SerializerFunctionWrapHandler) -> object:
        if not self.given:
            return self.table
        return {name: value for name, value in serialized(self).items() if name in self.model_fields_set}


class AppearedTable(OtherTable):
    """The table of a route that has appeared: no setting of a config, but what its writers have agreed on."""

    keys: tuple[str, ...] = ()
    """Its key columns, where it has keys of its own and the settings do not name them."""


TableOrUrl = Annotated[OtherTable, BeforeValidator(_section, json_schema_input_type=str | OtherTable)]

Routes = Annotated[dict[str, TableOrUrl], BeforeValidator(require_map)]
