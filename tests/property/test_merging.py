"""The SQL that merges, run by DuckDB, against a replay of all events one by one."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.schema import Field, Primitive, StructType
from common.stage.markers import StagedFile
from common.tables.changes import DELETE_COLUMN, ROW_COLUMN, TRUNCATE_COLUMN, MergeBy
from delta_loader.tables.merging.bounds import key_bounds
from delta_loader.tables.merging.statement import MergeStatement
from tests.conftest import examples
from tests.fakes import database
from tests.fakes.events import OF_ALL, Event, Place, Row, replay
from tests.fakes.judged import judged

PLACE = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
LAST_KNOWN = "last_value({} IGNORE NULLS)"
LEFT_OUT = "DELETE FROM staged WHERE (_kafka_topic, _kafka_partition, _kafka_offset) = (?, ?, ?)"
KEYS = StructType((Field("id", Primitive.INTEGER), Field("name", Primitive.STRING)))
_ids, _names = st.integers(0, 3), st.sampled_from(["a", "b", "it's"])


@st.composite
def histories(draw: st.DrawFn, *, several: bool = False, truncates: bool = False) -> list[list[Event]]:
    """Loads of events; each Kafka partition's offsets rise from load to load.

    With ``several`` a message may have several rows, with ``truncates`` some delete all rows.
    """
    ends: dict[tuple[str, int], int] = {}
    loads: list[list[Event]] = []
    for _ in range(draw(st.integers(1, 4))):
        load: list[Event] = []
        for _ in range(draw(st.integers(0, 8))):
            source = draw(st.sampled_from(["one", "two"])), draw(st.sampled_from([0, 1]))
            offset = ends.get(source, 0) + draw(st.integers(0, 2))
            ends[source] = offset + 1
            deletes = draw(st.booleans())
            sequence = draw(st.none() | st.integers(0, 4)) if deletes else draw(st.integers(0, 4))
            key = (draw(_ids), draw(_names))
            value = None if deletes else draw(st.none() | st.sampled_from("xyz"))
            if truncates and draw(st.integers(0, 4)) == 0:
                load.append(Event(*source, offset, OF_ALL, None, deletes=True))
                continue
            load.append(Event(*source, offset, key, value, deletes, sequence))
            if several and len(load) > 1 and draw(st.booleans()):
                load[-1] = _after(load[-2], load[-1])
                ends[source] = offset
        loads.append(load)
    return loads


def _after(first: Event, event: Event) -> Event:
    """The event as the next row of the first one's message."""
    place = replace(event, topic=first.topic, partition=first.partition, offset=first.offset)
    return replace(place, row=first.row + 1)


def merged(
    loads: Sequence[Sequence[Event]],
    *,
    sequenced: bool,
    soft: bool,
    placed: bool = True,
    check: str | None = None,
    refused: set[Place] | None = None,
    patches: bool = False,
    unset: bool = False,
) -> dict[tuple[object, ...], Row]:
    """The table that the statements produce; with ``placed`` it has the events' places, too.

    With ``unset`` the flag of rows that are not deleted is null, as of rows from before the column.

    ``refused`` gets the places of events that the table's ``check`` forbids; these are left out.
    """
    by = MergeBy(
        ("id", "name"),
        PLACE,
        "at" if sequenced else None,
        "gone" if soft else None,
        ROW_COLUMN,
        PLACE if patches else None,
        TRUNCATE_COLUMN,
    )
    columns = ["id", "name", "value", "at", *(["gone"] if soft else []), *(PLACE if placed else ())]
    with database.connection() as connection:
        connection.execute(
            'CREATE TEMP TABLE target (id INT, name VARCHAR, value VARCHAR, "at" INT, gone BOOLEAN, '
            "_kafka_topic VARCHAR, _kafka_partition INT, _kafka_offset BIGINT, mine VARCHAR)"
        )
        connection.execute(
            'CREATE TEMP TABLE staged (id INT, name VARCHAR, value VARCHAR, "at" INT, gone BOOLEAN, '
            "_kafka_topic VARCHAR, _kafka_partition INT, _kafka_offset BIGINT, "
            f"{ROW_COLUMN} INT, {DELETE_COLUMN} BOOLEAN, {TRUNCATE_COLUMN} BOOLEAN)"
        )
        for load in loads:
            connection.execute("DELETE FROM staged")
            staged = [
                [
                    *event.key,
                    event.value,
                    event.sequence if sequenced else None,
                    event.deletes,
                    *event.order,
                    event.deletes,
                    event.key == OF_ALL,
                ]
                for event in load
            ]
            if staged:
                connection.executemany("INSERT INTO staged VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", staged)
            bounds = key_bounds(files_of(load), KEYS, by.keys, quoted)
            if check is not None and refused is not None:
                refused_places = judged(connection, columns, by, check, bounds)
                for place in refused_places:
                    connection.execute(LEFT_OUT, place)
                refused |= refused_places
            statement = MergeStatement("target", "staged", tuple(columns), by, bounds, quoted, last_known=LAST_KNOWN)
            if any(event.key == OF_ALL for event in load):
                statement = replace(statement, bounds=(), truncated="target")
            connection.execute(statement.text)
            if unset:
                connection.execute("UPDATE target SET gone = NULL WHERE NOT gone")
        rows = connection.execute('SELECT id, name, value, "at", gone, _kafka_offset FROM target').fetchall()
    assert len({row[:2] for row in rows}) == len(rows), "one row for each key"
    return {row[:2]: Row(row[2], row[3], bool(row[4]), row[5]) for row in rows}


