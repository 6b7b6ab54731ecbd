"""A standalone Spark cluster of real processes: a master and workers, from pyspark's own jars."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyspark

from devservices import processes
from devservices.java import java
from devservices.ports import free_ports, is_open

_HOST = "127.0.0.1"
_HOME = Path(pyspark.__file__).parent
_DEPLOY = "org.apache.spark.deploy"


@contextmanager
def running_cluster(folder: Path, workers: int = 2, memory: str = "1g") -> Iterator[str]:
    """Run a cluster with one core per worker, for ``spark.master``; workers' files and logs are in ``folder``."""
    port, *pages = free_ports(2 + workers)
    master = f"spark://{_HOST}:{port}"
    started = []
    try:
        command = _command("master.Master", "--host", _HOST, "--port", str(port), "--webui-port", str(pages.pop()))
        started.append(processes.start(command, folder / "master.log", _environ()))
        started[0].wait_until(lambda: is_open(port), "Spark's master")
        for number in range(workers):
            work_folder = folder / f"worker-{number}"
            work_folder.mkdir()
            options = ("--host", _HOST, "--cores", "1", "--memory", memory, "--work-dir", str(work_folder))
            command = _command("worker.Worker", *options, "--webui-port", str(pages.pop()), master)
            started.append(processes.start(command, folder / f"worker-{number}.log", _environ()))
        for child in started[1:]:
            child.wait_until(partial(_is_registered, child.log), "Spark's worker")
        yield master
    finally:
        for child in reversed(started):
            child.stop()


def _is_registered(log: Path) -> bool:
    return "Successfully registered" in log.read_text("utf-8", errors="replace")


def _command(main: str, *arguments: str) -> list[str]:
    return [java(), "-Xmx256m", "-cp", f"{_HOME}/jars/*", f"{_DEPLOY}.{main}", *arguments]


def _environ() -> dict[str, str]:
    # Without this version, Spark looks for the folders of a source build.
    return {"SPARK_HOME": str(_HOME), "SPARK_LOCAL_IP": _HOST, "SPARK_SCALA_VERSION": "2.13"}
