"""An export of dead letters as the source of a replay."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from common.cli import run
from common.errors import StoreError, UsageError
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.replacements import ReplacementName, replacement_from_bytes
from common.stage.topic_owners import owner_path
from common.storage.store import FsspecStore
from stage_writer.__main__ import app
from stage_writer.convert import StreamConverter
from stage_writer.decode.batch import NO_TIMESTAMP, MessageBatch
from stage_writer.replay.dead_letters import MOST_OFFSETS, MOST_REQUESTS, DeadLetterExport
from stage_writer.replay.records import Range, Replay, Replayed, chains_of_dead_letters
from tests.builders import config_file, required, settings_of, span
from tests.fakes.group import HandClock
from tests.fakes.streams import batch_of, stream_of

Place = tuple[str, int, int]


def export(folder: Path, places: list[Place]) -> Path:
    rows = {
        "_kafka_topic": [topic for topic, _, _ in places],
        "_kafka_partition": pa.array([partition for _, partition, _ in places], pa.int32()),
        "_kafka_offset": [offset for _, _, offset in places],
        "_kafka_timestamp": pa.array(
            [None if offset == 7 else offset * 1_000_000 for _, _, offset in places], pa.timestamp("us", "UTC")
        ),
        "key": pa.array([f"k{offset}".encode() for _, _, offset in places], pa.binary()),
        "value": pa.array([f"v{offset}".encode() for _, _, offset in places], pa.binary()),
    }
    pq.write_table(pa.table(rows), folder / "letters.parquet")
    return folder / "letters.parquet"


def source(partition: int) -> TopicPartition:
    return TopicPartition(Topic("orders"), Partition(partition))


def test_request_covers_only_offsets_of_the_export(tmp_path: Path) -> None:
    places = [
        ("orders", 1, 9),
        ("orders", 1, 8),
        ("orders", 0, 6),
        ("orders", 0, 8),
        ("orders", 0, 7),
        ("orders", 0, 7),
        ("clicks", 0, 5),
    ]
    letters = DeadLetterExport.read(export(tmp_path, places), 2)
    assert letters.topics() == ["clicks", "orders"]
    assert letters.requests("orders") == [Range(source(0), span(6, 9)), Range(source(1), span(8, 10))]
    batches = list(letters.batches(source(0), span(6, 9)))
    assert [batch.values.to_pylist() for batch in batches] == [[b"v6", b"v7"], [b"v8"]]
    assert [batch.keys.to_pylist() for batch in batches] == [[b"k6", b"k7"], [b"k8"]]
    (after,) = letters.batches(source(0), span(8, 9))
    assert after.values.to_pylist() == [b"v8"]
    (other,) = letters.batches(source(1), span(6, 10))
    assert other.values.to_pylist() == [b"v8", b"v9"]
    (before,) = letters.batches(source(0), span(6, 8))
    assert before.values.to_pylist() == [b"v6", b"v7"]
    assert [stamp for batch in batches for stamp in batch.timestamps_ms.tolist()] == [6000, NO_TIMESTAMP, 8000]


def test_dead_letters_of_two_streams_may_be_of_the_same_record(tmp_path: Path) -> None:
    table = pq.read_table(export(tmp_path, [("orders", 0, 4)] * 3))
    app_ids = pa.array(["orders", "audit", "orders"], pa.string())
    pq.write_table(table.append_column("app_id", app_ids), tmp_path / "letters.parquet")
    by_stream = DeadLetterExport.read(tmp_path / "letters.parquet", 10).by_stream()
    assert {app_id: len(letters.table) for app_id, letters in by_stream.items()} == {"audit": 1, "orders": 1}


def test_dead_letter_that_still_fails_leaves_those_of_other_topics_and_partitions(tmp_path: Path) -> None:
    places = [("clicks", 0, 4), ("orders", 0, 4), ("orders", 0, 5), ("orders", 1, 4)]
    letters = DeadLetterExport.read(export(tmp_path, places), 10)
    fails = Replayed(Range(source(0), span(4, 6)), 2, offsets_of_dead_letters=[np.array([4])])
    left = letters.without_inconvertible([fails]).table
    assert [tuple(row.values())[:3] for row in left.to_pylist()] == [place for place in places if place != places[1]]


def test_single_dead_letters_share_a_request_and_a_long_run_has_its_own(tmp_path: Path) -> None:
    alone = [*range(0, 20, 2), *range(100, 103)]
    long = range(1_000, 1_000 + MOST_OFFSETS + 1)
    behind = range(10_000, 10_000 + 2 * MOST_OFFSETS + 2, 2)
    export(tmp_path, [("orders", 0, offset) for offset in (*alone, *long, *behind)])
    requests = DeadLetterExport.read(tmp_path / "letters.parquet", 10).requests("orders")
    runs = (*(span(offset, offset + 1) for offset in range(0, 20, 2)), span(100, 103))
    assert requests[:2] == [Range(source(0), span(0, 103), runs), Range(source(0), span(long.start, long.stop))]
    assert [request.positions for request in requests] == [13, MOST_OFFSETS + 1, MOST_OFFSETS, 1]
    assert [
        offset
        for request in requests
        for run in request.only or (request.span,)
        for offset in range(run.start, run.end)
    ] == [
        *alone,
        *long,
        *behind,
    ]


def test_too_many_requests_are_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stage_writer.replay.dead_letters.MOST_OFFSETS", 2)
    places = [("orders", 0, 2 * index) for index in range(2 * MOST_REQUESTS + 1)]
    assert len(DeadLetterExport.read(export(tmp_path, places[:-1]), 10).requests("orders")) == MOST_REQUESTS
    with pytest.raises(UsageError, match="1,001 requests") as refused:
        DeadLetterExport.read(export(tmp_path, places), 10).requests("orders")
    assert "stage-writer replay" in refused.value.remedy


def test_replay_that_a_cleanup_may_overtake_makes_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()

    class Slow:
        def batches(self, partition: TopicPartition, span: Span) -> Iterator[MessageBatch]:
            clock.sleep_s(10)
            yield batch_of([b'{"id":1}'], partition=partition.partition, first=span.start)

    stream = stream_of(columns="id INT", table=f"{tmp_path}/table", partition_by=["id"])
    store = FsspecStore(f"{tmp_path}/stage")
    names: Iterator[str] = (f"{number:032x}" for number in range(9))

    def replay(longest_s: float) -> Replay:
        return Replay(
            StreamConverter(stream),
            Slow(),
            store,
            clock,
            lambda: next(names),
            writer="w",
            file_bytes=1,
            longest_s=longest_s,
        )

    asked = Range(source(3), span(5, 8), (span(5, 6), span(7, 8)))
    with pytest.raises(UsageError, match="took longer than 9s: a clean-up may have removed its first files"):
        replay(9).stage(asked)
    assert not list(store.list("replace"))
    with monkeypatch.context() as patch:
        patch.setattr("common.stage.stored.MOST_BYTES", 9)
        with pytest.raises(UsageError, match="was not written, because it is larger than"):
            replay(11).stage(asked)
    assert not list(store.list("replace"))
    made = replay(11).stage(asked).path
    assert [item.path for item in store.list("replace")] == [made]
    request = replacement_from_bytes(required(ReplacementName.parse(str(made))), required(store.read(str(made))))
    assert request.only == asked.only, "the offsets between them stay"
    assert request.version == 3, "an older release would replace these, too"
    files = list((tmp_path / "stage").rglob("*.parquet"))
    assert {"id" in pq.read_schema(path).names for path in files} == {True}, (
        "the column that the table is partitioned by"
    )
    names = itertools.chain(itertools.islice(names, 1), [str(made).rpartition("-")[2].partition(".")[0]])
    with pytest.raises(StoreError, match="exists already"):
        replay(11).stage(asked)


def test_file_that_is_not_an_export_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no parquet")
    with pytest.raises(UsageError, match="not an export of dead letters"):
        DeadLetterExport.read(tmp_path / "text", 10)
    for column in ("a", "_kafka_topic"):
        pq.write_table(pa.table({column: ["orders"]}), tmp_path / "other")
        with pytest.raises(UsageError, match=r"not an export of dead letters: .*_kafka_"):
            DeadLetterExport.read(tmp_path / "other", 10)


def test_letters_and_topic_options_exclude_each_other(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = config_file(tmp_path)
    letters = str(export(tmp_path, [("orders", 0, 6)]))
    assert run(app, ["replay", str(config), "--letters", letters, "--topic", "orders"]) == 2
    assert run(app, ["replay", str(config)]) == 2
    assert "--topic is missing" in capfd.readouterr().err
    assert run(app, ["replay", str(config), "--letters", letters]) == 0
    output = capfd.readouterr().out
    assert "orders/0  [6, 7)  1 record: 0 rows" in output
    assert "1 invalid_json" in output


def test_dead_letters_that_still_fail_are_not_requested(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    letters = export(tmp_path, [("orders", 0, 4), ("orders", 0, 9)])
    table = pq.read_table(letters).drop_columns(["value"])
    pq.write_table(table.append_column("value", pa.array([b'{"id": "x"}', b'{"id": 9}'], pa.binary())), letters)
    assert run(app, ["replay", str(config_file(tmp_path)), "--letters", str(letters), "--yes"]) == 0
    output = capfd.readouterr().out
    assert "none of them matches; they stay as they are" in output
    (request,) = (tmp_path / "stage" / "replace").rglob("*.replace")
    assert request.name.startswith("00000000000000000009-")


def test_request_is_for_the_streams_own_chain(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Another stream owned the topic when it was shared, and was removed from the config."""
    letters = export(tmp_path, [("orders", 0, 4), ("orders", 0, 9)])
    table = pq.read_table(letters).drop_columns(["value"])
    pq.write_table(table.append_column("value", pa.array([b'{"id": "x"}', b'{"id": 9}'], pa.binary())), letters)
    config = config_file(tmp_path)
    (app_id,) = (stream["app_id"] for stream in yaml.safe_load(config.read_text("utf-8"))["streams"])
    FsspecStore(f"{tmp_path}/stage").create(owner_path("orders"), b'{"version": 1, "owner": "gone"}')
    assert run(app, ["replay", str(config), "--letters", str(letters), "--yes"]) == 0
    assert f"orders@{app_id}/0  [9, 10)  1 record: 1 row" in capfd.readouterr().out
    (request,) = (tmp_path / "stage" / "replace").rglob("*.replace")
    assert request.parent == tmp_path / "stage" / "replace" / f"orders@{app_id}" / "0"
    assert request.name.startswith("00000000000000000009-")


