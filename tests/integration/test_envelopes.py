"""Framed change events from a real broker, with a registry that speaks Confluent's protocol, as a user runs it."""

import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from common.stage.markers import TableKind
from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from devservices.ports import free_ports
from devservices.schema_registry import Registry, running_registry
from tests.integration.conftest import Programs
from tests.staged import manifests
from tests.waiting import until

pytestmark = pytest.mark.broker
USER_INFO = "writer:secret"


def settings(kafka: KafkaCluster, registry: Registry, folder: Path) -> dict[str, Any]:
    return {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "schema_registry": {"url": registry.url, "basic.auth.user.info": "${REGISTRY_USER_INFO}", "max.retries": 0},
        "stage": {"url": f"{folder}/stage"},
        "writer": {"group_id": "envelopes", "http": None},
        "streams": [
            {
                "app_id": "orders",
                "topics": ["envelopes"],
                "table": f"{folder}/orders",
                "columns": "id BIGINT NOT NULL, at TIMESTAMP, more STRING",
                "formats": {"at": "epoch_us", "more": "json"},
                "coerce": "lenient",
                "framing": "confluent",
                "envelope": "debezium",
            }
        ],
    }


def produce(kafka: KafkaCluster, registry: Registry) -> None:
    client = SchemaRegistryClient({"url": registry.url, "basic.auth.user.info": USER_INFO})
    json_id = client.register_schema("envelopes-value", Schema('{"type":"object"}', "JSON"))
    avro_id = client.register_schema("other-value", Schema('"string"', "AVRO"))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def send(value: object, schema_id: int = json_id) -> None:
        body = None if value is None else b"\0" + schema_id.to_bytes(4) + json.dumps(value).encode()
        producer.produce("envelopes", body, b"key", partition=0)

    source = {"db": "shop", "schema": None, "table": "orders", "ts_ms": 1774927057000}
    for number in range(2000):
        row = {"id": str(number), "at": 1774927057260514, "more": {"n": [number, 1.10]}, "note": "x"}
        event = {"op": "c", "before": None, "after": row, "source": source, "ts_ms": 1774927057260}
        send({"schema": {"type": "struct", "fields": []}, "payload": event} if number % 2 else event)
    send({"op": "d", "before": {"id": 7}, "after": None, "source": source, "ts_ms": 1774927057260})
    send(None)
    send({"op": "c", "after": {"id": 1}}, avro_id)
    send({"op": "c", "after": {"id": 1}}, 99)
    producer.produce("envelopes", b'{"op":"c","after":{"id":1}}', partition=0)
    assert producer.flush(180) == 0


def test_framed_events_are_staged(
    kafka: KafkaCluster, programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_USER_INFO", USER_INFO)
    with running_registry(USER_INFO) as registry:
        config = programs.config(settings(kafka, registry, tmp_path))
        kafka.create_topic("envelopes", 1)
        produce(kafka, registry)
        assert registry.url in programs.succeed("stage-writer", "check", config)
        registry.requests.clear()
        programs.succeed("stage-writer", "run", config, "--until-caught-up")
        assert sorted(registry.requests)[:2] == ["GET /schemas/ids/1", "GET /schemas/ids/2"]
        registry.stop()
        refused = programs.run("stage-writer", "check", config)
        assert refused.returncode == 1
        assert "does not respond" in refused.stderr
    (manifest,) = manifests(FsspecStore(f"{tmp_path}/stage"))
    assert manifest.tombstones == 1
    assert manifest.undeclared is not None
    assert set(manifest.undeclared.fields) == {"note"}
    assert dict(manifest.dead_letters) == {"wrong_schema": 1, "unknown_schema": 1, "not_framed": 1}
    (staged,) = (table for table in manifest.tables if table.kind is TableKind.ROWS)
    (file,) = staged.files
    rows = pq.read_table(f"{staged.url}/{file.path}").to_pylist()
    assert [row["id"] for row in rows] == [*range(2000), 7]
    assert rows[1999]["more"] == '{"n": [1999, 1.1]}'
    assert str(rows[0]["at"]) == "2026-03-31 03:17:37.260514+00:00"
    assert [rows[place]["_cdc"]["op"] for place in (0, 2000)] == ["c", "d"]
    assert rows[0]["_cdc"]["source"] == "shop.orders"


def test_registry_that_goes_away_and_comes_back_holds_up_its_own_stream_only(
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    programs: Programs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REGISTRY_USER_INFO", USER_INFO)
    framed, plain = new_topic(1), new_topic(1)
    with running_registry(USER_INFO) as registry:
        (port,) = free_ports(1)
        stream = {"topics": [framed], "framing": "confluent", "columns": "id BIGINT"}
        made = settings(kafka, registry, tmp_path)
        made["writer"] = {"group_id": framed, "http": f"127.0.0.1:{port}", "flush_after": "1s"}
        made["streams"] = [
            stream | {"app_id": "framed", "table": f"{tmp_path}/framed"},
            {"app_id": "plain", "topics": [plain], "table": f"{tmp_path}/plain", "columns": "id BIGINT"},
        ]
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        first, second = registry.register('{"title":"one"}'), registry.register('{"title":"two"}')
        sent = itertools.count()

        def send(schema: int) -> None:
            number = next(sent)
            producer.produce(framed, b"\0" + schema.to_bytes(4) + b'{"id":%d}' % number, partition=0)
            producer.produce(plain, b'{"id":%d}' % number, partition=0)
            assert producer.flush(180) == 0

        def staged(table: str) -> list[int]:
            paths = sorted((tmp_path / table).glob("*.parquet"))
            return sorted(number for path in paths for number in pq.read_table(path)["id"].to_pylist())

        def health() -> str:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthcheck", timeout=60) as answer:
                    return str(answer.read().decode())
            except urllib.error.HTTPError as error:
                return error.read().decode()
            except OSError as error:
                return f"not up: {error}"

        writer = programs.start("stage-writer", "run", programs.config(made))
        send(first)
        until(lambda: staged("framed") == staged("plain") == [0], "nothing was staged")
        registry.stop()
        send(first)  # known
        until(lambda: staged("framed") == [0, 1], "what it knows needs no registry")
        send(second)
        until(lambda: staged("plain") == [0, 1, 2], "the other stream is held up")
        until(lambda: "1 partition waiting" in health() and registry.url in health(), "the health does not say it")
        assert writer.stop(600) == 0
        writer = programs.start("stage-writer", "run", programs.config(made))
        until(lambda: "1 partition waiting" in health(), "a new writer does not say it")
        assert staged("framed") == [0, 1]
        registry.start()
        until(lambda: staged("framed") == [0, 1, 2], "the writer did not notice that the registry is back")
        until(lambda: health() == "ok\n", "the health still says it")
