"""Spark's Java as tests start it: for seconds, on tables of a few rows, and with classes that were parsed once.

A session spends a third of the CPU of its first table on its classes. The archive (Java's class-data sharing) belongs
to one Java and to the jars of one virtual environment, and is in that environment. Java looks whether it fits, and does
without it where it does not.

``python -m tests.spark_archive`` does in a session what a loader does, for the archive that its Java then writes.
"""

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from devservices.java import SHORT_LIVED, java

_VARIABLE = "SPARK_SUBMIT_OPTS"
_SILENT = "-Xlog:disable"  # what Java has to say of archives, it would say on standard output


def use_spark_archive() -> None:
    """Have the Java processes that this process starts use the archive, which the first one to ask makes."""
    given = os.environ.setdefault(_VARIABLE, SHORT_LIVED)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", SHORT_LIVED)  # the process that makes spark-submit's command line
    if _SILENT in given:
        return
    version = subprocess.run([java(), "-version"], check=True, capture_output=True).stderr
    made_of = version + metadata.version("pyspark").encode()
    archive = Path(sys.prefix) / f"spark-{hashlib.sha256(made_of).hexdigest()[:12]}.jsa"
    with Path(sys.prefix, "spark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
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
