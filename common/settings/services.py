"""The settings of the table services: OPTIMIZE, VACUUM, checkpoints and statistics, on their own schedule.

Rules:

1. A window is two times of the day in ``time_zone``; if it ends before it starts, it spans midnight. Its end is
   exclusive.
2. A stream's Z-order is checked against its columns by checks/columns.py; conditions that depend on the table
   (statistics, liquid clustering) are reported by the run.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, tzinfo
from enum import StrEnum
from typing import Annotated, Self
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, field_validator, model_validator

from common.settings.section import Section, refuse
from common.settings.values import OFF, DurationS, OffOrSchedule, SizeBytes

_WINDOW = re.compile(r"\s*(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})\s*")


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the day, ``[start, end)``."""

    start: time
    end: time

    def contains(self, moment: datetime) -> bool:
        """Whether a time, in the window's own time zone, is in it."""
        now = moment.time()
        if self.start < self.end:
            return self.start <= now < self.end
        return now >= self.start or now < self.end

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M}"


def parse_window(value: object) -> Window | None:
    """``01:00-05:00``, or None for the whole day."""
    if value is None or isinstance(value, Window):
        return value
    match = _WINDOW.fullmatch(value) if isinstance(value, str) else None
    msg = "is not a window of the day; write two different times, such as 01:00-05:00, or null for the whole day"
    if match is None:
        raise ValueError(msg)
    try:
        window = Window(time(int(match[1]), int(match[2])), time(int(match[3]), int(match[4])))
    except ValueError:
        raise ValueError(msg) from None
    if window.start == window.end:
        raise ValueError(msg)
    return window


def _window_text(window: Window | None) -> str | None:
    return None if window is None else str(window)


WindowValue = Annotated[
    Window | None,
    BeforeValidator(parse_window),
    PlainSerializer(_window_text),
    WithJsonSchema({"type": ["string", "null"], "pattern": f"^{_WINDOW.pattern}$"}),
]


class VacuumMode(StrEnum):
    """How VACUUM finds the files that it deletes."""

    AUTO = "auto"
    LITE = "lite"
    FULL = "full"


class OptimizeSettings(Section):
    """Small files are put together."""

    enabled: bool = Field(default=True, description="Whether small files are compacted (OPTIMIZE).")
    quiet_s: DurationS = Field(
        default=3600.0,
        alias="quiet",
        description="A partition counts as no longer written to when its newest file is this old. A table "
        "without partitions, or with liquid clustering, is judged as a whole: only files of this age "
        "count.",
    )
    min_files: int = Field(default=8, ge=2, description="Minimum number of files that a rewrite must save.")
    min_files_busy: int | None = Field(
        default=100,
        ge=2,
        description="The same for a partition that is still written to, which includes every partition of a "
        "non-time column; null leaves those partitions alone.",
    )
    target_file_bytes: SizeBytes = Field(
        default=256 * 2**20,
        alias="target_file",
        ge=2**20,
        description="Size of compacted files. Files below half of it are small.",
    )
    piece_bytes: SizeBytes = Field(
        default=8 * 2**30,
        alias="piece",
        ge=2**20,
        description="About this much is rewritten per commit; between two commits loads go first, and budget and "
        "window are checked.",
    )


class VacuumSettings(Section):
    """Files that no version needs any more are deleted."""

    enabled: bool = Field(
        default=True,
        description="Whether files that left the table are deleted (VACUUM), always after the table's own "
        "`delta.deletedFileRetentionDuration`; no shorter retention can be given.",
    )
    every_s: DurationS = Field(
        default=86400.0, alias="every", description="A table is vacuumed when the last VACUUM is this long ago."
    )
    mode: VacuumMode = Field(
        default=VacuumMode.AUTO,
        description="`lite` deletes the files that the table's log says were removed, without a listing, so it "
        "never meets staged files; `full` lists the table's folder; `auto` is `lite`, or `full` if "
        "the log does not reach back far enough.",
    )


class CheckpointSettings(Section):
    """The log gets a checkpoint where Delta made none for long."""

    enabled: bool = Field(default=True, description="Whether overdue checkpoints are written.")
    commits: int = Field(
        default=100,
        ge=1,
        description="A checkpoint is overdue after this many commits; Delta itself writes one every "
        "`delta.checkpointInterval`.",
    )


class StatisticsSettings(Section):
    """Files without statistics get them."""

    enabled: bool = Field(
        default=True, description="Whether files without statistics (adopted ones) get them; others are not read."
    )
    max_bytes: SizeBytes = Field(
        default=2**30, alias="max", gt=0, description="Maximum amount of data read for it per table and run."
    )


class TableServicesSettings(Section):
    """OPTIMIZE, VACUUM, checkpoints and statistics for all tables of all streams."""

    schedule: OffOrSchedule = Field(
        default=OFF, description="When to run them: `off`, an interval such as `6h`, or a cron line (UTC)."
    )
    window: WindowValue = Field(
        default=None,
        description="Time of day in which tasks may start, such as `01:00-05:00`; null for any time. A run "
        "scheduled outside it starts with the window.",
    )
    time_zone: str = Field(default="UTC", description="The window's time zone, such as `Europe/Vienna`.")
    budget_s: DurationS = Field(
        default=1800.0,
        alias="budget",
        gt=0,
        description="After this time a run starts no further task. The table that was maintained longest ago "
        "comes first.",
    )
    optimize: OptimizeSettings = Field(default_factory=OptimizeSettings, description="Small files are put together.")
    vacuum: VacuumSettings = Field(default_factory=VacuumSettings, description="Files that left tables are deleted.")
    checkpoints: CheckpointSettings = Field(default_factory=CheckpointSettings, description="Overdue checkpoints.")
    statistics: StatisticsSettings = Field(default_factory=StatisticsSettings, description="Missing statistics.")

    @field_validator("time_zone")
    @classmethod
    def _time_zone(cls, value: str) -> str:
        try:
            zone_of(value)
        except (KeyError, OSError, ValueError):
            raise ValueError("is not a known time zone; write a name such as UTC or Europe/Vienna") from None
        return value

    @model_validator(mode="after")
    def _pieces(self) -> Self:
        if self.optimize.piece_bytes < self.optimize.target_file_bytes:
            refuse("optimize.piece is smaller than optimize.target_file; give it several times that")
        return self

    @property
    def is_on(self) -> bool:
        """Whether they run automatically."""
        return self.schedule != OFF

    def may_begin(self, now: datetime) -> bool:
        """Whether a time, with its zone, is in the window."""
        return self.window is None or self.window.contains(now.astimezone(zone_of(self.time_zone)))


def zone_of(name: str) -> tzinfo:
    """A time zone; UTC needs no time zone database. Raises KeyError, OSError or ValueError for an invalid name."""
    return UTC if name == "UTC" else ZoneInfo(name)


class StreamServices(Section):
    """Overrides for one stream."""

    enabled: bool = Field(default=True, description="Whether the table services maintain the stream's tables.")
    quiet_s: DurationS | None = Field(
        default=None, alias="quiet", description="Instead of `table_services.optimize.quiet`; null for that."
    )
    z_order: tuple[str, ...] = Field(
        default=(),
        description="Columns by which OPTIMIZE sorts the rows of a partition that it rewrites; not with liquid "
        "clustering. Each run rewrites the whole partition, so only quiet partitions are optimized.",
        examples=[["session_id"]],
    )
