"""Spark's catalogs: `delta_loader.catalog.registering.Catalog` over the session's, by Spark's own SQL.

A name of two parts is in the session's default catalog, `spark_catalog` unless ``loader.spark`` says otherwise.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from common.errors import ConfigError, TableError
from common.schema import backticks, quote_text
from delta_loader.catalog.registering import Entry, UnknownCatalogError
from delta_loader.spark.bridge import first_line

_PARTS_WITH_CATALOG = 3
_FACTS = "# Detailed Table Information"


class SparkCatalog:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def entry(self, name: str) -> Entry | None:
        self._require_catalog(name)
        schema, _, _ = name.rpartition(".")
        with _errors("look up", name):
            if not self._spark.catalog.databaseExists(_quoted(schema)):
                msg = f"{name} cannot be created: the catalog has no schema {schema}"
                raise ConfigError(msg, f"create it, CREATE SCHEMA {schema}, or correct streams[].catalog_tables")
            if not self._spark.catalog.tableExists(_quoted(name)):
                return None
            rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {_quoted(name)}").collect()
        facts = [(str(row[0]), str(row[1])) for row in rows]
        begin = next((index for index, (key, _) in enumerate(facts) if key == _FACTS), 0)
        described = dict(facts[begin:])
        return Entry(described.get("Type", ""), described.get("Provider", ""), described.get("Location", ""))

    def register(self, name: str, url: str) -> None:
        with _errors("register", name):
            # Columns, partitioning and properties are those of the existing table.
            self._spark.sql(f"CREATE TABLE IF NOT EXISTS {_quoted(name)} USING delta LOCATION {quote_text(url)}")

    def _require_catalog(self, name: str) -> None:
        parts = name.split(".")
        key = f"spark.sql.catalog.{parts[0]}"
        known = len(parts) < _PARTS_WITH_CATALOG or parts[0] == "spark_catalog"
        if not known and self._spark.conf.get(key, None) is None:
            msg = f"Spark does not know {parts[0]}, the catalog of {name}"
            raise UnknownCatalogError(msg, f"configure it in loader.spark: {key}, and {key}.uri; or correct the name")


def _settings_of(name: str) -> str:
    catalog = name.partition(".")[0] if name.count(".") + 1 == _PARTS_WITH_CATALOG else "spark_catalog"
    return f"spark.sql.catalog.{catalog} and its sub-keys (.uri, .token)"


def _quoted(name: str) -> str:
    return ".".join(map(backticks, name.split(".")))


@contextmanager
def _errors(verb: str, name: str) -> Iterator[None]:
    try:
        yield
    except (Py4JError, PySparkException) as error:
        msg = f"cannot {verb} {name} in its catalog: {first_line(error)}"
        raise TableError(msg, f"check the catalog, and its settings in loader.spark: {_settings_of(name)}") from error
