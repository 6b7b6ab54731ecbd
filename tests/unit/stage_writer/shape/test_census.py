"""Undeclared fields of records, and declared fields that no record has."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from common import metrics as all_metrics
from common.schema import parse_ddl
from common.stage.markers import MarkerName, marker_from_bytes
from common.stage.undeclared import UndeclaredFields
from stage_writer.convert import StreamConverter
from stage_writer.decode.unknown.census import MOST_NAMES, FieldCensus
from stage_writer.sample import StreamSample
from stage_writer.shape.dropped import EVERY, FIRST, DroppedFields
from stage_writer.shape.opening import census_of
from tests.builders import required
from tests.fakes.metrics import values
from tests.fakes.streams import batch_of, stream_of
from tests.unit.stage_writer.test_service import FIRST as FIRST_PARTITION
from tests.unit.stage_writer.test_service import World

COLUMNS = (
    "id BIGINT, userName STRING, meta STRUCT<at: STRING>, items ARRAY<STRUCT<sku: STRING>>, "
    "m MAP<STRING, STRUCT<a: INT>>"
)


def census(*records: object, columns: str = COLUMNS) -> FieldCensus:
    counted = FieldCensus(parse_ddl(columns))
    for record in records:
        counted.add(record)
    return counted


def test_undeclared_field_is_counted_at_its_topmost_path() -> None:
    record = {
        "id": 1,
        "extra": {"deep": {"deeper": 1}},
        "meta": {"at": "x", "by": None},
        "items": [{"sku": "a", "note": 1}, {"note": 2}],
        "m": {"k1": {"a": 1, "b": 2}},
    }
    assert census(record, record).undeclared == {"extra": 2, "meta.by": 2, "items.element.note": 4, "m.value.b": 2}


def test_field_names_are_case_sensitive() -> None:
    assert census({"ID": 1}).undeclared == {"ID": 1}


def test_field_names_are_limited_and_the_rest_is_counted_together() -> None:
    counted = census(*({f"k{number}": 1} for number in range(MOST_NAMES + 30)), {"k0": 1})
    assert len(counted.undeclared) == MOST_NAMES
    assert counted.undeclared["k0"] == 2
    assert counted.others == 30


def test_long_field_name_is_shortened() -> None:
    (name,) = census({"x" * 10_000: 1}).undeclared
    assert len(name) < 200


@pytest.mark.parametrize(
    ("record", "missing"),
    [
        ({"id": 1, "username": "x", "meta": {}}, {"userName": "username", "meta.at": None, "items": None, "m": None}),
        (
            {"id": 1, "userName": "x", "meta": {"At": 1}, "items": [{"sk": 1}], "m": {"k": {"aa": 1}}},
            {"meta.at": "meta.At", "items.element.sku": "items.element.sk", "m.value.a": "m.value.aa"},
        ),
        (
            {"id": None, "userName": None, "meta": None, "items": None, "m": None},
            {"meta.at": None, "items.element.sku": None, "m.value.a": None},
        ),
    ],
)
def test_declared_field_that_no_record_has_is_reported_with_a_suggestion(
    record: object, missing: dict[str, str | None]
) -> None:
    assert dict(census(record).missing()) == missing


def test_non_objects_have_no_fields() -> None:
    counted = census(columns="id INT")
    for message in (b"{", b"[1]", b"7", b"\xff", b'{"x":1}'):
        counted.add_text(message)
    assert counted.undeclared == {"x": 1}
    assert counted.records == 1


def test_sample_reports_a_misspelled_column_and_dropped_fields() -> None:
    converter = StreamConverter(stream_of(columns="id BIGINT, skuu STRING"))
    sample = StreamSample(converter.stream, FieldCensus(converter.stream.record.schema_of_columns))
    sample.add(converter, [batch_of([json.dumps({"id": n, "sku": "a", "z": 1}).encode() for n in range(3)])])
    assert list(sample.lines(0.1)) == [
        "ok: orders: 0 of the newest 3 records would be dead letters",
        "  no record has the declared column skuu, so it is null; did you mean sku, which 3 have?",
        "  undeclared fields are dropped: sku 3, z 3",
    ]


def test_sample_reports_a_derived_column_that_has_no_value_in_any_row() -> None:
    derive = {"first": "tags[0]", "second": "tags[1]", "key": "tags[9]", "secret": "CAST(NULL AS INT)"}
    converter = StreamConverter(stream_of(columns="id BIGINT, tags ARRAY<STRING>", derive=derive, drop=["secret"]))
    sample = StreamSample(converter.stream, None)
    sample.add(converter, [batch_of([b'{"id":1,"tags":["a"]}', b'{"id":2}', b'{"id":"x"}'])])
    assert list(sample.lines(None))[2:] == [
        "  no row has a value for derive.first",  # arrays count from 1
        "  no row has a value for derive.key",  # although dead letters have a column of this name
    ]


def test_stream_is_sampled_and_its_dropped_fields_are_reported() -> None:
    dropped = DroppedFields(stream_of(columns="id INT"))
    first = dropped.sample(batch_of([b'{"id":1,"a":1}'] * FIRST).values)
    second = dropped.sample(batch_of([b'{"id":1,"a":1,"b":1}'] * 2 * EVERY).values)
    assert first is not None
    assert (first.undeclared, required(second).undeclared) == ({"a": 20}, {"a": 2, "b": 2})
    assert dropped.sentence == "of 22 sampled records, fields that no column takes: a (22), b (2)"


@pytest.mark.parametrize("batches", [1, 3, 1_000])
def test_batch_size_does_not_change_the_sample(batches: int) -> None:
    dropped = DroppedFields(stream_of(columns="id INT"))
    for _ in range(batches):
        dropped.sample(batch_of([b'{"a":1}'] * (6_000 // batches)).values)
    assert required(dropped.census).records == FIRST + (6_000 - FIRST) // EVERY


def test_unreadable_or_large_records_are_not_sampled() -> None:
    dropped = DroppedFields(stream_of(columns="id INT"))
    large = b'{"x":"' + b"y" * 2**20 + b'"}'
    assert dropped.sample(batch_of([b"{", None, b"[]", large] * FIRST).values) is None
    assert dropped.sentence is None


def test_stream_that_rescues_fields_is_not_sampled() -> None:
    dropped = DroppedFields(stream_of(columns="id INT", unknown_fields="rescue"))
    assert dropped.sample(batch_of([b'{"a":1}']).values) is None


IMAGE = {"id": 1, "a": {"x": 1}, "meta": {"at": "now", "by": 2}}
EVENT = {"op": "u", "before": {"old": 1}, "after": IMAGE, "ts_ms": 1}
FRAME = b"\0\0\0\0\7"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"framing": "confluent"}, FRAME + json.dumps(IMAGE).encode()),
        ({"envelope": "debezium"}, json.dumps(EVENT).encode()),
        ({"envelope": "debezium"}, json.dumps({"schema": {"s": 1}, "payload": EVENT}).encode()),
        ({"envelope": "debezium", "framing": "confluent"}, FRAME + json.dumps(EVENT).encode()),
        ({"jmespath": {"at": "substr(meta.at, `0`, `2`)", "meta.at": "n.at"}}, json.dumps({**IMAGE, "n": 1}).encode()),
    ],
)
def test_fields_are_those_of_the_record_without_frame_envelope_and_expressions(
    settings: dict[str, object], message: bytes
) -> None:
    framing = settings.get("framing", "none")  # which needs a registry in the config
    others = {name: value for name, value in settings.items() if name != "framing"}
    stream = stream_of(columns="id INT, at STRING, meta STRUCT<at: STRING>", **others)
    stream = stream.model_copy(update={"framing": framing})
    sample = required(DroppedFields(stream).sample(batch_of([message, None, b"{", FRAME, b"7"]).values))
    assert (sample.records, sample.undeclared) == (1, {"a": 1, "meta.by": 1})


def test_column_filled_by_an_expression_is_not_missing_in_a_sample() -> None:
    settings = {"jmespath": {"at": "when", "meta.at": "when"}}
    converter = StreamConverter(stream_of(columns="id INT, at STRING, m STRING, meta STRUCT<at: STRING>", **settings))
    sample = StreamSample(converter.stream, census_of(converter.stream))
    sample.add(converter, [batch_of([b'{"id":1,"when":"now","z":1}'])])
    assert list(sample.lines(0.1))[1:] == [
        "  no record has the declared column m, so it is null",
        "  undeclared fields are dropped: z 1",
    ]


def test_topology_stream_has_no_census(tmp_path: Path) -> None:
    stream = stream_of(columns="id INT").model_copy(update={"topology": f"{tmp_path}/shop.py:build"})
    assert census_of(stream) is None


def test_first_record_of_each_flush_is_sampled() -> None:
    dropped, message = DroppedFields(stream_of(columns="id INT")), b'{"a":1}'
    for _ in range(FIRST + 5):
        sample = required(dropped.sample(batch_of([message, message]).values, begins_flush=True))
        assert sample.undeclared["a"] > 0
    assert dropped.sample(batch_of([message, message]).values) is None


def test_merged_census_is_limited_as_well() -> None:
    counted = census(*({f"k{number}": 1} for number in range(MOST_NAMES)))
    counted.add_all(census(*({f"x{number}": 1, "k0": 1} for number in range(5))))
    fields = required(counted.undeclared_fields())
    assert (fields.sampled, len(fields.fields), fields.others) == (MOST_NAMES + 5, MOST_NAMES, 5)
    assert fields.fields["k0"] == 6


def test_dropped_fields_are_in_log_health_notes_metric_page_and_markers(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST_PARTITION: 20}, columns="no INT")
    with capture_logs() as logs:
        world.writer = world.new_writer()
        world.steps()
    (warning,) = [line for line in logs if line["event"] == "undeclared fields are dropped"]
    assert warning["fields"] == ["id"]
    assert "id (20)" in " ".join(world.writer.health().notes)
    assert "id (20)" in world.writer.snapshot().telemetry.drops["orders"]
    assert world.problems() == ""
    counted = values(world.metrics)
    assert counted[all_metrics.WRITER_SAMPLED_UNDECLARED.name, (("app_id", "orders"), ("field", "id"))] == 20
    ((title, problem),) = world.page_problems()
    assert title == "Fields of orders are dropped"
    assert "id (20)" in problem
    manifests = [marker_from_bytes(name, world.store.read(name.path) or b"").manifest for name in names(world)]
    assert [manifest and manifest.undeclared for manifest in manifests] == [UndeclaredFields(20, {"id": 20})]


def names(world: World) -> list[MarkerName]:
    return [name for stored in world.store.list("done/") if (name := MarkerName.parse(stored.path)) is not None]


def test_ignored_fields_are_counted_without_a_warning(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST_PARTITION: 20}, columns="no INT", unknown_fields="ignore")
    with capture_logs() as logs:
        world.writer = world.new_writer()
        world.steps()
    assert not [line for line in logs if line["event"] == "undeclared fields are dropped"]
    assert not world.writer.health().notes
    census = required(world.writer.snapshot().telemetry.dropped["orders"].census)
    assert census.undeclared == {"id": 20}
