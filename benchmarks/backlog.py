"""The backlog after an outage: ``python -m benchmarks.backlog`` (`make backlog MARKERS=100000`).

Builds a stage of many small flushes over many Kafka partitions, and loads it with the real program (`delta-loader run
--once`) in a JVM with a bounded heap. Prints the wall time and CPU time of the whole run, and the peak memory of both
processes. Checks that every staged file is in the table's log once and no other file is, that every position is the end
of the last marker, and, for a small backlog, that every record is read back once. Otherwise the exit code is 1.
"""

import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import duckdb
import typer

from benchmarks import large_table
from benchmarks.loader_process import LoaderRun, run_loader
from benchmarks.staged import Backlog, added_paths, build, write_config
from common.storage.store import FsspecStore
from devservices.s3 import running_s3

_MAX_READ_BACK = 5_000
"""Largest number of files that are read back."""
_COMMIT = re.compile(r"(\d{20})\.json")
_MIB = 2**20

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    *,
    markers: Annotated[int, typer.Option(min=1, help="Number of markers that wait.")] = 10_000,
    partitions: Annotated[int, typer.Option(min=1, help="Number of Kafka partitions with markers.")] = 1_000,
    rows: Annotated[int, typer.Option(help="Rows of each marker's file.")] = 10,
    heap: Annotated[str, typer.Option(help="JVM heap, as in spark.driver.memory.")] = "1g",
    store: Annotated[Literal["file", "moto"], typer.Option(help="Store of stage and table.")] = "file",
    table_files: Annotated[int, typer.Option(help="Files in the table's log before the load; on a local disk.")] = 0,
    table_commits: Annotated[
        int, typer.Option(help="Number of commits that contain these files; 0: a checkpoint.")
    ] = 0,
    max_files: Annotated[int, typer.Option(help="Most files per commit.")] = 10_000,
) -> None:
    """Build a backlog, load it, check the table and print the cost."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-")))
        root, options = str(folder), {}
        if store != "file":
            server = stack.enter_context(running_s3("moto"))
            root, options = server.create_bucket("backlog"), server.storage_options
        backlog = Backlog(f"{root}/stage", f"{root}/table", options, markers, min(partitions, markers), rows)
        began_s = time.monotonic()
        paths = build(backlog)
        _say(f"{markers:,} markers over {backlog.partitions:,} partitions in {time.monotonic() - began_s:.0f} s")
        first_version = 0
        if table_files:
            first_version = large_table.make(Path(backlog.table_url), table_files, commits=table_commits) + 1
        config = write_config(backlog, folder, heap, max_files=max_files)
        first = run_loader(config, folder)
        _say(_line("loaded", first, markers))
        _say(f"seconds per commit: {' '.join(f'{seconds:.1f}' for seconds in first.commits_s)}")
        for seconds, cpu_s in zip(first.seconds_of("checkpoint"), first.cpu_of("checkpoint"), strict=True):
            _say(f"checkpoint: {seconds:.1f} s, with {cpu_s:.1f} CPU-s of all threads")
        again = run_loader(config, folder)
        _say(_line("an idle run", again, markers))
        wrong = list(problems(backlog, paths, first_version))
        if store == "file":
            wrong += checkpoint_problems(Path(backlog.table_url), table_files)
    _say("\n".join(wrong) or f"the table has each of {backlog.records:,} records once")
    sys.exit(bool(wrong))


def problems(backlog: Backlog, paths: list[str], first_version: int = 0) -> Iterator[str]:
    """The table's faults after the load: each file must be in the log once, and a small backlog's records too.

    ``first_version`` is the load's first version.
    """
    log = FsspecStore(f"{backlog.table_url}/_delta_log", backlog.storage_options)
    lines = [
        line
        for item in log.list("")
        if (commit := _COMMIT.fullmatch(item.path)) and int(commit[1]) >= first_version
        for line in (log.read(item.path) or b"").decode().splitlines()
    ]
    added = list(added_paths(lines))
    if len(added) != len(set(added)):
        yield f"{len(added) - len(set(added)):,} files are in the table twice"
    if set(added) != set(paths):
        missing, unknown = set(paths) - set(added), set(added) - set(paths)
        yield f"{len(missing):,} files are not in the table, {len(unknown):,} have no marker"
    local = "://" not in backlog.table_url
    if local and len(paths) <= _MAX_READ_BACK:
        files = [f"{backlog.table_url}/{path}" for path in added]
        records = "count(*), count(distinct (_kafka_partition, _kafka_offset))"
        found = duckdb.execute(f"SELECT {records} FROM read_parquet(?)", [files]).fetchone()  # noqa: S608 - ours
        if found != (backlog.records, backlog.records):
            yield f"the table's files have {found} rows and distinct records instead of {backlog.records:,}"


def checkpoint_problems(table: Path, files_before: int) -> Iterator[str]:
    """The faults in the newest checkpoint: each file that was added up to its version must be in it once."""
    log = table / "_delta_log"
    if not (log / "_last_checkpoint").exists():
        return
    version = int(json.loads((log / "_last_checkpoint").read_text("utf-8"))["version"])
    commits = [path for path in log.iterdir() if (match := _COMMIT.fullmatch(path.name)) and int(match[1]) <= version]
    added = {path for commit in commits for path in added_paths(commit.read_text("utf-8").splitlines())}
    # The earlier files are in commits, or in a checkpoint.
    expected = len(added) if len(added) >= files_before else len(added) + files_before
    query = "SELECT count(add.path), count(DISTINCT add.path) FROM read_parquet(?) WHERE add IS NOT NULL"
    found = duckdb.execute(query, [str(log / f"{version:020d}.checkpoint*.parquet")]).fetchone()
    _say(f"the checkpoint of version {version} has {expected:,} files")
    if found != (expected, expected):
        yield f"the checkpoint of version {version} has {found} entries and distinct files instead of {expected:,}"


def _line(name: str, used: LoaderRun, markers: int) -> str:
    return (
        f"{name}: {used.wall_s:.1f} s, {used.cpu_s:.1f} CPU-s ({1e6 * used.cpu_s / markers:,.0f} µs per marker); "
        f"peak {used.python_bytes / _MIB:,.0f} MiB Python, {used.jvm_bytes / _MIB:,.0f} MiB JVM"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    app()
