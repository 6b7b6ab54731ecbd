"""The Spark session of tests that load in their own process."""

from pathlib import Path

from pyspark.sql import SparkSession

from common.settings.model import Settings
from delta_loader.spark.bridge import STATE_PARTITIONS
from delta_loader.spark.session import build_session, s3_options
from devservices.s3 import S3Server

SMALL_TABLES = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    "spark.databricks.delta.snapshotCache.storageLevel": "MEMORY_ONLY",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.shuffle.partitions": "1",
    STATE_PARTITIONS: "1",
}
"""Tables of tests have a few rows: what Spark compiles, plans again, checks and describes for each query, tasks without
rows, and lists of a table's files in each checksum are most of its CPU. The loaders of images, and one of
test_loader_command.py, have Spark's values."""

# Spark's own choice renames the file of each commit's checksum by way of Hadoop's FileContext, which starts four
# processes of `readlink` for it on a disk. Loaders that are processes do.
_CHECKSUM_FILES = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def session_of_tests(folder: Path) -> SparkSession:
    """The loader's own session, for small tables; the running one, where there is one."""
    settings = Settings.model_validate(
        {
            "kafka": {"bootstrap.servers": "127.0.0.1:9"},
            # An S3 URL, so that the session has S3's jars whichever test comes first.
            "stage": {"url": "s3://nowhere/stage"},
            "loader": {
                "spark": {
                    "spark.master": "local[2]",
                    "spark.driver.memory": "1g",
                    "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
                    **SMALL_TABLES,
                    _CHECKSUM_FILES: _BY_FILE_SYSTEM,
                }
            },
            "streams": [{"app_id": "tests", "topics": ["none"], "table": "s3://nowhere/table", "columns": "id INT"}],
        }
    )
    return build_session(settings)


def reach(spark: SparkSession, server: S3Server, bucket: str) -> None:
    """Give a running session the way to one more bucket."""
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    for key, value in s3_options(server.storage_options, {}).items():
        configuration.set(key.removeprefix("spark.hadoop.").replace("fs.s3a.", f"fs.s3a.bucket.{bucket}."), value)
