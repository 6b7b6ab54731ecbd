"""Debezium's change events and tombstones from a real broker into a table with one row for each key."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from delta_loader.inspect.verify.findings import Verdict
from devservices.kafka import KafkaCluster
from tests.builders import pipeline_config
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.reading import rows_of

pytestmark = [pytest.mark.broker, pytest.mark.spark]

CUSTOMERS = 40


def config_of(programs: Programs, kafka: KafkaCluster, folder: Path, topic: str, **stream: object) -> Path:
    of_all = {"app_id": "customers", "topics": [topic], "table": f"{folder}/customers", "load": "merge"}
    settings = pipeline_config(kafka.bootstrap_servers, folder, {**of_all, **stream})
    return programs.config(settings)


class Database:
    """What a connector would send of a table that changes; a customer's events go to one partition."""

    def __init__(self, servers: str, topic: str) -> None:
        self.producer = Producer({"bootstrap.servers": servers})
        self.topic = topic
        self.rows: dict[int, str] = {}
        self.clock = 0
        self.more: dict[str, object] = {}
        """Further columns of the rows."""

    def put(self, customer: int, city: str, *, late: bool = False, refused: bool = False) -> None:
        self.clock += 1
        changed = 0 if late else self.clock
        row = {"id": customer, "city": city, "changed": changed, **self.more}
        op = "u" if customer in self.rows else "c"
        self._send(customer, {"payload": {"op": op, "before": None, "after": row, "ts_ms": 1}})
        if not (late or refused):
            self.rows[customer] = city

    def delete(self, customer: int) -> None:
        del self.rows[customer]
        self._send(customer, {"payload": {"op": "d", "before": {"id": customer}, "after": None, "ts_ms": 1}})
        self._send(customer, None)

    def lose(self, customer: int) -> None:
        """A delete of which compaction has left the tombstone only."""
        del self.rows[customer]
        self._send(customer, None)

    def _send(self, customer: int, value: object) -> None:
        key = json.dumps({"schema": {"type": "struct"}, "payload": {"id": customer}})
        body = None if value is None else json.dumps(value)
        self.producer.produce(self.topic, body, key, partition=customer % 2)


