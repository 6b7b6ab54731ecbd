"""The loader together with a customer's OPTIMIZE, MERGE, DELETE and ALTER TABLE in a loop, each in a driver of its own.

``python -m tests.soak.foreign_writers --minutes 5`` (`make foreign MINUTES=5`) prints the commits of both sides, their
conflicts and the longest wait of each, and compares the table with what was staged. It ends with 1 when a row is
missing or duplicated, or when one side made no progress.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from pyspark.sql import SparkSession

from common.clock import SystemClock
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.spark.session import build_session
from delta_loader.tables.commits import CommitOutcome, Committed, TableCommit
from devservices import processes
from tests.fakes.delta_tables import PassedOn
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging

_PARTITIONS = 3
_START_S = 600
_END_S = 600
_LONGEST_S = 480
# Between two loads. A MERGE of open-source Delta is refused when rows came into what it read (G4), so one that takes
# longer than this would wait until the loader stops. On a slow machine the schedule is therefore as much slower:
# it grows with what the foreign driver's deed has waited by now.
_PAUSE_S = 4.0
_PAUSE_OF_WAIT = 0.4
_DEEDS = 5


@dataclass(slots=True)
class Side:
    commits: int = 0
    conflicts: int = 0
    longest_s: float = 0.0

    def add(self, conflicts: int, seconds: float) -> None:
        """One commit, and its time including all retries."""
        self.commits += 1
        self.conflicts += conflicts
        self.longest_s = max(self.longest_s, seconds)

    def __str__(self) -> str:
        return f"{self.commits:5} commits, {self.conflicts:4} conflicts, longest wait {self.longest_s:6.2f} s"


@dataclass(slots=True)
class Outcome:
    loader: Side = field(default_factory=Side)
    foreign: dict[str, Side] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    rows: int = 0
    missing: int = 0
    twice: int = 0
    unknown: int = 0
    not_blind: int = 0
    """Commits of the loader that are no blind appends."""

    @property
    def clean(self) -> bool:
        """Whether each row is there once, and neither side failed or starved."""
        wrong = self.missing + self.twice + self.unknown + self.not_blind + len(self.failures)
        return not wrong and self.loader.commits > 0 and len(self.foreign) == _DEEDS

    def __str__(self) -> str:
        lines = [f"{'loader':18} {self.loader}", *(f"{deed:18} {side}" for deed, side in sorted(self.foreign.items()))]
        lines.append(
            f"{self.rows:,} rows; {self.missing} missing, {self.twice} twice, {self.unknown} unknown; "
            f"{self.not_blind} loads that were no blind append; loads that failed: {self.failures or 'none'}"
        )
        return "\n".join(lines)


class Watched(PassedOn):
    """`delta_loader.ports.DeltaTables` that counts the outcomes of commits."""

    def __init__(self, tables: SparkDeltaTables, side: Side) -> None:
        super().__init__(tables)
        self._side = side
        self._conflicts = 0
        self._since_s: float | None = None

    def commit(self, commit: TableCommit) -> CommitOutcome:
        if self._since_s is None:
            self._since_s = time.monotonic()
        outcome = self._tables.commit(commit)
        if isinstance(outcome, Committed):
            self._side.add(self._conflicts, time.monotonic() - self._since_s)
            self._conflicts, self._since_s = 0, None
        else:
            self._conflicts += 1
        return outcome


class _Told:
    """The commits in the foreign driver's log."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._heard = 0
        self._since_s = time.monotonic()

    def commits(self) -> list[dict[str, Any]]:
        """All commits until now, oldest first."""
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]

    def silent_s(self) -> float:
        """Seconds since the last commit."""
        now_s = time.monotonic()
        if (heard := len(self.commits())) > self._heard:
            self._heard, self._since_s = heard, now_s
        return now_s - self._since_s


