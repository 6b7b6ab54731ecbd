"""What a replay asks the loader for: all rows of its range, and what became of the other records."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.ports import CreateOutcome
from common.settings import Stream
from common.spans import Partition, Span, Topic, TopicPartition
from common.stage.replacements import Replacement, ReplacementName, replacement_from_bytes
from common.storage.store import FsspecStore
from stage_writer.convert_by_table import converter_of
from stage_writer.decode.batch import MessageBatch
from stage_writer.replay.records import Range, Replay, Replayed
from tests.builders import required, span
from tests.fakes.group import HandClock
from tests.fakes.streams import batch_of, stream_of

SOURCE = TopicPartition(Topic("orders"), Partition(3))


class Records:
    """Some batches of records from offset 100 on."""

    def __init__(self, *batches: list[bytes | None]) -> None:
        self.batches_of_values = batches

    def batches(self, partition: TopicPartition, span: Span) -> Iterator[MessageBatch]:
        del partition
        first = int(span.start)
        for values in self.batches_of_values:
            yield batch_of(values, first=first)
            first += len(values)


class Stage(FsspecStore):
    """A loader may see a request as soon as it is created."""

    def create(self, path: str, data: bytes) -> CreateOutcome:
        request = replacement_from_bytes(required(ReplacementName.parse(path)), data)
        assert all(self.stat(file.path) for table in request.tables for file in table.files)
        return super().create(path, data)


def replayed(folder: Path, stream: Stream, records: Records, end: int, file_bytes: int) -> tuple[Replayed, Replacement]:
    store, numbers = Stage(f"{folder}/stage"), count()
    replay = Replay(
        converter_of(stream),
        records,
        store,
        HandClock(),
        lambda: f"{next(numbers):032x}",
        writer="w",
        file_bytes=file_bytes,
        longest_s=9,
    )
    made = replay.stage(Range(SOURCE, span(100, end)))
    path = required(made.path)
    return made, replacement_from_bytes(required(ReplacementName.parse(path)), required(store.read(path)))


@pytest.mark.parametrize("file_bytes", [1, 10**9], ids=["a file for each batch", "one file"])
def test_request_has_the_rows_of_all_tables_and_counts_the_rest(tmp_path: Path, file_bytes: int) -> None:
    stream = stream_of(
        columns="id INT, kind STRING",
        table=f"{tmp_path}/own",
        partition_by=["kind"],
        where="id <> 4",
        route="kind",
        routes={"a": f"{tmp_path}/a"},
    )
    values = [b'{"id":%d,"kind":"%s"}' % (number, b"ab"[number % 2 :][:1]) for number in range(6)]
    made, request = replayed(tmp_path, stream, Records([*values[:3], None], [*values[3:], b"{"]), 108, file_bytes)
    assert (request.records, request.tombstones, request.dead_letters) == (8, 1, {"invalid_json": 1})
    assert request.filtered == (span(105, 106),)
    tables = {Path(table.url).name: table for table in request.tables}
    rows = {
        name: pa.concat_tables([pq.read_table(tmp_path / "stage" / file.path) for file in table.files])
        for name, table in tables.items()
        if name in {"own", "a"}
    }
    assert {name: table.select(["id", "kind"]).to_pylist() for name, table in rows.items()} == {
        "own": [{"id": number, "kind": "b"} for number in (1, 3, 5)],
        "a": [{"id": number, "kind": "a"} for number in (0, 2)],
    }
    assert [sum(file.rows for file in tables[name].files) for name in ("own", "a")] == [3, 2]
    (refused,) = (table for name, table in tables.items() if name not in rows)
    assert sum(file.rows for file in refused.files) == 1
    assert (made.rows, request.rows, request.version) == (5, 5, 2)
    assert request.of(f"{tmp_path}/own/") == tables["own"]


def test_request_counts_the_rows_of_exploded_records(tmp_path: Path) -> None:
    stream = stream_of(columns="items ARRAY<INT>", table=f"{tmp_path}/own", explode="items")
    made, request = replayed(tmp_path, stream, Records([b'{"items":[1,2,3]}', b'{"items":[4]}']), 102, 10**9)
    assert (request.records, request.exploded, request.rows, made.rows) == (2, 2, 4, 4)
    assert request.version == 2, "an older release would take them for too many rows"
