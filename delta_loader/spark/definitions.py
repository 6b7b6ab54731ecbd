"""Creates tables and changes their columns, types, features and properties, through Spark.

Rule: each change is a commit that does nothing else.
"""

import uuid
from collections.abc import Iterable, Sequence
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from common.ports import Clock
from common.schema import nullable_columns, quote_text, schema_from_json, schema_to_json
from common.schema.evolution import Addition
from common.schema.types import DataType, Primitive, uses
from delta_loader.plan.plan import TableShape
from delta_loader.spark.bridge import Bridge, metadata_line, sql_table, table_errors
from delta_loader.tables.load_modes.casting import Widening
from delta_loader.tables.load_modes.layout import Layout, Template

REMEDY = "check the table, the store and Spark's rights to it; the log has more"
_TYPE_WIDENING = "delta.enableTypeWidening"
_TIMESTAMP_NTZ = "timestampNtz"
_CLUSTERING = "delta.feature.clustering"

_errors = partial(table_errors, remedy=REMEDY)


class TableDefinitions:
    """The part of `delta_loader.ports.DeltaTables` that creates and alters tables, over one Spark session."""

    def __init__(self, spark: SparkSession, clock: Clock) -> None:
        self._spark = spark
        self._clock = clock
        self._bridge = Bridge(spark)

    def make(self, url: str, shape: TableShape, layout: Layout, *, nullable: bool) -> None:
        if nullable:
            columns = schema_to_json(nullable_columns(schema_from_json(shape.schema)))
            shape = TableShape(columns, shape.partition_by)
        # CREATE TABLE would refuse the folder: it already contains staged files.
        properties = {**layout.properties, **({_CLUSTERING: "supported"} if layout.cluster_by else {})}
        metadata = metadata_line(str(uuid.uuid4()), shape, self._clock.wall_ms(), properties)
        with _errors("create", url):
            try:
                self._bridge.create(url, metadata, layout.cluster_by)
            except (Py4JError, PySparkException):
                if self._bridge.state(url) is None:  # Otherwise another loader was faster.
                    raise

    def template(self, url: str) -> Template | None:
        with _errors("read", url):
            state = self._bridge.state(url)
            return None if state is None else Template(state, self._bridge.clustered_by(url))

    def add_columns(self, url: str, added: Sequence[Addition]) -> None:
        columns = ", ".join(map(str, added))
        with _errors("add columns to", url):
            self._support(url, [addition.type for addition in added])
            self._spark.sql(f"ALTER TABLE {sql_table(url)} ADD COLUMNS ({columns})")

    def set_property(self, url: str, key: str, value: str) -> None:
        with _errors("set a property of", url):
            given = f"{quote_text(key)} = {quote_text(value)}"
            self._spark.sql(f"ALTER TABLE {sql_table(url)} SET TBLPROPERTIES ({given})")

    def widen(self, url: str, widening: Widening) -> None:
        """Give a column a wider type, enabling the table's type widening. Raises TableError."""
        table = f"ALTER TABLE {sql_table(url)}"
        with _errors("widen a column of", url):
            state = self._bridge.state(url)
            if state is None or state.properties.get(_TYPE_WIDENING) != "true":
                self._spark.sql(f"{table} SET TBLPROPERTIES ('{_TYPE_WIDENING}' = 'true')")
            self._support(url, [widening.type])
            self._spark.sql(f"{table} ALTER COLUMN {widening}")

    def _support(self, url: str, types: Iterable[DataType]) -> None:
        """Enable the feature that Delta requires to add a TIMESTAMP_NTZ to an existing table."""
        if any(uses(data_type, Primitive.TIMESTAMP_NTZ) for data_type in types):
            state = self._bridge.state(url)
            if state is None or _TIMESTAMP_NTZ not in state.features:
                self.set_property(url, f"delta.feature.{_TIMESTAMP_NTZ}", "supported")
