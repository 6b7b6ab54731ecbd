"""A stream that uses every transform, as a user runs it: the rows that a plain reading says, and all accounted for."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from devservices.kafka import KafkaCluster
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.integration.test_replay import STARTED_MS, Pipeline
from tests.reading import rows_of

pytestmark = [pytest.mark.broker, pytest.mark.spark]

COUNT = 300
STREAM = {
    "columns": "id BIGINT, kind STRING, sent STRING, n STRING, city STRING, "
    "meta STRUCT<kafka: STRUCT<offset: BIGINT>>, items ARRAY<STRUCT<sku: STRING, priceCents: INT, note: STRING>>",
    "jmespath": {"meta.kafka.offset": "kafka.offset", "city": "address.city"},
    "where": "kind = 'order'",
    "derive": {"day": "substr(sent, 1, 10)", "number": "CAST(n AS BIGINT)"},
    "explode": "items",
    "drop": ["kind", "sent", "n", "items.note"],
    "rename": {"id": "order_key"},
    "field_names": "snake_case",
    "partition_by": ["day"],
}
Values = tuple[object, ...]


def message(number: int) -> str | None:
    """Tombstones, records of another kind, those that fail, and orders with no to three items."""
    if number % 50 == 49:
        return None
    items = [{"sku": f"s{place}", "priceCents": 100 * place, "note": "x"} for place in range(number % 4)]
    record = {
        "id": number,
        "kind": "offer" if number % 5 == 0 else "order",
        "sent": f"2026-03-{number % 3 + 1:02d}T00:00:00Z",
        "n": "x" if number % 30 == 1 else str(number),
        "address": {"city": f"c{number % 7}"},
        "items": items if number % 8 else None,
    }
    return json.dumps(record) if number % 60 != 7 else "{"


def expected(offset: int, kinds: tuple[str, ...]) -> Iterator[Values]:
    """The rows of one offset; nothing of the program is used."""
    sent = message(offset)
    if sent is None or sent == "{":
        return
    record = json.loads(sent)
    if record["kind"] in kinds and record["n"] != "x":
        for item in record["items"] or [None]:
            yield (
                record["id"],
                record["address"]["city"],
                offset,
                None if item is None else (item["sku"], item["priceCents"]),
                record["sent"][:10],
                int(record["n"]),
            )


def loaded_rows(pipeline: Pipeline) -> dict[tuple[int, int], list[Values]]:
    rows = rows_of(f"{pipeline.folder}/orders")
    names = {"order_key", "city", "meta", "items", "day", "number"}
    assert {name for name in rows[0] if not name.startswith("_kafka_")} == names
    rows_of_record: dict[tuple[int, int], list[Values]] = {}
    for row in sorted(rows, key=lambda row: str(row["items"] and row["items"]["sku"])):
        item = row["items"] and (row["items"]["sku"], row["items"]["price_cents"])
        values = (row["order_key"], row["city"], row["meta"]["kafka"]["offset"], item, row["day"], row["number"])
        rows_of_record.setdefault((row["_kafka_partition"], row["_kafka_offset"]), []).append(values)
    return rows_of_record


def meant(*kinds: str) -> dict[tuple[int, int], list[Values]]:
    by_record = {(place, offset): list(expected(offset, kinds)) for place in (0, 1) for offset in range(COUNT)}
    return {place: rows for place, rows in by_record.items() if rows}


@pytest.fixture
def pipeline(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, spark: SparkSession, tmp_path: Path
) -> Pipeline:
    """Two partitions of the same messages, not staged yet."""
    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(COUNT):
        for partition in (0, 1):
            producer.produce(topic, message(number), partition=partition, timestamp=STARTED_MS + number * 1000)
    assert producer.flush(180) == 0
    return Pipeline(programs, spark, tmp_path, topic, kafka.bootstrap_servers)


def test_all_transforms_together_are_accounted_for_record_by_record(pipeline: Pipeline) -> None:
    config = pipeline.config("n", "sent", **STREAM)
    pipeline.programs.succeed("stage-writer", "run", config, "--until-caught-up")
    pipeline.load(config)
    orders, offers = meant("order"), meant("offer")
    assert loaded_rows(pipeline) == orders
    report = in_process.verify(config, pipeline.spark)
    assert (report.failure, report.faults, [partition.proved for partition in report.partitions]) == (
        None,
        (),
        [True, True],
    )
    assert {finding.kind for finding in report.findings} == {"all_in_tables"}
    filtered = sum(kind_of(offset) == "offer" for offset in range(COUNT))
    assert [partition.counted_filtered for partition in report.partitions] == [filtered, filtered]

    # Another condition for one of the partitions: what was left out comes, and what it leaves out goes.
    other = pipeline.config("n", "sent", **STREAM | {"where": "kind = 'offer'"})
    ask = ("replay", other, "--topic", pipeline.topic, "--partition", "0", "--from", "0", "--to", str(COUNT), "--yes")
    shown = pipeline.programs.succeed("stage-writer", *ask)
    assert f"{sum(kind_of(offset) == 'order' for offset in range(COUNT))} filtered" in shown
    assert pipeline.load(other).held == {}
    assert loaded_rows(pipeline) == {place: rows for place, rows in orders.items() if place[0]} | {
        place: rows for place, rows in offers.items() if not place[0]
    }
    report = in_process.verify(other, pipeline.spark)
    assert (report.failure, report.faults, [partition.proved for partition in report.partitions]) == (
        None,
        (),
        [True, True],
    )


def kind_of(offset: int) -> str | None:
    sent = message(offset)
    if sent is None or sent == "{":
        return None
    kind: str = json.loads(sent)["kind"]
    return kind
