"""Who reads a topic is found without asking each stream: there may be a thousand of both."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from common.settings import Settings, Stream
from common.settings.overlap import TopicReaders, refused_sharing
from common.spans import Partition, Position, Topic, TopicPartition
from delta_loader.ports import in_turn
from delta_loader.stage.reading import Stage
from stage_writer.checked_topics import topic_lines
from stage_writer.convert import StreamConverter
from stage_writer.stage.staging import ObjectStage
from tests.builders import required, settings_of
from tests.fakes.group import HandClock, LonelyMember
from tests.fakes.staging import Staging
from tests.fakes.writers import new_writer, runtime_of

COUNT = 30
PARTITIONS = [TopicPartition(Topic(f"t{number}"), Partition(0)) for number in range(COUNT)]
MOST = 2 * COUNT


def settings(folder: Path) -> Settings:
    streams = [
        {"app_id": f"a{number}", "topics": [f"t{number}"], "table": f"{folder}/t{number}", "columns": "id INT"}
        for number in range(COUNT)
    ]
    return settings_of(*streams, folder=str(folder))


@dataclass
class Count:
    calls: int = 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Count:
    count, takes = Count(), Stream.takes

    def counted(self: Stream, chain: str) -> bool:
        count.calls += 1
        return takes(self, chain)

    monkeypatch.setattr(Stream, "takes", counted)
    return count


def test_partitions_of_each_stream(tmp_path: Path, asked: Count) -> None:
    other = TopicPartition(Topic("of-no-stream"), Partition(0))
    of_each = TopicReaders(settings(tmp_path).streams).partitions_of_each([*PARTITIONS, other])
    assert of_each == {f"a{number}": [partition] for number, partition in enumerate(PARTITIONS)}
    assert asked.calls <= MOST


def test_check_of_many_topics(tmp_path: Path, asked: Count) -> None:
    assert list(topic_lines(settings(tmp_path), PARTITIONS))[-1] == f"ok: a{COUNT - 1} has 1 partition"
    assert asked.calls <= MOST


def test_assignment_of_many_partitions(tmp_path: Path, asked: Count) -> None:
    staging, clock = Staging.below(tmp_path), HandClock()
    stage = ObjectStage(staging.store(staging.stage_url), staging.store, clock, lambda: "f", "w")
    group = LonelyMember(clock, dict.fromkeys(PARTITIONS, 0))
    converters = [StreamConverter(stream) for stream in settings(tmp_path).streams]
    writer = new_writer(*converters, source=group, stage=stage, runtime=runtime_of(clock))
    asked.calls = 0
    assert writer.assignment.assigned(PARTITIONS) == dict.fromkeys(PARTITIONS, Position(0))
    assert [writer.assignment.by_partition[partition].converter for partition in PARTITIONS] == converters
    assert asked.calls <= MOST


def test_chains_of_no_stream_among_many(tmp_path: Path, asked: Count) -> None:
    for partition in PARTITIONS[-3:]:
        Staging.below(tmp_path, partition.topic).flush(0, 0, 10)
    Staging.below(tmp_path, "of-no-stream").flush(0, 0, 10)
    staging = Staging.below(tmp_path)
    stage = Stage(staging.store(staging.stage_url), in_turn)
    asked.calls = 0
    ((listed, _),) = stage.of_no_stream(settings(tmp_path).streams)
    assert (listed.partition.topic, asked.calls <= MOST) == ("of-no-stream", True)


def test_topic_with_a_topology_is_not_shared() -> None:
    given = [{"app_id": app_id, "topics": [app_id], "table": f"memory://{app_id}"} for app_id in "ab"]
    streams = settings_of(given[0], {**given[1], "topology": "shop:build"}).streams
    refused = required(refused_sharing("t", streams))
    assert "'a' and 'b' both read the topic 't', and a topic that 'b' has a topology for cannot be" in refused.problem
    assert refused_sharing("t", settings_of(*given).streams) is None
