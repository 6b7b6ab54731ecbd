"""The loader's Java classes against older pairs of Spark and Delta: what they lack is found before a load finds it."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from common.downloads import ensure_jars, read_lock
from delta_loader.spark.bridge_jar import compile_jar, pyspark_jars
from delta_loader.spark.jars import LOCK
from devservices.lock_jars import PAIRS, PAIRS_LOCK

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("pair", [pair.name for pair in PAIRS])
def test_they_compile_against_an_older_pair(pair: str, tmp_path: Path) -> None:
    theirs, store = ensure_jars(read_lock(PAIRS_LOCK)[pair]), ensure_jars(read_lock(LOCK)["s3"])
    others = [jar for jar in pyspark_jars() if not jar.name.startswith("spark-")]
    jar = tmp_path / "pair.jar"
    compile_jar(jar, [*theirs, *store, *others])
    assert "io/github/kafkadeltaexpress/DeltaBridge.class" in zipfile.ZipFile(jar).namelist()
