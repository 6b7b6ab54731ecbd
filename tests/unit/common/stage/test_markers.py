import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import MarkerError, StoreError
from common.ports import StoredObject
from common.spans import MAX_POSITION, Partition, Position, Span, Topic, TopicPartition
from common.stage.chain_origins import origin_from_bytes, origin_path
from common.stage.data_files import DataFileName, waiting_path
from common.stage.markers import (
    LastRecord,
    Manifest,
    MarkerName,
    Origin,
    StagedFile,
    StagedTable,
    TableKind,
    folder_of,
    manifest_from_bytes,
    manifest_to_bytes,
    marker_from_bytes,
    stray_path,
)
from common.stage.merged import InputEnd, is_merged, merged_position, topics_of
from common.stage.stored import beyond_bounds
from common.stage.task_files import (
    EMPTY_STATE,
    MarkedState,
    OutboxName,
    StateFileName,
    StateFiles,
    StateKind,
    TopicChanges,
    changes_digest,
)
from common.stage.undeclared import UndeclaredFields
from common.storage.bounded import MOST_BYTES
from common.tables.changes import MergeBy
from stage_writer.stage.staging import sealed
from tests.builders import required
from tests.fakes.markers import ORDERS

ELEMENTS, OBJECTS = 5000, 100
NAME = MarkerName(ORDERS, Position(41))
OTHER_PARTITION = TopicPartition(ORDERS.topic, Partition(1))
PAYMENTS = TopicPartition(Topic("payments"), Partition(0))
UNIQUE = "0b4a5dbe-8d61-4bb7-9e0e-2f8f0b0e3c11"
FILE = DataFileName(ORDERS, Position(41), UNIQUE).path
MANIFEST = Manifest(
    span=Span(Position(41), Position(44)),
    previous=Position(7),
    app_id="orders",
    origin=Origin.FLUSH,
    writer="writer-1",
    created_ms=1_700_000_000_000,
    records=3,
    tombstones=1,
    dead_letters={"json": 1},
    lowest_timestamp_ms=1,
    highest_timestamp_ms=2,
    tables=(
        StagedTable(
            "s3://lake/orders",
            TableKind.ROWS,
            '{"type":"struct","fields":[]}',
            ("date",),
            (StagedFile(f"date=2026-03-01/{FILE}", {"date": "2026-03-01"}, 10, 1, '{"numRecords":1}'),),
        ),
    ),
)


def test_last_record_is_written_where_known() -> None:
    last = LastRecord(43, 1_772_359_204_021, 7)
    content = json.loads(manifest_to_bytes(ORDERS, replace(MANIFEST, last_record=last)))
    assert content["last_record"] == {"offset": 43, "timestamp_ms": 1_772_359_204_021, "leader_epoch": 7}
    for known in (last, LastRecord(43, None, None), None):
        manifest = replace(MANIFEST, last_record=known)
        assert manifest_from_bytes(NAME, manifest_to_bytes(ORDERS, manifest)) == manifest
    assert "last_record" not in stored(), "older releases wrote none"


def test_undeclared_fields_are_written_where_sampled() -> None:
    undeclared = UndeclaredFields(21, {"meta.producer": 20, "€": 1}, 3)
    manifest = replace(MANIFEST, undeclared=undeclared)
    content = json.loads(manifest_to_bytes(ORDERS, manifest))
    assert content["undeclared"] == {"sampled": 21, "fields": {"meta.producer": 20, "€": 1}, "others": 3}
    assert content["version"] == stored()["version"], "older readers ignore it"
    assert read(content) == manifest
    assert "undeclared" not in stored(), "it costs nothing where there is none"
    with pytest.raises(MarkerError, match=r"undeclared\.fields"):
        read({**content, "undeclared": {"sampled": 1, "fields": {"a": -1}}})


def test_violations_are_counted_where_there_are_any() -> None:
    manifest = replace(MANIFEST, violations={"positive_amount": 3})
    content = json.loads(manifest_to_bytes(ORDERS, manifest))
    assert content["violations"] == {"positive_amount": 3}
    assert content["version"] == stored()["version"], "older readers ignore it"
    assert read(content) == manifest
    assert "violations" not in stored(), "it costs nothing where there is none"
    with pytest.raises(MarkerError, match=r"violations\.positive_amount"):
        read({**content, "violations": {"positive_amount": -1}})


