"""Starts the Java process of a Spark session, and passes on its standard error.

Rules:

1. Java's warning that a module of Spark's is incubating, which Spark requests and no setting removes, is dropped. All
   other output is passed on unchanged, line by line.
2. Java's output is passed on to the end before a failure to start is reported.
3. An exception that PySpark logs before it raises it is not logged: the code that catches it reports it.
"""

import logging
import os
import sys
import threading

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger

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
