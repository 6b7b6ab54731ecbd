"""The peak memory of a stage writer: ``python -m benchmarks.memory`` (`make memory`).

A real writer stages a backlog that is a multiple of its ``memory``, in the shapes that need most memory: a thousand
Kafka partitions, messages of 10 MB, one message larger than ``memory``, thousands of partition values, and records that
each become ten thousand rows. Its peak resident memory must stay within 1.25 × ``memory`` plus the base, which is the
peak of a writer without messages. The exit code is 0 if it does and every record is staged.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import typer
import yaml

from benchmarks import measure
from benchmarks.choices import require_known
from benchmarks.measure import Cost
from benchmarks.producing import LARGEST_MESSAGE_BYTES, produce
from common.stage.markers import MarkerName, marker_from_bytes
from common.storage.store import FsspecStore
from devservices.kafka import KafkaOptions, running_kafka
from devservices.s3 import S3Kind, running_s3

ALLOWED_SHARE = 1.25
_MIB = 2**20
_FIXED_BYTES = 64 * _MIB
"""Added to the base: memory that the libraries load and keep once there is work."""

_COPIES = 10
"""Memory for a message larger than ``memory``, as a multiple of its size: it is held as bytes, text, a row and Parquet.
"""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Case:
    """A backlog that needs much memory."""

    name: str
    memory_bytes: int
    partitions: int
    messages: int
    make: Callable[[int], bytes]
    columns: str
    partition_by: tuple[str, ...] = ()
    writer: Mapping[str, object] = field(default_factory=dict)
    largest_bytes: int = 0
    """Bytes of the largest message, if it exceeds a writer's share for a poll; otherwise 0."""
    explode: str | None = None

    def allowed_bytes(self, base_bytes: int) -> int:
        """The most memory that a run may use."""
        bound = max(self.memory_bytes, _COPIES * self.largest_bytes)
        return base_bytes + _FIXED_BYTES + int(ALLOWED_SHARE * bound)


def _small(number: int) -> bytes:
    return b'{"id":%d,"session":"7c28bcf9-be26-4d0b-931a-%012x","url":"http://www.example.com/%d","text":"%s"}' % (
        number,
        number * 7919 % 2**40,
        number % 1000,
        b"lorem ipsum dolor sit amet " * 5,
    )


