"""The SQL that merges elements of records, run by DuckDB, against a replay that knows only records."""

# ruff: noqa: S608 - no value is in a text

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.tables.changes import DELETE_COLUMN, TRUNCATE_COLUMN, MergeBy
from delta_loader.tables.merging.bounds import bounded_keys, key_bounds
from delta_loader.tables.merging.elements import element_statement
from tests.conftest import examples
from tests.fakes import database
from tests.fakes.events import Event, Key, Row, replay
from tests.fakes.records import OF_ALL, RecordEvent, Records, replay_records
from tests.property.test_merging import KEYS, PLACE, files_of, quoted

COLUMNS = 'id INT, item STRUCT(sku VARCHAR, n INT, value VARCHAR), "at" INT, gone BOOLEAN, _kafka_topic VARCHAR, '
COLUMNS += "_kafka_partition INT, _kafka_offset BIGINT"
PUT = "{'sku': ?, 'n': ?, 'value': ?}"
NO_ITEM = [None, None, None]


def staged_rows(event: RecordEvent, *, sequenced: bool) -> list[list[object]]:
    sequence = event.sequence if sequenced else None
    of_all = event.record == OF_ALL
    of = [sequence, not event.elements, *event.place, not event.elements, of_all]
    if not event.elements:
        return [[None if of_all else event.record, *NO_ITEM, *of]]
    return [[event.record, *name, value, *of] for name, value in event.elements.items()]


def merged(loads: Sequence[Sequence[RecordEvent]], *, sequenced: bool, soft: bool, sequence: str = "at") -> Records:
    """The table that the statements produce."""
    by = MergeBy(
        ("id", "item.sku", "item.n"),
        PLACE,
        sequence if sequenced else None,
        "gone" if soft else None,
        truncate=TRUNCATE_COLUMN,
        element=(("item", "sku"), ("item", "n")),
    )
    columns = ("id", "item", "at", *(["gone"] if soft else []), *PLACE)
    with database.connection() as connection:
        connection.execute(f"CREATE TEMP TABLE target ({COLUMNS}, mine VARCHAR)")
        connection.execute(f"CREATE TEMP TABLE staged ({COLUMNS}, {DELETE_COLUMN} BOOLEAN, {TRUNCATE_COLUMN} BOOLEAN)")
        for load in loads:
            connection.execute("DELETE FROM staged")
            rows = [row for event in load for row in staged_rows(event, sequenced=sequenced)]
            if rows:
                connection.executemany(f"INSERT INTO staged VALUES (?, {PUT}{', ?' * 7})", rows)
            ids = [Event("one", 0, 0, (event.record, "a"), None, deletes=False) for event in load]
            bounds = key_bounds(files_of(ids), KEYS, bounded_keys(by), quoted)
            statement = element_statement("target", "staged", columns, by, bounds, before="target", quote=quoted)
            truncates = any(event.record == OF_ALL for event in load)
            connection.execute((statement.with_truncated("target") if truncates else statement).text)
        target_rows = connection.execute('SELECT id, item, "at", gone, _kafka_offset FROM target').fetchall()
    records: Records = {}
    for record, item, sequence_value, gone, offset in target_rows:
        rows_of = records.setdefault(record, {})
        name = (item["sku"], item["n"])
        assert name not in rows_of, "one row for each element"
        rows_of[name] = Row(item["value"], sequence_value, bool(gone), offset)
    return records


@st.composite
def histories(draw: st.DrawFn) -> list[list[RecordEvent]]:
    """Loads of events; each Kafka partition's offsets rise from load to load."""
    ends: dict[int, int] = {}
    loads: list[list[RecordEvent]] = []
    names: st.SearchStrategy[Key] = st.tuples(st.sampled_from(["a", "b", "it's"]), st.integers(0, 1))
    for _ in range(draw(st.integers(1, 4))):
        load: list[RecordEvent] = []
        for _ in range(draw(st.integers(0, 5))):
            partition = draw(st.sampled_from([0, 1]))
            offset = ends.get(partition, 0) + draw(st.integers(0, 1))
            ends[partition] = offset + 1
            if draw(st.integers(0, 9)) == 0:
                load.append(RecordEvent(partition, offset, OF_ALL))
                continue
            elements = draw(st.dictionaries(names, st.sampled_from("xyz"), max_size=3))
            sequence = draw(st.integers(0, 4) if elements else st.none() | st.integers(0, 4))
            load.append(RecordEvent(partition, offset, draw(st.integers(0, 2)), elements, sequence))
        loads.append(load)
    return loads


