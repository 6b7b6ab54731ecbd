"""One pass over one stream, as reported in the report, the log and the metrics.

Rule: code that does something reports it here and nowhere else, so every pass is reported in the same way.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.errors import ExitCode, KafkaDeltaExpressError
from common.json_value import Json
from common.metrics import Metrics
from common.pages.model import Event
from common.ports import Clock
from common.spans import Position, TopicPartition
from common.stage.markers import Marker
from delta_loader.plan.chain_positions import PartitionProgress, undeclared_of
from delta_loader.plan.held import Held, staged_from
from delta_loader.plan.plan import AnyMarker, Load
from delta_loader.stage.listed import Listed
from delta_loader.tables.commits import (
    AlreadyLoaded,
    CommitOutcome,
    Committed,
    Conflicted,
    Failed,
    NotWritten,
    TableCommit,
    Unknown,
)


@dataclass(slots=True)
class StreamReport:
    app_id: str
    is_refresh: bool = False
    """Whether the pass only read, because another loader loads the stream."""
    commits: int = 0
    rows: int = 0
    files: int = 0
    replacements: int = 0
    """How many replacement requests were carried out."""
    steps: int = 0
    """Progress other than commits, such as the steps of a request; a pass that hangs makes none."""
    refreshed_s: float = 0.0
    """When the stage was listed, by the monotonic clock."""
    settled: int = 0
    strays: int = 0
    held: dict[TopicPartition, Held] = field(default_factory=dict)
    failure: KafkaDeltaExpressError | None = None
    seen: dict[TopicPartition, PartitionProgress] = field(default_factory=dict)
    """Empty when the pass failed before it was known."""
    events: list[Event] = field(default_factory=list)
    dead_letters: Counter[str] = field(default_factory=Counter)
    """By class, from the markers that were loaded."""
    valid_through_ms: int | None = None
    """From the last of its commits to the main table; None without one."""
    version: int | None = None
    """The main table's version after that commit."""
    left_out: int = 0
    """How many tables lack something that the main table has."""

    @property
    def exit_code(self) -> ExitCode:
        failed = ExitCode.DONE if self.failure is None else self.failure.exit_code
        return ExitCode.most_significant([failed, ExitCode.HELD if self.held else ExitCode.DONE])

    @property
    def progress(self) -> int:
        """A number that rises as long as the pass makes progress."""
        return self.commits + self.steps

    @property
    def held_json(self) -> list[Json]:
        return [{**partition.to_json(), **reason.to_json()} for partition, reason in self.held.items()]

    def stepped(self) -> None:
        self.steps += 1

    def begin(self) -> None:
        """Start a turn, or another slice of it: waiting markers are counted again, loaded ones are kept."""
        self.held, self.failure, self.is_refresh = {}, None, False


