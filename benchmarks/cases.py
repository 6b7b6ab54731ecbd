"""The input of the sides: a topic with one kind of record, and its partitions, bad messages and writers."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.change_events import EVENTS
from benchmarks.messages import AVRO, KINDS, Kind
from benchmarks.producing import produce
from devservices.kafka import KafkaCluster

_BAD_OF = 100
PARTITIONS = 16
GROWTH = 0.5
"""Share of a kind's number of messages, for the sections that vary the number of partitions, bad records or writers."""


@dataclass(frozen=True, slots=True)
class Case:
    section: str
    """The case's section, as named in `SECTIONS`."""
    kind: Kind
    messages: int
    partitions: int = PARTITIONS
    writers: int = 1
    bad_percent: int = 0
    """Percent of the messages that are bad; the floors would fail at the first."""

    @property
    def topic(self) -> str:
        return f"{self.kind.name.replace(', ', '-').replace(' ', '-')}-{self.partitions}-{self.bad_percent}"


SECTIONS = ("kinds", "avro", "envelopes", "partitions", "bad", "writers")


_KINDS = {"kinds": tuple(KINDS.values()), "avro": (KINDS["small"], AVRO), "envelopes": EVENTS}


def cases(section: str, scale: float) -> Iterator[Case]:
    for kind in _KINDS.get(section, ()):
        yield Case(section, kind, max(1, int(kind.messages * scale)))
    small = KINDS["small"]
    growing = max(1, int(small.messages * scale * GROWTH))
    match section:
        case "partitions":
            for partitions in (1, 16, 256, 1000):
                yield Case(section, small, max(partitions, growing), partitions)
        case "bad":
            for percent in (0, 1, 50):
                yield Case(section, small, growing, bad_percent=percent)
        case "writers":
            for writers in (1, 2):
                yield Case(section, small, growing, writers=writers)


def fill(kafka: KafkaCluster, case: Case) -> int:
    """Create and fill the case's topic; returns the bytes of all values."""
    kafka.create_topic(case.topic, case.partitions)
    return produce(kafka.bootstrap_servers, case.topic, case.partitions, _values(case))


def _values(case: Case) -> Iterator[bytes]:
    for number in range(case.messages):
        value = case.kind.make(number)
        # Bad messages reach every partition and are spread over each hundred: 37 is coprime to 16 and to 100.
        yield _corrupted(value, number) if number * 37 % _BAD_OF < case.bad_percent else value


def _corrupted(value: bytes, number: int) -> bytes:
    """The record as a faulty producer sends it, in one of four ways."""
    match number // _BAD_OF % 4:
        case 0:
            return value[:-7]  # cut off
        case 1:
            return value.replace(b'"status":', b'"status":1.5e3,"was":', 1)  # not of the column's type
        case 2:
            return value + value  # two documents
        case _:
            return value.replace(b"www", b"w\xffw", 1)  # not UTF-8
