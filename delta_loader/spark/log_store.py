"""Delta's log stores for S3 and for a local disk: chosen, and proved before anything is loaded.

Delta's own log stores for ``s3a`` and ``file`` check whether a commit file exists and then write it without a
condition, so one of two processes may overwrite the other's acknowledged commit. This product's (`delta_loader/java`)
create it by a conditional write (which needs no DynamoDB), or by a hard link.

Rules:

1. They are the default for their schemes. A log store that ``loader.spark`` names for a scheme is used as it is.
2. Some stores accept conditions and ignore them, or check first and write then. A second create through this very class
   and S3A must therefore be refused, in sequence, in a race, and as a multipart upload; otherwise the loader does not
   start.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from common.errors import StoreError, StoreRefusedError, UnsafeStoreError
from delta_loader.ports import OpenStore

CLASS = "io.github.kafkadeltaexpress.ConditionalCreateLogStore"
LOCAL_CLASS = "io.github.kafkadeltaexpress.LinkedLocalLogStore"
PROBES = "_probe"  # below a table; readers of tables and VACUUM ignore names with this prefix
S3_SCHEMES = ("s3", "s3a", "s3n")
LOCAL_SCHEME = "file"

_ANY_SCHEME = "spark.delta.logStore.class"
_RACERS = 4
_PERMANENT = ("AccessDeniedException", "UnknownStoreException")  # S3A's exceptions for rights and a missing bucket

# The border to the JVM: objects behind it have no type that Python could know.
Java = Any  # type: ignore[explicit-any,unused-ignore]


def is_s3(url: str) -> bool:
    """Whether this is a URL of S3, as fsspec or as Spark spells it."""
    return url.partition("://")[0] in S3_SCHEMES


def is_ours(given: Mapping[str, str], scheme: str = "s3a") -> bool:
    """Whether tables of a scheme get this product's log store: unless ``loader.spark`` names one for it or for all."""
    ours = LOCAL_CLASS if scheme == LOCAL_SCHEME else CLASS
    return given.get(_key(scheme), ours) == ours and _ANY_SCHEME not in given


def log_store_options(given: Mapping[str, str]) -> dict[str, str]:
    """Spark's options for log stores; ``given`` is the content of ``loader.spark``."""
    # Delta refuses a session that names both one for all schemes and one for a scheme.
    if _ANY_SCHEME in given:
        return {}
    return {_key(LOCAL_SCHEME): LOCAL_CLASS, **{_key(scheme): CLASS for scheme in S3_SCHEMES}}


def prove_log_stores(spark: SparkSession, urls: Iterable[str], open_store: OpenStore) -> None:
    """Prove that each store of these tables, through S3A, refuses a second create; raises UnsafeStoreError if not.

    A log store that the user chose is not probed: it may be safe by other means, which no probe can show.
    """
    configuration = spark.sparkContext.getConf()
    given = {key: configuration.get(key) for key in (_ANY_SCHEME, _key("s3a")) if configuration.contains(key)}
    if not is_ours(given):
        return
    by_bucket = {url.partition("://")[2].partition("/")[0]: url.rstrip("/") for url in urls if is_s3(url)}
    for url in by_bucket.values():
        store, folder = open_store(url), f"{PROBES}/{uuid.uuid4().hex}"
        probes = Probes(spark.sparkContext, "s3a://" + url.partition("://")[2] + f"/{folder}")
        try:
            allowed = list(_allowed(probes))
        finally:
            # S3A would leave an empty object in place of the folder.
            store.delete([f"{folder}/{name}" for name in probes.names])
        if allowed:
            msg = (
                f"two loaders could write the same commit of {url}: the store accepts a second"
                f" create of an object from Spark's S3 client ({', '.join(allowed)})"
            )
            raise UnsafeStoreError(
                msg,
                "use a store that honors If-None-Match on PUT and CompleteMultipartUpload (AWS S3, MinIO, versitygw);"
                " or set spark.delta.logStore.s3a.impl in loader.spark to a log store that is safe by other means",
            )


def _key(scheme: str) -> str:
    return f"spark.delta.logStore.{scheme}.impl"


@dataclass(frozen=True)
class Probes:
    """Creates objects below a folder through the log store; returns True if created, False if refused."""

    context: Any  # type: ignore[explicit-any,unused-ignore]
    folder: str
    names: tuple[str, ...] = ("plain", "race", "parts")

    def create(self, name: str, content: str) -> bool:
        jvm = self.context._jvm  # noqa: SLF001 - PySpark's only way to a class of ours
        lines = jvm.java.util.ArrayList()
        lines.add(content)
        store, path, configuration = self._parts(name)
        return self._outcome(lambda: store.write(path, lines.iterator(), False, configuration))  # noqa: FBT003

    def create_in_parts(self, name: str, content: str) -> bool:
        """Create as a commit larger than S3A's part size is written."""
        store, path, configuration = self._parts(name)
        return self._outcome(lambda: store.createInParts(path, content, configuration))

    def _parts(self, name: str) -> tuple[Java, Java, Java]:
        jvm = self.context._jvm  # noqa: SLF001
        configuration = self.context._jsc.hadoopConfiguration()  # noqa: SLF001
        store = jvm.io.github.kafkadeltaexpress.ConditionalCreateLogStore(configuration)
        return store, jvm.org.apache.hadoop.fs.Path(f"{self.folder}/{name}"), configuration

    def _outcome(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except (Py4JError, PySparkException) as error:
            text = _java_text(error)
            if text.startswith("java.nio.file.FileAlreadyExistsException"):
                return False
            msg = f"Spark cannot create {self.folder}/…: {text}"
            kind = StoreRefusedError if any(name in text for name in _PERMANENT) else StoreError
            region = ", and its region (client_kwargs: {region_name: …}, or AWS_REGION)" if "region" in text else ""
            remedy = f"check the network path and Spark's rights to the table's store: stage.storage_options{region}"
            raise kind(msg, remedy) from error
        return True


def _allowed(probes: Probes) -> Iterator[str]:
    """The ways in which two creates of one object both succeeded."""
    if all([probes.create("plain", "first"), probes.create("plain", "second")]):
        yield "one after the other"
    with ThreadPoolExecutor(_RACERS) as pool:
        won = sum(pool.map(lambda number: probes.create("race", f"racer {number}"), range(_RACERS)))
    if won != 1:
        yield f"{won} of {_RACERS} at the same time"
    if all([probes.create_in_parts("parts", "first"), probes.create_in_parts("parts", "second")]):
        yield "as multipart uploads"


def _java_text(error: Exception) -> str:
    java = error.java_exception if isinstance(error, Py4JJavaError) else None
    return str(java.toString() if java is not None else error).strip().partition("\n")[0][:500]
