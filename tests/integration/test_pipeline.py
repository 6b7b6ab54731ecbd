"""The whole way, as users run it: processes that are killed, and a verifier that shares no code with them."""

import base64
import json
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from common.storage.store import FsspecStore
from common.tables.delta_log import read_table_state
from devservices.kafka import KafkaCluster
from devservices.processes import Child
from tests.builders import pipeline_config
from tests.conftest import Lake
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.integration.test_on_marker import Service
from tests.verifier import (
    GOOD,
    Row,
    Sent,
    decode_base64,
    delta_rs_reader,
    duckdb_reader,
    order_faults,
    parse,
    read_growth,
    read_kafka,
    spark_reader,
    verify,
)
from tests.waiting import until

PARTITIONS = 4
COLUMNS = (
    "id BIGINT, small SMALLINT, name STRING, amount DECIMAL(20, 4), price DOUBLE, flag BOOLEAN, day DATE, "
    "at TIMESTAMP, local TIMESTAMP_NTZ, blob BINARY, tags ARRAY<STRING>, labels MAP<STRING, BIGINT>, "
    "nested STRUCT<a: INT, b: STRUCT<c: STRING>>"
)
PLACES = [None, "", "a/b", "k=v", "100%", "two words", "北京", "Škoda", "..", "#?&+"]
BAD_VALUES = {
    b"bad:not_exact": b'{"id": 1.5}',
    b"bad:wrong_type": b'{"id": "7"}',
    b"bad:out_of_range": b'{"small": 40000}',
    b"bad:invalid_json": b'{"id": 1} {"id": 2}',
    b"bad:invalid_utf8": b'{"name": "\xff"}',
    b"bad:empty": b"",
    b"bad:duplicate_field": b'{"id": 1, "id": 2}',
    b"bad:not_an_object": b"[1, 2]",
}


def settings(kafka: KafkaCluster, lake: Lake, topic: str) -> dict[str, object]:
    return pipeline_config(
        kafka.bootstrap_servers,
        lake,
        {
            "app_id": "orders",
            "topics": [topic],
            "table": f"{lake.url}/tables/orders",
            "columns": COLUMNS,
            "derive": {"place": "name"},
            "partition_by": ["place"],
        },
        kafka={"session.timeout.ms": 6000},
        writer={"flush_after": "2s", "flush_records": 1000},
        loader={"schedule": "3s", "marker_retention": 0},
    )


def record(number: int, rng: random.Random) -> dict[str, object]:
    moment = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(microseconds=rng.randrange(10**13))
    return {
        "id": rng.randrange(-(2**63), 2**63),
        "small": rng.randrange(-(2**15), 2**15),
        "name": rng.choice(PLACES),
        "amount": str(Decimal(rng.randrange(-(10**20), 10**20)).scaleb(-4)),
        "price": rng.choice([0.1, -1e300, 5e-324, 3, number / 7]),
        "flag": rng.choice([True, False, None]),
        "day": (date(1, 1, 1) + timedelta(days=rng.randrange(3_000_000))).isoformat(),
        "at": moment.isoformat().replace("+00:00", rng.choice(["Z", "+00:00"])),
        "local": moment.replace(tzinfo=None).isoformat(),
        "blob": base64.b64encode(rng.randbytes(rng.randrange(9))).decode(),
        "tags": rng.choice([None, [], ["x", None, "ü"]]),
        "labels": rng.choice([None, {}, {"a": 1, "b": None}]),
        "nested": rng.choice([None, {"a": None}, {"a": 7, "b": {"c": "deep"}}, {"b": None}]),
        "unknown": {"is": ["ignored"]},
    }


def expected(sent: Sent) -> Row:
    row = parse(sent)
    return {
        "id": row["id"],
        "small": row["small"],
        "name": row["name"],
        "amount": Decimal(str(row["amount"])),
        "price": float(str(row["price"])),
        "flag": row["flag"],
        "day": date.fromisoformat(str(row["day"])),
        "at": datetime.fromisoformat(str(row["at"])),
        "local": datetime.fromisoformat(str(row["local"])),
        "blob": decode_base64(row["blob"]),
        "tags": row["tags"],
        "labels": row["labels"],
        "nested": nested(row["nested"]),
        # Delta holds an empty partition value and a null for the same; the name's own column keeps the difference.
        "place": row["name"] or None,
    }


def nested(value: object) -> object:
    if not isinstance(value, dict):
        return None
    inner = value.get("b")
    return {"a": value.get("a"), "b": {"c": inner.get("c")} if isinstance(inner, dict) else None}