def files_of(load: Sequence[Event]) -> list[StagedFile]:
    return [
        StagedFile("data/x", None, 1, 1, json.dumps({"minValues": bounds, "maxValues": bounds}))
        for bounds in (dict(zip(("id", "name"), event.key, strict=True)) for event in load)
    ]


def quoted(name: str) -> str:
    return f'"{name}"'


def event(offset: int, value: str | None, sequence: int | None = None) -> Event:
    return Event("one", 0, offset, (1, "a"), value, value is None, sequence)


def upsert(offset: int, value: str | None, sequence: int | None = None) -> Event:
    return Event("one", 0, offset, (1, "a"), value, deletes=False, sequence=sequence)


@settings(max_examples=examples(0.5))
@given(histories() | histories(several=True), st.booleans(), st.booleans())
@example([[event(0, "x", 4)], [event(1, None), event(2, "y", 2)]], True, False)  # noqa: FBT003 - drawn so
@example([[event(0, "x", 4)], [event(1, "y", 3), event(2, None, 4)]], True, True)  # noqa: FBT003
@example([[event(0, None, 3)], [event(1, "y", 2)], [event(2, "z", 3)]], True, True)  # noqa: FBT003
@example([[event(0, "x", 5)], [event(1, None), event(2, "y", 1)]], True, True)  # noqa: FBT003
def test_merge_equals_a_replay_of_events_one_by_one(
    loads: list[list[Event]],
    sequenced: bool,  # noqa: FBT001 - drawn
    soft: bool,  # noqa: FBT001
) -> None:
    expected: dict[tuple[object, ...], Row] = {}
    for load in loads:
        replay(expected, load, sequenced=sequenced, soft=soft)
    assert merged(loads, sequenced=sequenced, soft=soft) == expected


def truncation(offset: int) -> Event:
    return Event("one", 0, offset, OF_ALL, None, deletes=True)


@settings(max_examples=examples(0.5))
@given(histories(truncates=True), st.booleans(), st.booleans(), st.booleans(), st.booleans())
@example([[event(0, "x", 1)], [truncation(1)]], False, False, False, False)  # noqa: FBT003 - drawn so
@example([[event(0, "x", 1)], [truncation(1)]], False, True, False, True)  # noqa: FBT003
@example([[event(0, "x", 1), truncation(1), event(2, "y", 2)], [truncation(3)]], True, True, True, False)  # noqa: FBT003
def test_truncation_removes_every_row_that_exists_then(
    loads: list[list[Event]],
    sequenced: bool,  # noqa: FBT001 - drawn
    soft: bool,  # noqa: FBT001
    patches: bool,  # noqa: FBT001
    unset: bool,  # noqa: FBT001
) -> None:
    expected: dict[tuple[object, ...], Row] = {}
    for load in loads:
        replay(expected, load, sequenced=sequenced, soft=soft, patches=patches)
    assert merged(loads, sequenced=sequenced, soft=soft, patches=patches, unset=unset) == expected