def stored() -> dict[str, object]:
    content: dict[str, object] = json.loads(manifest_to_bytes(ORDERS, MANIFEST))
    return content


def read(content: object) -> Manifest | None:
    return manifest_from_bytes(NAME, json.dumps(content).encode())


def test_marker_is_named_by_its_start_in_twenty_digits() -> None:
    assert NAME.path == "done/orders/0/00000000000000000041.done"
    assert folder_of(ORDERS) == "done/orders/0/"
    assert stray_path(NAME.path) == "stray/done/orders/0/00000000000000000041.done"


@pytest.mark.parametrize(
    "path",
    [
        "done/orders/0/41.don",
        "done/orders/0/.done",
        "done/orders/0/-1.done",
        "done/orders/0/4x.done",
        "done/orders/x/41.done",
        "done/orders/00/41.done",
        "done/orders/41.done",
        "done/or ders/0/41.done",
        "stray/done/orders/0/41.done",
        "done/orders/0/41.done.2",
        "done/orders/0/٤١.done",
        f"done/orders/0/{MAX_POSITION}.done",
        "data/orders/0/41.done",
    ],
)
def test_other_path_is_not_a_marker(path: str) -> None:
    assert MarkerName.parse(path) is None


def test_empty_marker_was_made_by_hand_and_covers_one_position() -> None:
    marker = marker_from_bytes(NAME, b"")
    assert marker.manifest is None
    assert marker.span == Span(Position(41), Position(42))
    assert marker.previous is None
    assert marker.tables == ()


def test_unknown_field_of_a_newer_writer_is_ignored() -> None:
    assert read({**stored(), "color": "green"}) == MANIFEST


def test_newer_version_is_refused_with_the_remedy_to_upgrade() -> None:
    with pytest.raises(MarkerError, match="format version 10") as caught:
        read({**stored(), "version": 10, "something": "else"})
    assert "upgrade" in caught.value.remedy
    assert NAME.path in caught.value.problem


@pytest.mark.parametrize(
    ("generation", "filtered", "exploded", "version"),
    [(0, 0, 0, 1), (1, 0, 0, 2), (0, 1, 0, 3), (0, 0, 1, 3), (1, 1, 0, 3)],
)
def test_marker_version_excludes_loaders_that_would_miss_its_fields(
    generation: int, filtered: int, exploded: int, version: int
) -> None:
    manifest = replace(MANIFEST, generation=generation, filtered=filtered, exploded=exploded)
    assert json.loads(manifest_to_bytes(ORDERS, manifest))["version"] == version


def test_mixed_file_raises_the_version_and_lies_below_data() -> None:
    (table,) = MANIFEST.tables
    mixed = StagedFile(f"data/orders/{FILE}", None, 10, 1, "{}")
    manifest = replace(MANIFEST, tables=(replace(table, files=(*table.files, mixed)),))
    data = manifest_to_bytes(ORDERS, manifest)
    assert json.loads(data)["version"] == 4
    assert manifest_from_bytes(NAME, data) == manifest
    elsewhere = json.loads(data)
    for path in (FILE, f"data/payments/{FILE}", f"data/orders/date=2026-03-01/{FILE}"):
        elsewhere["tables"][0]["files"][-1]["path"] = path
        with pytest.raises(MarkerError, match=r"is not below data/orders/|lies in folders of other columns"):
            read(elsewhere)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": 40}, "names done/orders/0/00000000000000000040.done"),
        ({"topic": "invoices"}, "names done/invoices/0"),
        ({"end": 41}, "start < end"),
        ({"end": None}, "end"),
        ({"records": -1}, "records"),
        ({"records": "3"}, "records"),
        ({"origin": "magic"}, "origin"),
        ({"version": 0}, "version"),
        ({"tables": [{}]}, "tables"),
    ],
)
def test_broken_manifest_is_refused_by_marker_and_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(MarkerError) as caught:
        read({**stored(), **change})
    assert NAME.path in caught.value.problem
    assert message in caught.value.problem


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "data",
    [
        *(b"{", b"\xff\xfe", b"[]", b"null", b"{}", b" ", b"\0" * 10),
        pytest.param(b'{"version": 1, "x": %s}' % DEEP, id="deep"),
        pytest.param(DEEP[:100_000], id="deep and cut"),
        pytest.param(b'{"version": %s}' % (b"9" * 5000), id="a long number"),
        b'{"version": 1e400}',
        b'{"version": true}',
    ],
)
def test_invalid_json_is_not_a_manifest(data: bytes) -> None:
    with pytest.raises(MarkerError, match=NAME.path):
        manifest_from_bytes(NAME, data)