def expected(loads: Sequence[Sequence[RecordEvent]], *, sequenced: bool, soft: bool) -> Records:
    records: Records = {}
    for load in loads:
        replay_records(records, load, sequenced=sequenced, soft=soft)
    return records


def event(offset: int, names: str, sequence: int | None = None) -> RecordEvent:
    elements: dict[Key, str] = {(name, 0): f"{name}{offset}" for name in names}
    return RecordEvent(0, offset, 1, elements, sequence)


@settings(max_examples=examples(0.5))
@given(histories(), st.booleans(), st.booleans())
@example([[event(0, "ab", 5)], [event(1, "c", 4), event(2, "a", 6)]], True, False)  # noqa: FBT003 - drawn so
@example([[event(0, "ab", 5), event(1, "a", 7)], [event(2, "abc", 6)]], True, True)  # noqa: FBT003
@example([[event(0, "ab", 5)], [event(1, "")], [event(2, "b", 2)]], True, False)  # noqa: FBT003
def test_record_s_rows_are_the_elements_of_its_last_event(
    loads: list[list[RecordEvent]],
    sequenced: bool,  # noqa: FBT001 - drawn
    soft: bool,  # noqa: FBT001
) -> None:
    assert merged(loads, sequenced=sequenced, soft=soft) == expected(loads, sequenced=sequenced, soft=soft)


def test_sequence_may_be_the_offset() -> None:
    loads = [[event(0, "ab"), event(1, "bc")], [event(3, "a")], [event(2, "d")]]
    rows = merged(loads, sequenced=True, soft=False, sequence="_kafka_offset")
    assert rows == {1: {("a", 0): Row("a3", None, offset=3)}}


@settings(max_examples=examples(0.15))  # merging each event separately is slow
@given(histories(), st.booleans(), st.booleans())
def test_merge_is_independent_of_load_boundaries_and_repetition(
    loads: list[list[RecordEvent]],
    sequenced: bool,  # noqa: FBT001 - drawn
    soft: bool,  # noqa: FBT001
) -> None:
    events = sorted((event for load in loads for event in load), key=lambda event: event.place)
    if sequenced:  # a record without rows keeps no sequence
        events = [event for event in events if event.elements]
    at_once = merged([events], sequenced=sequenced, soft=soft)
    assert merged([[event] for event in events], sequenced=sequenced, soft=soft) == at_once
    if not soft:
        assert merged([events, events], sequenced=sequenced, soft=soft) == at_once


@settings(max_examples=examples(0.2))
@given(st.data())
def test_elements_without_a_record_key_are_separate_rows(data: st.DataObject) -> None:
    loads = data.draw(histories())
    by = MergeBy(("item.sku", "item.n"), PLACE, None, None, element=(("item", "sku"), ("item", "n")))
    table: dict[tuple[object, ...], Row] = {}
    with database.connection() as connection:
        connection.execute(f"CREATE TEMP TABLE target ({COLUMNS})")
        connection.execute(f"CREATE TEMP TABLE staged ({COLUMNS}, {DELETE_COLUMN} BOOLEAN)")
        for load in loads:
            events = [
                Event("one", each.partition, each.offset, name, value, deletes=value == "z")
                for each in load
                for name, value in each.elements.items()
            ]
            connection.execute("DELETE FROM staged")
            for event in events:
                values = [1, *event.key, event.value, None, None, *event.place, event.deletes]
                connection.execute(f"INSERT INTO staged VALUES (?, {PUT}{', ?' * 6})", values)
            columns = ("id", "item", *PLACE)
            statement = element_statement("target", "staged", columns, by, (), before="target", quote=quoted)
            connection.execute(statement.text)
            replay(table, events, sequenced=False, soft=False)
        rows = connection.execute("SELECT item, _kafka_offset FROM target").fetchall()
    assert {(item["sku"], item["n"]): Row(item["value"], offset=offset) for item, offset in rows} == table
