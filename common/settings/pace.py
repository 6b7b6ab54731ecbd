"""Each stream's own pace: the keys of a stream that stand for keys of the writer and the loader.

Rule: a stream's key has the same name and meaning as the service's, which is its default.
"""

from common.settings.model import LoaderSettings, Settings, WriterSettings
from common.settings.stream import Stream
from common.settings.values import ON_MARKER, RETENTION_ON_MARKER, parse_duration_s
from common.stage.data_files import LONGEST_FLUSH_S

RETRIES_S = 2 * LONGEST_FLUSH_S
"""More than the time from a flush's first file to its claim, however often a writer retries it."""
_OF_WRITER = ("compression", "flush_after_s", "flush_bytes", "flush_records")
_OF_LOADER = ("schedule", "max_commits_per_minute", "max_files", "max_bytes")


def writer_of(writer: WriterSettings, stream: Stream) -> WriterSettings:
    return writer.model_copy(update=_given(stream, _OF_WRITER))


def loader_of(loader: LoaderSettings, stream: Stream) -> LoaderSettings:
    given = _given(stream, _OF_LOADER)
    if given.get("schedule") == ON_MARKER and "marker_retention_s" not in loader.model_fields_set:
        given["marker_retention_s"] = parse_duration_s(RETENTION_ON_MARKER)
    return loader.model_copy(update=given)


def longest_flush_after_s(settings: Settings) -> float:
    """The longest time for which records of any stream may wait for their flush."""
    return max(writer_of(settings.writer, stream).flush_after_s for stream in settings.streams)


def least_safe_age_s(settings: Settings) -> float:
    """Younger files may still be waiting for what refers to them: no clean-up removes any."""
    return (
        longest_flush_after_s(settings)
        + settings.writer.revoke_timeout_s
        + RETRIES_S
        + settings.loader.marker_retention_s
    )


def longest_replay_s(settings: Settings) -> float:
    """How long a replay's files may wait for the request that refers to them."""
    return least_safe_age_s(settings) - LONGEST_FLUSH_S


def _given(stream: Stream, names: tuple[str, ...]) -> dict[str, object]:
    return {name: value for name in names if (value := getattr(stream.pace, name)) is not None}