@pytest.mark.parametrize(
    ("app_ids", "code", "expected"),
    [
        (["orders", "audit"], 0, ["orders/0  [4, 5)  1 record: 1 row", "orders@audit/0  [9, 10)  1 record: 1 row"]),
        (["audit"], 0, ["orders@audit/0  [4, 5)  1 record: 1 row"]),
        ([None], 2, ["the export does not say to which of them"]),
        (["gone"], 2, ["the export does not say to which of them"]),
    ],
)
def test_dead_letters_of_a_shared_topic_are_replayed_into_their_own_tables(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], app_ids: list[str | None], code: int, expected: list[str]
) -> None:
    export(tmp_path, [("orders", 0, 4), ("orders", 0, 9)][: len(app_ids)])
    table = pq.read_table(tmp_path / "letters.parquet").drop_columns(["value"])
    table = table.append_column("value", pa.array([b'{"id": 4}'] * len(app_ids), pa.binary()))
    pq.write_table(table.append_column("app_id", pa.array(app_ids, pa.string())), tmp_path / "letters.parquet")
    config = config_file(tmp_path)
    content = yaml.safe_load(config.read_text("utf-8"))
    (stream,) = content["streams"]
    other = {"app_id": "audit", "table": f"{tmp_path}/tables/audit", "dead_letters": f"{tmp_path}/tables/audit_dead"}
    content["streams"] = [stream | {"app_id": "orders"}, stream | other]
    config.write_text(yaml.safe_dump(content), "utf-8")
    FsspecStore(f"{tmp_path}/stage").create(owner_path("orders"), b'{"version": 1, "owner": "orders"}')
    assert run(app, ["replay", str(config), "--letters", str(tmp_path / "letters.parquet"), "--yes"]) == code
    shown = "".join(capfd.readouterr())
    assert all(line in shown for line in expected)
    requests = {path.parent.parent.name for path in (tmp_path / "stage").rglob("*.replace")}
    assert requests == ({line.partition("/")[0] for line in expected} if code == 0 else set())