def run(spark: SparkSession, folder: Path, seconds: float, *, serializable: bool = False) -> Outcome:
    """Load next to the foreign driver for so long, and check the table."""
    outcome = Outcome()
    staging = Staging.below(folder)
    watched = Watched(SparkDeltaTables(spark, SystemClock()), outcome.loader)
    loader = loader_for(staging, watched)
    ends = dict.fromkeys(range(_PARTITIONS), 0)
    _stage(staging, ends)
    loader.run_pass()
    if serializable:
        spark.sql(f"ALTER TABLE delta.`{staging.table}` SET TBLPROPERTIES ('delta.isolationLevel' = 'Serializable')")
    stop, log = folder / "stop", folder / "foreign.log"
    child = processes.start([sys.executable, "-m", "tests.soak.foreign_driver", staging.table, str(stop)], log)
    try:
        _await(lambda: "ready" in log.read_text(), _START_S)
        commits_log = _Told(log)
        began_s = time.monotonic()
        while _goes_on(time.monotonic() - began_s, seconds, commits_log) and child.process.poll() is None:
            _stage(staging, ends)
            outcome.failures += [str(report.failure) for report in loader.run_pass() if report.failure]
            time.sleep(max(_PAUSE_S, _PAUSE_OF_WAIT * commits_log.silent_s()))
        stop.touch()
        _await(lambda: child.process.poll() is not None, _END_S)
    finally:
        child.kill()
    deleted_to = _hear(commits_log, outcome)
    outcome.failures += [str(report.failure) for report in loader.run_pass() if report.failure]
    _compare(spark, staging, ends, deleted_to, outcome)
    return outcome


def _stage(staging: Staging, ends: dict[int, int]) -> None:
    for partition, end in ends.items():
        staging.flush(partition, end, end + 20, days=["2026-01-01", "2026-01-02"])
        ends[partition] = end + 20


def _goes_on(passed_s: float, seconds: float, commits_log: _Told) -> bool:
    """For so long, or on a slow machine until the foreign driver has run each statement once."""
    done = {commit["deed"] for commit in commits_log.commits()}
    return passed_s < seconds or (len(done) < _DEEDS and passed_s < _LONGEST_S)


def _await(done: object, timeout_s: float) -> None:
    assert callable(done)
    until_s = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < until_s, "the foreign driver does not do what it should"
        time.sleep(0.1)


def _hear(commits_log: _Told, outcome: Outcome) -> int:
    """Add up the foreign driver's log; returns the offset of partition 0 up to which it deleted."""
    deleted_to = 0
    for commit in commits_log.commits():
        outcome.foreign.setdefault(commit["deed"], Side()).add(commit["conflicts"], commit["seconds"])
        deleted_to = max(deleted_to, commit["deleted_to"])
    return deleted_to


def _compare(spark: SparkSession, staging: Staging, ends: dict[int, int], deleted_to: int, outcome: Outcome) -> None:
    frame = spark.read.format("delta").load(staging.table).select("_kafka_partition", "_kafka_offset")
    rows_read = Counter((row[0], row[1]) for row in frame.collect())
    wanted = {
        (partition, offset)
        for partition, end in ends.items()
        for offset in range(deleted_to if partition == 0 else 0, end)
    }
    history = spark.sql(f"DESCRIBE HISTORY delta.`{staging.table}`").where("operation = 'STREAMING UPDATE'")
    outcome.not_blind = history.where("NOT isBlindAppend").count()
    outcome.rows = sum(rows_read.values())
    outcome.missing = len(wanted - rows_read.keys())
    outcome.unknown = len(rows_read.keys() - wanted)
    outcome.twice = sum(count > 1 for count in rows_read.values())


def main(
    minutes: Annotated[float, typer.Option(help="How long both sides write.")] = 5.0,
    *,
    serializable: Annotated[bool, typer.Option(help="With delta.isolationLevel = Serializable.")] = False,
) -> None:
    """Run for minutes and print the result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = build_session(settings_for(Staging.below(folder)))
        outcome = run(spark, folder, minutes * 60, serializable=serializable)
        spark.stop()
    typer.echo(outcome)
    raise typer.Exit(int(not outcome.clean))


if __name__ == "__main__":
    typer.run(main)
