"""Events change every row of their key, so a table that was not merged into so far must have one row for each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from common.errors import KafkaDeltaExpressError, NotCompatibleError
from common.schema import parse_ddl, schema_to_json
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.resolutions import Resolution
from common.tables.changes import MergeBy, MergedBy
from common.tables.commit_metadata import CommitMetadata, Decision
from common.tables.history import LoggedCommit
from delta_loader.commands.summary import as_text
from delta_loader.load.merged_keys import MergedKeys, changed_sequence
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import TableCommit, Target
from tests.fakes.changes import ChangeStream
from tests.fakes.delta_tables import MemoryDeltaTables

ADDED: dict[str, object] = {"load": "auto", "merge": None}


@dataclass
class Keys:
    twice: list[str] = field(default_factory=list)
    read: list[tuple[tuple[str, ...], str | None]] = field(default_factory=list)

    def repeated_keys(self, url: str, version: int, keys: Sequence[str], where: str | None) -> list[str]:
        del url, version
        self.read.append((tuple(keys), where))
        return self.twice


def by(keys: list[str], **more: object) -> dict[str, object]:
    return {"merge": {"keys": keys, "operation": "op", "deletes": ["d"], **more}}


def load(folder: Path, tables: MemoryDeltaTables, keys: Keys, **more: object) -> KafkaDeltaExpressError | None:
    """Stage one more event and load it by a new loader."""
    stream = ChangeStream(folder, more=more)
    stream.flush(0, [(1, "b", 1)])
    (report,) = stream.loader(tables, keys=keys).run_pass()
    return report.failure


def test_table_of_appended_rows_is_merged_into_after_its_keys_were_read(tmp_path: Path) -> None:
    tables, keys = MemoryDeltaTables(), Keys(['{"id":1,"name":"k"}'])
    assert load(tmp_path, tables, keys, **ADDED) is None
    assert keys.read == [], "rows are only added"
    failure = load(tmp_path, tables, keys)
    assert failure is not None
    assert "its rows were not merged, and several have the key" in failure.problem
    assert failure.remedy.startswith(f"keep the newest row of each key: INSERT OVERWRITE delta.`{tmp_path.as_uri()}")
    assert "struct(`_kafka_topic`, `_kafka_partition`, `_kafka_offset`)" in failure.remedy
    assert "; then delete the rows of keys that were deleted since: " in failure.remedy
    assert len(tables.tables[f"{tmp_path.as_uri()}/tables/orders"].commits) == 1
    keys.twice.clear()
    assert load(tmp_path, tables, keys) is None
    read = len(keys.read)
    assert load(tmp_path, tables, keys) is None, "its commits say that all rows were merged"
    assert len(keys.read) == read
    assert load(tmp_path, tables, keys, **ADDED) is None
    assert load(tmp_path, tables, keys) is None
    assert len(keys.read) == read + 1, "and that some were added since"


def test_keys_are_read_again_only_after_the_table_has_changed(tmp_path: Path) -> None:
    tables, keys = MemoryDeltaTables(), Keys(['{"id":1,"name":"k"}'])
    assert load(tmp_path, tables, keys, **ADDED) is None
    stream = ChangeStream(tmp_path)
    stream.flush(0, [(1, "b", 1)])
    loader = stream.loader(tables, keys=keys)
    reports = [report for _ in range(3) for report in loader.run_pass()]
    assert all(report.failure is not None for report in reports)
    problem, remedy = as_text(reports[:1], []).splitlines()[1:]
    assert problem.startswith("  events cannot be merged")
    assert remedy.startswith("  → keep the newest row")
    assert len(keys.read) == 1
    table = tables.tables[stream.table]
    table.commits.append(table.commits[-1])  # such as the statement of the remedy
    keys.twice.clear()
    assert [report.failure for report in loader.run_pass()] == [None]


def test_keys_read_of_one_version_do_not_count_for_a_later_one() -> None:
    """A RESTORE to before duplicate keys were removed, during the life of one loader."""
    reader = Keys()
    keys, merge = MergedKeys(reader), MergeBy(("id",), ("t", "p", "o"), None, None)
    cleaned = Target("s3://lake/orders", "1", TableShape(schema_to_json(parse_ddl("id BIGINT")), ()), {}, 4)
    keys.require(cleaned, merge)
    keys.require(cleaned, merge)
    assert len(reader.read) == 1
    reader.twice = ['{"id":1}']
    with pytest.raises(NotCompatibleError, match="several have the key"):
        keys.require(replace(cleaned, version=5), merge)


@pytest.mark.parametrize(("keys_now", "is_read"), [(["id", "name", "at"], False), (["id"], True), (["at"], True)])
def test_rows_merged_by_some_keys_are_unique_by_more_keys(
    tmp_path: Path, keys_now: list[str], *, is_read: bool
) -> None:
    tables, keys = MemoryDeltaTables(), Keys()
    assert load(tmp_path, tables, keys) is None
    keys.read.clear()
    keys.twice.append('{"id":1}')
    failure = load(tmp_path, tables, keys, **by(keys_now))
    assert bool(keys.read) is is_read
    assert (failure is not None) is is_read
    assert failure is None or "merged by id, name" in failure.problem


BY_SEQUENCE: dict[str, object] = {"sequence": "at", "tombstones": "ignore"}


@pytest.mark.parametrize(
    ("then", "now", "setting"),
    [({}, BY_SEQUENCE, "remove merge.sequence"), (BY_SEQUENCE, {}, "write merge.sequence: at")],
)
def test_versions_of_one_sequence_are_not_continued_by_another(
    tmp_path: Path, then: dict[str, object], now: dict[str, object], setting: str
) -> None:
    tables, keys = MemoryDeltaTables(), Keys()
    assert load(tmp_path, tables, keys, **by(["id"], history=True, **then)) is None
    assert keys.read[-1][1] == "`id` IS NOT NULL AND coalesce(is_current, true)"
    failure = load(tmp_path, tables, keys, **by(["id"], history=True, **now))
    assert failure is not None
    assert failure.remedy.startswith(f"{setting} and stage again with `bootstrap rewind")


def test_rows_without_versions_may_get_them_by_another_sequence() -> None:
    versions = MergeBy(("id",), ("t", "p", "o"), "at", None, history=True)
    assert changed_sequence(MergedBy(("id",), history=True), versions) is not None
    assert changed_sequence(MergedBy(("id",)), versions) is None


class Restored(MemoryDeltaTables):
    """Tables of which one was put back to a version by its last commit but the loader's own."""

    restore_version: int = 0
    to: int = 0

    def restore(self, url: str, to: int) -> None:
        table = self.tables[url]
        target = Target(url, table.table_id, TableShape(table.schema, table.partition_by), {}, 0)
        table.commits.append(TableCommit(target, "operator", (), {}, {}, CommitMetadata("x", "operator", {}, None)))
        self.restore_version, self.to = len(table.commits), to

    def history(self, url: str, newest: int) -> Iterator[LoggedCommit]:
        for commit in super().history(url, newest):
            is_it = commit.version == self.restore_version
            yield replace(commit, operation="RESTORE", restored_version=self.to) if is_it else commit


