"""The older pairs of Spark and Delta that the loader also supports, installed as Python packages in the cache.

PYTHONPATH puts a pair ahead of the running environment's packages; all other packages are shared. The loader resolves
the pair's jars itself (`delta_loader/older_jars.lock`).
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common.downloads import cache_folder


@dataclass(frozen=True, slots=True)
class Package:
    requirement: str
    sha256: str

    @property
    def version(self) -> str:
        return self.requirement.partition("==")[2]


@dataclass(frozen=True, slots=True)
class Pair:
    """A delta-spark release and the newest pyspark that it supports."""

    delta: Package
    spark: Package

    @property
    def name(self) -> str:
        """The pair's name in test ids."""
        return f"{self.delta.requirement} {self.spark.requirement}".replace("==", "-")


_SPARK_4_1 = Package("pyspark==4.1.1", "77f78984aa84fbe865c717dd37b49913b4e5c97d76ef6824f932f1aefa6621ec")
OLDER_PAIRS = (
    Pair(Package("delta-spark==4.3.1", "f77602e9c2c89a519742b935a8f68d942119cf61643c3dc6e809fdf49ffe3ed2"), _SPARK_4_1),
    Pair(Package("delta-spark==4.2.0", "46327eaeb50915aec3b66bb4ab8fb8db7f90774f2a3bb65bb859333cedc6ef8f"), _SPARK_4_1),
)


def environment_of(pair: Pair) -> dict[str, str]:
    """The environment of a process that runs on the pair; a missing pair is installed first."""
    delta, spark = (_installed(package) for package in (pair.delta, pair.spark))
    return {**os.environ, "PYTHONPATH": f"{delta}{os.pathsep}{spark}", "SPARK_HOME": str(spark / "pyspark")}


def _installed(package: Package) -> Path:
    target = cache_folder() / "python" / package.sha256[:16]
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as name:
            lock, packages = Path(name) / "lock", Path(name) / "packages"
            lock.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n", "utf-8")
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*pip, "--require-hashes", "--target", str(packages), "-r", str(lock)], check=True)
            packages.rename(target)
    return target
