"""The properties of Delta tables that the loader relies on, for the fake and for Spark."""

from dataclasses import replace
from pathlib import Path

import pytest

from common.clock import SystemClock
from common.errors import TableError
from common.schema import parse_ddl, schema_from_json, schema_to_json
from common.schema.evolution import additions, with_additions
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import StagedFile
from common.tables.commit_metadata import CommitMetadata, Decision, Resolved
from delta_loader.plan.plan import TableShape
from delta_loader.ports import DeltaTables
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.tables.commits import AlreadyLoaded, Committed, Conflicted, TableCommit, Target
from tests.fakes.delta_tables import MemoryDeltaTables

SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
SHAPE = TableShape(SCHEMA, ())
SOURCE = TopicPartition(Topic("orders"), Partition(0))


@pytest.fixture(params=["memory", pytest.param("spark", marks=pytest.mark.spark)])
def tables(request: pytest.FixtureRequest) -> MemoryDeltaTables | SparkDeltaTables:
    if request.param == "memory":
        return MemoryDeltaTables()
    from delta_loader.spark.delta import SparkDeltaTables

    return SparkDeltaTables(request.getfixturevalue("spark"), SystemClock())


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def target(tables: DeltaTables, url: str) -> Target:
    state = tables.state(url)
    assert state is not None
    return Target(url, state.table_id, TableShape(state.schema, state.partition_by), state.transactions, state.version)


def commit_to(to: Target, *, app_id: str = "a-0", last: int = 9, files: int = 1) -> TableCommit:
    staged = tuple(StagedFile(f"f{last}-{index}.parquet", {}, 10, 1, '{"numRecords":1}') for index in range(files))
    return TableCommit(
        target=to,
        app_id="a",
        files=staged,
        expected={app_id: to.transactions.get(app_id)},
        advances={app_id: last},
        metadata=CommitMetadata(f"c{last}", "a", {SOURCE: Span(Position(0), Position(last + 1))}, None),
    )


def test_missing_table_has_no_state(tables: DeltaTables, url: str) -> None:
    assert tables.state(url) is None


def test_table_is_created_once_and_with_nullable_columns(tables: DeltaTables, url: str) -> None:
    tables.create(url, TableShape(SCHEMA.replace("true", "false"), ()))
    first = tables.state(url)
    assert first is not None
    assert (first.schema, first.partition_by, first.transactions) == (SCHEMA, (), {})
    tables.create(url, TableShape(SCHEMA.replace("id", "other"), ()))
    assert tables.state(url) == first


def test_commit_advances_only_its_own_txn_actions(tables: DeltaTables, url: str) -> None:
    tables.create(url, SHAPE)
    assert isinstance(tables.commit(commit_to(target(tables, url))), Committed)
    assert isinstance(tables.commit(commit_to(target(tables, url), app_id="a-1", last=4)), Committed)
    state = tables.state(url)
    assert state is not None
    assert state.transactions == {"a-0": 9, "a-1": 4}


def test_commit_without_files_advances_its_txn_action(tables: DeltaTables, url: str) -> None:
    tables.create(url, SHAPE)
    assert isinstance(tables.commit(commit_to(target(tables, url), files=0)), Committed)
    assert target(tables, url).transactions == {"a-0": 9}


def test_same_commit_twice_is_loaded_once(tables: DeltaTables, url: str) -> None:
    tables.create(url, SHAPE)
    commit = commit_to(target(tables, url))
    first = tables.commit(commit)
    assert isinstance(first, Committed)
    again = tables.commit(commit)
    assert isinstance(again, AlreadyLoaded)
    state = tables.state(url)
    assert state is not None
    assert state.version == again.version == first.version


def test_commit_from_a_stale_plan_conflicts(tables: DeltaTables, url: str) -> None:
    tables.create(url, SHAPE)
    stale = target(tables, url)
    tables.commit(commit_to(stale, last=4))
    assert isinstance(tables.commit(commit_to(stale, last=9)), Conflicted)
    assert target(tables, url).transactions == {"a-0": 4}


def test_commit_to_another_table_at_the_same_url_conflicts(tables: DeltaTables, url: str) -> None:
    tables.create(url, SHAPE)
    now = target(tables, url)
    assert isinstance(tables.commit(commit_to(replace(now, table_id="another"))), Conflicted)
    other = TableShape(SCHEMA.replace("id", "other"), ())
    assert isinstance(tables.commit(commit_to(replace(now, shape=other))), Conflicted)
    assert target(tables, url).transactions == {}


def test_resolution_is_committed_only_at_the_inspected_version(tables: DeltaTables, url: str) -> None:
    """Another loader applies it and loads up to the former position: applied again, it would load twice."""
    tables.create(url, SHAPE)
    assert isinstance(tables.commit(commit_to(target(tables, url), last=9)), Committed)
    assert isinstance(tables.commit(commit_to(target(tables, url), last=19)), Committed)
    state = tables.state(url)
    assert state is not None
    stale = replace(target(tables, url), version=state.version)
    answers = Resolved(state.version, Decision.REPLAY, {SOURCE: Position(10)})
    resolution_commit = replace(
        commit_to(stale, last=9, files=0), metadata=CommitMetadata("answer", "a", {}, None, answers=answers)
    )
    assert isinstance(tables.commit(resolution_commit), Committed)
    assert target(tables, url).transactions == {"a-0": 9}
    assert isinstance(tables.commit(commit_to(target(tables, url), last=19)), Committed)
    assert isinstance(tables.commit(resolution_commit), Conflicted)
    assert target(tables, url).transactions == {"a-0": 19}


def test_columns_are_added_once_at_any_depth(tables: MemoryDeltaTables | SparkDeltaTables, url: str) -> None:
    known = parse_ddl("id BIGINT, meta STRUCT<a: BIGINT>, items ARRAY<STRUCT<n: BIGINT>>")
    wanted = parse_ddl(
        "`1d` STRUCT<`2e5`: BIGINT, `order`: BOOLEAN>, `a.b-é` DOUBLE, "
        "meta STRUCT<new: ARRAY<STRING>>, items ARRAY<STRUCT<`select`: STRUCT<x: BIGINT>>>"
    )
    tables.create(url, TableShape(schema_to_json(known), ()))
    tables.commit(commit_to(target(tables, url)))
    added = additions(known, wanted)
    tables.add_columns(url, added)
    state = tables.state(url)
    assert state is not None
    assert schema_from_json(state.schema) == with_additions(known, added)
    assert state.transactions == {"a-0": 9}
    with pytest.raises(TableError):
        tables.add_columns(url, added[:1])
