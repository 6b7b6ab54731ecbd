"""Starts Spark's Java process: its command line, which every user of the machine can read, and its standard error.

Rules:

1. It contains only what spark-submit and Java need before Spark runs, and nothing under a key that may be a secret.
   Everything else is passed to Java once it runs.
2. Java options that may contain a secret are in a file that only this user can read. It is deleted once Java runs.
3. Java's warning that a module of Spark's is incubating, which Spark requests and no setting removes, is dropped. All
   other output is passed on unchanged, line by line, and to the end before a failure to start is reported.
4. An exception that PySpark logs before it raises it is not logged: the code that catches it reports it.
"""

import logging
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger

from common.settings.masking import mask

_JAVA_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
_REPOSITORIES = "spark.jars.repositories"
_NEEDED = (
    "spark.archives", "spark.driver.cores", "spark.driver.defaultExtraClassPath", "spark.driver.extraClassPath",
    "spark.driver.extraLibraryPath", "spark.driver.memory", "spark.driver.userClassPathFirst", "spark.files",
    "spark.hadoop.fs.defaultFS", "spark.hadoop.hadoop.security.", "spark.hadoop.yarn.", "spark.jars", "spark.kerberos.",
    "spark.kubernetes.", "spark.log.", "spark.master", "spark.submit.", "spark.yarn.",
)  # fmt: skip


@contextmanager
def launch_options(options: Mapping[str, str], hidden: Collection[str]) -> Iterator[dict[str, str]]:
    """The options for the command line until Java runs; ``hidden`` are texts from the environment and from files."""

    def may_hold_secret(key: str, value: str) -> bool:
        return mask(key, value) != value or any(text in value for text in hidden if text)

    launched = {
        key: value
        for key, value in options.items()
        if key.startswith(_NEEDED) and mask(key, value) == value
        if key != _REPOSITORIES or not may_hold_secret(key, value)
    }
    files: list[Path] = []
    try:
        for key in _JAVA_OPTIONS:
            value = options.get(key)
            if value is not None and may_hold_secret(key, value):
                files.append(_argument_file(value))
                launched[key] = f"@{files[-1]}"
            elif value is not None:
                launched[key] = value
        yield launched
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _argument_file(java_options: str) -> Path:
    """A file for ``java @FILE``, readable by this user only."""
    number, name = tempfile.mkstemp(prefix="java-options-")
    with os.fdopen(number, "w", encoding="utf-8") as file:
        for option in shlex.split(java_options):
            quoted = option.replace("\\", "\\\\").replace('"', '\\"')
            file.write(f'"{quoted}"\n')
    return Path(name)


_OF_NO_CONCERN = b"WARNING: Using incubator modules:"
_TWICE = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_LAST_WORDS_S = 5.0


def start_java(conf: SparkConf) -> None:
    """Start Java for the process's Spark sessions, unless it runs. Raises PySparkRuntimeError."""
    for name in _TWICE:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    if SparkContext._gateway is not None:  # noqa: SLF001 - PySpark's own way to Java
        return
    read_end, write_end = os.pipe()
    listener = threading.Thread(target=_pass_on, args=(read_end,), name="java's standard error", daemon=True)
    listener.start()
    try:
        gateway = launch_gateway(conf, popen_kwargs={"stderr": write_end})
    except BaseException:
        os.close(write_end)
        listener.join(_LAST_WORDS_S)
        raise
    os.close(write_end)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001 - the same


def _pass_on(read_end: int) -> None:
    """Pass on Java's lines until it closes its end."""
    with open(read_end, "rb") as lines:
        for line in lines:
            if not line.startswith(_OF_NO_CONCERN):
                sys.stderr.write(line.decode(errors="replace"))
                sys.stderr.flush()
