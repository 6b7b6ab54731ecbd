"""Which jars belong to which Spark and Delta."""

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pyspark
import pytest
from packaging.requirements import Requirement

from common.errors import BuildError
from delta_loader.spark.bridge_jar import built_jar
from delta_loader.spark.jars import installed, is_release, locked_jars
from devservices.spark_pairs import OLDER_PAIRS

PROJECT = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text("utf-8"))["project"]
OLDER = [(pair.delta.version, pair.spark.version) for pair in OLDER_PAIRS]


@pytest.mark.parametrize(("delta", "spark"), [(version("delta-spark"), version("pyspark")), *OLDER])
def test_supported_pair_has_its_jars_and_may_be_installed(delta: str, spark: str) -> None:
    jars = locked_jars(delta, spark)
    assert [jar.version for jar in jars["delta"] if jar.artifact.startswith("delta-spark_")] == [delta]
    assert any(jar.artifact == "hadoop-aws" for jar in jars["s3"])
    extra = {
        requirement.name: requirement.specifier
        for requirement in map(Requirement, PROJECT["optional-dependencies"]["delta-loader"])
    }
    assert extra["delta-spark"].contains(delta)
    assert extra["pyspark"].contains(spark)
    assert is_release(delta) is ((delta, spark) not in OLDER)


def test_unsupported_pair_is_refused_with_the_supported_ones() -> None:
    pairs = r"4\.3\.1 with pyspark 4\.1, delta-spark 4\.2\.0 with pyspark 4\.1"
    for delta, spark in (("4.3.0", "4.1.1"), ("4.4.0", "4.1.1"), ("4.3.1", "4.2.0"), ("4.2.0", "4.10.0")):
        with pytest.raises(BuildError, match=pairs) as refused:
            locked_jars(delta, spark)
        assert f"delta-spark {delta} with pyspark {spark} is installed" in refused.value.problem
        assert refused.value.remedy == f"run pip install delta-spark=={version('delta-spark')} 'pyspark==4.2.*'"


def test_missing_package_means_the_locked_delta_version(monkeypatch: pytest.MonkeyPatch) -> None:
    release = version("delta-spark")
    assert installed() == (release, version("pyspark"))

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert installed() == (release, pyspark.__version__)
    monkeypatch.setitem(sys.modules, "pyspark.version", None)
    with pytest.raises(BuildError, match="needs pyspark, which is not installed"):
        installed()


def test_each_delta_version_has_its_own_cached_jar() -> None:
    jars = {built_jar({}), *(built_jar({}, delta) for delta, _ in OLDER)}
    assert len(jars) == 1 + len(OLDER)