OUTSIDE = (
    *("../other/a.parquet", "/etc/passwd", "a/../../b", "s3://elsewhere/a.parquet", "file:/etc/passwd"),
    *("_delta_log/00000000000000000007.json", "./_delta_log/a.parquet", "a\\..\\b", "a\0b"),
)
OTHER_VALUES: list[dict[str, str | None]] = [{}, {"another": "1"}, {"date": "2026-03-01", "another": None}]
FOREIGN: list[tuple[str, object, str]] = [
    *(("path", path, "leaves its table's root") for path in OUTSIDE),
    ("path", f"date=2026-03-01/{DataFileName(ORDERS, Position(40), UNIQUE).path}", "belongs to orders/0 at 40"),
    ("path", f"date=2026-03-01/{DataFileName(OTHER_PARTITION, Position(41), UNIQUE).path}", "belongs to orders/1"),
    ("path", f"date=2026-03-01/{DataFileName(PAYMENTS, Position(41), UNIQUE).path}", "belongs to payments/0"),
    ("path", "date=2026-03-01/part-00000-0b4a5dbe.c000.snappy.parquet", "not the name of a data file"),
    ("path", FILE, "folders of other columns"),
    ("path", f"month=2026-03/{FILE}", "folders of other columns"),
    *(("partition_values", values, "has values of other columns than its table is") for values in OTHER_VALUES),
]


@pytest.mark.parametrize(("key", "value", "message"), FOREIGN)
def test_file_of_another_table_flush_or_program_is_refused(key: str, value: object, message: str) -> None:
    content = stored()
    content["tables"][0]["files"][0][key] = value  # type: ignore[index]
    with pytest.raises(MarkerError, match=message):
        read(content)


@pytest.mark.parametrize("topic", ["orders", "a-1-00000000000000000041-b", "x" * 249, "orders+payments"])
@pytest.mark.parametrize("url", ["s3://lake/orders", "/", "s3://lake/" + "t" * 200, "memory://a b%:c/"])
def test_marker_may_name_any_file_that_is_named_for_it(topic: str, url: str) -> None:
    partition = TopicPartition(Topic(topic), Partition(7))
    inputs = [InputEnd(TopicPartition(part, Partition(7)), Position(41)) for part in topics_of(topic)]
    start = merged_position(inputs) if is_merged(topic) else Position(41)
    end = merged_position(replace(end, position=Position(44)) for end in inputs) if is_merged(topic) else Position(44)
    values = {"day": "v" * 300, "c" * 120: None, "x=y/z": "a%b/c"}
    own = DataFileName(partition, start, UNIQUE, tuple(values.items()))
    waiting = waiting_path(url, DataFileName(partition, start, UNIQUE))
    files = (StagedFile(own.path, values, 1, 1, "{}"), StagedFile(waiting, None, 1, 1, "{}"))
    table = StagedTable(url, TableKind.ROWS, "{}", tuple(values), files)
    manifest = replace(MANIFEST, span=Span(start, end), tables=(table,))
    assert manifest_from_bytes(MarkerName(partition, start), manifest_to_bytes(partition, manifest)) == manifest


