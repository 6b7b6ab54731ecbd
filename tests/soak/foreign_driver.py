"""A customer's Spark driver: maintains and changes a table in a loop, independently of the loader.

``python -m tests.soak.foreign_driver TABLE STOP`` prints ``ready``, then a JSON line for each of its commits, until the
file STOP exists. Statements that conflict with another commit are retried, as users do.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import typer
from pyspark.sql import SparkSession

from common.settings import Settings
from delta_loader.spark.bridge import CONFLICTS
from delta_loader.spark.session import build_session

_COLUMNS_AT_MOST = 20


def main() -> None:
    """Work until the file exists."""
    url, stop = sys.argv[1], Path(sys.argv[2])
    spark = build_session(_settings(url))
    spark.sql(f"DESCRIBE HISTORY delta.`{url}`").collect()
    typer.echo("ready")
    for deed, sentence, deleted_to in _deeds(spark, f"delta.`{url}`"):
        if stop.exists():
            break
        began_s, conflicts = time.monotonic(), 0
        while not stop.exists():
            try:
                spark.sql(sentence).collect()
            except CONFLICTS:
                conflicts += 1
            else:
                seconds = round(time.monotonic() - began_s, 3)
                report = {"deed": deed, "seconds": seconds, "conflicts": conflicts, "deleted_to": deleted_to}
                typer.echo(json.dumps(report))
                break
    spark.stop()


def _deeds(spark: SparkSession, table: str) -> Iterator[tuple[str, str, int]]:
    """The statements in turn, each with the offset of partition 0 up to which rows are deleted by then."""
    deleted_to = number = 0
    while True:
        number += 1
        yield "OPTIMIZE", f"OPTIMIZE {table}", deleted_to
        source = f"SELECT id * 70 + {number % 7 * 10} AS id FROM range(5000)"  # noqa: S608
        merge = f"MERGE INTO {table} t USING ({source}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = '{number}'"
        yield "MERGE", merge, deleted_to
        properties = f"ALTER TABLE {table} SET TBLPROPERTIES ('customers.turn' = '{number}')"
        yield "SET TBLPROPERTIES", properties, deleted_to
        # All offsets below half of the loaded ones are loaded, so the remaining rows are known.
        highest = spark.sql(f"SELECT max(_kafka_offset) FROM {table} WHERE _kafka_partition = 0").collect()[0][0]  # noqa: S608
        to = max(deleted_to, (highest or 0) // 2)
        yield "DELETE", f"DELETE FROM {table} WHERE _kafka_partition = 0 AND _kafka_offset < {to}", to  # noqa: S608
        deleted_to = to
        if number <= _COLUMNS_AT_MOST:
            yield "ADD COLUMNS", f"ALTER TABLE {table} ADD COLUMNS (more{number} INT)", deleted_to


def _settings(url: str) -> Settings:
    spark = {"spark.master": "local[2]", "spark.driver.memory": "800m"}
    return Settings.model_validate(
        {
            "kafka": {"bootstrap.servers": "127.0.0.1:9"},
            "stage": {"url": "memory://none"},
            "loader": {"spark": spark},
            "streams": [{"app_id": "customer", "topics": ["none"], "table": url, "columns": "id INT"}],
        }
    )


if __name__ == "__main__":
    main()
