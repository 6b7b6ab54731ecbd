"""Where an offset is: the search in a table's history, and the text and JSON output."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from common.spans import Offset, Partition, Position, Topic, TopicPartition
from common.stage.markers import Manifest, Marker, MarkerName, Origin
from common.tables.commit_metadata import CommitMetadata
from common.tables.counts import Counts, Replaced
from common.tables.history import LoggedCommit
from delta_loader.inspect.explain.offsets import (
    Holder,
    LoadedRange,
    OffsetLocation,
    OffsetReport,
    RecordQuery,
    find_loading_commit,
)
from delta_loader.inspect.explain.versions import VersionReport
from delta_loader.inspect.explain.view import offset_to_json, offset_to_text, version_to_json
from delta_loader.plan.held import Held
from delta_loader.tables.history import parse_version
from tests.builders import span

SOURCE = TopicPartition(Topic("orders"), Partition(0))
NOTHING: Mapping[TopicPartition, int] = {}


def load(
    version: int, start: int, end: int, *, app_id: str = "orders", generation: int = 0, **given: object
) -> LoggedCommit:
    counts = Counts(end - start, end - start, 0, 0)
    metadata = CommitMetadata(
        f"load-{version}",
        app_id,
        {SOURCE: span(start, end)},
        1000,
        {SOURCE: replace(counts, **given)},  # type: ignore[arg-type]
        generations={SOURCE: generation} if generation else NOTHING,
    )
    return LoggedCommit(version, "STREAMING UPDATE", timestamp_ms=1_772_359_265_000, metadata=metadata)


def other(version: int, operation: str = "OPTIMIZE", restored: int | None = None) -> LoggedCommit:
    return LoggedCommit(version, operation, restored_version=restored, timestamp_ms=1_772_359_265_000)


def asked(offset: int, generation: int = 0) -> RecordQuery:
    return RecordQuery("orders", SOURCE, Offset(offset), generation)


def search(offset: int, *commits: LoggedCommit, generation: int = 0) -> LoadedRange:
    return find_loading_commit(sorted(commits, key=lambda commit: -commit.version), asked(offset, generation))


def version_of(commit: LoggedCommit | None) -> int | None:
    return None if commit is None else commit.version


def test_loading_commit_is_found_below_foreign_commits() -> None:
    history = (other(0, "CREATE TABLE"), load(1, 0, 10), load(2, 10, 20), other(3), load(4, 0, 99, app_id="another"))
    assert [version_of(search(offset, *history).commit) for offset in (0, 9, 10, 19, 20)] == [1, 1, 2, 2, None]
    assert search(20, *history).is_whole


def test_rows_removed_by_a_restore_are_reported_lost() -> None:
    history = (other(0, "CREATE TABLE"), load(1, 0, 10), load(2, 10, 20), other(3, "RESTORE", 1))
    loads = search(15, *history)
    assert (version_of(loads.commit), version_of(loads.lost), version_of(loads.taken_by)) == (None, 2, 3)
    assert version_of(search(5, *history).commit) == 1
    again = search(15, *history, load(4, 10, 30))
    assert (version_of(again.commit), again.lost) == (4, None)
    undone = search(15, *history, other(4, "RESTORE", 2))
    assert version_of(undone.commit) == 2
    twice = search(5, *history[:2], load(2, 0, 10), history[3])
    assert (version_of(twice.commit), twice.lost) == (1, None)


def test_restore_is_reported_with_the_load_it_removed() -> None:
    history = (load(1, 0, 10), other(2, "RESTORE", 0), load(3, 0, 5), load(4, 5, 9), other(5, "RESTORE", 3))
    assert version_of(search(7, *history, other(0, "CREATE TABLE")).lost) == 4
    assert version_of(search(7, *history, other(0, "CREATE TABLE")).taken_by) == 5
    assert version_of(search(3, *history, other(0, "CREATE TABLE")).commit) == 3


def test_loads_of_an_older_generation_are_reported_separately() -> None:
    history = (load(7, 0, 10), load(8, 0, 4, generation=1))
    assert version_of(search(3, *history, generation=1).commit) == 8
    loads = search(6, *history, generation=1)
    assert (loads.commit, version_of(loads.older), loads.is_whole) == (None, 7, False)


def test_replaced_range_names_both_commits() -> None:
    replaced = Replaced(span(2, 6), "r-1", Counts(4, 4, 0, 0))
    again = LoggedCommit(2, "WRITE", metadata=CommitMetadata("x", "orders", {}, None, replaced={SOURCE: replaced}))
    loads = search(3, load(1, 0, 10), again)
    assert (version_of(loads.commit), version_of(loads.replaced)) == (1, 2)
    assert search(7, load(1, 0, 10), again).replaced is None
    assert version_of(search(3, load(1, 0, 10), again, replace(again, version=3)).replaced) == 3
    assert search(3, load(1, 0, 10, generation=1), again, generation=1).replaced is None


def story(offset: int, *commits: LoggedCommit, position: int | None = 20, **given: object) -> OffsetReport:
    place = None if position is None else Position(position)
    return replace(OffsetReport(asked(offset), "s3://lake/orders", place, search(offset, *commits)), **given)  # type: ignore[arg-type]


LOADED = (other(0, "CREATE TABLE"), load(1, 0, 20, records=15, rows=13, tombstones=2))
ROW = Holder("s3://lake/orders", "day=1/a.parquet", rows=1)


@pytest.mark.parametrize(
    ("explained", "place", "sentence"),
    [
        (story(5, *LOADED, holders=(ROW,)), OffsetLocation.ROW, "its row is in the table"),
        (story(5, *LOADED, holders=(replace(ROW, rows=3),)), OffsetLocation.ROW, "its 3 rows are in the table"),
        (
            story(5, *LOADED, holders=(replace(ROW, is_dead_letters=True, error="not_json: no"),)),
            OffsetLocation.DEAD_LETTER,
            "a.parquet of s3://lake/orders, not_json: no",
        ),
        (
            story(5, *LOADED, holders=(replace(ROW, rows=0),)),
            OffsetLocation.NO_ROW,
            "a tombstone (2 in that span), or not a record",
        ),
        (story(5, *LOADED, kafka_columns=False), OffsetLocation.LOADED, "is unknown"),
        (
            story(5, *LOADED, holders=(replace(ROW, rows=None, problem="it is gone"),)),
            OffsetLocation.LOADED,
            "it is gone",
        ),
        (story(5, other(0), load(1, 0, 20, given_up=(span(0, 9),))), OffsetLocation.GIVEN_UP, "given up"),
        (story(15, *LOADED, other(2, "RESTORE", 0)), OffsetLocation.TAKEN_BACK, "what version 1 had loaded, version 2"),
        (story(2, other(0), load(1, 10, 20)), OffsetLocation.BEFORE_BEGINNING, "this stream loads, 10"),
        (story(2, load(9, 10, 20)), OffsetLocation.FORGOTTEN, "the log begins with version 9"),
        (story(2, load(9, 10, 20), holders=(ROW,)), OffsetLocation.ROW, "which version loaded it is no longer known"),
        (story(30, *LOADED, kafka_end=Position(25)), OffsetLocation.NOT_IN_KAFKA, "ends at 25"),
        (
            story(30, *LOADED, kafka_end=Position(35)),
            OffsetLocation.NOT_STAGED,
            "the table has position 20; nothing is staged",
        ),
        (story(30, *LOADED, staged_to=Position(50)), OffsetLocation.GAP, "it is not staged, although"),
    ],
)
def test_each_offset_location_has_its_text(explained: OffsetReport, place: OffsetLocation, sentence: str) -> None:
    assert explained.place is place
    assert sentence in offset_to_text(explained)
    assert f"'place': '{place.value}'" in str(offset_to_json(explained))


def test_staged_offset_names_its_marker_and_hold_reason() -> None:
    manifest = Manifest(span(20, 40), Position(0), "orders", Origin.FLUSH, "w", 0)
    marker = Marker(MarkerName(SOURCE, Position(20)), manifest)
    waiting = story(30, *LOADED, staged=marker, staged_to=Position(40))
    assert waiting.place is OffsetLocation.STAGED
    assert "done/orders/0/00000000000000000020.done" in offset_to_text(waiting)
    held = replace(waiting, held=Held("missing_file", "a file is gone", "rewind"))
    assert held.place is OffsetLocation.HELD
    assert "→ rewind" in offset_to_text(held)
    skipped = replace(waiting, staged=Marker(marker.name, replace(manifest, origin=Origin.SKIP)))
    assert skipped.place is OffsetLocation.GIVEN_UP


def test_version_that_its_log_does_not_describe_is_reported() -> None:
    version = parse_version(7, b'{"add": {"path": "a.parquet"}}')
    report = version_to_json(VersionReport("/t", 7, 9, 0, version))
    assert isinstance(report, dict)
    values = [report[name] for name in ("operation", "at_ms", "author", "load", "changes_data")]
    assert values == ["unknown", None, None, None, True]
