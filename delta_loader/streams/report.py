"""What one pass did for one stream, and how it is told: in the report, the log and the metrics.

Rule: whoever does something says so here, and nowhere else; so a pass is told the same way whatever brought it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common import metrics as catalogue
from delta_loader.core.commits import AlreadyLoaded, CommitOutcome, Committed, Conflicted, Failed, NotWritten

if TYPE_CHECKING:
    from collections.abc import Iterable

    from structlog.typing import FilteringBoundLogger

    from common.errors import KafkaDeltaExpressError
    from common.markers import Marker
    from common.metrics import Metrics
    from common.spans import Position, TopicPartition
    from delta_loader.core.commits import TableCommit
    from delta_loader.core.held import Held
    from delta_loader.stage import Listed


@dataclass(slots=True)
class StreamReport:
    """What one pass did for one stream."""

    app_id: str
    commits: int = 0
    rows: int = 0
    files: int = 0
    settled: int = 0
    strays: int = 0
    held: dict[TopicPartition, Held] = field(default_factory=dict)
    failure: KafkaDeltaExpressError | None = None
    valid_through_ms: int | None = None
    """What the last of its commits says of the table; None when none says anything."""

    def begin(self) -> None:
        """A turn begins, or another slice of one: what waits is found anew, what was brought stays."""
        self.held, self.failure = {}, None


@dataclass(frozen=True, slots=True)
class Telling:
    """Tells what happens to one stream in one pass."""

    report: StreamReport
    log: FilteringBoundLogger
    metrics: Metrics

    def held(self, source: TopicPartition, reason: Held) -> None:
        """A Kafka partition waits."""
        self.report.held[source] = reason
        self.log.warning(
            "partition held",
            topic=source.topic,
            partition=source.partition,
            reason=reason.reason,
            problem=reason.problem,
            remedy=reason.remedy,
        )

    def strays(self, markers: Iterable[Marker]) -> None:
        """Late claims went out of the way."""
        for marker in markers:
            self.report.strays += 1
            self.metrics.add(catalogue.LOADER_STRAYS, app_id=self.report.app_id)
            files = sum(len(table.files) for table in marker.tables)
            self.log.warning("stray put aside", marker=marker.name.path, span=str(marker.span), files=files)

    def commit(self, commit: TableCommit, outcome: CommitOutcome, duration_s: float) -> None:
        """A commit was tried."""
        metrics, app_id = self.metrics, self.report.app_id
        metrics.add(catalogue.LOADER_COMMITS, app_id=app_id, outcome=_OUTCOMES[type(outcome)])
        metrics.observe(catalogue.LOADER_COMMIT_SECONDS, duration_s)
        if not isinstance(outcome, Committed):
            self.log.warning("commit not made", table=commit.target.url, outcome=str(outcome))
            return
        brought = commit.added + outcome.written
        self.report.commits += 1
        self.report.rows += brought.rows
        self.report.files += brought.files
        metrics.add(catalogue.LOADER_FILES, brought.files, app_id=app_id)
        metrics.add(catalogue.LOADER_ROWS, brought.rows, app_id=app_id)
        metrics.add(catalogue.LOADER_BYTES, brought.size_bytes, app_id=app_id)
        through_ms = commit.metadata.valid_through_ms
        if through_ms is not None:
            self.report.valid_through_ms = through_ms
            metrics.set(catalogue.LOADER_VALID_THROUGH, through_ms / 1000, app_id=app_id)
        self.log.info(
            "committed",
            table=commit.target.url,
            version=outcome.version,
            rows=brought.rows,
            files=brought.files,
            written_by_spark=outcome.written.files,
            partitions=len(commit.advances),
            commit_id=commit.metadata.commit_id,
            seconds=round(duration_s, 3),
        )

    def conflict(self) -> None:
        """A commit met another writer's."""
        self.metrics.add(catalogue.LOADER_CONFLICTS, app_id=self.report.app_id)

    def partition(self, source: TopicPartition, position: Position | None, listed: Listed, staged: Position) -> None:
        """How far a Kafka partition is, and how far it is staged, by the markers near its position."""
        labels = {"topic": str(source.topic), "partition": str(source.partition)}
        self.metrics.set(catalogue.LOADER_LOADED_POSITION, position or 0, **labels)
        self.metrics.set(catalogue.LOADER_LAG, max(0, staged - (position or listed.names[0].start)), **labels)

    def stream(self, waiting: int, left_out: int) -> None:
        """How many markers wait, and how many tables were left out."""
        self.metrics.set(catalogue.LOADER_WAITING, waiting, app_id=self.report.app_id)
        self.metrics.set(catalogue.LOADER_LEFT_OUT, left_out, app_id=self.report.app_id)

    def settled(self, markers: int) -> None:
        """Markers that nobody needs any more are gone."""
        self.report.settled = markers
        if markers:
            self.metrics.add(catalogue.LOADER_SETTLED, markers, app_id=self.report.app_id)
            self.log.info("markers settled", markers=markers)


_OUTCOMES: dict[type[CommitOutcome], str] = {
    Committed: "committed",
    AlreadyLoaded: "already_loaded",
    Conflicted: "conflicted",
    Failed: "failed",
    NotWritten: "not_written",
}