@dataclass(frozen=True, slots=True)
class LoadReporter:
    report: StreamReport
    log: FilteringBoundLogger
    metrics: Metrics
    clock: Clock

    def held(self, partition: TopicPartition, reason: Held) -> None:
        self.report.held[partition] = reason
        self.log.warning(
            "partition held",
            topic=partition.topic,
            partition=partition.partition,
            reason=reason.reason,
            problem=reason.problem,
            remedy=reason.remedy,
        )

    def strays(self, markers: Iterable[Marker]) -> None:
        """Late claims were moved out of the way."""
        for marker in markers:
            self.report.strays += 1
            self.metrics.add(all_metrics.LOADER_STRAYS, app_id=self.report.app_id)
            files = sum(len(table.files) for table in marker.tables)
            self.log.warning("stray moved aside", marker=marker.name.path, span=str(marker.span), files=files)

    def commit(self, commit: TableCommit, outcome: CommitOutcome, duration_s: float) -> None:
        metrics, app_id = self.metrics, self.report.app_id
        metrics.add(all_metrics.LOADER_COMMITS, app_id=app_id, outcome=_OUTCOMES[type(outcome)])
        metrics.observe(all_metrics.LOADER_COMMIT_SECONDS, duration_s)
        if not isinstance(outcome, Committed):
            self.log.warning("commit not made", table=commit.target.url, outcome=str(outcome))
            return
        totals = commit.added + outcome.written
        self.report.commits += 1
        self.report.rows += totals.rows
        self.report.files += totals.files
        metrics.add(all_metrics.LOADER_FILES, totals.files, app_id=app_id)
        metrics.add(all_metrics.LOADER_ROWS, totals.rows, app_id=app_id)
        metrics.add(all_metrics.LOADER_BYTES, totals.size_bytes, app_id=app_id)
        through_ms = commit.metadata.valid_through_ms
        if through_ms is not None:
            self.report.valid_through_ms = through_ms
            metrics.set(all_metrics.LOADER_VALID_THROUGH, through_ms / 1000, app_id=app_id)
        self.report.events.append(
            Event(
                time_ms=self.clock.wall_ms(),
                stream=app_id,
                what=f"version {outcome.version:,} of {commit.target.url.rstrip('/').rpartition('/')[2]}",
                rows=totals.rows,
                files=totals.files,
                size_bytes=totals.size_bytes,
                seconds=duration_s,
                note=f"{outcome.written.files} files by Spark" if outcome.written.files else "",
            )
        )
        self.log.info(
            "committed",
            table=commit.target.url,
            version=outcome.version,
            rows=totals.rows,
            files=totals.files,
            written_by_spark=outcome.written.files,
            partitions=len(commit.advances),
            commit_id=commit.metadata.commit_id,
            seconds=round(duration_s, 3),
        )

    def conflict(self) -> None:
        self.metrics.add(all_metrics.LOADER_CONFLICTS, app_id=self.report.app_id)

    def loaded(self, load: Load, version: int) -> None:
        self.report.version = version
        app_id = self.report.app_id
        for marker in load.markers:
            for error_class, count in (marker.manifest.dead_letters if marker.manifest is not None else {}).items():
                self.report.dead_letters[error_class] += count
                self.metrics.add(all_metrics.LOADER_DEAD_LETTERS, count, app_id=app_id, error_class=error_class)

    def partition(
        self, partition: TopicPartition, position: Position | None, listed: Listed, read_markers: Iterable[AnyMarker]
    ) -> None:
        """How far a Kafka partition is loaded and staged, by the markers near its position."""
        markers = [marker for marker in read_markers if isinstance(marker, Marker)]
        staged = max([*(marker.span.end for marker in markers), listed.names[-1].start])
        waiting = [marker for marker in markers if position is None or marker.span.end > position]
        oldest = min(waiting, key=lambda marker: marker.span.start, default=None)
        oldest_ms = None if oldest is None or oldest.manifest is None else oldest.manifest.created_ms
        self.report.seen[partition] = seen = PartitionProgress(
            begins=listed.names[0].start,
            loaded=position,
            staged=staged,
            waiting=listed.waiting(position),
            oldest_ms=oldest_ms,
            topic_id=staged_from(markers),
            ends=any(marker.name == listed.names[-1] for marker in markers),
            undeclared=undeclared_of(markers),
        )
        labels = _labels(partition)
        self.metrics.set(all_metrics.LOADER_LOADED_POSITION, position or 0, **labels)
        self.metrics.set(all_metrics.LOADER_STAGED_POSITION, staged, **labels)
        self.metrics.set(all_metrics.LOADER_LAG, seen.lag, **labels)

    def forget(self, partition: TopicPartition) -> None:
        """How far a Kafka partition is could not be read."""
        for metric in (all_metrics.LOADER_LOADED_POSITION, all_metrics.LOADER_STAGED_POSITION, all_metrics.LOADER_LAG):
            self.metrics.forget(metric, **_labels(partition))

    def stream(self, markers: int, left_out: int) -> None:
        """How many markers there are, and how many tables were left out."""
        self.report.left_out = left_out
        waiting = sum(seen.waiting for seen in self.report.seen.values())
        self.metrics.set(all_metrics.LOADER_MARKERS, markers, app_id=self.report.app_id)
        self.metrics.set(all_metrics.LOADER_WAITING, waiting, app_id=self.report.app_id)
        self.metrics.set(all_metrics.LOADER_LEFT_OUT, left_out, app_id=self.report.app_id)

    def sent_to_topic(self, dead_letters: int) -> None:
        """Dead letters of refused records are in the stream's topic now."""
        self.log.info("dead letters sent", dead_letters=dead_letters)

    def settled(self, markers: int) -> None:
        """Markers that are no longer needed were deleted."""
        self.report.settled = markers
        if markers:
            self.metrics.add(all_metrics.LOADER_SETTLED, markers, app_id=self.report.app_id)
            self.log.info("markers settled", markers=markers)


def _labels(partition: TopicPartition) -> dict[str, str]:
    return {"topic": str(partition.topic), "partition": str(partition.partition)}


_OUTCOMES: dict[type[CommitOutcome], str] = {
    Committed: "committed",
    AlreadyLoaded: "already_loaded",
    Conflicted: "conflicted",
    Failed: "failed",
    Unknown: "unknown",
    NotWritten: "not_written",
}