def produce(kafka: KafkaCluster, topic: str, count: int, rng: random.Random) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20})
    bad = list(BAD_VALUES.items())
    for number in range(count):
        key, value = GOOD, json.dumps(record(number, rng), indent=rng.choice([None, None, 2])).encode()
        if number % 50 == 0:
            key, value = bad[number // 50 % len(bad)]
        producer.produce(topic, None if number % 97 == 0 else value, key, partition=number % PARTITIONS)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(180) == 0


def wait_for(child: Child, text: str, times: int = 1) -> None:
    """Wait until a program's log says ``text`` so many times."""
    child.wait_until(lambda: child.log.read_text("utf-8").count(text) >= times, f"“{text}”", 600)


def has_sealed(child: Child) -> bool:
    return "sealed" in child.log.read_text("utf-8")


@pytest.mark.parametrize("lake", [pytest.param("file", marks=pytest.mark.nightly), "versitygw"], indirect=True)
def test_every_record_is_there_once_whoever_was_killed(
    kafka: KafkaCluster, new_topic: Callable[..., str], lake: Lake, programs: Programs, spark: SparkSession
) -> None:
    rng = random.Random(lake.kind)  # noqa: S311 - a test's data
    topic = new_topic(PARTITIONS)
    config = programs.config(settings(kafka, lake, topic))
    loader = programs.start("delta-loader", "run", config)
    victim, survivor = (programs.start("stage-writer", "run", config) for _ in range(2))
    for child in (victim, survivor):
        wait_for(child, "partitions assigned")
    produce(kafka, topic, 3000, rng)
    until(lambda: has_sealed(victim) or has_sealed(survivor))
    if not has_sealed(victim):  # on a busy machine the group may have left everything to the other one
        victim, survivor = survivor, victim
    produce(kafka, topic, 1500, rng)
    victim.kill()
    wait_for(loader, "committed")
    loader.kill()  # between a commit and what follows it
    sealed = survivor.log.read_text("utf-8").count("sealed")
    replacement = programs.start("stage-writer", "run", config)
    produce(kafka, topic, 1500, rng)
    wait_for(replacement, "partitions assigned")
    wait_for(survivor, "sealed", sealed + 1)
    report = in_process.load(config, spark)  # next to the writers, where there is a Spark already
    assert (report.failure, report.commits > 0) == (None, True)
    for child in (survivor, replacement):
        child.stop()
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert in_process.load(config, spark).failure is None

    sent = read_kafka(kafka.bootstrap_servers, topic)
    assert len(sent) == 6000
    table = f"{lake.url}/tables/orders"
    for name, reader in {
        "spark": spark_reader(spark),
        "delta-rs": delta_rs_reader(lake.server),
        "duckdb": duckdb_reader(lake.server, lake.storage_options),
    }.items():
        findings = verify(sent, reader(table), reader(f"{table}_dead_letters"), expected)
        assert findings.clean, f"{name}: {findings}"
    if lake.kind == "file":  # over S3 in test_chaos.py
        assert order_faults(read_growth(Path(table))) == []

    operations = spark.sql(f"DESCRIBE HISTORY delta.`{table.replace('s3://', 's3a://')}`").collect()
    assert {row.operation for row in operations} == {"CREATE TABLE", "STREAMING UPDATE"}
    state = read_table_state(FsspecStore(table, lake.storage_options))
    assert state is not None
    assert state.transactions == {f"orders-{partition}": 1499 for partition in range(PARTITIONS)}
    if lake.kind == "versitygw":  # over S3; over a disk it is in test_replay.py
        report = json.loads(programs.succeed("delta-loader", "verify", config, "--kafka", "--json"))
        (stream,) = report["streams"]
        assert (report["proved"], [partition["proved"] for partition in stream["partitions"]]) == (
            True,
            [True] * PARTITIONS,
        )
        assert {finding["kind"] for finding in stream["findings"]} == {"all_in_tables"}
        assert (
            sum(
                partition["rows"] + partition["dead_letters"] + partition["tombstones_staged"]
                for partition in stream["partitions"]
            )
            == 6000
        )


@pytest.mark.parametrize("lake", ["file"], indirect=True)
def test_second_run_changes_nothing(
    kafka: KafkaCluster, new_topic: Callable[..., str], lake: Lake, programs: Programs, spark: SparkSession
) -> None:
    topic = new_topic(PARTITIONS)
    config = programs.config(settings(kafka, lake, topic))
    produce(kafka, topic, 400, random.Random(1))  # noqa: S311 - a test's data
    for _ in range(2):
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
        assert in_process.load(config, spark).failure is None
    table = DeltaTable(f"{lake.url}/tables/orders")
    assert [commit["operation"] for commit in table.history()] == ["STREAMING UPDATE", "CREATE TABLE"]


@pytest.mark.parametrize("lake", ["file"], indirect=True)
def test_marker_made_by_touch_starts_the_next_writer_there(  # noqa: PLR0917 - fixtures
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    lake: Lake,
    programs: Programs,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    topic = new_topic(1)
    produce_to = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(100):
        produce_to.produce(topic, b'{"id": %d}' % number, GOOD, partition=0)
    assert produce_to.flush(180) == 0
    config = programs.config(settings(kafka, lake, topic))
    marker = tmp_path / "stage" / "done" / topic / "0" / "41.done"
    marker.parent.mkdir(parents=True)
    marker.touch()
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    assert in_process.load(config, spark).failure is None
    rows = delta_rs_reader(None)(f"{lake.url}/tables/orders")
    assert sorted(int(str(row["_kafka_offset"])) for row in rows) == list(range(42, 100))


@pytest.mark.parametrize("lake", ["file"], indirect=True)
def test_sigterm_flushes_and_leaves_the_group(
    kafka: KafkaCluster, new_topic: Callable[..., str], lake: Lake, programs: Programs, spark: SparkSession
) -> None:
    topic = new_topic(1)
    slow = settings(kafka, lake, topic)
    slow["writer"] = {"group_id": topic, "flush_after": "1h", "http": "127.0.0.1:0"}
    config = programs.config(slow)
    writer = programs.start("stage-writer", "run", config)
    wait_for(writer, "partitions assigned")
    produce_to = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    produce_to.produce(topic, b'{"id": 1}', GOOD)
    assert produce_to.flush(180) == 0
    service = Service(writer)
    sample = f'stage_writer_records_total{{topic="{topic}"}} 1.0'
    service.until(lambda: sample in service.get("/metrics")[1], "the record")
    writer.stop()
    assert '"reason": "stopping"' in writer.log.read_text("utf-8")
    assert in_process.load(config, spark).failure is None
    assert len(delta_rs_reader(None)(f"{lake.url}/tables/orders")) == 1
