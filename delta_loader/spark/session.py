"""The loader's Spark session, and its settings for object stores.

Rules:

1. Jars come from the lock (`delta_loader.spark.jars`) and from our sources (`delta_loader.spark.bridge_jar`), as files:
   no resolver runs at start-up.
2. Spark reaches S3 with the same settings as fsspec: ``fs.s3a.*`` is derived from ``stage.storage_options``.
3. The user's ``loader.spark`` overrides everything here, except ``spark.jars``, which is added to the session's jars.
4. On S3 and on a local disk, Delta's log is written by the log stores of `delta_loader.spark.log_store`, which are safe
   with several drivers.
5. Secrets are passed to Java once it runs, and are not on its command line (`delta_loader.spark.launch`).
6. A local session listens on the loopback address only, shows no progress bars and no UI, and logs errors only.
"""

import os
import pwd
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from common.errors import ConfigError, TableError
from common.json_value import members_of
from common.settings import Settings
from delta_loader.spark.bridge import (
    LOCAL_STATE_PARTITIONS,
    MOST_TRANSACTIONS,
    STATE_PARTITIONS,
    TRANSACTIONS_IN_CHECKSUM,
)
from delta_loader.spark.bridge_jar import ensure_bridge_jar
from delta_loader.spark.jars import ensure_jars
from delta_loader.spark.launch import launch_options, start_java
from delta_loader.spark.log_store import is_s3, log_store_options
from delta_loader.spark.native_codecs import codec_options
from delta_loader.spark.pairs import JarGroup
from delta_loader.spark.trust import authorities_of, trust

_S3A = "spark.hadoop.fs.s3a."
_CREDENTIALS = "org.apache.hadoop.fs.s3a."
_DEFAULT_CHAIN = ",".join(
    (
        f"{_CREDENTIALS}TemporaryAWSCredentialsProvider",
        f"{_CREDENTIALS}SimpleAWSCredentialsProvider",
        "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
    )
)
# The default is 10,000 tasks, regardless of the size of the listing: twice in each VACUUM, which then takes a minute or
# more.
_LOCAL_LISTING_TASKS = "16"
# A local executor is in the driver's own process, and its heartbeats carry no information. They start before the driver
# can take them, and where Spark takes ten seconds to start, it logs an error that is harmless.
_LOCAL_HEARTBEATS = {"spark.executor.heartbeatInterval": "100s", "spark.storage.blockManagerHeartbeatTimeoutMs": "1h"}


def build_session(settings: Settings) -> SparkSession:
    """Start Spark. Raises DownloadError, BuildError or TableError."""
    groups = jar_groups(settings)
    jars = [*ensure_jars(groups), ensure_bridge_jar()]
    options = session_options(settings, jars, os.environ, codec_options())
    builder = SparkSession.builder
    for key, value in options.items():
        builder = builder.config(key, value)
    authorities = authorities_of(settings.stage.storage_options, os.environ) if "s3" in groups else None
    try:
        with launch_options(options, settings.references.texts) as launched:
            start_java(SparkConf(loadDefaults=False).setAll(list(launched.items())))
        if authorities is not None:
            trust(SparkContext._gateway, authorities)  # noqa: SLF001 - PySpark's own way to Java
        spark = builder.getOrCreate()
    except ConfigError:
        raise
    except Exception as error:
        # PySpark raises its own RuntimeErrors, Java's exceptions, and those of its subprocess.
        raise TableError(f"Spark does not start: {error}", start_remedy(os.getuid())) from error
    return spark


def start_remedy(uid: int) -> str:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return (
            f"user {uid} has no entry in /etc/passwd, so Java knows neither its name nor its home: add one;"
            " the images' entrypoint does that for a user that the cluster assigns"
        )
    return "check that Java 17 or later is installed, and the settings in loader.spark"


def jar_groups(settings: Settings) -> list[JarGroup]:
    urls = [settings.stage.url, *(url for stream in settings.streams for url in stream.tables)]
    return ["delta", "s3"] if any(map(is_s3, urls)) else ["delta"]


