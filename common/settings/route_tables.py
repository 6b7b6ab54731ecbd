"""`route_tables` of a stream: settings of a topology's tables that differ from the stream's.

Rule: such a table inherits nothing of the main table's columns and layout: missing settings have a stream's default.
Everything else (places, dead letters, Kafka's columns, evolution) is the stream's.
"""

from __future__ import annotations

from pydantic import Field, field_validator

from common.errors import SchemaError
from common.schema import parse_ddl
from common.settings.loading import LoadSetting
from common.settings.section import Section


def require_columns(value: str) -> str:
    """The columns unchanged; raises ValueError for invalid ones."""
    try:
        parse_ddl(value)
    except SchemaError as error:
        msg = f"cannot be read: {error.problem}; {error.remedy}"
        raise ValueError(msg) from None
    return value


class RouteTable(Section):
    """The table of a route."""

    columns: str = Field(min_length=1, description="Its columns and their types, as in Spark's `CREATE TABLE`.")
    partition_by: tuple[str, ...] = Field(default=(), description="Its partition columns, in order.")
    cluster_by: tuple[str, ...] = Field(default=(), description="As the stream's `cluster_by`.")
    table_properties: dict[str, str] = Field(default_factory=dict, description="As the stream's `table_properties`.")
    template: str | None = Field(default=None, min_length=1, description="As the stream's `template`.")
    load: LoadSetting = Field(default=LoadSetting.AUTO, description="As the stream's `load`; `merge` is refused.")
    z_order: tuple[str, ...] = Field(default=(), description="As the stream's `table_services.z_order`.")

    @field_validator("columns")
    @classmethod
    def _columns(cls, value: str) -> str:
        return require_columns(value)