def test_table_follows_a_database(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path, spark: SparkSession
) -> None:
    topic = new_topic(2)
    config = config_of(
        programs,
        kafka,
        tmp_path,
        topic,
        columns="id BIGINT, city STRING, changed BIGINT",
        envelope="debezium",
        drop=["_cdc"],
        merge={"keys": ["id"], "sequence": "changed"},
        partition_by=["city"],
    )
    database = Database(kafka.bootstrap_servers, topic)
    for customer in range(CUSTOMERS):
        database.put(customer, "Bonn")
    database.producer.produce(topic, None, b"no key", partition=0)
    load(programs, config, database, spark)
    assert read(tmp_path) == database.rows
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/customers` ADD CONSTRAINT known CHECK (city <> 'Nowhere')")
    database.put(0, "Nowhere", refused=True)
    for customer in range(0, CUSTOMERS, 3):
        database.put(customer, "Ulm")
        database.put(customer, "Bonn", late=True)
    for customer in range(1, CUSTOMERS, 6):
        database.delete(customer)
    for customer in range(2, CUSTOMERS, 12):
        database.lose(customer)
    database.put(CUSTOMERS, "Ulm")
    load(programs, config, database, spark)
    assert read(tmp_path) == database.rows
    letters = rows_of(f"{tmp_path}/customers_dead_letters")
    assert sorted((row["error_class"], b"Nowhere" in (row["value"] or b"")) for row in letters) == [
        ("refused_by_table", True),
        ("unreadable_key", False),
    ]
    report = in_process.verify(config, spark)
    assert (report.failure, report.is_clean) == (None, True)
    assert {"merged"} == {finding.kind for finding in report.findings if finding.verdict is Verdict.UNPROVED}
    refused = programs.run("stage-writer", "replay", config, "--topic", topic, "--from", "0", "--to", "5")
    assert (refused.returncode, "merges change events" in refused.stderr) == (2, True), refused.stderr


def load(programs: Programs, config: Path, database: Database, spark: SparkSession) -> None:
    assert database.producer.flush(180) == 0
    programs.succeed("stage-writer", "run", config, "--until-caught-up")
    report = in_process.load(config, spark)
    assert (report.failure, report.held) == (None, {})


def read(folder: Path) -> dict[int, str]:
    rows = rows_of(f"{folder}/customers")
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["city"] for row in rows}


def test_table_follows_a_source_that_gains_a_column(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path, spark: SparkSession
) -> None:
    """With a stream of few lines; what comes in the new column is there from the first event on."""
    topic, table = new_topic(2), f"{tmp_path}/customers"
    config = config_of(programs, kafka, tmp_path, topic, columns="from_records", merge={"keys": ["id"]})
    database = Database(kafka.bootstrap_servers, topic)
    for customer in range(6):
        database.put(customer, "Bonn")
    load(programs, config, database, spark)
    database.more = {"tier": 1}
    for customer in range(4):
        database.put(customer, "Ulm")
    load(programs, config, database, spark)
    database.more = {"tier": 2}
    database.put(0, "Jena")
    database.delete(1)
    database.more = {}
    database.put(2, "Jena")
    load(programs, config, database, spark)
    frame = spark.read.format("delta").load(table)
    assert dict(frame.dtypes)["tier"] == "bigint"
    rows = {row["id"]: (row["city"], row["tier"]) for row in frame.collect()}
    assert rows == {0: ("Jena", 2), 2: ("Jena", None), 3: ("Ulm", 1), 4: ("Bonn", None), 5: ("Bonn", None)}
    assert frame.where("_rescued IS NOT NULL").count() == 0
    assert read(tmp_path) == database.rows


def canal(kind: str, *rows: dict[str, str], old: object = None, sql: str = "", is_ddl: bool = False) -> str:
    about = {"database": "shop", "table": "customers", "es": 1774927057000, "ts": 1774927057007, "isDdl": is_ddl}
    return json.dumps({**about, "type": kind, "sql": sql, "data": rows or None, "old": old})


def test_table_follows_canal_s_messages_of_several_rows(
    kafka: KafkaCluster, new_topic: Callable[..., str], programs: Programs, tmp_path: Path, spark: SparkSession
) -> None:
    """Keys that move, a message of which the table takes only some rows, and a table that is emptied."""
    topic, table = new_topic(1), f"{tmp_path}/customers"
    merge = {"keys": ["id"], "truncates": "apply"}
    columns = "id BIGINT, city STRING"
    config = config_of(programs, kafka, tmp_path, topic, columns=columns, envelope="canal", merge=merge)
    database = Database(kafka.bootstrap_servers, topic)

    def send(*messages: str) -> None:
        for message in messages:
            database.producer.produce(topic, message, partition=0)
        load(programs, config, database, spark)

    first = [*range(1, 6), 90]  # the last one is beyond all keys of the load with the truncation
    send(canal("INSERT", *({"id": str(number), "city": "Bonn"} for number in first)))
    assert read(tmp_path) == dict.fromkeys(first, "Bonn")
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT known CHECK (city <> 'Nowhere')")
    send(
        canal("ALTER", is_ddl=True, sql="ALTER TABLE customers ADD note TEXT"),
        canal("UPDATE", {"id": "6", "city": "Ulm"}, {"id": "5", "city": "Jena"}, old=[{"id": "5"}, {"id": "4"}]),
        canal("UPDATE", {"id": "1", "city": "Kiel"}, {"id": "2", "city": "Nowhere"}, old=[{"city": "Bonn"}] * 2),
        canal("DELETE", {"id": "3", "city": "Bonn"}),
    )
    assert read(tmp_path) == {1: "Bonn", 2: "Bonn", 5: "Jena", 6: "Ulm", 90: "Bonn"}
    letters = rows_of(f"{table}_dead_letters")
    assert [(row["_kafka_offset"], row["error_class"]) for row in letters] == [(3, "refused_by_table")]
    send(
        canal("INSERT", {"id": "7", "city": "Bonn"}),
        canal("TRUNCATE", is_ddl=True, sql="TRUNCATE TABLE customers"),
        canal("INSERT", {"id": "1", "city": "Trier"}, {"id": "8", "city": "Mainz"}),
    )
    assert read(tmp_path) == {1: "Trier", 8: "Mainz"}
    report = in_process.verify(config, spark)
    assert (report.failure, report.is_clean) == (None, True)
