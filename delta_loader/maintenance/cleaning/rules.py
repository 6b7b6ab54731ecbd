"""The objects that a clean-up may remove, and how it is reported.

Rules:

1. Only files that a stage writer named are considered (`common.stage.data_files.DataFileName`), and of these only those
   with topics that the table's stream takes: any other program that puts files below a table names them differently.
2. Nothing younger than the safe age is considered. It is at least as long as a file may wait for its marker, and the
   marker for settling: a flush, its retries, and the retention of markers.
3. A marker that cannot be read may refer to anything of its Kafka partition, so all of that stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from common.errors import MarkerError, UsageError
from common.printable import joined
from common.settings import Settings, Stream
from common.settings.pace import least_safe_age_s
from common.settings.values import duration_text
from common.sizes import time_text
from common.stage.data_files import DataFileName, shortened
from common.tables.history import LoggedCommit
from common.tables.rollback import MOST_COMMITS

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Area:
    """A folder that contains data files."""

    url: str
    folder: str
    streams: tuple[Stream, ...]
    """The streams whose files may be here."""
    has_log: bool
    """Whether it is a Delta table."""

    def file(self, path: str) -> DataFileName | None:
        """A data file's parsed name; None for files of others (rule 1)."""
        try:
            name = DataFileName.parse(path)
        except MarkerError:
            return None
        topic = str(name.topic_partition.topic)
        return name if any(_takes(stream, topic) for stream in self.streams) else None


def _takes(stream: Stream, topic: str) -> bool:
    return stream.takes(topic) or any(shortened(stream.chain_of(name)) == topic for name in stream.topics)


def other_stage(area: Area, settings: Settings, history: Iterable[LoggedCommit]) -> str | None:
    """The other stream or stage that loads this area's topics into the table, unseen by this clean-up; None for none.

    Decided by the newest commits (as many as common/tables/rollback.py reads).
    """
    known = {stream.app_id for stream in settings.streams}
    for commit in islice(history, MOST_COMMITS):
        metadata = commit.metadata
        if metadata is not None and metadata.app_id not in known:
            topics = sorted({str(partition.topic) for partition in metadata.spans})
            shared = next((topic for topic in topics if any(stream.takes(topic) for stream in area.streams)), None)
            if shared is not None:
                return (
                    f"version {commit.version} of {area.url} was loaded by {metadata.app_id!r}, not a stream of "
                    f"this config, from a topic {shared!r}: its stage may refer to files here that this one does not "
                    "know, so none is removed"
                )
    return None


def areas(settings: Settings) -> tuple[Area, ...]:
    """Every folder with data files, each once."""
    by_url: dict[str, list[Stream]] = {}
    for stream in settings.streams:
        for url in stream.tables:
            by_url.setdefault(url.rstrip("/"), []).append(stream)
    tables = [Area(url, "", tuple(streams), has_log=True) for url, streams in by_url.items()]
    return (*tables, Area(settings.stage.url.rstrip("/"), "data", settings.streams, has_log=False))


def require_safe(settings: Settings, older_than_s: float) -> None:
    """Raise UsageError for an age that is not safe (rule 2)."""
    floor_s = least_safe_age_s(settings)
    if older_than_s < floor_s:
        age, floor = duration_text(older_than_s), duration_text(floor_s)
        msg = f"files older than {age} may still be waiting for their marker, or the marker for settling"
        raise UsageError(
            msg,
            f"use at least {floor}: writer.flush_after, writer.revoke_timeout, an hour of retries and "
            "loader.marker_retention together",
        )


def file_names_in(data: bytes) -> Iterator[str]:
    """The file names in a marker or a staged replacement of any version. Raises ValueError if it is not JSON."""
    if data:
        yield from _paths(json.loads(data))


def _paths(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        path = value.get("path")
        if isinstance(path, str):
            yield path.rpartition("/")[2]
        for inner in value.values():
            yield from _paths(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner)


@dataclass(frozen=True, slots=True)
class Tally:
    what: str
    """``data files``, ``stray markers``, ``outboxes`` or ``uploads``."""
    url: str
    count: int = 0
    size_bytes: int = 0
    oldest_ms: int | None = None
    examples: tuple[str, ...] = ()
    """A few of the paths."""
    failure: str | None = None
    """Why nothing is removed here."""

    def with_file(self, path: str, size_bytes: int, modified_ms: int) -> Tally:
        oldest_ms = modified_ms if self.oldest_ms is None else min(self.oldest_ms, modified_ms)
        examples = self.examples if len(self.examples) == _EXAMPLES else (*self.examples, path)
        return Tally(self.what, self.url, self.count + 1, self.size_bytes + size_bytes, oldest_ms, examples)


def as_text(tallies: Sequence[Tally], older_than_s: float, *, done: bool) -> str:
    lines = [line for tally in tallies for line in _lines(tally, done=done)]
    if not any(tally.count or tally.failure for tally in tallies):
        return f"no unreferenced objects older than {duration_text(older_than_s)}"
    if not done:
        lines.append("nothing was changed; --yes removes it")
    return joined(lines)


def _lines(tally: Tally, *, done: bool) -> Iterator[str]:
    if tally.failure is not None:
        yield f"{tally.url}: left alone, {tally.failure}"
    if tally.count:
        moment = time_text(tally.oldest_ms or 0)
        size = f", {tally.size_bytes:,} bytes" if tally.size_bytes else ""
        verb = "removed" if done else "to remove"
        yield f"{tally.url}: {tally.count:,} {tally.what} {verb}{size}, the oldest of {moment}"
        yield from (f"  {path}" for path in tally.examples)
        if tally.count > len(tally.examples):
            yield f"  and {tally.count - len(tally.examples):,} more"


def as_json(tallies: Sequence[Tally], older_than_s: float, *, done: bool) -> str:
    """The report for machines. Keys are only ever added."""
    records = [
        {
            "what": tally.what.replace(" ", "_"),
            "url": tally.url,
            "count": tally.count,
            "bytes": tally.size_bytes,
            "oldest_ms": tally.oldest_ms,
            "examples": list(tally.examples),
            "failure": tally.failure,
        }
        for tally in tallies
    ]
    return json.dumps({"removed": done, "older_than_s": older_than_s, "found": records}, indent=2)
