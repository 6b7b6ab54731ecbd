"""Java for the loaders that tests run as processes: where one has ended well, the next one goes on with its Java.

A loader's Java spends most of its CPU on what it does for the first time. So it is given back once its Spark has ended,
and serves a later loader that would start Java with the same options, environment, and folder. All else is the
loader's own: its process, its Spark, and its settings.

Rules:

1. Java ends with a loader that is killed, as it does with a Java of its own: it reads a pipe, which only the loader
   has open to write. In between, a process holds the pipe that ends with the tests.
2. What Java keeps across Sparks is dropped: open file systems (and the credentials in them), Delta's cache, and the
   trust store; a Java with other authorities than the environment's is not given back.
"""

import hashlib
import json
import os
import signal
import subprocess
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext, java_gateway

from delta_loader.spark import launch, session, trust

_STORE = "javax.net.ssl.trustStore"
_OF_NO_CONCERN = ("PYTEST_", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")
"""Variables that tell of the test, and those that PySpark sets for itself."""
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


@dataclass(slots=True)
class WarmJava:
    """The Java of this process, from ``folder`` and back to it; ``alive`` is open to read as long as the tests run."""

    folder: Path
    alive: int
    kind: str = ""
    trusted: Path | None = None
    pipes: Path | None = None
    held: int | None = None
    """The end of the pipe whose closing ends Java."""

    def use(self) -> None:
        """Have the loader start its Java here."""
        launch.launch_gateway = self._launch  # type: ignore[attr-defined]
        session.trust = self._trust  # type: ignore[attr-defined]

    def _trust(self, gateway: JavaGateway, authorities: Path) -> None:
        self.trusted = authorities
        trust.trust(gateway, authorities)

    def _launch(self, conf: SparkConf, popen_kwargs: dict[str, int]) -> JavaGateway:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_OF_NO_CONCERN)}
        options = sorted(option for option in conf.getAll() if not _is_of_spark_alone(*option))
        asked = json.dumps([options, sorted(environ.items()), str(Path.cwd())])
        self.kind = hashlib.sha256(asked.encode()).hexdigest()[:16]
        environment = self._found()
        if environment is None:
            gateway = self._new(conf)
        else:
            os.environ |= environment
            gateway = java_gateway.launch_gateway(conf)
            for name in environment:
                del os.environ[name]
        assert self.pipes is not None
        pass_on = (self.pipes.joinpath("err").open("rb"), os.dup(popen_kwargs["stderr"]))
        threading.Thread(target=_pass_on, args=pass_on, daemon=True).start()
        return gateway

    def _found(self) -> dict[str, str] | None:
        for ready in self.folder.glob(f"{self.kind}-*"):
            with suppress(OSError, ValueError):
                taken = ready.rename(ready.with_name(f"taken-{uuid.uuid4().hex}"))
                self.pipes, holder, environment = _parsed(taken)
                self.held = os.open(self.pipes / "in", os.O_WRONLY | os.O_NONBLOCK)  # fails where Java has ended
                os.kill(holder, signal.SIGKILL)
                return environment
        return None

    def _new(self, conf: SparkConf) -> JavaGateway:
        self.pipes = self.folder / f"pipes-{uuid.uuid4().hex}"
        self.pipes.mkdir(parents=True)
        for name in ("in", "err"):
            os.mkfifo(self.pipes / name)
        read_end = os.open(self.pipes / "in", os.O_RDONLY | os.O_NONBLOCK)
        self.held = os.open(self.pipes / "in", os.O_WRONLY)
        os.set_blocking(read_end, True)
        errors = os.open(self.pipes / "err", os.O_RDWR)

        def start(command: list[str], **options: Any) -> "subprocess.Popen[bytes]":  # noqa: ANN401 - as Popen has them
            return subprocess.Popen(command, **{**options, "stdin": read_end, "stderr": errors})

        java_gateway.Popen = start
        gateway = java_gateway.launch_gateway(conf)
        os.close(read_end)
        os.close(errors)
        return gateway

    def give_back(self) -> None:
        """After a loader has ended by itself."""
        gateway = SparkContext._gateway
        if gateway is None or self.pipes is None or self.held is None:
            return
        if self.trusted is not None and str(self.trusted) != os.environ.get("AWS_CA_BUNDLE"):
            return
        with suppress(Exception):  # Java has ended, or there is still something in it: it is not given back
            context = SparkContext._active_spark_context
            if context is not None:
                context.stop()
            jvm = gateway.jvm
            for key in ("", "Type", "Password"):
                jvm.java.lang.System.clearProperty(f"{_STORE}{key}")
            jvm.org.apache.hadoop.fs.FileSystem.closeAll()
            jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
            parameters = gateway.java_parameters
            holder = subprocess.Popen(
                ["cat"], stdin=self.alive, stdout=subprocess.DEVNULL, pass_fds=[self.held], start_new_session=True
            )
            environment = {_PORT: str(parameters.port), _SECRET: str(parameters.auth_token)}
            making = self.folder / f"making-{uuid.uuid4().hex}"
            making.write_text(json.dumps([str(self.pipes), holder.pid, environment]), "utf-8")
            making.rename(self.folder / f"{self.kind}-{making.name}")


def _is_of_spark_alone(key: str, value: str) -> bool:
    """The number of a local Spark's threads is set once more when the session begins."""
    return key == "spark.master" and value.startswith("local[")


def _parsed(file: Path) -> tuple[Path, int, dict[str, str]]:
    pipes, holder, environment = json.loads(file.read_text("utf-8"))
    return Path(pipes), holder, environment


def _pass_on(lines: IO[bytes], to: int) -> None:
    for line in lines:
        os.write(to, line)
