"""One value of each format that outlives a process, as today's code writes it.

``python -m tests.upgrades.formats VERSION`` writes them into ``files/VERSION/``, once for each release, when it is
made; existing files are never written again. ``files/next/`` has the formats that are newer than the last release.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from common.schema import parse_ddl
from common.schema.spark_json import schema_to_json
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.appeared_routes import AppearedRoutes
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.idle import IdleFact, facts_to_bytes, idle_path
from common.stage.leases import LeaseRecord
from common.stage.markers import Manifest, MarkerName, Origin, StagedFile, StagedTable, TableKind, manifest_to_bytes
from common.stage.merged import InputEnd
from common.stage.paused import Pause, StreamPart
from common.stage.replacements import (
    Replacement,
    ReplacementFile,
    ReplacementName,
    ReplacementTable,
    replacement_to_bytes,
)
from common.stage.resolutions import Resolution
from common.stage.task_files import MarkedState, StateFileName, StateFiles, StateKind, TopicChanges
from common.stage.versions import AgreedColumns, Evolved
from common.tables.changes import MergeBy
from common.tables.commit_metadata import CommitMetadata, Decision
from common.tables.counts import Counts
from stage_writer.outbox.records import SCHEMA as OUTBOX_SCHEMA
from stage_writer.outbox.records import Outgoing, outgoing_to_chunks
from stage_writer.topologies.stores.backend import Changes
from stage_writer.topologies.stores.files import changes_to_chunks, snapshot_to_chunks
from stage_writer.topologies.stores.task_stores import Snapshot

FILES = Path(__file__).parent / "files"
SOURCE = TopicPartition(Topic("orders"), Partition(0))
SPAN = Span(Position(41), Position(44))
NAME = MarkerName(SOURCE, SPAN.start)
REQUEST = ReplacementName(SOURCE, SPAN.start, "0123456789abcdef0123456789abcdef")
TABLE = "s3://lake/tables/orders"
SCHEMA = schema_to_json(parse_ddl("id BIGINT, date STRING"))
MADE_MS = 1_772_359_265_000
FILE = StagedFile(
    "date=2026-03-01/orders-0-00000000000000000041-0b4a5dbe-8d61-4bb7-9e0e-2f8f0b0e3c11.snappy.parquet",
    {"date": "2026-03-01"},
    1480,
    2,
    '{"numRecords":2}',
)
MIXED = replace(FILE, path="data/orders/orders-0-00000000000000000041-1.snappy.parquet", partition_values=None)
BY = MergeBy(("id",), ("_kafka_topic", "_kafka_partition", "_kafka_offset"), "date", "gone")
MANIFEST = Manifest(
    span=SPAN,
    previous=Position(7),
    app_id="orders",
    origin=Origin.FLUSH,
    writer="writer-1",
    created_ms=MADE_MS,
    records=3,
    dead_letters={"invalid_json": 1},
    lowest_timestamp_ms=1_772_359_201_250,
    highest_timestamp_ms=1_772_359_204_021,
    tables=(StagedTable(TABLE, TableKind.ROWS, SCHEMA, ("date",), (FILE,)),),
)
SNAPSHOT = StateFileName(SOURCE, Position(7), 0, "0b4a5dbe-8d61-4bb7-9e0e-2f8f0b0e3c11", StateKind.SNAPSHOT)
BEFORE = StateFiles(SNAPSHOT.path)
IN_TOPIC = TopicChanges(
    TopicPartition(Topic("orders-changes"), Partition(0)),
    "Eddh3wAYTZe2G9YzpZn4lg",
    (Span(Position(41), Position(43)), Span(Position(46), Position(47))),
    700_123,
    "6a09e667f3bcc908bb67ae8584caa73b",
    MADE_MS,
)


def _merging(by: MergeBy) -> Manifest:
    """A manifest whose rows are merged."""
    return replace(MANIFEST, tables=(StagedTable(TABLE, TableKind.ROWS, SCHEMA, ("date",), (MIXED,), by),))


MARKERS = {
    "marker-1": MANIFEST,
    "marker-2": replace(MANIFEST, generation=1),
    "marker-3": replace(MANIFEST, filtered=1, records=4),
    "marker-4": replace(MANIFEST, tables=(StagedTable(TABLE, TableKind.ROWS, SCHEMA, ("date",), (MIXED,)),)),
    "marker-5": _merging(BY),
    "marker-7": _merging(
        replace(BY, row="_merge_row", event_columns=("_kafka_timestamp",), truncate="_merge_truncate")
    ),
    "marker-8": _merging(replace(BY, history=True)),
    "marker-9": _merging(replace(BY, keys=("id", "item.sku"), element=(("item", "sku"),))),
    "marker-6": replace(MANIFEST, state=MarkedState(BEFORE.with_changes(IN_TOPIC), BEFORE)),
}
REPLACEMENT = Replacement(
    span=SPAN,
    app_id="orders",
    writer="writer-1",
    created_ms=MADE_MS,
    records=3,
    tombstones=1,
    tables=(
        ReplacementTable(TABLE, TableKind.ROWS, SCHEMA, (ReplacementFile("data/orders/a.snappy.parquet", 2, 1480),)),
    ),
)
REPLACEMENTS = {
    "replacement-1": REPLACEMENT,
    "replacement-2": replace(REPLACEMENT, filtered=(SPAN,)),
    "replacement-3": replace(REPLACEMENT, only=(Span(SPAN.start, Position(42)), Span(Position(43), SPAN.end))),
}
ORIGINS = {
    "beginning": ChainOrigin(Position(42), 1, "Eddh3wAYTZe2G9YzpZn4lg"),
    "origin-2": ChainOrigin(
        Position(42),
        1,
        "Eddh3wAYTZe2G9YzpZn4lg",
        ("outbox/orders/0/00000000000000000007-1-0b4a5dbe-8d61-4bb7-9e0e-2f8f0b0e3c11.records",),
        BEFORE.with_changes(IN_TOPIC),
    ),
}
AGREED = AgreedColumns(
    "orders",
    3,
    parse_ddl("id BIGINT, sent TIMESTAMP"),
    "from_records",
    MADE_MS,
    {"sent": "epoch_us"},
    (7, "0c0f7a0e-6b1f-4a57-9f0e-9d0d7f0b6a11"),
    "debezium",
)
APPEARED = AppearedRoutes("orders", 2, ("click", "View"))
PAUSE = Pause("orders", StreamPart.LOADING, MADE_MS, "ada", "the table is being rebuilt")
FACTS = (IdleFact(SOURCE, Position(44), MADE_MS, 0),)
LEASE = LeaseRecord("host-1", released=False, lease_s=15.0, created_ms=MADE_MS)
GAINED = Evolved("orders", 2, parse_ddl("note STRING"))
ANSWER = Resolution("orders", TABLE, "7f4c", 12, Decision.REPLAY, {SOURCE: Position(41)}, "ada", MADE_MS)
COMMIT = CommitMetadata("commit-1", "orders", {SOURCE: SPAN}, MADE_MS, {SOURCE: Counts(3, 2, 0, 1)})

CHANGED = Changes(
    {"counts": {b"ada": b"2", b"bob": None}, "per_hour": {b"\x00\x01ada": b"7"}},
    {"counts": "key_value", "per_hour": "window"},
)
HELD = Changes({"counts": {b"ada": b"2"}, "per_hour": {b"\x00\x01ada": b"7"}}, CHANGED.kinds)
SENT = Outgoing(
    SOURCE,
    1,
    (InputEnd(SOURCE, SPAN.end),),
    pa.Table.from_pylist(
        [
            {"topic": "totals", "key": b"ada", "value": b'{"n":2}', "timestamp_ms": MADE_MS, "headers": None},
            {
                "topic": "totals",
                "key": None,
                "value": None,
                "timestamp_ms": None,
                "headers": [{"name": "a", "value": b"b"}],
            },
        ],
        schema=OUTBOX_SCHEMA,
    ),
)
"""The first two are the content of state files, the last that of an outbox."""


def written_binary() -> dict[str, bytes]:
    """The objects that are not JSON, by file name."""
    spaces = {name: partial(_entries, dict(entries)) for name, entries in HELD.spaces.items()}
    return {
        "state-1.changes": changes_to_chunks(CHANGED).to_bytes(),
        "state-1.snapshot": snapshot_to_chunks(Snapshot(spaces, HELD.kinds)).to_bytes(),
        "outbox-1.outbox": outgoing_to_chunks(SENT).to_bytes(),
    }


def _entries(entries: dict[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes]]:
    yield from ((key, value) for key, value in sorted(entries.items()) if value is not None)


def written() -> dict[str, tuple[str, bytes]]:
    """Each format's path in the stage (or its kind) and its bytes, by file name."""
    return {
        **{name: (NAME.path, manifest_to_bytes(SOURCE, manifest)) for name, manifest in MARKERS.items()},
        **{
            name: (REQUEST.path, replacement_to_bytes(REQUEST, replacement))
            for name, replacement in REPLACEMENTS.items()
        },
        **{name: (origin_path(SOURCE), origin_to_bytes(origin)) for name, origin in ORIGINS.items()},
        "idle": (idle_path("writer-1"), facts_to_bytes(FACTS)),
        "lease": ("lease", LEASE.to_bytes()),
        "columns": (GAINED.path, GAINED.to_bytes()),
        "agreed-columns": (AGREED.path, AGREED.to_bytes()),
        "routes": (APPEARED.path, APPEARED.to_bytes()),
        "pause": (PAUSE.path, PAUSE.to_bytes()),
        "answer": (ANSWER.path, ANSWER.to_bytes()),
        "commit": ("user metadata", COMMIT.to_json().encode()),
    }


def main(version: str) -> None:
    """Writes the files of a release."""
    folder = FILES / version
    folder.mkdir(parents=True)  # existing files stay
    for name, (_, data) in written().items():
        (folder / f"{name}.json").write_bytes(data)
    for name, data in written_binary().items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main(sys.argv[1])
