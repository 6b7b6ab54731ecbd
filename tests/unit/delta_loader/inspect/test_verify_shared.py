"""A table that two streams share: each is verified by its own commits, and the other's rows are not a fault."""

import json
import uuid
from collections.abc import Iterator, Sequence

from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.storage.store import FsspecStore
from common.tables.commit_metadata import CommitMetadata
from common.tables.counts import Counts
from delta_loader.inspect.verify.findings import Verdict
from delta_loader.inspect.verify.offsets import Bucket
from delta_loader.inspect.verify.verify import Verifier
from delta_loader.ports import in_turn
from tests.fakes.loading import settings_for
from tests.fakes.staging import Staging

MINE = TopicPartition(Topic("orders"), Partition(0))
OTHERS = TopicPartition(Topic("payments"), Partition(0))


class Rows:
    """Ten rows of each of some Kafka partitions, as offset columns and as the contents of every table."""

    def __init__(self, *partitions: TopicPartition) -> None:
        self._sources = partitions

    def offsets(self, *_places: tuple[str, int], stamped: bool) -> "Rows":
        assert not stamped
        return self

    def count(self, _url: str, _version: int) -> int:
        return 10 * len(self._sources)

    def repeated_keys(self, _url: str, _version: int, _keys: Sequence[str], _where: str | None) -> list[str]:
        return []

    def sources(self) -> list[TopicPartition]:
        return list(self._sources)

    def nameless(self) -> int:
        return 0

    def buckets(self, partition: TopicPartition) -> Iterator[Bucket]:
        if partition in self._sources:
            yield Bucket(0, 10, (1 << 10) - 1)

    def timestamp_ms(self, _source: TopicPartition, _offset: int) -> int | None:
        return None

    def loaded_twice(self, _source: TopicPartition, _spans: Sequence[Span]) -> list[tuple[int, tuple[str, ...]]]:
        return []

    def files(self, _source: TopicPartition, _spans: Sequence[Span]) -> list[str]:
        return []

    def close(self) -> None: ...


def load(version: int, app_id: str, partition: TopicPartition) -> bytes:
    span = Span(Position(0), Position(10))
    metadata = CommitMetadata(f"c{version}", app_id, {partition: span}, None, {partition: Counts(10, 10, 0, 0)})
    return "\n".join(
        json.dumps(action)
        for action in (
            {"commitInfo": {"operation": "STREAMING UPDATE", "userMetadata": metadata.to_json()}},
            {"add": {"path": f"{version}.parquet", "stats": '{"numRecords":10}', "dataChange": True}},
            {"txn": {"appId": f"{app_id}-0", "version": 9}},
        )
    ).encode()


def test_rows_of_the_other_stream_are_noted_and_not_a_fault() -> None:
    stream = settings_for(Staging(f"memory://{uuid.uuid4().hex}")).streams[0]
    log = FsspecStore(stream.table)
    log.write(f"_delta_log/{0:020d}.json", load(0, "orders", MINE))
    log.write(f"_delta_log/{1:020d}.json", load(1, "payments", OTHERS))
    for version in (0, 1):
        log.write(f"{version}.parquet", b"rows")
    report = Verifier(FsspecStore, in_turn, Rows(MINE, OTHERS), None).verify(stream)
    assert report.failure is None
    assert [finding.kind for finding in report.findings if finding.verdict is Verdict.FAULT] == []
    assert [(partition.partition, partition.proved) for partition in report.partitions] == [(MINE, True)]
    assert [finding.partition for finding in report.findings if finding.kind == "rows_of_other_topics"] == [OTHERS]


def test_chain_of_several_topics_is_verified_by_the_log() -> None:
    plain = settings_for(Staging(f"memory://{uuid.uuid4().hex}")).streams[0]
    stream = plain.model_copy(update={"topics": ("orders", "payments"), "topology": "shop:build"})
    chain = TopicPartition(Topic("orders+payments"), Partition(0))
    log = FsspecStore(stream.table)
    data = load(0, "orders", chain).replace(b'"orders-0"', b'"orders-orders+payments-0"')
    log.write(f"_delta_log/{0:020d}.json", data)
    log.write("0.parquet", b"rows")
    report = Verifier(FsspecStore, in_turn, Rows(MINE), None).verify(stream)
    assert report.failure is None
    assert [finding.kind for finding in report.findings if finding.verdict is Verdict.FAULT] == []
    assert [str(partition.partition) for partition in report.partitions] == ["orders+payments/0"]
    assert "several_topics" in {finding.kind for finding in report.findings}