def _sized(size_bytes: int) -> Callable[[int], bytes]:
    body = random.Random(1).randbytes(size_bytes // 2).hex().encode()  # noqa: S311 - bytes that do not compress well

    def make(number: int) -> bytes:
        return b'{"id":%d,"text":"%s"}' % (number, body)

    return make


def _exploding(number: int) -> bytes:
    """A message of 20 kB that becomes ten thousand rows of a kilobyte."""
    text = random.Random(number).randbytes(500).hex().encode()  # noqa: S311
    return b'{"id":%d,"text":"%s","v":[%s]}' % (number, text, b",".join([b"7"] * 10_000))


def _of_many_values(number: int) -> bytes:
    day = number * 7919 % 4018  # eleven years
    return b'{"id":%d,"day":"2%03d-%02d-%02d","customer":"c%d","text":"%s"}' % (
        number,
        day // 366,
        day % 366 // 31 + 1,
        day % 28 + 1,
        number * 104729 % 5,
        b"lorem ipsum dolor sit amet " * 5,
    )


def cases(scale: float) -> dict[str, Case]:
    small = "id BIGINT, session STRING, url STRING, text STRING"
    valued = "id BIGINT, day STRING, customer STRING, text STRING"

    exploding = "id BIGINT, text STRING, v ARRAY<INT>"

    def count(messages: int) -> int:
        return max(1, int(messages * scale))

    found = (
        Case("partitions", 128 * _MIB, 1000, count(2_000_000), _small, small),
        Case("large", 128 * _MIB, 8, count(80), _sized(10_000_000), "id BIGINT, text STRING"),
        Case("larger", 8 * _MIB, 1, count(10), _sized(20_000_000), "id BIGINT, text STRING", largest_bytes=20_000_000),
        Case("explode", 128 * _MIB, 4, count(2_000), _exploding, exploding, explode="v"),
        Case("values", 128 * _MIB, 4, count(2_000_000), _of_many_values, valued, ("day", "customer")),
    )
    return {case.name: case for case in found}


@dataclass(frozen=True, slots=True)
class Bench:
    servers: str
    folder: Path
    root: str
    """URL of the parent of stages and tables."""
    storage_options: Mapping[str, object]

    def run(self, case: Case, topic: str) -> Cost:
        """Run a writer until it has caught up; raises if it fails or does not stage every record."""
        path = self.folder / f"{topic}.yaml"
        path.write_text(yaml.safe_dump(self._config(case, topic)), "utf-8")
        cost = measure.run([sys.executable, "-m", "stage_writer", "run", str(path), "--until-caught-up"])
        staged = self._staged(topic)
        _say(f"  {topic}: {staged[0]:,} records in {staged[1]:,} files and {staged[2]:,} markers")
        if staged[0] != (case.messages if topic == case.name else 0):
            msg = f"{staged[0]} of {case.messages} records were staged"
            raise RuntimeError(msg)
        return cost

    def _config(self, case: Case, topic: str) -> dict[str, object]:
        stream = {
            "app_id": "memory",
            "topics": [topic],
            "table": f"{self.root}/{topic}/table",
            "columns": case.columns,
            "partition_by": list(case.partition_by),
            "explode": case.explode,
        }
        return {
            "kafka": {"bootstrap.servers": self.servers},
            "stage": {"url": f"{self.root}/{topic}/stage", "storage_options": dict(self.storage_options)},
            "writer": {"http": None, "group_id": topic, "memory": case.memory_bytes, **case.writer},
            "logs": {"level": "error"},
            "streams": [stream],
        }

    def _staged(self, topic: str) -> tuple[int, int, int]:
        """The numbers of staged records, files and markers."""
        store = FsspecStore(f"{self.root}/{topic}/stage", self.storage_options)
        records = files = markers = 0
        for item in store.list("done"):
            name = MarkerName.parse(item.path)
            manifest = None if name is None else marker_from_bytes(name, store.read(item.path) or b"").manifest
            if manifest is not None:
                records += manifest.records
                files += sum(len(table.files) for table in manifest.tables)
                markers += 1
        return records, files, markers


def fill(servers: str, create: Callable[..., str], case: Case) -> None:
    create(case.name, case.partitions, {"max.message.bytes": str(LARGEST_MESSAGE_BYTES)})
    produce(servers, case.name, case.partitions, map(case.make, range(case.messages)))


@app.command()
def main(
    names: Annotated[list[str] | None, typer.Argument(help="Names of the cases; all when absent.")] = None,
    scale: Annotated[float, typer.Option(help="Factor for the number of messages.")] = 1.0,
    store: Annotated[Literal["file", S3Kind], typer.Option(help="Store of the stage.")] = "file",
) -> None:
    """Measure and print; the exit code is 1 if a case uses more memory than allowed."""
    known = cases(scale)
    require_known(names, known)
    lines, all_within = [], True
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(KafkaOptions(properties={"log.segment.bytes": "1073741824"})))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memory-")))
        root, options = str(folder), dict[str, object]()
        if store != "file":
            server = stack.enter_context(running_s3(store))
            root, options = server.create_bucket("memory"), dict(server.storage_options)
        bench = Bench(kafka.bootstrap_servers, folder, root, options)
        for case in (known[name] for name in names or known):
            kafka.create_topic(f"{case.name}-empty", case.partitions)
            fill(kafka.bootstrap_servers, kafka.create_topic, case)
            base = bench.run(case, f"{case.name}-empty").peak_bytes
            cost = bench.run(case, case.name)
            kafka.delete_topic(case.name)
            allowed = case.allowed_bytes(base)
            all_within = all_within and cost.peak_bytes <= allowed
            lines.append(
                f"{case.name:12} memory {case.memory_bytes // _MIB:5} MiB, base {base // _MIB:4} MiB, "
                f"peak {cost.peak_bytes // _MIB:5} MiB, allowed {allowed // _MIB:5} MiB, "
                f"{(cost.peak_bytes - base) / case.memory_bytes:5.2f} × memory over the base, {cost.wall_s:.0f} s"
            )
            _say(lines[-1])
    _say("\n".join(["", *lines]))
    sys.exit(0 if all_within else 1)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    app()
