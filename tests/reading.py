"""What tables hold, for tests about other things than reading: delta-rs reads a small one in milliseconds.

A read by Spark costs as much CPU as four loads. Spark reads where that is what a test is about.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder


def rows_of(url: str, storage_options: Mapping[str, object] | None = None, sql: str = "TRUE") -> list[dict[str, Any]]:
    """The rows of the Delta table at ``url`` of which a condition is true; ``storage_options`` are fsspec's."""
    return select(f"SELECT * FROM t WHERE {sql}", url, storage_options)  # noqa: S608 - of a test


def select(query: str, url: str, storage_options: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
    table = DeltaTable(url.replace("s3a://", "s3://"), storage_options=delta_rs_options(storage_options or {}))
    answer = QueryBuilder().register("t", table).execute(query).read_all()
    return list(pa.table(answer).to_pylist(maps_as_pydicts="strict"))


def offsets_of(
    url: str, partition: int | None = None, storage_options: Mapping[str, object] | None = None
) -> list[int]:
    """The Kafka offsets of a table's rows, or of one partition's, in order."""
    where = "TRUE" if partition is None else f"_kafka_partition = {partition}"
    return sorted(row["_kafka_offset"] for row in rows_of(url, storage_options, where))


def place_of(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["_kafka_topic"], row["_kafka_partition"], row["_kafka_offset"]


def delta_rs_options(options: Mapping[str, object]) -> dict[str, str] | None:
    if not options:
        return None
    client = options["client_kwargs"]
    assert isinstance(client, dict)
    return {
        "AWS_ACCESS_KEY_ID": str(options["key"]),
        "AWS_SECRET_ACCESS_KEY": str(options["secret"]),
        "AWS_ENDPOINT_URL": str(options["endpoint_url"]),
        "AWS_REGION": str(client["region_name"]),
        "AWS_ALLOW_HTTP": "true",
    }
