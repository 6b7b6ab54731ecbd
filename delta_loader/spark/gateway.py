"""PySpark's gateway to Delta's own classes, and the values that cross it.

Rule: lists cross as one JSON text and are parsed by Delta's own JSON mapper: three calls for 10,000 files.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from common.errors import TableError
from common.stage.data_files import delta_path
from common.tables.table_features import COMMITS_OF_A_CATALOG
from delta_loader.spark.session_conf import spark_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from common.stage.markers import StagedFile
    from delta_loader.plan.plan import TableShape

_ACTIONS = "org.apache.spark.sql.delta.actions."

_BY_PATH = "[DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED]"

CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
"""What Delta raises for a commit that conflicts. In Python, unlike in Java, none of them is a subclass of another."""

# The border to the JVM: objects behind it have no type that Python could know.
Java = Any  # type: ignore[explicit-any,unused-ignore]


class Gateway:
    """Delta's classes in one Spark session's JVM."""

    def __init__(self, spark: SparkSession) -> None:
        self.jvm: Java = spark.sparkContext._jvm  # noqa: SLF001 - PySpark's only way to Delta's transactions
        self.session: Java = spark._jsparkSession  # noqa: SLF001 - the same
        self.delta: Java = self.jvm.org.apache.spark.sql.delta
        self.none: Java = self.class_of("scala.Option").empty()
        self._converters = self.class_of("scala.jdk.javaapi.CollectionConverters")
        self._mapper = self.class_of("org.apache.spark.sql.delta.util.JsonUtils").mapper()

    def class_of(self, name: str) -> Java:
        """A class by its full name. With dots in Python, Java searches all jars for each package on the way to it."""
        return getattr(self.jvm, name)

    def log(self, url: str) -> Java:
        """Delta's log of a table.

        Reading a checkpoint needs the session of the calling thread, which only a thread that ran a query before has.
        """
        self.activate(self.session)
        return self.delta.DeltaLog.forTable(self.session, spark_url(url))

    def activate(self, session: Java) -> None:
        """Make a session this thread's active one."""
        sessions = getattr(self.class_of("org.apache.spark.sql.classic.SparkSession$"), "MODULE$")
        sessions.setActiveSession(session)

    def singleton(self, name: str) -> Java:
        """One of Delta's Scala objects."""
        return getattr(getattr(self.delta, f"{name}$"), "MODULE$")

    def scala(self, collection: Java) -> Java:
        """A Scala list of a Java one."""
        return self._converters.asScala(collection).toList()

    def java(self, collection: Java) -> Java:
        """A Java view of a Scala collection."""
        return self._converters.asJava(collection)

    def items(self, collection: Java) -> list[Java]:
        """The items of a Java collection.

        They are counted first. Python would ask until Java throws, for which PySpark then searches all jars many times;
        and it would take any other failure of the gateway for the end.
        """
        iterator = collection.iterator()
        return [iterator.next() for _ in range(collection.size())]

    def plain(self, value: Java) -> Java:
        """Texts, numbers, and lists and dicts of such, from a Scala or Java value, in one call."""
        return json.loads(str(self._mapper.writeValueAsString(value)))

    def properties(self, metadata: Java) -> dict[str, str]:
        """A table's properties."""
        return dict(self.plain(metadata.configuration()))

    def new_list(self) -> Java:
        """A Java list without items."""
        return self.class_of("java.util.ArrayList")()

    def some(self, value: Java) -> Java:
        """A Scala option of a value."""
        return self.class_of("scala.Some")(value)

    def texts(self, collection: Java) -> tuple[str, ...]:
        """The texts in a Scala collection."""
        return tuple(self.plain(collection))

    def adds(self, files: Iterable[StagedFile], now_ms: int) -> Java:
        """A Java list of AddFile actions."""
        return self.parse(
            "AddFile",
            [
                {
                    "path": delta_path(file.path),
                    "partitionValues": dict(file.partition_values or {}),
                    "size": file.size_bytes,
                    "modificationTime": now_ms,
                    "dataChange": True,
                    "stats": file.statistics,
                }
                for file in files
            ],
        )

    def parse(self, action: str, values: list[dict[str, object]]) -> Java:
        """A Java list of actions of one kind."""
        kind = self._mapper.getTypeFactory().constructCollectionType(
            self._class("java.util.ArrayList"), self._class(_ACTIONS + action)
        )
        return self._mapper.readValue(json.dumps(values), kind)

    def metadata(
        self, table_id: str, shape: TableShape, created_ms: int, properties: Mapping[str, str] | None = None
    ) -> Java:
        """Delta's metaData action for Parquet files of one shape."""
        content = {
            "id": table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": shape.schema,
            "partitionColumns": list(shape.partition_by),
            "configuration": dict(properties or {}),
            "createdTime": created_ms,
        }
        return self.delta.actions.Action.fromJson(json.dumps({"metaData": content}))

    def _class(self, name: str) -> Java:
        loader = self.class_of("java.lang.Thread").currentThread().getContextClassLoader()
        return self.class_of("java.lang.Class").forName(name, True, loader)  # noqa: FBT003 - Java knows no keywords


@contextmanager
def table_errors(verb: str, url: str, remedy: str) -> Iterator[None]:
    """Convert exceptions of Spark and its gateway to a TableError with the failed action and the table."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        problem = first_line(error)
        if _BY_PATH in problem:
            problem, remedy = COMMITS_OF_A_CATALOG
        msg = f"cannot {verb} the Delta table {url}: {problem}"
        raise TableError(msg, remedy) from error


def first_line(error: Exception) -> str:
    """The Java exception's own sentence, without the gateway's."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else str(error)
    return text.strip().splitlines()[0][:500] if text.strip() else type(error).__name__
