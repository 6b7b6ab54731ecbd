"""What a loader leaves behind that was killed while it held a trust store."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from delta_loader.spark import trust


def test_folders_of_processes_that_are_gone_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f"delta-loader-authorities-{number}-x" for number in (ended.pid, os.getpid(), os.getppid())]
    for name in [*names, "delta-loader-authorities-of-mine"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "authorities.p12").touch()
    trust._delete_left()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names[2], "delta-loader-authorities-of-mine"])
