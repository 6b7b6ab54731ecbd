"""Several processes on one Delta log on a local disk. The race is forced: one is held in the middle of its write."""

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from common.ports import Created
from common.storage.store import FsspecStore

pytestmark = pytest.mark.spark

OURS = "io.github.kafkadeltaexpress.LinkedLocalLogStore"
VERSION = f"{7:020}.json"
RACERS = 8
ROUNDS = 20


class Driver:
    """A driver that writes a version through a log store, and is held until its content is given to it."""

    def __init__(self, spark: SparkSession, log_store: str, folder: Path, name: str = VERSION) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._configuration = spark.sparkContext._jsc.hadoopConfiguration()
        self._store = getattr(self._jvm, log_store)(self._configuration)
        self._path = folder / name

    def write(self, content: str) -> bool:
        lines = self._jvm.java.util.ArrayList()
        lines.add(content)
        return self._write(lines.iterator())

    def write_late(self, fifo: Path) -> bool:
        """The same; what is written comes out of a pipe, and nothing before that is done."""
        return self._write(self._jvm.java.nio.file.Files.lines(self._jvm.java.io.File(str(fifo)).toPath()).iterator())

    def _write(self, lines: object) -> bool:
        path = self._jvm.org.apache.hadoop.fs.Path(f"file:{self._path}")
        try:
            self._store.write(path, lines, False, self._configuration)  # noqa: FBT003
        except Py4JJavaError as error:
            if "FileAlreadyExistsException" not in str(error.java_exception.toString()):
                raise
            return False
        return True


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "a table %20" / "_delta_log"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def late(tmp_path: Path) -> tuple[Path, int]:
    """A pipe, and the end of it that is written to."""
    fifo = tmp_path / "late"
    os.mkfifo(fifo)
    end = os.open(fifo, os.O_RDWR)
    return fifo, end


def race(driver: Driver, log: Path, late: tuple[Path, int]) -> bool:
    """Another process commits, by a link as delta-rs does, while a driver has begun to write and is not done."""
    fifo, end = late
    with ThreadPoolExecutor(1) as pool:
        writing: Future[bool] = pool.submit(driver.write_late, fifo)
        try:
            while not (writing.done() or any(path.suffix == ".tmp" for path in log.iterdir())):
                time.sleep(0.01)  # the test's own time limit ends it
            FsspecStore(str(log)).create(VERSION, b"theirs\n")
            os.write(end, b"ours\n")
        finally:
            os.close(end)
        return writing.result()


def test_commit_of_another_process_is_never_replaced(spark: SparkSession, log: Path, late: tuple[Path, int]) -> None:
    assert not race(Driver(spark, OURS, log), log, late)
    assert (log / VERSION).read_bytes() == b"theirs\n"
    assert [path.name for path in log.iterdir()] == [VERSION]


def test_one_of_many_racing_drivers_and_programs_wins(spark: SparkSession, log: Path) -> None:
    other = FsspecStore(str(log))

    def commit(version: int, number: int) -> bool:
        if number % 4:
            return Driver(spark, OURS, log, f"{version:020}.json").write(f"racer {number}")
        return isinstance(other.create(f"{version:020}.json", f"racer {number}\n".encode()), Created)

    with ThreadPoolExecutor(RACERS) as pool:
        for version in range(ROUNDS):
            won = [number for number, mine in enumerate(pool.map(partial(commit, version), range(RACERS))) if mine]
            assert len(won) == 1
            assert (log / f"{version:020}.json").read_text() == f"racer {won[0]}\n"
    assert sorted(path.name for path in log.iterdir()) == [f"{version:020}.json" for version in range(ROUNDS)]


def test_session_writes_and_reads_through_the_local_log_store(spark: SparkSession, log: Path) -> None:
    table = str(log.parent)
    # Left by a file of this name that is gone: Hadoop would read the new file against it.
    (log / f".{0:020}.json.crc").write_bytes(b"crc\0 and of another file")
    spark.range(5).write.format("delta").save(table)
    spark.range(3).write.format("delta").mode("append").save(table)
    assert spark.read.format("delta").load(table).count() == 8
    assert sorted(path.name for path in log.glob("*.json")) == [f"{0:020}.json", f"{1:020}.json"]
    assert not [path for path in log.iterdir() if path.suffix == ".tmp"]
    assert not (log / f".{0:020}.json.crc").exists()
    assert not (log / f".{1:020}.json.crc").exists(), "written by Hadoop's file system, and not by our log store"