def test_oversized_marker_is_not_parsed() -> None:
    padded = manifest_to_bytes(ORDERS, MANIFEST).ljust(MOST_BYTES + 1)
    with pytest.raises(
        MarkerError, match=r"marker done/orders/0/0*41\.done cannot be read: it is larger than 64"
    ) as refused:
        manifest_from_bytes(NAME, padded)
    assert "corrupt markers" in refused.value.remedy
    assert manifest_from_bytes(NAME, padded[:-1]) == MANIFEST


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that are cheap to exceed in a test."""
    for name, most in (("MOST_ELEMENTS", ELEMENTS), ("MOST_OBJECTS", OBJECTS), ("_SMALL_BYTES", 2000)):
        monkeypatch.setattr(f"common.stage.stored.{name}", most)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "more",
    [
        {"dead_letters": {f"class {number}": 1 for number in range(ELEMENTS // 2)}},
        {"unknown": [1] * ELEMENTS},
        {"unknown": [[]] * (ELEMENTS // 2)},
        {"unknown": [{}] * (OBJECTS + 1), "padding": "{" * 2000},
        {"unknown": ['"\\', "\\"] * (ELEMENTS // 2)},
    ],
    ids=["names", "values", "lists", "objects", "quotes"],
)
def test_marker_that_would_take_too_much_memory_is_not_parsed(
    more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pydantic.BaseModel.model_validate_json", _never_parsed)
    with pytest.raises(MarkerError, match=r"it has more than \d\S* (objects|names)") as refused:
        read({**stored(), **more})
    assert "corrupt markers" in refused.value.remedy


def _never_parsed(*_: object, **__: object) -> None:
    raise AssertionError("it was parsed")


def test_text_of_any_size_counts_as_one_value() -> None:
    statistics = json.dumps({"minValues": {"a": ",:{[" * 2**18}})
    (table,) = MANIFEST.tables
    manifest = replace(MANIFEST, tables=(replace(table, files=(replace(table.files[0], statistics=statistics),)),))
    data = manifest_to_bytes(ORDERS, manifest)
    assert len(data) > 2**20
    assert manifest_from_bytes(NAME, data) == manifest
    assert beyond_bounds(data[:-40]) is None  # an unterminated text counts as one, too


@pytest.mark.usefixtures("few")
def test_marker_that_could_not_be_read_is_not_written() -> None:
    (table,) = MANIFEST.tables
    with pytest.raises(StoreError, match=r"was not written, because it has more than 100 objects"):
        sealed(NAME, replace(MANIFEST, tables=(replace(table, files=table.files * (OBJECTS // 2)),)))


def test_largest_flush_has_a_readable_marker() -> None:
    bounds = json.dumps({f"a_column_with_a_name_{number}": "x" * 32 for number in range(32)})
    statistics = f'{{"numRecords":1,"minValues":{bounds},"maxValues":{bounds}}}'

    def flush(files: int, statistics: str) -> Manifest:
        (table,) = MANIFEST.tables
        file = replace(table.files[0], statistics=statistics)
        return replace(MANIFEST, tables=(replace(table, files=(file,) * files),))

    _, data = sealed(NAME, flush(10_000, statistics))
    assert len(data) < MOST_BYTES
    assert b"a_column_with_a_name_31" in data
    marker, data = sealed(NAME, flush(100, statistics * 200))
    assert len(data) < MOST_BYTES
    assert manifest_from_bytes(NAME, data) == marker.manifest == flush(100, '{"numRecords":1}')


def test_layout_page_shows_a_valid_manifest() -> None:
    page = (Path(__file__).parents[4] / "docs" / "internals" / "layout.md").read_text(encoding="utf-8")
    example = page.split("```json\n")[1].split("```")[0]
    name = required(MarkerName.parse("done/orders/0/00000000000000000041.done"))
    manifest = required(manifest_from_bytes(name, example.encode()))
    written = json.loads(manifest_to_bytes(name.topic_partition, manifest))
    assert written == json.loads(example)
    assert all(f"`{field}`" in page for field in written)


@pytest.mark.parametrize(
    ("more", "version"),
    [
        ({}, 5),
        ({"row": "_merge_row"}, 7),
        ({"event_columns": ()}, 7),
        ({"event_columns": ("a",)}, 7),
        ({"truncate": "t"}, 7),
        ({"history": True}, 8),
        ({"history": True, "row": "_merge_row"}, 8),
        ({"element": (("lines", "id"),), "history": True}, 9),
    ],
)
def test_merge_rules_raise_the_marker_version(more: dict[str, Any], version: int) -> None:
    by = MergeBy(("id",), ("_merge_topic", "_merge_partition", "_merge_offset"), None, None, **more)
    table = StagedTable("s3://lake/orders", TableKind.ROWS, '{"type":"struct","fields":[]}', (), (), by)
    manifest = replace(MANIFEST, tables=(table,))
    assert manifest.version == version
    assert manifest_from_bytes(NAME, manifest_to_bytes(ORDERS, manifest)) == manifest


def test_file_to_merge_must_be_in_the_stage() -> None:
    by = MergeBy(("id",), ("_merge_topic", "_merge_partition", "_merge_offset"), None, None)
    (table,) = MANIFEST.tables
    with pytest.raises(MarkerError, match="whose rows are to be merged, is not in the stage"):
        manifest_from_bytes(NAME, manifest_to_bytes(ORDERS, replace(MANIFEST, tables=(replace(table, merge=by),))))


@pytest.mark.parametrize(("size_bytes", "is_damaged"), [(9, True), (10, False), (11, True)])
def test_file_of_another_size_is_damaged(size_bytes: int, *, is_damaged: bool) -> None:
    (file,) = MANIFEST.tables[0].files
    assert (file.damage(StoredObject(file.path, size_bytes, 0)) is not None) == is_damaged


@pytest.mark.parametrize("name", ["keys", "place", "sequence", "soft_delete"])
def test_merge_with_a_missing_rule_is_refused(name: str) -> None:
    by = MergeBy(("id",), ("_merge_topic", "_merge_partition", "_merge_offset"), None, None)
    table = StagedTable("s3://lake/orders", TableKind.ROWS, '{"type":"struct","fields":[]}', (), (), by)
    content = json.loads(manifest_to_bytes(ORDERS, replace(MANIFEST, tables=(table,))))
    del content["tables"][0]["merge"][name]
    with pytest.raises(MarkerError, match=name):
        manifest_from_bytes(NAME, json.dumps(content).encode())


@pytest.mark.parametrize("topic_partition", [ORDERS, OTHER_PARTITION])
@pytest.mark.parametrize(
    ("field", "written"),
    [
        (
            "state",
            lambda of: {"snapshot": StateFileName(of, Position(7), 0, "a", StateKind.SNAPSHOT).path, "changes": []},
        ),
        (
            "state",
            lambda of: {"snapshot": None, "changes": [StateFileName(of, Position(7), 0, "a", StateKind.CHANGES).path]},
        ),
        ("outboxes", lambda of: [OutboxName(of, Position(7), 0, "a").path]),
    ],
)
def test_state_and_outboxes_of_another_partition_are_refused(
    topic_partition: TopicPartition, field: str, written: Callable[[TopicPartition], object]
) -> None:
    origin = json.dumps({"version": 2, field: written(topic_partition)}).encode()
    readers = (
        lambda: read({**stored(), field: written(topic_partition)}),
        lambda: origin_from_bytes(origin_path(ORDERS), origin),
    )
    for reader in readers:
        with nullcontext() if topic_partition == ORDERS else pytest.raises(MarkerError, match=r"is no.* of orders/0"):
            reader()


def test_earlier_state_of_another_partition_is_refused() -> None:
    path = StateFileName(OTHER_PARTITION, Position(7), 0, "a", StateKind.SNAPSHOT).path
    with pytest.raises(MarkerError, match=r"is not a snapshot file of orders/0"):
        read({**stored(), "state": {"snapshot": None, "changes": [], "before": {"snapshot": path, "changes": []}}})


def test_state_in_a_topic_raises_the_marker_version() -> None:
    changes = TopicChanges(PAYMENTS, None, (Span(Position(0), Position(2)),), 1, changes_digest(b"a"), 0)
    for state in (
        MarkedState(StateFiles(None, (changes,)), EMPTY_STATE),
        MarkedState(EMPTY_STATE, StateFiles(None, (changes,))),
    ):
        manifest = replace(MANIFEST, state=state)
        assert manifest.version == 6
        assert manifest_from_bytes(NAME, manifest_to_bytes(ORDERS, manifest)) == manifest
