"""What waits after an outage, in short (`make backlog` is the long form): bounded commits and memory, each once."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.backlog import problems
from benchmarks.loader_process import run_loader
from benchmarks.staged import Backlog, build, write_config
from tests.spark_archive import use_spark_archive

pytestmark = pytest.mark.spark

_MIB = 2**20
_SPARK = {
    "spark.master": "local[2]",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # the run is over before the other compiler pays
}


@pytest.mark.parametrize("markers", [120, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_backlog_is_loaded_to_its_end_in_bounded_commits_and_memory(tmp_path: Path, markers: int) -> None:
    most_files, partitions = markers * 3 // 10, markers // 4
    backlog = Backlog(
        str(tmp_path / "stage"), str(tmp_path / "table"), {}, markers=markers, partitions=partitions, rows=2
    )
    paths = build(backlog)
    use_spark_archive()
    used = run_loader(write_config(backlog, tmp_path, "512m", max_files=most_files, spark=_SPARK), tmp_path)
    assert list(problems(backlog, paths)) == []
    commits = list(_files_of_commits(Path(backlog.table_url)))
    assert sum(commits) == len(paths)
    assert len(commits) == -(-len(paths) // most_files), "as few as the limit allows"
    assert max(commits) <= most_files
    assert used.python_bytes < 300 * _MIB


def _files_of_commits(table: Path) -> Iterator[int]:
    for log in (table / "_delta_log").glob("*[0-9].json"):
        added = sum('"add"' in line[:8] and bool(json.loads(line)) for line in log.read_text("utf-8").splitlines())
        if added:
            yield added
