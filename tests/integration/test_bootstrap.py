"""The bootstrap tool as an operator calls it, on a real broker and a stage on disk."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from bootstrap.__main__ import app
from bootstrap.apply.stage import staged_markers
from common.cli import run
from common.spans import Partition, Topic, TopicPartition
from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from tests.fakes.markers import chain_of, put

pytestmark = pytest.mark.broker

RECORDS = (5, 3, 0)
FIRST_MS = 1_772_323_200_000  # 2026-03-01T00:00:00Z; one record a second


@dataclass
class Operator:
    folder: Path
    servers: str
    topics: tuple[str, ...]
    capfd: pytest.CaptureFixture[str]

    def configure(self, **stream: object) -> None:
        content = {
            "kafka": {"bootstrap.servers": self.servers},
            "stage": {"url": str(self.folder / "stage")},
            "streams": [
                {
                    "app_id": "orders",
                    "topics": list(self.topics),
                    "table": str(self.folder / "table"),
                    "columns": "id BIGINT",
                    **stream,
                }
            ],
        }
        (self.folder / "config.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")

    def runs(self, *arguments: str) -> str:
        code, output, error = self.tries(*arguments)
        assert code == 0, error
        return output

    def fails(self, *arguments: str, code: int = 2) -> str:
        exit_code, output, error = self.tries(*arguments)
        assert exit_code == code, output + error
        assert error.startswith("error: ")
        assert "Traceback" not in error
        return error

    def tries(self, command: str, *arguments: str) -> tuple[int, str, str]:
        self.capfd.readouterr()
        code = run(app, [command, str(self.folder / "config.yaml"), *arguments])
        captured = self.capfd.readouterr()
        return code, captured.out, captured.err

    def plan(self, source: str) -> dict[tuple[str, int], int | None]:
        content = json.loads(self.runs("plan", "--from", source, "--json"))
        return {
            (partition["topic"], partition["partition"]): partition["position"]
            for stream in content["streams"]
            for partition in stream["partitions"]
        }

    @property
    def store(self) -> FsspecStore:
        return FsspecStore(str(self.folder / "stage"))

    def markers(self) -> dict[str, tuple[int, int]]:
        return {
            f"{topic}/{partition}": (marker.marker.span.start, marker.marker.span.end)
            for topic in self.topics
            for partition in range(4)
            for marker in staged_markers(self.store, TopicPartition(Topic(topic), Partition(partition)))
            if marker.marker is not None
        }

    def table(self, transactions: dict[str, int]) -> None:
        """A Delta log as kafka-delta-ingest leaves it behind."""
        schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
        actions: list[dict[str, object]] = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {
                "metaData": {
                    "id": "1",
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": json.dumps(schema),
                    "partitionColumns": [],
                    "configuration": {},
                }
            },
        ]
        actions += [{"txn": {"appId": app_id, "version": version}} for app_id, version in transactions.items()]
        lines = "".join(json.dumps(action) + "\n" for action in actions)
        FsspecStore(str(self.folder / "table")).write("_delta_log/00000000000000000000.json", lines.encode())


@pytest.fixture
def topic(kafka: KafkaCluster, new_topic: Callable[..., str]) -> str:
    """Three partitions: five records, three, and none."""
    name = new_topic(partitions=len(RECORDS))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for partition, count in enumerate(RECORDS):
        for number in range(count):
            producer.produce(name, b"{}", partition=partition, timestamp=FIRST_MS + number * 1000)
    assert producer.flush(180) == 0
    return name


@pytest.fixture
def operator(kafka: KafkaCluster, topic: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Operator:
    operator = Operator(tmp_path, kafka.bootstrap_servers, (topic,), capfd)
    operator.configure()
    return operator


def test_earliest_latest_and_a_moment(operator: Operator, topic: str) -> None:
    assert operator.plan("earliest") == {(topic, 0): 0, (topic, 1): 0, (topic, 2): 0}
    assert operator.plan("latest") == {(topic, 0): 5, (topic, 1): 3, (topic, 2): 0}
    assert operator.plan("2026-03-01T00:00:02Z") == {(topic, 0): 2, (topic, 1): 2, (topic, 2): 0}
    # After a partition's last record: its end.
    assert operator.plan("2026-03-01T00:00:04Z") == {(topic, 0): 4, (topic, 1): 3, (topic, 2): 0}
    assert operator.plan("2027-01-01") == {(topic, 0): 5, (topic, 1): 3, (topic, 2): 0}
    assert operator.markers() == {}


def test_write_makes_the_markers_of_the_plan_and_a_second_one_is_refused(operator: Operator, topic: str) -> None:
    output = operator.runs("write", "--from", "latest")
    assert f"done/{topic}/0/00000000000000000004.done" in output
    assert "2 markers were created" in output
    assert "position 0 needs no marker" in output
    assert operator.markers() == {f"{topic}/0": (4, 5), f"{topic}/1": (2, 3)}

    error = operator.fails("write", "--from", "earliest")
    assert f"done/{topic}/0/00000000000000000004.done" in error
    assert "rewind" in error
    assert "skip" in error
    assert operator.markers() == {f"{topic}/0": (4, 5), f"{topic}/1": (2, 3)}


def test_one_chain_among_the_partitions_refuses_all(operator: Operator, topic: str) -> None:
    put(operator.store, *chain_of(0, 2, partition=TopicPartition(Topic(topic), Partition(1))))
    operator.fails("write", "--from", "latest")
    assert operator.markers() == {f"{topic}/1": (0, 2)}


def test_position_zero_is_written_down_where_the_stream_begins_elsewhere(operator: Operator, topic: str) -> None:
    operator.configure(start="latest")
    assert f"begin/{topic}/0/00000000000000000000.begin" in operator.runs("write", "--from", "earliest")
    assert len(list(operator.store.list("begin"))) == 3


def test_plan_from_the_commits_of_a_group(operator: Operator, kafka: KafkaCluster, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": f"group-of-{topic}"})
    consumer.commit(offsets=[KafkaPartition(topic, 0, 2), KafkaPartition(topic, 1, 3)], asynchronous=False)
    consumer.close()
    assert operator.plan(f"group:group-of-{topic}") == {(topic, 0): 2, (topic, 1): 3, (topic, 2): None}
    output = operator.runs("write", "--from", f"group:group-of-{topic}")
    assert "has no commit" in output
    assert operator.markers() == {f"{topic}/0": (1, 2), f"{topic}/1": (2, 3)}
    assert "has no committed offsets" in operator.fails("plan", "--from", f"group:no-group-of-{topic}")


def test_plan_from_the_txn_actions_of_a_table(operator: Operator, topic: str) -> None:
    assert "no Delta table" in operator.fails("plan", "--from", "delta")
    operator.table({"other-0": 7})
    assert "other-0" in operator.fails("plan", "--from", "delta")
    operator.table({"orders-0": 3, "orders-1": 2})
    assert operator.plan("delta") == {(topic, 0): 4, (topic, 1): 3, (topic, 2): None}
    operator.runs("write", "--from", "delta")
    assert operator.markers() == {f"{topic}/0": (3, 4), f"{topic}/1": (2, 3)}


def test_several_topics_by_expression_name_the_topic_in_the_table(
    operator: Operator, topic: str, new_topic: Callable[..., str]
) -> None:
    second = new_topic(partitions=1, prefix=f"{topic}-b")
    operator.configure(topics=[f"^{topic}"])
    operator.table({f"orders-{topic}-0": 3, "orders-1": 2})
    assert operator.plan("delta") == {(topic, 0): 4, (topic, 1): None, (topic, 2): None, (second, 0): None}


def test_files_with_positions_and_with_last_offsets(operator: Operator, topic: str) -> None:
    positions = operator.folder / "positions"
    positions.write_text(f"{topic}: {{0: 4, 1: 1}}", encoding="utf-8")
    assert operator.plan(str(positions)) == {(topic, 0): 4, (topic, 1): 1, (topic, 2): None}
    positions.write_text('{"0": 4}', encoding="utf-8")
    assert operator.plan(str(positions)) == {(topic, 0): 4, (topic, 1): None, (topic, 2): None}
    assert operator.plan(f"seek_offsets:{positions}") == {(topic, 0): 5, (topic, 1): None, (topic, 2): None}
    positions.write_text("[[0, 3], [1, 0]]", encoding="utf-8")
    assert operator.plan(str(positions)) == {(topic, 0): 4, (topic, 1): 1, (topic, 2): None}
    positions.write_text("{9: 4}", encoding="utf-8")
    assert f"{topic}/9" in operator.fails("plan", "--from", str(positions))
    positions.write_text("{0: 400}", encoding="utf-8")
    assert "ends at 5" in operator.fails("write", "--from", str(positions))
    assert "latest" in operator.fails("plan", "--from", "lattest")


def test_records_that_kafka_has_deleted_are_not_promised(operator: Operator, kafka: KafkaCluster, topic: str) -> None:
    admin = kafka.admin  # held, because the request is lost when the client is collected
    for deleted in admin.delete_records([KafkaPartition(topic, 0, 2)]).values():
        deleted.result(60)
    assert operator.plan("earliest")[topic, 0] == 2
    positions = operator.folder / "positions"
    positions.write_text("{0: 1}", encoding="utf-8")
    assert "[1, 2)" in operator.fails("write", "--from", str(positions))
    operator.table({"orders-0": 0})
    error = operator.fails("write", "--from", "delta")
    assert "--to 2" in error
    # What the error says is what helps.
    operator.runs("skip", "--topic", topic, "--partition", "0", "--to", "2", "--yes")
    assert operator.markers() == {f"{topic}/0": (1, 2)}


def test_records_that_kafka_has_deleted_can_be_given_up(operator: Operator, kafka: KafkaCluster, topic: str) -> None:
    operator.configure(start="latest")
    operator.runs("write", "--from", "earliest")  # origins, and no marker
    put(operator.store, *chain_of(0, 1, 3, partition=TopicPartition(Topic(topic), Partition(1))))
    admin = kafka.admin
    for partition in (0, 1):
        gone = KafkaPartition(topic, partition, 2)
        admin.delete_records([gone])[gone].result(60)
    operator.runs("skip", "--topic", topic, "--partition", "0", "--to", "2", "--yes")
    arguments = ("rewind", "--topic", topic, "--partition", "1", "--to", "0", "--yes")
    assert "--give-up" in operator.fails(*arguments)
    assert "[0, 2): it will never be loaded" in operator.runs(*arguments, "--give-up")
    assert operator.markers() == {f"{topic}/0": (0, 2), f"{topic}/1": (0, 2)}


def test_skip_shows_first_and_does_it_with_yes(operator: Operator, topic: str) -> None:
    put(operator.store, *chain_of(0, 2, partition=TopicPartition(Topic(topic), Partition(0))))
    arguments = ("skip", "--topic", topic, "--partition", "0", "--to", "4")
    output = operator.runs(*arguments)
    assert "[2, 4)" in output
    assert "Nothing was changed" in output
    assert len(list(operator.store.list(""))) == 1
    output = operator.runs(*arguments, "--yes")
    assert "will never be loaded" in output
    assert "next flush" in output
    assert operator.store.stat(f"done/{topic}/0/00000000000000000002.done") is not None
    assert "up to 4" in operator.fails(*arguments, "--yes")


def test_rewind_shows_first_and_does_it_with_yes(operator: Operator, topic: str) -> None:
    put(operator.store, *chain_of(0, 2, 4, 5, partition=TopicPartition(Topic(topic), Partition(0))))
    arguments = ("rewind", "--topic", topic, "--partition", "0", "--to", "3")
    output = operator.runs(*arguments)
    assert "to move aside" in output
    assert "Nothing was changed" in output
    assert len(list(operator.store.list("done/"))) == 3
    output = operator.runs(*arguments, "--yes")
    assert "from position 2" in output
    assert "next flush" in output
    assert [item.path for item in operator.store.list("done/")] == [f"done/{topic}/0/00000000000000000000.done"]
    assert len(list(operator.store.list("stray/"))) == 2


def test_one_command_stages_all_held_partitions_again(operator: Operator, topic: str) -> None:
    gap, torn = (TopicPartition(Topic(topic), Partition(number)) for number in (0, 1))
    first, _, last = chain_of(0, 2, 4, 5, partition=gap)
    put(operator.store, first, last)
    put(operator.store, *chain_of(0, 2, partition=torn))
    operator.store.write(f"done/{topic}/1/{2:020d}.done", b"{no JSON")
    before = sorted(item.path for item in operator.store.list("done/"))
    assert "--all-held" in operator.fails("rewind", "--all-held", "--topic", topic, "--partition", "0")
    assert "--all-held" in operator.fails("rewind", "--topic", topic)
    output = operator.runs("rewind", "--all-held")
    assert output.count("Nothing was changed") == 2
    assert sorted(item.path for item in operator.store.list("done/")) == before
    report = json.loads(operator.runs("rewind", "--all-held", "--topic", topic, "--yes", "--json"))
    assert (report["done"], len(report["rewinds"])) == (True, 2)
    assert operator.markers() == {f"{topic}/0": (0, 2), f"{topic}/1": (0, 2)}
    assert len(list(operator.store.list("stray/"))) == 2
    assert "No partition is held" in operator.runs("rewind", "--all-held", "--yes")


def test_rewind_below_the_table_needs_its_option(operator: Operator, topic: str) -> None:
    put(operator.store, *chain_of(0, 2, 4, partition=TopicPartition(Topic(topic), Partition(0))))
    operator.table({"orders-0": 3})
    arguments = ("rewind", "--topic", topic, "--partition", "0", "--to", "2", "--yes")
    assert "--below-table" in operator.fails(*arguments)
    operator.runs(*arguments, "--below-table")
    assert operator.markers() == {f"{topic}/0": (0, 2)}


def test_unknown_stream_or_topic_is_named(operator: Operator, topic: str) -> None:
    assert "'unknown'" in operator.fails("plan", "--from", "latest", "--stream", "unknown")
    assert "'nothing'" in operator.fails("skip", "--topic", "nothing", "--partition", "0", "--to", "1")
    assert "no partition 7" in operator.fails("rewind", "--topic", topic, "--partition", "7", "--to", "1")
    operator.configure(topics=["no-such-topic"])
    assert "'no-such-topic'" in operator.fails("plan", "--from", "latest")
    operator.configure(topics=["^no-such-.*"])
    assert "^no-such-" in operator.fails("plan", "--from", "latest")


def test_brokers_that_are_not_there_are_named(operator: Operator) -> None:
    operator.servers = "127.0.0.1:9"
    operator.configure()
    error = operator.fails("plan", "--from", "latest", code=1)
    assert "127.0.0.1:9" in error
    assert "bootstrap.servers" in error
    assert "refused" in error


def test_unknown_librdkafka_property_is_named(operator: Operator) -> None:
    content = yaml.safe_load((operator.folder / "config.yaml").read_text(encoding="utf-8"))
    content["kafka"]["no.such.property"] = "x"
    (operator.folder / "config.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    assert "no.such.property" in operator.fails("plan", "--from", "latest")