def session_options(
    settings: Settings, jars: Sequence[Path], environ: Mapping[str, str], java_options: Sequence[str] = ()
) -> dict[str, str]:
    """All options that Spark starts with; ``environ`` is used where fsspec's S3 client uses it."""
    given = {key: _text(value) for key, value in settings.loader.spark.items() if value is not None}
    master = given.get("spark.master", "local[*]")
    log_configuration = resources.files("delta_loader.spark") / "log4j2.properties"
    options = {
        "spark.app.name": "delta-loader",
        "spark.master": master,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.variable.substitute": "false",  # names, and tables' checks, are texts that others wrote
        # Spark's default, INT96, has nanoseconds for Arrow: a year such as 9999 is another one there, or not readable.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        TRANSACTIONS_IN_CHECKSUM: MOST_TRANSACTIONS,
        "spark.ui.enabled": "false",
        "spark.scheduler.mode": "FAIR",  # a pool per stream, so a long job of one leaves cores to the others
        "spark.ui.showConsoleProgress": "false",
        # Not extraJavaOptions, which are reserved for the user.
        "spark.driver.defaultJavaOptions": " ".join(
            (f"-Dlog4j2.configurationFile={log_configuration}", "-Duser.timezone=UTC", *java_options)
        ),
        **s3_options(settings.stage.storage_options, environ),
        **log_store_options(given),
    }
    if master.startswith("local"):
        options |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            **({} if "spark.network.timeout" in given else _LOCAL_HEARTBEATS),
            "spark.sql.shuffle.partitions": LOCAL_STATE_PARTITIONS,
            STATE_PARTITIONS: LOCAL_STATE_PARTITIONS,
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": _LOCAL_LISTING_TASKS,
        }
    all_jars = [*(jar.as_uri() for jar in jars), *filter(None, given.get("spark.jars", "").split(","))]
    return {**options, **given, "spark.jars": ",".join(all_jars)}


def s3_options(storage_options: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, str]:
    """S3A's settings for fsspec's (s3fs) storage options, and for what its client reads from the environment."""
    client = members_of(storage_options.get("client_kwargs"))
    config = members_of(storage_options.get("config_kwargs"))
    endpoint = storage_options.get("endpoint_url") or client.get("endpoint_url")
    endpoint = endpoint or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    region = client.get("region_name") or config.get("region_name")
    region = region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    region = region or ("us-east-1" if endpoint else None)
    options_given = {
        "access.key": storage_options.get("key") or storage_options.get("username"),
        "secret.key": storage_options.get("secret") or storage_options.get("password"),
        "session.token": storage_options.get("token"),
        "endpoint": endpoint,
        "endpoint.region": region,
    }
    options = {f"{_S3A}{key}": _text(value) for key, value in options_given.items() if value is not None}
    if endpoint:
        style = members_of(config.get("s3")).get("addressing_style", "path")
        options[f"{_S3A}path.style.access"] = _text(style != "virtual")
        options[f"{_S3A}connection.ssl.enabled"] = _text(not str(endpoint).startswith("http://"))
    if storage_options.get("anon"):
        options[f"{_S3A}aws.credentials.provider"] = f"{_CREDENTIALS}AnonymousAWSCredentialsProvider"
    elif storage_options.get("profile"):
        options[f"{_S3A}aws.credentials.provider"] = f"{_CREDENTIALS}auth.ProfileAWSCredentialsProvider"
        options[f"{_S3A}auth.profile.name"] = _text(storage_options["profile"])
    else:
        # S3A's own chain lacks profiles and web identities, which fsspec's client supports.
        options[f"{_S3A}aws.credentials.provider"] = _DEFAULT_CHAIN
    # Tables are opened as s3a:// here; this is for names in a user's own SQL or a catalog.
    options["spark.hadoop.fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    options["spark.hadoop.fs.AbstractFileSystem.s3.impl"] = "org.apache.hadoop.fs.s3a.S3A"
    return options


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