def accept(folder: Path, tables: Restored) -> None:
    stream, positions = ChangeStream(folder), {TopicPartition(Topic("orders"), Partition(0)): Position(2)}
    table_id = tables.tables[stream.table].table_id
    answer = Resolution("orders", stream.table, table_id, tables.restore_version, Decision.GO_ON, positions, "eve", 5)
    stream.store.write(answer.path, answer.to_bytes())


def test_accepted_restore_keeps_how_history_was_recorded(tmp_path: Path) -> None:
    tables, keys = Restored(), Keys()
    for _ in range(2):
        assert load(tmp_path, tables, keys, **by(["id"], history=True, **BY_SEQUENCE)) is None
    tables.restore(ChangeStream(tmp_path).table, 1)
    accept(tmp_path, tables)
    failure = load(tmp_path, tables, keys, **by(["id"], history=True))
    assert failure is not None
    assert failure.remedy.startswith("write merge.sequence: at")


def test_restore_below_the_first_merge_makes_the_keys_unknown(tmp_path: Path) -> None:
    tables, keys = Restored(), Keys()
    assert load(tmp_path, tables, keys, **ADDED) is None
    assert load(tmp_path, tables, keys) is None
    tables.restore(ChangeStream(tmp_path).table, 1)
    accept(tmp_path, tables)
    keys.twice.append('{"id":1,"name":"k"}')
    failure = load(tmp_path, tables, keys)
    assert failure is not None
    assert "its rows were not merged" in failure.problem