@settings(max_examples=examples(0.5))
@given(histories() | histories(several=True), st.booleans(), st.booleans())
@example([[event(0, "x", 4)], [event(1, "y", 3), upsert(2, None, 5)]], True, False)  # noqa: FBT003 - drawn so
@example([[event(0, "x", 4)], [event(1, None), upsert(2, None, 5)]], True, True)  # noqa: FBT003
@example([[event(0, "x", 4)], [event(1, None, 2), upsert(2, None, 5)]], True, False)  # noqa: FBT003
@example([[event(0, "x"), event(1, None)], [upsert(2, None)]], False, True)  # noqa: FBT003
def test_null_keeps_the_row_s_value_as_in_a_replay(
    loads: list[list[Event]],
    sequenced: bool,  # noqa: FBT001 - drawn
    soft: bool,  # noqa: FBT001
) -> None:
    expected: dict[tuple[object, ...], Row] = {}
    for load in loads:
        replay(expected, load, sequenced=sequenced, soft=soft, patches=True)
    assert merged(loads, sequenced=sequenced, soft=soft, patches=True) == expected


@settings(max_examples=examples(0.2))  # merging each event separately is slow
@given(histories())
def test_merge_with_soft_deletes_and_a_sequence_is_independent_of_loads(
    loads: list[list[Event]],
) -> None:
    everything = sorted((event for load in loads for event in load), key=lambda event: event.place)
    for patches in (False, True):
        run_in_order = merged([[event] for event in everything], sequenced=True, soft=True, patches=patches)
        assert merged([everything], sequenced=True, soft=True, patches=patches) == run_in_order


CHECKS = {
    "value IS NULL OR value <> 'x'": lambda row: row.value == "x",
    "value <> 'x'": lambda row: row.value in (None, "x"),  # null fails, also in a deleted row
}


@settings(max_examples=examples(0.33))
@given(histories(), st.booleans(), st.booleans(), st.sampled_from(sorted(CHECKS)))
@example([[event(0, "y", 1), event(1, "x", 4), event(2, "z", 2)]], True, True, "value <> 'x'")  # noqa: FBT003 - drawn so
@example([[event(0, "x", 4), event(1, None, 4), event(2, "z", 2)]], True, True, "value <> 'x'")  # noqa: FBT003
def test_forbidden_events_change_nothing_in_any_division_into_loads(
    loads: list[list[Event]],
    sequenced: bool,  # noqa: FBT001 - drawn
    soft: bool,  # noqa: FBT001
    check: str,
) -> None:
    expected: dict[tuple[object, ...], Row] = {}
    forbidden: set[Place] = set()
    for load in loads:
        forbidden |= replay(expected, load, sequenced=sequenced, soft=soft, forbids=CHECKS[check])
    refused: set[Place] = set()
    assert merged(loads, sequenced=sequenced, soft=soft, check=check, refused=refused) == expected
    assert refused == forbidden
    never_sent: dict[tuple[object, ...], Row] = {}
    for load in loads:
        replay(never_sent, [event for event in load if event.place not in refused], sequenced=sequenced, soft=soft)
    assert never_sent == expected
    if not soft or is_in_order(loads):
        at_once: set[Place] = set()
        merged([[*chain(*loads)]], sequenced=sequenced, soft=soft, check=check, refused=at_once)
        assert at_once == refused


def is_in_order(loads: Sequence[Sequence[Event]]) -> bool:
    """Whether no load has an event that comes before one of an earlier load, by topic, partition and offset."""
    places = [event.place for load in loads for event in sorted(load, key=lambda event: event.place)]
    return places == sorted(places)


def test_table_need_not_have_the_ordering_columns() -> None:
    loads = [[event(1, None), event(0, "x"), event(2, "y")], [event(4, "last"), event(3, "z")]]
    rows = merged(loads, sequenced=False, soft=False, placed=False)
    assert rows == {(1, "a"): Row("last")}
