"""The time to restore a state, by its size: from our snapshot, and by Kafka Streams from a changelog.

Wall time from the start of reading until the store is complete: ours in memory and on disk, Kafka Streams' in memory,
for one partition with one thread and the same entries.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from devservices.java import java
from devservices.kafka import KafkaCluster
from devservices.producing import enqueue
from stage_writer.topologies.stores import Backend, MemoryBackend, Stores, TaskStores
from stage_writer.topologies.stores.disk import open_backend
from stage_writer.topologies.stores.files import snapshot_from_bytes, snapshot_to_chunks

_PROGRAM = Path(__file__).parent / "RestoreStreams.java"
_SIZES = (10_000, 100_000, 1_000_000)
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Restored:
    entries: int
    size_bytes: int
    """Bytes of our keys and values."""
    memory_s: float
    disk_s: float
    streams_s: float

    def __str__(self) -> str:
        return (
            f"{self.entries:,} entries: ours {self.memory_s:.2f} s in memory, {self.disk_s:.2f} s on disk, "
            f"Kafka Streams {self.streams_s:.2f} s"
        )


def measured_restores(kafka: KafkaCluster, jars: str, folder: Path, scale: float) -> Iterator[Restored]:
    """Measure each size, up to a million entries times ``scale``."""
    subprocess.run([java("javac"), "-cp", jars, "-d", str(folder), str(_PROGRAM)], check=True)
    for size in (max(1, round(one * scale)) for one in _SIZES):
        data, size_bytes = _snapshot(size)
        memory_s = _restored_s(data, MemoryBackend())
        disk_s = _restored_s(data, open_backend(folder / f"state-{size}"))
        yield Restored(size, size_bytes, memory_s, disk_s, _streams_s(kafka, f"{jars}:{folder}", folder, size))


def restore_table(found: list[Restored]) -> str:
    lines = [
        "| entries | MiB | ours, in memory | ours, on disk | Kafka Streams, in memory |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in found:
        seconds = (f"{each:.2f} s" for each in (one.memory_s, one.disk_s, one.streams_s))
        lines.append(f"| {one.entries:,} | {one.size_bytes / _MIB:.1f} | {' | '.join(seconds)} |")
    return "\n".join([*lines, ""])


def _value(number: int) -> dict[str, object]:
    return {"count": number % 1000, "sum": number / 7}


def _key(number: int) -> str:
    return f"user{number:010d}"


def _snapshot(size: int) -> tuple[bytes, int]:
    stores = TaskStores([Stores.key_value("counts")], MemoryBackend())
    counts = stores.store("counts")
    for number in range(size):
        counts.put(_key(number), _value(number))
    stores.begin_record()
    changed = stores.seal()
    return snapshot_to_chunks(stores.snapshot()).to_bytes(), changed.size_bytes


def _restored_s(data: bytes, backend: Backend) -> float:
    stores = TaskStores([Stores.key_value("counts")], backend)
    began_s = time.perf_counter()
    stores.restore(snapshot_from_bytes("snapshot", data), [], "mark")
    took_s = time.perf_counter() - began_s
    stores.close()
    return took_s


def _streams_s(kafka: KafkaCluster, classes: str, folder: Path, size: int) -> float:
    topic = f"restored-{size}"
    kafka.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50})
    for number in range(size):
        enqueue(producer, topic, json.dumps(_value(number)).encode(), _key(number).encode())
    producer.flush()
    program = [java(), "-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", classes, "RestoreStreams"]
    arguments = [kafka.bootstrap_servers, topic, str(size), str(folder / topic)]
    done = subprocess.run([*program, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    kafka.delete_topic(topic)
    return int(done.stdout.split()[-1]) / 1000
