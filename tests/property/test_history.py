"""The SQL that keeps every version of a row, run by DuckDB, against a model that knows all events at once."""

# ruff: noqa: S608 - no value is in a text

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from common.tables.changes import DELETE_COLUMN, HISTORY_COLUMNS, ROW_COLUMN, TRUNCATE_COLUMN, MergeBy
from delta_loader.tables.merging.bounds import key_bounds
from delta_loader.tables.merging.history import HistoryStatement
from tests.conftest import examples
from tests.fakes import database
from tests.fakes.events import OF_ALL, Event
from tests.fakes.versions import Version, Versions, replay_by_sequence, replay_in_order
from tests.property.test_merging import KEYS, PLACE, files_of, quoted

KEY = (1, "a")


def merged(
    loads: Sequence[Sequence[Event]], *, sequenced: bool, soft: bool, old: Sequence[int] = (), old_at: int | None = 0
) -> Versions:
    """The table that the statements produce; ``old`` are the ids of rows from before it kept versions."""
    by = MergeBy(
        ("id", "name"),
        PLACE,
        "at" if sequenced else None,
        "gone" if soft else None,
        ROW_COLUMN,
        truncate=TRUNCATE_COLUMN,
        history=True,
    )
    columns = ("id", "name", "value", "at", *(["gone"] if soft else []), *PLACE, *HISTORY_COLUMNS)
    table = (
        'id INT, name VARCHAR, value VARCHAR, "at" INT, gone BOOLEAN, _kafka_topic VARCHAR, _kafka_partition INT, '
        "_kafka_offset BIGINT, valid_from INT, valid_to INT, is_current BOOLEAN"
    )
    with database.connection() as connection:
        connection.execute(f"CREATE TEMP TABLE target ({table}, mine VARCHAR)")
        connection.executemany(
            "INSERT INTO target (id, name, value, \"at\") VALUES (?, 'a', 'old', ?)", [[row, old_at] for row in old]
        ) if old else None
        staged = f"{table}, {ROW_COLUMN} INT, {DELETE_COLUMN} BOOLEAN, {TRUNCATE_COLUMN} BOOLEAN"
        connection.execute(f"CREATE TEMP TABLE staged ({staged})")
        for load in loads:
            connection.execute("DELETE FROM staged")
            rows = [
                (
                    *(*event.key, event.value, event.sequence, event.deletes, *event.place),
                    *(event.sequence, None, not event.deletes, event.row, event.deletes, event.key == OF_ALL),
                )
                for event in load
            ]
            if rows:
                connection.executemany(f"INSERT INTO staged VALUES ({', '.join('?' * 14)})", rows)
            bounds = key_bounds(files_of(load), KEYS, by.keys, quoted)
            statement = HistoryStatement("target", "staged", columns, by, bounds, quoted, before="target")
            if any(event.key == OF_ALL for event in load):
                statement = replace(statement, bounds=(), truncated="target")
            connection.execute(statement.text)
        order = "valid_from NULLS FIRST, valid_to NULLS LAST, _kafka_offset"
        cursor = connection.execute(
            f"SELECT id, name, value, gone, valid_from, valid_to, is_current FROM target ORDER BY {order}"
        )
        versions: Versions = {}
        for *key, value, gone, valid_from, valid_to, is_current in cursor.fetchall():
            version = Version(value, valid_from, valid_to, is_current, deleted=bool(gone))
            versions.setdefault(tuple(key), []).append(version)
    return versions


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """Events of two Kafka partitions with separate keys, in Kafka's order."""
    events: list[Event] = []
    for offset in range(draw(st.integers(0, 12))):
        partition = draw(st.integers(0, 1))
        deletes = draw(st.integers(0, 3)) == 0
        value = None if deletes else draw(st.sampled_from("xyz"))
        key = (partition, draw(st.sampled_from(["a", "it's"])))
        row = 0
        if events and events[-1].partition == partition and draw(st.integers(0, 3)) == 0:
            offset, row = events[-1].offset, events[-1].row + 1  # noqa: PLW2901 - another row of one message
        events.append(Event("one", partition, offset, key, value, deletes, draw(st.integers(0, 5)), row))
    return events


@st.composite
def cut(draw: st.DrawFn, events: Sequence[Event]) -> list[list[Event]]:
    """The events in loads; a message's rows stay together."""
    loads: list[list[Event]] = [[]]
    for before, event in zip([None, *events], events, strict=False):
        if (before is None or before.place != event.place) and draw(st.booleans()):
            loads.append([])
        loads[-1].append(event)
    return loads


def in_order(versions: Versions) -> dict[object, list[Version]]:
    """Versions that begin at the same time have no order in the table."""
    return {key: sorted(versions_of_key, key=repr) for key, versions_of_key in versions.items()}


def ended(value: str, valid_from: int | None, valid_to: int) -> Version:
    return Version(value, valid_from, valid_to, is_current=False)


def event(offset: int, value: str | None, time: int | None) -> Event:
    return Event("one", 0, offset, KEY, value, value is None, time)


@settings(max_examples=examples(0.5))
@given(st.data(), st.booleans())
def test_versions_without_a_sequence_follow_kafka_s_order_in_any_loads(
    data: st.DataObject,
    soft: bool,  # noqa: FBT001 - drawn
) -> None:
    events = data.draw(streams())
    versions = merged(data.draw(cut(events)), sequenced=False, soft=soft)
    assert in_order(versions) == in_order(replay_in_order(events, soft=soft))


