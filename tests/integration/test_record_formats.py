"""Avro and Protobuf from a real broker, as Confluent's serializers write them, with a registry: as a user runs it."""

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass

from common.protoc import compile_protobuf
from common.schema.protobuf import find_message
from common.stage.markers import Manifest, TableKind
from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from devservices.schema_registry import running_registry
from tests.integration.conftest import Programs
from tests.staged import manifests

pytestmark = pytest.mark.broker
COUNT = 2000
COLUMNS = ("id", "amount", "sent", "city", "_rescued")
SENT = dt.datetime(2024, 2, 29, 12, 30, 45, 123000, tzinfo=dt.UTC)
FIRST = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "sent", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": "string"},
    ],
}
# The second version has a field more, another order, and a narrower number.
SECOND = {
    **FIRST,
    "fields": [
        {"name": "city", "type": ["null", "string"]},
        *(each for each in FIRST["fields"] if each["name"] != "id"),  # type: ignore[index]
        {"name": "id", "type": "int"},
    ],
}
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1; google.protobuf.Timestamp sent = 2; map<string, int32> counts = 3; optional string note = 4;
}
"""


def settings(kafka: KafkaCluster, url: str, folder: Path) -> dict[str, Any]:
    framed = {"framing": "confluent", "unknown_fields": "rescue"}
    return {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "schema_registry": {"url": url, "max.retries": 0},
        "stage": {"url": f"{folder}/stage"},
        "writer": {"group_id": "record-formats", "http": None},
        "loader": {"http": None, "lease": "0s"},
        "streams": [
            {
                "app_id": "avro",
                "topics": ["formats-avro"],
                "table": f"{folder}/avro",
                "columns": "id BIGINT NOT NULL, amount DECIMAL(10,2), sent TIMESTAMP, city STRING",
                "format": "avro",
                "where": "id <> 5",
                "derive": {"day": "CAST(sent AS DATE)"},
                "partition_by": ["day"],
                **framed,
            },
            {
                "app_id": "protobuf",
                "topics": ["formats-protobuf"],
                "table": f"{folder}/protobuf",
                "columns": "id BIGINT, sent TIMESTAMP, counts MAP<STRING, INT>",
                "format": "protobuf",
                **framed,
            },
            {
                "app_id": "headers",
                "topics": ["formats-headers"],
                "table": f"{folder}/headers",
                "columns": "id BIGINT, note STRING",
                "format": "avro",
                "framing": "confluent_header",
                "load": "merge",
                "merge": {"keys": ["id"]},
            },
        ],
    }


def produce(kafka: KafkaCluster, url: str) -> None:
    client = SchemaRegistryClient({"url": url})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    context = SerializationContext("formats-avro", MessageField.VALUE)
    first, second = (AvroSerializer(client, json.dumps(each)) for each in (FIRST, SECOND))
    for number in range(COUNT):
        record = {"id": number, "amount": Decimal(number) / 100, "sent": SENT, "note": f"note {number}"}
        serialize, more = (first, {}) if number < COUNT // 2 else (second, {"city": "Oslo"})
        producer.produce("formats-avro", serialize(record | more, context), partition=0)
    whole = first({"id": -1, "amount": Decimal(1), "sent": SENT, "note": ""}, context)
    for broken in (
        whole[:-1],
        whole + b"\0",
        b"\1" + whole,
        b"\0\0\0\0\x63" + whole[5:],
        b"\0\0\0\0\3" + whole[5:],
        None,
    ):
        producer.produce("formats-avro", broken, partition=0)
    kind = GetMessageClass(find_message(compile_protobuf(PROTO), "Order"))
    serializer = ProtobufSerializer(kind, client)
    for number in range(COUNT):
        order = kind(id=number, note="kept")
        order.sent.FromDatetime(SENT)
        order.counts["a"] = number
        producer.produce("formats-protobuf", serializer(order, context), partition=0)
    producer.produce("formats-protobuf", b"\0\0\0\0\3\0\xff\xff", partition=0)
    produce_with_headers(producer, client)
    assert producer.flush(120) == 0


def produce_with_headers(producer: Producer, client: SchemaRegistryClient) -> None:
    """One record with its schema in a header, and the tombstone of another one, whose key has its schema there."""
    by_header = {"schema.id.serializer": header_schema_id_serializer}
    headers: list[tuple[str, bytes]] = []
    value = AvroSerializer(client, json.dumps(FIRST), conf=by_header)(
        {"id": 1, "amount": Decimal(1), "sent": SENT, "note": "x"},
        SerializationContext("formats-headers", MessageField.VALUE, headers),
    )
    producer.produce("formats-headers", value, partition=0, headers=headers)
    of_key: list[tuple[str, bytes]] = []
    context = SerializationContext("formats-headers", MessageField.KEY, of_key)
    key = AvroSerializer(client, '"long"', conf=by_header)(2, context)
    producer.produce("formats-headers", None, key, partition=0, headers=of_key)


def rows_of(manifest: Manifest) -> Iterator[dict[str, Any]]:
    (staged,) = (table for table in manifest.tables if table.kind is TableKind.ROWS)
    for file in staged.files:
        yield from pq.read_table(f"{staged.url}/{file.path}", partitioning=None).to_pylist()


def test_records_of_real_serializers_are_staged(kafka: KafkaCluster, programs: Programs, tmp_path: Path) -> None:
    kafka.create_topic("formats-avro", 1)
    kafka.create_topic("formats-protobuf", 1)
    kafka.create_topic("formats-headers", 1)
    with running_registry() as registry:
        config = programs.config(settings(kafka, registry.url, tmp_path))
        produce(kafka, registry.url)
        checked = programs.succeed("stage-writer", "check", config)
        assert "5 of the newest 1,000 records would be dead letters" in checked
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
    by_table = {manifest.tables[0].url: manifest for manifest in manifests(FsspecStore(f"{tmp_path}/stage"))}
    avro, protobuf = by_table[f"{tmp_path}/avro"], by_table[f"{tmp_path}/protobuf"]
    assert (avro.tombstones, avro.filtered) == (1, 1)
    errors = {"invalid_record": 2, "not_framed": 1, "unknown_schema": 1, "wrong_schema": 1}
    assert dict(avro.dead_letters) == errors
    rows = [{name: row[name] for name in COLUMNS} for row in rows_of(avro)]
    assert rows == [
        {
            "id": number,
            "amount": Decimal(number) / 100,
            "sent": SENT,
            "city": None if number < COUNT // 2 else "Oslo",
            "_rescued": f'{{"note":"note {number}"}}',
        }
        for number in range(COUNT)
        if number != 5
    ]
    assert dict(protobuf.dead_letters) == {"invalid_record": 1}
    assert [row["id"] for row in rows_of(protobuf)] == list(range(COUNT))
    assert next(iter(rows_of(protobuf)))["counts"] == [("a", 0)]
    headers = by_table[f"{tmp_path}/headers"]
    assert dict(headers.dead_letters) == {}
    (file,) = (tmp_path / "stage" / "data").rglob("*.parquet")  # what is merged stays in the stage
    assert [(row["id"], row["note"]) for row in pq.read_table(file).to_pylist()] == [(1, "x"), (2, None)]
