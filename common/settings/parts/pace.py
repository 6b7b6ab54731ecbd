"""The part of a stream's settings that says when it is flushed and loaded, and how much at a time.

Rule: a key has the same name and meaning as the service's, which is its default (common/settings/pace.py).
"""

from pydantic import Field

from common.settings.section import SectionPart
from common.settings.values import CODECS, DurationS, LoadSchedule, SizeBytes


class PaceSettings(SectionPart):
    """A stream's own pace."""

    compression: str | None = Field(
        default=None, pattern=CODECS, description="The stream's own `writer.compression`.", examples=["zstd"]
    )
    flush_after_s: DurationS | None = Field(
        default=None, alias="flush_after", gt=0, description="The stream's own `writer.flush_after`.", examples=["1s"]
    )
    flush_bytes: SizeBytes | None = Field(default=None, gt=0, description="The stream's own `writer.flush_bytes`.")
    flush_records: int | None = Field(default=None, gt=0, description="The stream's own `writer.flush_records`.")
    schedule: LoadSchedule | None = Field(
        default=None,
        description="The stream's own `loader.schedule`. With `on-marker`, the default of `loader.marker_retention` is "
        "`10m` for this stream. See [schedules.md](schedules.md).",
        examples=["1h"],
    )
    max_commits_per_minute: int | None = Field(
        default=None, gt=0, le=600, description="The stream's own `loader.max_commits_per_minute`."
    )
    max_files: int | None = Field(default=None, gt=0, description="The stream's own `loader.max_files`.")
    max_bytes: SizeBytes | None = Field(default=None, gt=0, description="The stream's own `loader.max_bytes`.")