@settings(max_examples=examples(0.5))
@given(st.data())
def test_versions_by_sequence_have_their_place_however_late_their_load(data: st.DataObject) -> None:
    events = data.draw(streams())
    versions = merged(data.draw(cut(events)), sequenced=True, soft=True)
    assert in_order(versions) == in_order(replay_by_sequence(events, soft=True))


@settings(max_examples=examples(0.5))
@given(st.data())
def test_delete_ends_the_version_at_its_time(data: st.DataObject) -> None:
    """In one load, any delete; in several, only those that end a current version: other deletes are not kept."""
    events = data.draw(streams())
    assert in_order(merged([events], sequenced=True, soft=False)) == in_order(replay_by_sequence(events, soft=False))
    kept = [
        change for number, change in enumerate(events) if not change.deletes or ends_a_version(change, events[:number])
    ]
    versions = merged(data.draw(cut(kept)), sequenced=True, soft=False)
    assert in_order(versions) == in_order(replay_by_sequence(kept, soft=False))


def ends_a_version(event: Event, before: Sequence[Event]) -> bool:
    """Whether a delete is of an existing row, and later than all of its changes."""
    versions = replay_by_sequence(before, soft=False).get(event.key, [])
    times = [change.sequence or 0 for change in before if change.key == event.key]
    return any(version.is_current for version in versions) and max(times) <= (event.sequence or 0)


@settings(max_examples=examples(0.3))
@given(st.data(), st.booleans())
def test_merging_again_changes_nothing(data: st.DataObject, soft: bool) -> None:  # noqa: FBT001 - drawn
    events = [replace(change, sequence=number) for number, change in enumerate(data.draw(streams()))]
    once, again = data.draw(cut(events)), data.draw(cut(events))
    assert merged([*once, *again], sequenced=True, soft=soft) == merged(once, sequenced=True, soft=soft)


def test_equal_or_unknown_times_lose_no_version() -> None:
    events = [event(0, "a", None), event(1, "b", 5), event(2, "c", 5), event(3, None, 3), event(4, "d", 1)]
    expected = [ended("a", None, 5), ended("b", 5, 5), ended("c", 5, 5), Version("d", 5)]
    for loads in ([events], [[change] for change in events]):
        assert merged(loads, sequenced=False, soft=False) == {KEY: expected}


def test_truncation_ends_only_the_current_versions() -> None:
    truncation = Event("one", 0, 2, OF_ALL, None, deletes=True, sequence=7)
    events = [event(0, "a", 5), replace(event(1, "b", 6), key=(2, "a"))]
    versions = merged(
        [events, [event(2, None, 6)], [replace(truncation, offset=3), event(4, "c", 9)]], sequenced=False, soft=False
    )
    assert versions == {(2, "a"): [ended("b", 6, 7)], KEY: [ended("a", 5, 6), Version("c", 9)]}


def test_row_from_before_the_history_is_the_first_version() -> None:
    for sequenced in (False, True):
        versions = merged([[event(0, "a", 5)]], sequenced=sequenced, soft=False, old=[1, 2])
        began = 0 if sequenced else None
        assert versions[KEY] == [ended("old", began, 5), Version("a", 5)]
        assert versions[2, "a"] == [Version("old", None, is_current=None)]


def test_delete_of_a_deleted_row_adds_no_version() -> None:
    events = [event(0, "a", 5), event(1, None, 6), event(2, None, 9)]
    for loads in ([events], [[change] for change in events]):
        deleted = Version(None, 6, deleted=True)
        assert merged(loads, sequenced=False, soft=True) == {KEY: [ended("a", 5, 6), deleted]}
        assert merged(loads, sequenced=False, soft=False) == {KEY: [ended("a", 5, 6)]}


def test_late_event_is_inserted_between_its_neighbors() -> None:
    events = [
        event(0, "a", 2),
        event(1, None, 8),
        event(2, "b", 5),
        event(3, "c", 8),
        event(4, None, 8),
        event(5, "d", 1),
    ]
    expected = [ended("d", 1, 2), ended("a", 2, 5), ended("b", 5, 8), ended("c", 8, 8)]
    for loads in ([events], [[change] for change in events]):
        assert merged(loads, sequenced=True, soft=False) == {KEY: expected}
    for loads in ([events[:3]], [[change] for change in events[:3]]):
        assert merged(loads, sequenced=True, soft=False) == {KEY: [ended("a", 2, 5), ended("b", 5, 8)]}
        flagged = Version(None, 8, deleted=True)
        assert merged(loads, sequenced=True, soft=True) == {KEY: [ended("a", 2, 5), ended("b", 5, 8), flagged]}


def test_old_row_with_a_null_sequence_ends_at_the_first_version() -> None:
    for loads in ([[event(0, "a", 5), event(1, "b", 6)]], [[event(0, "b", 6)], [event(1, "a", 5)]]):
        versions = merged(loads, sequenced=True, soft=False, old=[1], old_at=None)
        assert versions == {KEY: [ended("old", None, 5), ended("a", 5, 6), Version("b", 6)]}
    deleted = merged([[event(0, None, 5)]], sequenced=True, soft=False, old=[1], old_at=None)
    assert deleted == {KEY: [ended("old", None, 5)]}
