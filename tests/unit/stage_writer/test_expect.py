"""`expect`: rules on rows, and records that violate them: dead letters, counts and held partitions."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from common.clock import SystemClock
from common.errors import ConfigError, ExpressionError, UsageError
from common.settings.load import parse_settings
from common.spans import Position, Span, TopicPartition
from common.stage.chain_origins import ChainOrigin, newest_origin
from common.stage.markers import Origin
from common.storage.store import FsspecStore
from stage_writer.assignment import CHECK_HELD_EVERY_S
from stage_writer.convert import StreamConverter
from stage_writer.decode.batch import MessageBatch
from stage_writer.parquet.buffer import StagedRows
from stage_writer.replay.records import Range, Replay
from stage_writer.sample import StreamSample
from stage_writer.shape.slicing import ExplodeLimits
from tests.fakes.markers import flush, put
from tests.fakes.streams import batch_of, staged_batches, stream_of
from tests.staged import manifests
from tests.unit.stage_writer.test_schemas import Later
from tests.unit.stage_writer.test_service import FIRST, SECOND, World

COLUMNS = "id BIGINT, amount DOUBLE, text STRING"
Rules = Mapping[str, object]


def converter(expect: Rules, **more: object) -> StreamConverter:
    return StreamConverter(stream_of(**{"columns": COLUMNS, "expect": expect, **more}))


def slices(converter: StreamConverter, *batches: MessageBatch) -> list[tuple[int, StagedRows]]:
    return [(int(batch.partition.partition), staged) for part in converter.slices(batches) for batch, staged in part]


def test_violating_record_is_a_dead_letter_with_the_rule_name() -> None:
    values = [b'{"id":1,"amount":5}', b'{"id":2,"amount":-5}', b'{"id":0,"amount":-1}', b'{"id":4}', None]
    rules = {"positive_amount": "amount > 0", "positive_id": "id > 0"}
    (staged,) = staged_batches(converter(rules), [batch_of(values)])
    assert staged.rows[0]["id"].to_pylist() == [1, 4], "null violates no rule"
    assert staged.dead_letters == {"expectation": 2}
    assert staged.rows[1]["value"].to_pylist() == values[1:3]
    assert staged.rows[1]["error"].to_pylist() == [
        "expect.positive_amount is false: amount > 0",
        "expect.positive_amount is false: amount > 0; expect.positive_id is false: id > 0",
    ]
    assert staged.violations == {"positive_amount": 2, "positive_id": 1}


def test_counting_rule_keeps_its_records() -> None:
    rules: Rules = {"counted": {"rule": "amount > 0", "on_fail": "count"}, "refused": "id > 0"}
    values = [b'{"id":1,"amount":-1}', b'{"id":-1,"amount":-1}', b'{"id":2,"amount":1}']
    (staged,) = staged_batches(converter(rules), [batch_of(values)])
    assert staged.rows[0]["id"].to_pylist() == [1, 2]
    assert (staged.violations, staged.dead_letters) == ({"counted": 2, "refused": 1}, {"expectation": 1})


def test_streams_on_fail_is_the_default_of_its_rules() -> None:
    rules: Rules = {"counted": "amount > 0", "refused": {"rule": "id > 0", "on_fail": "dead_letter"}}
    (staged,) = staged_batches(
        converter(rules, on_fail="count"), [batch_of([b'{"id":-1,"amount":1}', b'{"id":1,"amount":-1}'])]
    )
    assert (staged.rows[0]["id"].to_pylist(), staged.violations) == ([1], {"refused": 1, "counted": 1})


@pytest.mark.parametrize(("on_fail", "kept"), [("dead_letter", ["1", None]), ("count", ["1", "x", None])])
def test_failing_rule_is_violated_by_that_record_only(on_fail: str, kept: list[str | None]) -> None:
    rules: Rules = {"number": {"rule": "text::INT > 0", "on_fail": on_fail}, "refused": "id > 0"}
    values = [b'{"id":1,"text":"1"}', b'{"id":1,"text":"x"}', b'{"id":-1,"text":"2"}', b'{"id":1}']
    (staged,) = staged_batches(converter(rules), [batch_of(values)])
    assert staged.violations == {"number": 1, "refused": 1}
    assert staged.rows[0]["text"].to_pylist() == kept
    errors = " ".join(staged.rows[1]["error"].to_pylist())
    assert ("expect.number: Conversion Error: Could not convert string 'x'" in errors) == (on_fail == "dead_letter")


def test_rules_see_derived_columns_and_kafka_fields_but_no_filtered_record() -> None:
    rules: Rules = {"sum": {"rule": "twice < 9", "on_fail": "count"}, "first": "kafka.offset > 100"}
    stream = converter(rules, derive={"twice": "2 * amount"}, where="id > 0")
    (staged,) = staged_batches(
        stream, [batch_of([b'{"id":1,"amount":1}', b'{"id":2,"amount":9}', b'{"id":-1,"amount":9}'])]
    )
    assert (staged.violations, staged.filtered) == ({"sum": 1, "first": 1}, 1)


def test_merge_delete_is_not_checked() -> None:
    merge = {"keys": ["id"], "operation": "text", "deletes": ["d"]}
    stream = converter({"positive": "amount > 0"}, load="merge", merge=merge)
    values = [b'{"id":1,"amount":-1,"text":"u"}', b'{"id":2,"amount":-1,"text":"d"}']
    (staged,) = staged_batches(stream, [batch_of(values)])
    assert (staged.rows[0]["id"].to_pylist(), staged.violations) == ([2], {"positive": 1})


def test_exploded_record_is_counted_once() -> None:
    stream = StreamConverter(
        stream_of(
            columns="id BIGINT, items ARRAY<BIGINT>",
            explode="items",
            expect={"few": {"rule": "len(items) < 3", "on_fail": "count"}},
        ),
        limits=ExplodeLimits(slice_bytes=32),
    )
    values = [b'{"id":1,"items":[1]}', b'{"id":2,"items":[1,2,3,4,5,6,7,8,9,10,11,12]}', b'{"id":3,"items":[1,2,3]}']
    parts = [staged for _, staged in slices(stream, batch_of(values))]
    assert len(parts) > 3, "a record is split into slices"
    assert sum(staged.violations.get("few", 0) for staged in parts) == 2


def test_hold_rule_stops_its_partition_before_the_record() -> None:
    stream = converter({"positive": {"rule": "amount > 0", "on_fail": "hold"}, "id": "id > 0"})
    first = batch_of([b'{"id":1,"amount":1}', b'{"id":-1}', b'{"id":3,"amount":-1}', b'{"id":4,"amount":-1}'])
    other = batch_of([b'{"id":5,"amount":1}'], partition=4)
    at_once = batch_of([b'{"id":6,"amount":-1}', b'{"id":7,"amount":1}'], partition=5, first=7)
    later = batch_of([b'{"id":5,"amount":1}'], first=104)
    parts = slices(stream, first, other, at_once, later)
    assert len(parts) == 4, "a later batch of the same partition is left out"
    staged = {partition: rows for partition, rows in parts if rows.stop is None}
    assert {partition: rows.rows[0]["id"].to_pylist() for partition, rows in staged.items()} == {3: [1], 4: [5]}
    assert (staged[3].records, staged[3].end, staged[3].dead_letters) == (2, 102, {"expectation": 1})
    assert staged[3].violations == {"id": 1}, "records that are not staged are not counted"
    stops = {partition: (rows.end, rows.stop) for partition, rows in parts if rows.stop is not None}
    assert stops == {partition: (end, "expect.positive is false: amount > 0") for partition, end in ((3, 102), (5, 7))}
    assert [partition for partition, _ in parts].index(3) < len(parts) - 2, "the stops are last"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("{a: id}", "streams[0] (orders): expect.a: id: its type is BIGINT"),
        ("{a: idd > 0}", "did you mean id"),
        ("{a: id >}", "expect.a: id >: "),
        ("{a: random() > 0.5}", "a different value each time"),
        ("{a: id > 0; SELECT 1}", "more than one expression"),
        ("{a: id > 0, a: id > 1}", "the key 'a' is given twice"),
        ("{a: id > 0, A: id > 1}", "streams[0].expect (orders) names the rules 'a' and 'A', which differ only in case"),
        ("{a b: id > 0}", "streams[0].expect (orders) names a rule 'a b'"),
        ("{a: 7}", "streams[0].expect.a (orders): 7 is not a rule"),
        (
            "{a: {rule: id > 0, on_fial: hold}}",
            "streams[0].expect.a.on_fial (orders) is not a setting; did you mean on_fail?",
        ),
        ("{}\n    on_fail: hold", "on_fail is hold, but expect has no rules"),
        ("{a: id > 0}\n    topology: shop:build", "expect cannot be set"),
    ],
)
def test_invalid_expect_rule_is_refused_by_key(rules: str, message: str) -> None:
    text = f"""
