"""The content of ``delta-loader status``, as values.

Rule: every figure comes from the stage, the table's own log, or Kafka; a running loader is not queried. Positions are
the next ones wanted; a lag is a difference of positions, so holes in Kafka count as records.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from common.errors import ExitCode
from common.json_value import Json
from common.printable import joined, one_line
from common.remedies import CONFIG
from common.sizes import counted, time_text
from common.spans import Position, TopicPartition
from common.stage.failures import LastFailure
from common.stage.paused import Pause
from common.stage.undeclared import REMEDY as UNDECLARED_REMEDY
from common.stage.undeclared import UndeclaredFields
from common.stage.versions import Gained
from common.tables.deferred_ranges import DeferredRange
from delta_loader.check_result import Check
from delta_loader.plan.held import Held
from delta_loader.tables.load_modes.load_mode import LoadMode
from delta_loader.tables.valid_through import moment_text


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    partition: TopicPartition
    staged_to: Position | None
    loaded_to: Position | None
    kafka_end: Position | None
    """None when Kafka was not reached in time."""
    waiting_markers: int
    held: Held | None
    writers_hold: Held | None = None
    """Why writers stage nothing of it, as far as Kafka and the stage show."""

    @property
    def lag(self) -> int | None:
        """Positions staged and not loaded; None while the table has no position."""
        if self.staged_to is None or self.loaded_to is None:
            return None
        return max(0, self.staged_to - self.loaded_to)

    @property
    def kafka_lag(self) -> int | None:
        """Positions in Kafka that are not loaded."""
        if self.kafka_end is None or self.loaded_to is None:
            return None
        return max(0, self.kafka_end - self.loaded_to)


@dataclass(frozen=True, slots=True)
class Aside:
    """Markers that were moved aside, below ``stray/``."""

    late: int = 0
    """Late claims of freed positions, moved by the loader."""
    rewound: int = 0
    """Moved by an operator's rewind."""


