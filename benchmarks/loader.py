"""The cost of a load: ``python -m benchmarks.loader`` (`make benchmark-loader`).

Our loader (add: reads no byte of the files) and Spark's own path (``spark.read.parquet(folder)``, append) load the same
files into a Delta table, alternately, in one warm JVM of one run. Both tables exist before. The cost is the CPU time of
the JVM and of Python. Sections: ``files`` (10 to 10,000 small files), ``bytes`` (100 files of 10 KiB to 10 MiB each),
``merges`` (change events, compared with a plain MERGE of the same files) and ``explodes`` (the same for events that
replace the rows of a record's elements). ``--keep`` puts the figures into ``benchmarks/loader_results.json`` and on the
performance page.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks import loader_report
from benchmarks.choices import require_known
from benchmarks.loader_report import Measured
from benchmarks.loading import load_once
from benchmarks.measure import Cost
from benchmarks.merging import merge_both
from benchmarks.spark import meter_of, start
from benchmarks.staged import Backlog, build, write_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECTIONS = ("files", "bytes", "merges", "explodes")
_FILES = (10, 100, 1_000, 10_000)
_FILE_KIB = (10, 100, 1_024, 10_240)
_PARTITIONS = 100
_ROW_BYTES = 1_000
_ELEMENTS = {"merges": 0, "explodes": 4}
_MERGED = ((100_000, 1_000), (100_000, 100_000))
"""Rows of the table and of the events. With elements, the number of records is divided by the elements of each."""
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Case:
    section: str
    files: int
    rows: int
    value_bytes: int


@dataclass(frozen=True, slots=True)
class MergeCase:
    """A merge of ``events`` into ``records``, with ``elements`` in each; 0 elements: not exploded."""

    section: str
    records: int
    events: int
    elements: int

    def __str__(self) -> str:
        return f"{self.section}: {self.events:,} events, {self.records:,} records"


@app.command()
def main(
    sections: Annotated[list[str] | None, typer.Argument(help=f"{', '.join(_SECTIONS)}; all when absent")] = None,
    scale: Annotated[float, typer.Option(help="Factor for the number of files and for their bytes.")] = 1.0,
    rounds: Annotated[int, typer.Option(help="Number of measured rounds.")] = 3,
    keep: Annotated[bool, typer.Option("--keep", help="Put the figures on the performance page.")] = False,  # noqa: FBT002
) -> None:
    """Measure both sides and print the figures."""
    require_known(sections, _SECTIONS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-loader-")))
        session = start("127.0.0.1:1", folder)
        stack.callback(session.stop)
        for _ in range(3):  # warms up the code of both sides
            _measure(session, Case("warm-up", 20, 10, 20), folder)
        for section in sections or _SECTIONS:
            if section in _ELEMENTS:
                merge_both(session, folder, 1_000, 1_000, _ELEMENTS[section])
                found = [_merged(session, case, folder, rounds) for case in _merge_cases(section, scale)]
            else:
                found = [_measured(session, case, folder, rounds) for case in _cases(section, scale)]
            _say(loader_report.table(found))
            if keep:
                loader_report.keep(found)


def _merge_cases(section: str, scale: float) -> list[MergeCase]:
    elements = _ELEMENTS[section]
    sizes = [[round(rows * scale) // max(1, elements) for rows in case] for case in _MERGED]
    return [MergeCase(section, records, events, elements) for records, events in sizes]


def _cases(section: str, scale: float) -> list[Case]:
    if section == "files":
        return [Case(section, max(1, round(files * scale)), 10, 20) for files in _FILES]
    return [Case(section, 100, max(1, round(kib * scale * 1024 / _ROW_BYTES)), _ROW_BYTES) for kib in _FILE_KIB]


def _measured(session: SparkSession, case: Case, folder: Path, rounds: int) -> Measured:
    costs: dict[str, list[Cost]] = {"add": [], "spark": []}
    size_bytes = 0
    for number in range(rounds):
        size_bytes, found = _measure(session, case, folder)
        for side, cost in found.items():
            costs[side].append(cost)
            _say(f"  {case.section}: {case.files:,} files, round {number + 1}: {side} {cost.cpu_s:.2f} CPU-s")
    return Measured(case.section, case.files, size_bytes, costs)


def _merged(session: SparkSession, case: MergeCase, folder: Path, rounds: int) -> Measured:
    costs: dict[str, list[Cost]] = {"merge": [], "spark": []}
    files = size_bytes = 0
    for number in range(rounds):
        files, size_bytes, found = merge_both(session, folder, case.records, case.events, case.elements)
        for side, cost in found.items():
            costs[side].append(cost)
            _say(f"  {case}, round {number + 1}: {side} {cost.cpu_s:.2f} CPU-s")
    return Measured(case.section, files, size_bytes, costs)


def _measure(session: SparkSession, case: Case, folder: Path) -> tuple[int, dict[str, Cost]]:
    """Run both sides once, over new tables that already have rows."""
    place = Path(tempfile.mkdtemp(dir=folder))
    partitions = min(_PARTITIONS, case.files)
    stage, table, target = str(place / "stage"), str(place / "table"), str(place / "spark")
    first = Backlog(stage, table, {}, partitions, partitions, 1)
    config_of = write_config(_built(first, place / "first"), place, "4g")
    load_once(session, config_of)
    _append(session, place / "first", target)

    backlog = Backlog(stage, table, {}, case.files, partitions, case.rows, case.value_bytes, begin=1)
    _built(backlog, place / "input")
    costs = {}
    meter = meter_of(session)
    rows = load_once(session, config_of)
    costs["add"] = meter.read()
    meter = meter_of(session)
    _append(session, place / "input", target)
    costs["spark"] = meter.read()
    size_bytes = sum(file.stat().st_size for file in (place / "input").rglob("*.parquet"))
    found = session.read.format("delta").load(target).count()
    if rows != backlog.records or found != backlog.records + first.records:
        msg = f"{rows:,} rows were added and {found:,} appended instead of {backlog.records:,} (+{first.records})"
        raise RuntimeError(msg)
    shutil.rmtree(place)
    return size_bytes, costs


def _built(backlog: Backlog, copies: Path) -> Backlog:
    """Stage a backlog, and link the same files into a separate folder that is not part of a Delta table."""
    for path in build(backlog):
        (copies / path).parent.mkdir(parents=True, exist_ok=True)
        os.link(f"{backlog.table_url}/{path}", copies / path)
    return backlog


def _append(session: SparkSession, folder: Path, table: str) -> None:
    rows = session.read.parquet(str(folder))
    rows.write.format("delta").mode("append").partitionBy("day").save(table)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    app()
