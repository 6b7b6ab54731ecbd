"""Spark's Java as tests start it: for seconds, on tables of a few rows, and with classes that were parsed once.

A session spends a third of the CPU of its first table on its classes. The archive (Java's class-data sharing) belongs
to one Java and to jars at one path: so tests start Spark from a folder in the cache, which all clones share. Java looks
whether the archive fits, and does without it where it does not.

``python -m tests.spark_archive`` does in a session what a loader does, for the archive that its Java then writes.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import pyspark

from common.downloads import cache_folder
from devservices.java import SHORT_LIVED, java

_VARIABLE = "SPARK_SUBMIT_OPTS"
_SILENT = "-Xlog:disable"  # what Java has to say of archives, it would say on standard output
_STARTS = ("bin", "jars", "python")  # what of PySpark's package Java, and what it runs in Python, is started with


def use_spark_archive() -> None:
    """Have the Java processes that this process starts use the archive, which the first one to ask makes."""
    given = os.environ.setdefault(_VARIABLE, SHORT_LIVED)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", SHORT_LIVED)  # the process that makes spark-submit's command line
    if _SILENT in given:
        return
    version = subprocess.run([java(), "-version"], check=True, capture_output=True).stderr
    built = cache_folder() / "built"
    built.mkdir(parents=True, exist_ok=True)
    with (built / "spark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        home = _spark_home(built)
        os.environ["SPARK_HOME"] = str(home)
        archive = home / f"{hashlib.sha256(version).hexdigest()[:12]}.jsa"
        if not archive.exists():
            making = archive.with_suffix(".making")
            making.unlink(missing_ok=True)
            environ = {**os.environ, _VARIABLE: f"{given} {_SILENT} -XX:ArchiveClassesAtExit={making}"}
            command = [sys.executable, "-W", "ignore", "-m", __name__]
            root = Path(__file__).parents[1]
            with contextlib.suppress(subprocess.SubprocessError):
                subprocess.run(command, check=True, env=environ, cwd=root, stdout=subprocess.DEVNULL, timeout=300)
                making.rename(archive)
    used = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []  # it only saves time
    os.environ[_VARIABLE] = " ".join((given, _SILENT, *used)).strip()


def _spark_home(built: Path) -> Path:
    """PySpark's own files at the path of all clones: Java compares the jars' paths and times with the archive's."""
    home = built / f"pyspark-{metadata.version('pyspark')}"
    if not home.exists():
        making = home.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        for name in _STARTS:
            shutil.copytree(Path(pyspark.__file__).with_name(name), making / name, copy_function=_link)
        making.rename(home)
    return home


def _link(source: str, to: str) -> None:
    try:
        os.link(source, to)
    except OSError:  # another disk
        shutil.copy2(source, to)


def main() -> None:
    """Load as a loader does, so that Java has the classes for it, and have Java end by itself."""
    from common.clock import SystemClock
    from delta_loader.spark.delta import SparkDeltaTables
    from tests.fakes.loading import loader_for
    from tests.fakes.staging import Staging
    from tests.session import session_of_tests

    with tempfile.TemporaryDirectory(prefix="spark-archive-") as name:
        folder = Path(name)
        spark = session_of_tests(folder)
        staging = Staging.below(folder)
        staging.flush(0, 0, 10, dead=[3])
        (report,) = loader_for(staging, SparkDeltaTables(spark, SystemClock())).run_pass()
        assert report.failure is None
        spark.read.format("delta").load(staging.table).groupBy("day").count().collect()
        spark.stop()
        java_process = spark.sparkContext._gateway.proc
        java_process.stdin.close()
        java_process.wait()


if __name__ == "__main__":
    main()
