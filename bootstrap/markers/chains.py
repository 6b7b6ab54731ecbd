"""The known state of a Kafka partition's chain, and its faults. Pure.

Rules:

1. Links, gaps and strays are defined by common/stage/chain.py, which the services use.
2. A file of a marker that is not loaded must exist. A file that was loaded may be gone: OPTIMIZE and VACUUM remove
   rewritten files, and the marker is kept for a while after it was loaded.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from bootstrap.plans.state import StagedMarker
from common.remedies import repair
from common.spans import Position, Span, TopicPartition
from common.stage.chain import Chain, read_chain
from common.stage.chain_origins import ChainOrigin
from common.stage.markers import Marker, MarkerName, StagedFile
from common.stage.merged import is_merged
from common.stage.stored import UPGRADE


class Severity(StrEnum):
    FAULT = "fault"
    NOTED = "noted"


@dataclass(frozen=True, slots=True)
class ChainFinding:
    partition: TopicPartition
    severity: Severity
    kind: str
    text: str
    remedy: str = ""
    path: str | None = None
    """The object concerned."""


@dataclass(frozen=True, slots=True)
class PartitionChain:
    partition: TopicPartition
    app_id: str
    staged: Sequence[StagedMarker]
    """The markers of the chain's generation, by position, including unreadable ones."""
    table: Position | None
    """The next position that the table wants; None when it has none, or could not be read."""
    generation: int = 0
    chain_origin: ChainOrigin | None = None
    older: int = 0
    """How many markers are from before the chain's newest origin."""
    modified_ms: Mapping[str, int] = field(default_factory=dict)
    """The modification time of each object."""

    @property
    def chain(self) -> Chain:
        """The readable markers, as the services read them."""
        return read_chain(staged.marker for staged in self.staged if staged.marker is not None)

    @property
    def start(self) -> Position | None:
        markers = self.chain.markers
        return markers[0].span.start if markers else None

    def has_loaded(self, span: Span) -> bool:
        """Whether the table has the whole marker."""
        return self.table is not None and span.end <= self.table


def link_findings(partition_chain: PartitionChain) -> Iterator[ChainFinding]:
    """Faults of the chain itself (rule 1)."""
    partition, chain = partition_chain.partition, partition_chain.chain
    for staged in partition_chain.staged:
        if staged.is_newer:
            text = f"{staged.path} was written by a newer release"
            yield ChainFinding(partition, Severity.FAULT, "newer", text, UPGRADE, staged.path)
        elif staged.marker is None:
            text, remedy = f"{staged.path} {staged.problem}", "see docs/internals/guarantees.md, “Corrupt markers”"
            yield ChainFinding(partition, Severity.FAULT, "unreadable", text, remedy, staged.path)
    first = chain.markers[0] if chain.markers else None
    if first is not None and partition_chain.table is not None and first.span.start > partition_chain.table:
        text = f"the table wants {partition_chain.table:,} next, but the chain begins at {first.span.start:,}"
        yield ChainFinding(
            partition, Severity.FAULT, "gap", text, _gap_remedy(partition, partition_chain.table), first.name.path
        )
    for before, after in pairwise(chain.markers):
        if after.span.start != before.span.end:
            text = f"nothing is staged of [{before.span.end:,}, {after.span.start:,})"
            yield ChainFinding(
                partition, Severity.FAULT, "gap", text, _gap_remedy(partition, before.span.end), after.name.path
            )
        elif after.manifest is not None and after.previous != before.span.start:
            text = f"{after.name.path} does not name the marker before it, {before.name.path}"
            yield ChainFinding(partition, Severity.NOTED, "link", text, path=after.name.path)
    for stray in chain.strays:
        text = f"{stray.name.path} is a stray: a late claim of positions that others have staged"
        yield ChainFinding(partition, Severity.NOTED, "stray", text, "the loader moves it aside", stray.name.path)
    if partition_chain.older:
        text = f"{partition_chain.older:,} markers are from before the chain's newest origin"
        yield ChainFinding(partition, Severity.NOTED, "older", text)


def to_stage_again(findings: Iterable[ChainFinding]) -> Mapping[TopicPartition, Position]:
    """From where the faulty chains must be staged again; faults that only need an upgrade are left out."""
    starts: dict[TopicPartition, Position] = {}
    for finding in findings:
        name = None if finding.path is None else MarkerName.parse(finding.path)
        if finding.severity is Severity.FAULT and finding.kind != "newer" and name is not None:
            starts[finding.partition] = min(name.start, starts.get(finding.partition, name.start))
    return starts


def _gap_remedy(partition: TopicPartition, position: Position) -> str:
    rewind = repair("rewind", partition, position)
    or_skip = "" if is_merged(partition.topic) else f", {repair('skip', partition)} --to its end gives it up"
    return f"{rewind} stages it again{or_skip}"


@dataclass(frozen=True, slots=True)
class Footer:
    size_bytes: int
    rows: int
    offsets: tuple[int, int] | None
    """The lowest and the highest offset; None where the file has none, or no statistics."""


@dataclass(frozen=True, slots=True)
class MissingFile:
    """The data file does not exist."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The data file exists and is not a Parquet file."""

    why: str


InspectedFile = Footer | MissingFile | Broken


def file_findings(
    chain: PartitionChain, marker: Marker, url: str, file: StagedFile, inspected: InspectedFile
) -> list[ChainFinding]:
    """The fault of one data file of a marker (rule 2)."""
    partition, path = chain.partition, f"{url.rstrip('/')}/{file.path}"
    stage_again = f"{repair('rewind', partition, marker.span.start, '--yes')} stages it again"
    if isinstance(inspected, MissingFile) and chain.has_loaded(marker.span):
        text = f"{path} is gone; the table has its rows, perhaps in another file"
        return [ChainFinding(partition, Severity.NOTED, "file_gone_loaded", text, path=marker.name.path)]
    if isinstance(inspected, MissingFile):
        text = f"{path} is gone, and the table does not have its rows yet"
        return [ChainFinding(partition, Severity.FAULT, "file_gone", text, stage_again, marker.name.path)]
    if isinstance(inspected, Broken):
        text = f"{path} cannot be read: {inspected.why}"
        return [ChainFinding(partition, Severity.FAULT, "file_broken", text, stage_again, marker.name.path)]
    wrong: list[tuple[str, str]] = []
    if inspected.size_bytes != file.size_bytes:
        wrong.append(("size", f"{path} has {inspected.size_bytes:,} bytes, but its marker says {file.size_bytes:,}"))
    if inspected.rows != file.rows:
        wrong.append(("rows", f"{path} has {inspected.rows:,} rows, but its marker says {file.rows:,}"))
    if inspected.offsets is not None:
        low, high = inspected.offsets
        if low < marker.span.start or high >= marker.span.end:
            wrong.append(
                ("offsets", f"{path} has the offsets {low:,} to {high:,}, but its marker covers {marker.span}")
            )
    return [ChainFinding(partition, Severity.FAULT, kind, text, stage_again, marker.name.path) for kind, text in wrong]