kafka: {{bootstrap.servers: "nowhere:1"}}
stage: {{url: /stage}}
streams:
  - app_id: orders
    topics: [orders]
    table: /orders
    columns: id BIGINT
    expect: {rules}
"""
    from stage_writer.converters import converters_of

    with pytest.raises((ConfigError, ExpressionError)) as caught:
        converters_of(parse_settings(text, {}, "pipeline.yaml"))
    assert message in f"{caught.value.problem}; {caught.value.remedy}"


def world_of(folder: Path, *, rule: str = "id <> 7", on_fail: str = "hold", **ends: int) -> World:
    """A writer of records with the ids 0, 1, 2…"""
    partitions = {"first": FIRST, "second": SECOND}
    return World(folder, {partitions[name]: end for name, end in ends.items()}, expect={"known": rule}, on_fail=on_fail)


def test_partition_is_held_after_staging_all_records_before_the_violation(tmp_path: Path) -> None:
    world = world_of(tmp_path, first=5, second=3)
    world.steps(2, 0.1)
    world.group.ends[FIRST] = 20
    world.steps(20)
    (held,) = world.writer.snapshot().held.values()
    assert (world.spans()[-1][1], held.reason) == (7, "expectation")
    assert (
        "the record at offset 7 of orders/0 breaks a rule with on_fail: hold: expect.known is false: id <> 7"
        in held.problem
    )
    assert "skip" in held.remedy
    assert "--to 8 --yes" in held.remedy
    assert world.chain(SECOND), "other partitions continue"
    world.group.ends[FIRST] = 30
    world.clock.now_s += CHECK_HELD_EVERY_S + 1
    world.steps(40)
    assert world.spans()[-1][1] == 7, "nothing past it is staged"


def test_held_partition_continues_after_a_skip(tmp_path: Path) -> None:
    world = world_of(tmp_path, first=20)
    world.steps(20)
    last = world.spans()[-1][0]
    put(world.store, flush(7, 8, last, partition=FIRST, origin=Origin.SKIP))
    world.clock.now_s += CHECK_HELD_EVERY_S + 1
    world.steps(40)
    assert not world.writer.snapshot().held
    assert [span for span in world.spans() if span[1] > 7] == [(7, 8), (8, 20)]


def test_held_partition_continues_after_a_restart_with_a_counting_rule(tmp_path: Path) -> None:
    world_of(tmp_path, first=20).steps(20)
    world = world_of(tmp_path, first=20, on_fail="count")
    world.steps(20)
    assert world.spans()[-1] == (7, 20)
    violations = {marker.span.start: dict(marker.violations) for marker in manifests(world.store, "done/orders/0")}
    assert violations == {0: {}, 7: {"known": 1}}


def test_chain_held_at_its_first_record_has_an_origin(tmp_path: Path) -> None:
    world = world_of(tmp_path, first=5, rule="id > 2")
    world.steps(20)
    (held,) = world.writer.snapshot().held.values()
    assert "offset 0 of" in held.problem
    assert newest_origin(world.store, FIRST) == ChainOrigin(Position(0), topic_id="first")


def test_partition_is_not_held_before_the_flush_of_its_last_records_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Later()
    monkeypatch.setattr("tests.fakes.writers.InTurn", lambda: workers)
    world = world_of(tmp_path, first=20)
    world.steps(20)
    assert not world.writer.snapshot().held
    workers.run()
    world.steps(4)
    assert world.writer.snapshot().held.keys() == {FIRST}
    assert world.spans()[-1][1] == 7


def test_batches_queued_behind_the_held_record_are_not_staged(tmp_path: Path) -> None:
    """These batches wait for conversion when a record of an earlier batch holds the partition."""
    world = world_of(tmp_path, first=6)
    world.steps(1, 0.1)
    intake = world.writer._intake
    batches = [world.group._batch(FIRST)]
    for end in (9, 12):
        world.group.positions[FIRST] = world.group.ends[FIRST]
        world.group.ends[FIRST] = end
        batches.append(world.group._batch(FIRST))
    for batch in batches[1:]:
        intake.take([batch])
    world.group.positions[FIRST] = 12
    world.steps(20)
    assert world.spans()[-1][1] == 7


def test_replay_of_a_held_record_is_refused(tmp_path: Path) -> None:
    class Records:
        def batches(self, partition: TopicPartition, span: Span) -> Iterator[MessageBatch]:
            del partition
            yield batch_of([b'{"id":%d}' % offset for offset in range(span.start, span.end)], first=span.start)

    stream = converter({"known": {"rule": "id <> 7", "on_fail": "hold"}})
    store = FsspecStore(str(tmp_path))
    replay = Replay(
        stream, Records(), store, SystemClock(), lambda: "0" * 32, writer="w", file_bytes=10**6, longest_s=9
    )
    for action in (replay.count, replay.stage):
        with pytest.raises(UsageError, match=r"the record at offset 7 breaks a rule with on_fail: hold: expect\.known"):
            action(Range(FIRST, Span(Position(5), Position(10))))
    assert not list(store.list(""))
    assert replay.count(Range(FIRST, Span(Position(8), Position(10)))).rows == 2


def test_sample_reports_violations_and_held_partitions() -> None:
    rules: Rules = {"many": {"rule": "amount > 0", "on_fail": "count"}, "none": {"rule": "id < 9", "on_fail": "hold"}}
    stream = converter(rules)
    sample = StreamSample(stream.stream, None)
    sample.add(stream, [batch_of([b'{"id":1,"amount":-1}', b'{"id":2,"amount":-1}'])])
    assert sample.is_well(0.5)
    assert "  2 break the rule expect.many" in sample.lines(0.5)
    sample.add(stream, [batch_of([b'{"id":3}', b'{"id":9}'], first=102)])
    assert not sample.is_well(0.5)
    text = "\n".join(sample.lines(0.5))
    assert text.startswith("records with on_fail: hold: orders")
    assert "orders/3 would be held at offset 103: expect.none is false: id < …" in text
