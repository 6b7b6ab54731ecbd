"""What others do to a table between the moment that a commit's transaction begins and the commit itself."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.tables.delta_log import read_table_state
from delta_loader.load.report import StreamReport
from delta_loader.spark.bridge import LoadTransaction
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.tables.commits import CommitOutcome, TableCommit
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging
from tests.reading import offsets_of

pytestmark = pytest.mark.spark


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging.below(tmp_path)


class Between(LoadTransaction):
    """``act`` happens once, just before the first commit and after everything was read."""

    def __init__(self, real: LoadTransaction, act: list[Callable[[], object]]) -> None:
        super().__init__(real._java)
        self._act = act

    def commit(self, load: Mapping[str, object]) -> int:
        if self._act:
            self._act.pop()()
        return super().commit(load)


class Interrupted(SparkDeltaTables):
    def __init__(self, spark: SparkSession, act: Callable[[], object]) -> None:
        super().__init__(spark, SystemClock())
        self.outcomes: list[str] = []
        self._act = [act]

    def _begin(self, url: str) -> LoadTransaction:
        return Between(super()._begin(url), self._act)

    def commit(self, commit: TableCommit) -> CommitOutcome:
        outcome = super().commit(commit)
        self.outcomes.append(type(outcome).__name__)
        return outcome


def load(staging: Staging, tables: SparkDeltaTables, **loader: object) -> StreamReport:
    (report,) = loader_for(staging, tables, settings_for(staging, **loader)).run_pass()
    return report


def test_table_is_made_by_a_commit_of_its_own(staging: Staging, spark: SparkSession) -> None:
    """So that a MERGE or an OPTIMIZE that runs meanwhile never meets a load that changes the schema."""
    staging.flush(0, 0, 10)
    load(staging, SparkDeltaTables(spark, SystemClock()))
    commits = [staging.store(staging.table).read(f"_delta_log/{version:020}.json") or b"" for version in (0, 1)]
    actions = [{line.split(b'"', 2)[1].decode() for line in commit.splitlines()} for commit in commits]
    assert actions == [{"commitInfo", "protocol", "metaData"}, {"commitInfo", "txn", "add"}]


DEEDS = {
    "OPTIMIZE {t}": ["Committed"],
    "DELETE FROM {t} WHERE _kafka_offset < 5": ["Committed"],
    "MERGE INTO {t} t USING (SELECT 70 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = 'm'": ["Committed"],
    "ALTER TABLE {t} SET TBLPROPERTIES ('a.b' = 'c')": ["Conflicted", "Committed"],
    "ALTER TABLE {t} ADD COLUMNS (more INT)": ["Conflicted", "Committed"],
}


@pytest.mark.parametrize(
    ("deed", "isolation"),
    [*((deed, None) for deed in DEEDS), *((deed, "Serializable") for deed in DEEDS if deed.startswith("DELETE"))],
    ids=["optimize", "delete", "merge", "properties", "columns", "delete-serializable"],
)
def test_load_with_a_foreign_commit_in_between(
    staging: Staging, spark: SparkSession, deed: str, isolation: str | None
) -> None:
    tables, table = SparkDeltaTables(spark, SystemClock()), f"delta.`{staging.table}`"
    staging.flush(0, 0, 5)
    staging.flush(0, 5, 10)
    load(staging, tables, max_files=1)
    if isolation is not None:
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.isolationLevel' = '{isolation}')")
    staging.flush(0, 10, 20)
    interrupted = Interrupted(spark, lambda: spark.sql(deed.format(t=table)).collect())

    report = load(staging, interrupted)

    assert (report.failure, report.held) == (None, {})
    assert interrupted.outcomes == DEEDS[deed]
    assert offsets_of(staging.table) == list(range(5 if deed.startswith("DELETE") else 0, 20))
    newest = spark.sql(f"DESCRIBE HISTORY {table}").collect()[0]
    assert (newest["operation"], newest["isBlindAppend"]) == ("STREAMING UPDATE", True)
    state = read_table_state(staging.store(staging.table))
    assert state is not None
    assert state.transactions == {"orders-0": 19}


def test_constraint_that_is_made_while_a_pass_goes_on_is_obeyed(staging: Staging, spark: SparkSession) -> None:
    """It changes no column; a file that breaks it would be in the table forever."""
    tables, table = SparkDeltaTables(spark, SystemClock()), f"delta.`{staging.table}`"
    staging.flush(0, 0, 5)
    load(staging, tables)
    staging.flush(0, 5, 10)
    staging.flush(0, 10, 15)

    class Constrained(SparkDeltaTables):
        commits = 0

        def commit(self, commit: TableCommit) -> CommitOutcome:
            self.commits += 1
            if self.commits == 2:
                spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT low CHECK (_kafka_offset < 12)")
            return super().commit(commit)

    report = load(staging, Constrained(spark, SystemClock()), max_files=1)

    (held,) = report.held.values()
    assert "CHECK constraint low" in held.problem
    assert offsets_of(staging.table) == list(range(10))