def test_stream_that_no_longer_reads_a_topic_does_not_tell_whose_its_dead_letters_are() -> None:
    topics = {"orders": "clicks", "audit": "orders", "billing": "orders"}
    settings = settings_of(
        *({"app_id": app_id, "topics": [topic], "table": f"memory://{app_id}"} for app_id, topic in topics.items())
    )
    assert chains_of_dead_letters(settings, "orders", ["clicks"]) == ["clicks"]
    with pytest.raises(UsageError, match="the streams 'audit' and 'billing' share the topic 'orders'"):
        chains_of_dead_letters(settings, "orders", ["orders"])


@pytest.mark.parametrize("app_ids", [["audit"], ["orders", "audit"]])
def test_refusal_of_one_stream_says_how_to_replay_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], app_ids: list[str]
) -> None:
    topics = {"orders": "orders", "audit": "clicks"}
    letters = export(tmp_path, [(topics[app_id], 0, 4) for app_id in app_ids])
    pq.write_table(pq.read_table(letters).append_column("app_id", pa.array(app_ids)), letters)
    config = config_file(tmp_path)
    content = yaml.safe_load(config.read_text("utf-8"))
    (stream,) = content["streams"]
    merged = {"app_id": "audit", "topics": ["clicks"], "load": "merge", "merge": {"keys": ["id"]}}
    urls = {"table": f"{tmp_path}/tables/audit", "dead_letters": f"{tmp_path}/tables/audit_dead"}
    content["streams"] = [stream | {"app_id": "orders"}, stream | merged | urls]
    config.write_text(yaml.safe_dump(content), "utf-8")
    assert run(app, ["replay", str(config), "--letters", str(letters), "--yes"]) == 2
    error = capfd.readouterr().err
    assert "the stream 'audit' merges change events" in error
    assert ("with the --stream of each" in error) == (len(app_ids) > 1)
    assert not list((tmp_path / "stage").rglob("*.replace"))


@pytest.mark.parametrize("generation", [0, 1])
def test_dead_letters_of_a_chain_that_was_started_again_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], generation: int
) -> None:
    """The table may have rows of the old chain and of the new one at these offsets."""
    letters = export(tmp_path, [("orders", 0, 4)])
    origin = ChainOrigin(Position(0), generation)
    FsspecStore(f"{tmp_path}/stage").create(origin_path(source(0), 1), origin_to_bytes(origin))
    code = run(app, ["replay", str(config_file(tmp_path)), "--letters", str(letters), "--yes"])
    assert code == (2 if generation else 0)
    assert ("the chain of orders/0 was started again" in capfd.readouterr().err) == bool(generation)
