"""The writer's peak of memory, as the kernel counted it: the short form of `make memory`."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.memory import Bench, Case, cases, fill
from devservices.kafka import KafkaCluster

pytestmark = pytest.mark.broker

_MIB = 2**20
_KNOWN = cases(1.0)
_SHORT = (
    replace(_KNOWN["partitions"], partitions=300, messages=150_000, memory_bytes=32 * _MIB),
    replace(_KNOWN["large"], messages=20),
    replace(_KNOWN["larger"], messages=2),
    replace(_KNOWN["explode"], messages=400, memory_bytes=64 * _MIB),
)


@pytest.fixture(scope="module")
def base_bytes(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The peak of a writer that finds no message on as many partitions."""
    case, folder = _SHORT[0], tmp_path_factory.mktemp("base")
    topic = kafka.create_topic(f"{case.name}-empty", case.partitions)
    try:
        return Bench(kafka.bootstrap_servers, folder, str(folder), {}).run(case, topic).peak_bytes
    finally:
        kafka.delete_topic(topic)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.name == "large" else pytest.mark.nightly) for case in _SHORT],
)
def test_peak_stays_within_the_bound(kafka: KafkaCluster, tmp_path: Path, case: Case, base_bytes: int) -> None:
    bench = Bench(kafka.bootstrap_servers, tmp_path, str(tmp_path), {})
    fill(kafka.bootstrap_servers, kafka.create_topic, case)
    try:
        peak_bytes = bench.run(case, case.name).peak_bytes  # which stages every record
    finally:
        kafka.delete_topic(case.name)
    allowed_bytes = case.allowed_bytes(base_bytes)
    assert peak_bytes <= allowed_bytes, f"{peak_bytes // _MIB} MiB, allowed {allowed_bytes // _MIB} MiB"