@dataclass(frozen=True, slots=True)
class StreamStatus:
    app_id: str
    table: str
    version: int | None
    """The table's version; None when there is no table."""
    load_mode: LoadMode | None
    partitions: tuple[PartitionStatus, ...]
    aside: Aside = Aside()
    failure: str | None = None
    """Why nothing more could be determined."""
    failure_code: ExitCode = ExitCode.FAILED
    """The exit code of a command for that failure."""
    last_failure: LastFailure | None = None
    """Why the last load failed; None if it did not."""
    incompatible: tuple[Check, ...] = ()
    """Why the table does not accept what the stream declares; empty when it does."""
    deferred: tuple[DeferredRange, ...] = ()
    """The ranges of the main table that secondary tables may still lack."""
    gained: tuple[Gained, ...] = ()
    """The columns that it gained because records had their fields, as published to writers."""
    appeared: tuple[str, ...] = ()
    """The routes whose tables have appeared by `route_table`."""
    valid_through_ms: int | None = None
    """All records up to this time are in the table; None while unknown."""
    undeclared: UndeclaredFields | None = None
    """The fields of records that no column takes, from the newest markers; None if these name none."""
    violations: Mapping[str, int] = field(default_factory=dict)
    """Records by the rule of `expect` that they break, from the newest markers."""
    drops_on_purpose: bool = False
    """Whether the config drops them on purpose: then they are not reported."""
    name: str | None = None
    """The table's name in a catalog, from the settings."""
    pauses: tuple[Pause, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """Which loader holds the lease. A single read cannot tell whether it is alive."""

    holder: str
    epoch: int
    released: bool
    """Whether the holder released it, so no loader holds it."""
    renewed_ms: int
    """By the store's clock."""
    grants: tuple[tuple[str, frozenset[str] | None], ...] = ()
    """Which loader loads which streams; None for a loader of a release that does not record that."""

    def unheld(self, app_ids: Iterable[str]) -> list[str]:
        """The streams whose lease no loader holds."""
        return [
            app_id for app_id in app_ids if not any(streams is None or app_id in streams for _, streams in self.grants)
        ]


_COLUMNS_SHOWN = 10
_RULES_SHOWN = 10
REWOUND = frozenset({"gap", "unreadable_marker", "missing_file"})
"""Reasons that `bootstrap rewind --all-held` repairs."""


def exit_code(streams: Iterable[StreamStatus]) -> ExitCode:
    codes: set[ExitCode] = set()
    for stream in streams:
        codes |= {stream.failure_code} if stream.failure is not None else set()
        codes |= {stream.last_failure.code} if stream.last_failure is not None else set()
        waits = any(status.held is not None or status.writers_hold is not None for status in stream.partitions)
        codes |= {ExitCode.HELD} if waits or stream.incompatible or stream.pauses else set()
    return ExitCode.most_significant(codes)


def to_json(streams: Iterable[StreamStatus], lease: LeaseStatus | None = None) -> Json:
    """The status as JSON. Keys are only ever added."""
    streams = list(streams)
    return {
        "lease": None if lease is None else _lease_json(lease, streams),
        "streams": [_stream_json(stream) for stream in streams],
    }


def _lease_json(lease: LeaseStatus, streams: Iterable[StreamStatus]) -> Json:
    return {
        "holder": None if lease.released else lease.holder,
        "last_holder": lease.holder,
        "epoch": lease.epoch,
        "renewed_ms": lease.renewed_ms,
        "holders": [
            {"holder": holder, "streams": None if of is None else [*sorted(of)]} for holder, of in lease.grants
        ],
        "unheld": list(lease.unheld(stream.app_id for stream in streams)),
    }


def _stream_json(stream: StreamStatus) -> Json:
    return {
        "app_id": stream.app_id,
        "table": stream.table,
        "catalog_table": stream.name,
        "version": stream.version,
        "way": None if stream.load_mode is None else _load_mode_json(stream.load_mode),
        "failure": stream.failure,
        "last_failure": None if stream.last_failure is None else _failure_json(stream.last_failure),
        "unfit": [{"problem": check.message, "remedy": check.remedy} for check in stream.incompatible],
        "owed": [
            {
                "table": missing.url,
                **missing.partition.to_json(),
                "from": missing.span.start,
                "to": missing.span.end,
            }
            for missing in stream.deferred
        ],
        "gained": [
            {"column": gained.column, "offered_by": gained.offered_by, "published_ms": gained.created_ms}
            for gained in stream.gained
        ],
        "appeared": list(stream.appeared),
        "valid_through_ms": stream.valid_through_ms,
        "undeclared": None if stream.undeclared is None else asdict(stream.undeclared),
        "violations": dict(stream.violations),
        "paused": {
            str(pause.part): {"since_ms": pause.since_ms, "by": pause.by, "reason": pause.reason}
            for pause in stream.pauses
        },
        "put_aside": {"late_claims": stream.aside.late, "rewound": stream.aside.rewound},
        "partitions": [_partition_json(partition) for partition in stream.partitions],
    }


def _failure_json(failure: LastFailure) -> Json:
    return {"failed_ms": failure.failed_ms, "problem": failure.problem, "remedy": failure.remedy}


def _load_mode_json(load_mode: LoadMode) -> Json:
    return {"kind": load_mode.name, "reason": load_mode.reason}


def _partition_json(partition: PartitionStatus) -> Json:
    return {
        **partition.partition.to_json(),
        "staged_to": partition.staged_to,
        "loaded_to": partition.loaded_to,
        "lag": partition.lag,
        "kafka_end": partition.kafka_end,
        "kafka_lag": partition.kafka_lag,
        "waiting_markers": partition.waiting_markers,
        "held": None if partition.held is None else partition.held.to_json(),
        "writers_hold": None if partition.writers_hold is None else partition.writers_hold.to_json(),
    }


def to_text(streams: Iterable[StreamStatus], lease: LeaseStatus | None = None) -> str:
    streams = list(streams)
    blocks = [joined(_stream_lines(stream)) for stream in streams]
    return "\n".join([*([] if lease is None else map(one_line, _lease_lines(lease, streams))), *blocks]) + "\n"


def _lease_lines(lease: LeaseStatus, streams: Iterable[StreamStatus]) -> list[str]:
    moment = time_text(lease.renewed_ms)
    state = "released" if lease.released else "renewed"
    lines = [f"loader: {lease.holder} ({state} its lease at {moment}, epoch {lease.epoch})"]
    if lease.released:
        return lines
    if len(lease.grants) > 1:
        held = ((holder, "streams of its own" if of is None else ", ".join(sorted(of))) for holder, of in lease.grants)
        lines += [f"  {holder} loads {of}" for holder, of in held]
    unheld = lease.unheld(stream.app_id for stream in streams)
    if unheld:
        lines.append(f"  no loader holds the lease of {', '.join(unheld)} → start one: `delta-loader run {CONFIG}`")
    return lines


def _stream_lines(stream: StreamStatus) -> list[str]:
    version = "not created yet" if stream.version is None else f"version {stream.version}"
    named = "" if stream.name is None else f", {stream.name}"
    lines = [f"{stream.app_id}: {stream.table}{named} ({version})"]
    lines += [text for pause in stream.pauses for text in (f"  {pause.text}", f"  → {pause.remedy}")]
    if stream.failure is not None:
        return [*lines, f"  unknown: {stream.failure}", *_failure_lines(stream.last_failure)]
    lines += [*_table_lines(stream), *_failure_lines(stream.last_failure)]
    for check in stream.incompatible:
        lines += [f"  not ready to load: {check.message}", f"  → {check.remedy}"]
    for missing in stream.deferred:
        lines.append(
            f"  {missing.url} was left out of {missing.span} of {missing.partition}, and gets it before anything later"
        )
    if stream.aside.late or stream.aside.rewound:
        late, rewound = counted(stream.aside.late, "late claim"), counted(stream.aside.rewound, "rewound marker")
        lines.append(f"  moved to stray/: {late}, {rewound}")
    lines += [*_dropped_lines(stream), *_violation_lines(stream.violations), *_gained_lines(stream.gained)]
    lines += _appeared_lines(stream.appeared)
    if not stream.partitions:
        return [*lines, "  nothing is staged"]
    lines.append(f"  {'partition':<32}{'staged to':>14}{'loaded to':>14}{'lag':>12}{'Kafka end':>14}{'Kafka lag':>12}")
    for partition in stream.partitions:
        places = ("nothing" if place is None else f"{place:,}" for place in (partition.staged_to, partition.loaded_to))
        figures = (partition.lag, partition.kafka_end, partition.kafka_lag)
        cells = [*places, *("–" if figure is None else f"{figure:,}" for figure in figures)]
        widths = (14, 14, 12, 14, 12)
        row = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        lines.append(f"  {partition.partition!s:<32}{row}")
        for words, held in (("held", partition.held), ("writers hold it", partition.writers_hold)):
            if held is not None:
                lines += [f"    {words} ({held.reason}): {held.problem}", f"    → {held.remedy}"]
    if sum(status.held is not None and status.held.reason in REWOUND for status in stream.partitions) > 1:
        lines.append(f"  → all of them at once: `bootstrap rewind {CONFIG} --all-held`, which first shows its plan")
    return lines


def _failure_lines(failure: LastFailure | None) -> list[str]:
    if failure is None:
        return []
    end = "was incomplete" if failure.code is ExitCode.HELD else "failed"
    line = f"  the last load {end} at {moment_text(failure.failed_ms)}: {failure.problem}"
    return [line, *([f"  → {failure.remedy}"] if failure.remedy else [])]


def _table_lines(stream: StreamStatus) -> list[str]:
    load_mode = [] if stream.load_mode is None else [f"  loaded by {stream.load_mode.name}: {stream.load_mode.reason}"]
    through_ms = stream.valid_through_ms
    return load_mode if through_ms is None else [*load_mode, f"  complete through {moment_text(through_ms)}"]


def _dropped_lines(stream: StreamStatus) -> list[str]:
    if stream.undeclared is None or stream.drops_on_purpose:
        return []
    return [f"  dropped: {stream.undeclared.sentence}", f"  → {UNDECLARED_REMEDY}"]


def _violation_lines(violations: Mapping[str, int]) -> list[str]:
    if not violations:
        return []
    rules = sorted(violations.items(), key=lambda violation: (-violation[1], violation[0]))
    shown = ", ".join(f"{rule} ({count:,})" for rule, count in rules[:_RULES_SHOWN])
    more = f" and {len(rules) - _RULES_SHOWN} more" if len(rules) > _RULES_SHOWN else ""
    return [f"  broken rules of expect, in the newest flushes: {shown}{more}"]


def _appeared_lines(routes: tuple[str, ...]) -> list[str]:
    if not routes:
        return []
    last = routes[-_COLUMNS_SHOWN:]
    more = f"{len(routes):,} routes, the last ones " if len(last) < len(routes) else ""
    return [f"  tables have appeared for {more}{', '.join(last)}"]


def _gained_lines(gained: tuple[Gained, ...]) -> list[str]:
    if not gained:
        return []
    last = gained[-_COLUMNS_SHOWN:]
    shown = ", ".join(gained_column.column for gained_column in last)
    more = f"{len(gained):,} columns, the last ones " if len(last) < len(gained) else ""
    return [f"  gained {more}{shown} (the last one offered by {gained[-1].offered_by or 'an unknown writer'})"]
