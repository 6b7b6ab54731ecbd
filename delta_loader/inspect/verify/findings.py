"""The results of a verification: findings with their verdicts, by table and Kafka partition.

Rule: a finding states what is proved, what is only noted or cannot be proved, or what is wrong, and for a fault the
version and the file. Only a fault fails the verification.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from common.spans import Position, Span, TopicPartition


class Verdict(StrEnum):
    PROVED = "proved"
    NOTED = "noted"  # as it should be, and worth knowing: deleted legitimately, given up by an operator
    UNPROVED = "not proved"  # no evidence that it is wrong, or that it is right
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    kind: str
    """A short name, for machines."""
    text: str
    table: str
    partition: TopicPartition | None = None
    spans: tuple[Span, ...] = ()
    version: int | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """Fields stay unknown where a Kafka partition is judged by the log alone."""

    partition: TopicPartition
    begins: Position | None
    """The first position in the history."""
    position: Position | None
    """The next position that the table wants."""
    rows: int | None = None
    """Rows with an offset of this partition; None where the table has no offset columns."""
    distinct: int | None = None
    lowest: int | None = None
    highest: int | None = None
    dead_letters: int | None = None
    counted_records: int | None = None
    """Records that the commits say they loaded; None when some commits have no counts."""
    counted_tombstones: int | None = None
    counted_filtered: int | None = None
    proved: bool = False


@dataclass(frozen=True, slots=True)
class VerifiedStream:
    app_id: str
    table: str
    version: int | None
    first_version: int | None
    """The oldest version that the log still has."""
    partitions: tuple[PartitionReport, ...] = ()
    findings: tuple[Finding, ...] = ()
    failure: str | None = None
    routed: Mapping[str, int] = field(default_factory=dict)
    """The existing tables of the stream's routes, with the versions that were verified."""

    @property
    def faults(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict is Verdict.FAULT)

    @property
    def is_clean(self) -> bool:
        return self.failure is None and not self.faults
