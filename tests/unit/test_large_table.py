"""The table that `make large-table` loads into."""

from pathlib import Path

import pytest

from benchmarks.large_table import make


@pytest.mark.parametrize(("files", "commits"), [(10, 0), (10, 4), (10, 6), (3, 100)])
def test_its_version_is_that_of_its_last_commit(tmp_path: Path, files: int, commits: int) -> None:
    version = make(tmp_path, files, commits=commits)
    assert [int(path.stem) for path in sorted((tmp_path / "_delta_log").glob("0*[0-9].json"))] == [*range(version + 1)]
