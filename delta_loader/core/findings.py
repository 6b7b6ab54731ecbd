"""What a verification says: findings with their verdicts, by table and Kafka partition.

Rule: a finding says what is proved, what only noted or not provable, or what is wrong, and for a fault the version and
the file. Only a fault makes the answer "no".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from common.spans import Position, Span, TopicPartition


class Verdict(StrEnum):
    """How a finding counts."""

    PROVED = "proved"
    NOTED = "noted"  # as it should be, and worth knowing: deleted by right, given up by an operator
    UNPROVED = "not proved"  # nothing says that it is wrong, or that it is right
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence of the report."""

    verdict: Verdict
    kind: str
    """A short name, for machines."""
    text: str
    table: str
    source: TopicPartition | None = None
    spans: tuple[Span, ...] = ()
    version: int | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One Kafka partition of a stream."""

    source: TopicPartition
    begins: Position | None
    """The first position that the history knows of."""
    position: Position | None
    """The next one that the table wants."""
    rows: int | None
    """Rows with an offset of this partition; None where the table has no offset columns."""
    distinct: int | None
    lowest: int | None
    highest: int | None
    dead_letters: int | None
    counted_records: int | None
    """Records that the commits say they brought; None when some do not count."""
    counted_tombstones: int | None
    counted_filtered: int | None
    proved: bool


def unlooked(source: TopicPartition, begins: Position | None, position: Position | None) -> PartitionReport:
    """One Kafka partition of which the log alone can tell."""
    return PartitionReport(
        source=source,
        begins=begins,
        position=position,
        rows=None,
        distinct=None,
        lowest=None,
        highest=None,
        dead_letters=None,
        counted_records=None,
        counted_tombstones=None,
        counted_filtered=None,
        proved=False,
    )


@dataclass(frozen=True, slots=True)
class StreamReport:
    """One stream."""

    app_id: str
    table: str
    version: int | None
    """The version that was looked at; None when there is no table."""
    first_version: int | None
    """The oldest version that the log still has."""
    partitions: tuple[PartitionReport, ...] = ()
    findings: tuple[Finding, ...] = ()
    failure: str | None = None
    """Why it could not be looked at."""
    routed: Mapping[str, int] = field(default_factory=dict)
    """The tables of its routes that are there, and the versions that were looked at."""

    @property
    def faults(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(finding for finding in self.findings if finding.verdict is Verdict.FAULT)

    @property
    def is_clean(self) -> bool:
        """Whether it could be looked at and nothing is wrong."""
        return self.failure is None and not self.faults
