"""Runs the cases in Kafka Streams' own test driver: one Java program for all of them."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from common.downloads import ensure_jars, read_lock
from devservices.java import java as java_program
from devservices.lock_jars import STREAMS_LOCK

_PROGRAM = Path(__file__).parent / "Comparison.java"
_TIMEOUT_S = 300
_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")


def java() -> str | None:
    """The JDK's ``java``, which compiles the program itself; None without one."""
    return shutil.which(java_program())


def run(cases: list[dict[str, Any]]) -> list[Any]:
    """For each case and each of its inputs what came out. Raises DownloadError without the jars."""
    jars = ensure_jars(read_lock(STREAMS_LOCK)["kafka-streams"])
    command = [str(java()), *_OPTIONS, "-cp", os.pathsep.join(map(str, jars)), str(_PROGRAM)]
    given = json.dumps(cases)
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    answers: list[Any] = json.loads(done.stdout)
    return answers
