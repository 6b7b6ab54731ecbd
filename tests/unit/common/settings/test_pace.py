"""A stream's own pace: its keys, or else those of the writer and the loader."""

import pytest

from common.errors import ConfigError
from common.settings import Settings
from common.settings.load import parse_settings
from common.settings.pace import loader_of, longest_flush_after_s, writer_of

CONFIG = """
kafka: {{bootstrap.servers: "localhost:9092"}}
stage: {{url: /stage}}
writer: {{flush_after: 10m, compression: zstd}}
loader: {{schedule: 1h, max_files: 7{loader}}}
streams:
  - {{app_id: fast, topics: [fast], table: /tables/fast, columns: id INT{stream}}}
  - {{app_id: slow, topics: [slow], table: /tables/slow, columns: id INT, flush_after: 2h}}
"""
FAST = ", flush_after: 1s, flush_bytes: 1MiB, compression: snappy, schedule: on-marker, max_bytes: 2GiB"


def parsed(stream: str = "", loader: str = "") -> Settings:
    return parse_settings(CONFIG.format(stream=stream, loader=loader), {}, "pipeline.yaml")


def test_stream_keys_override_those_of_the_services() -> None:
    settings = parsed(FAST)
    fast, slow = settings.streams
    writer, loader = writer_of(settings.writer, fast), loader_of(settings.loader, fast)
    assert (writer.flush_after_s, writer.flush_bytes, writer.compression) == (1, 2**20, "snappy")
    assert (writer.flush_records, writer.group_id) == (settings.writer.flush_records, settings.writer.group_id)
    assert (loader.schedule, loader.max_bytes, loader.max_files) == ("on-marker", 2**31, 7)
    assert writer_of(settings.writer, slow).compression == "zstd"
    assert loader_of(settings.loader, slow) == settings.loader
    assert longest_flush_after_s(settings) == 7200


def test_stream_without_keys_uses_those_of_the_services() -> None:
    settings = parsed()
    assert writer_of(settings.writer, settings.streams[0]) == settings.writer
    assert loader_of(settings.loader, settings.streams[0]) == settings.loader


@pytest.mark.parametrize(("loader", "seconds"), [("", 600), (", marker_retention: 1d", 86_400)])
def test_markers_of_an_on_marker_stream_are_kept_briefly(loader: str, seconds: int) -> None:
    settings = parsed(FAST, loader)
    assert loader_of(settings.loader, settings.streams[0]).marker_retention_s == seconds


def test_control_topic_needs_a_stream_that_waits_for_markers() -> None:
    assert parsed(FAST, ", control_topic: control").loader.control_topic == "control"
    with pytest.raises(ConfigError, match="control_topic"):
        parsed("", ", control_topic: control")


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        (", flush_afer: 1s", "did you mean flush_after?"),
        (", compression: zst", "is not one of snappy, zstd"),
        (", include: [header]", "'header'"),
        (", include: [key, key]", "twice"),
        (", schedule: hourly", "is not a schedule"),
        (", flush_after: 0s", "flush_after"),
        (", max_files: 0", "max_files"),
        (", include: [key], derive: {_kafka_key: id}", "include makes the column '_kafka_key'"),
        (", include: [headers], topology: 'a:b'", "headers=True"),
    ],
)
def test_invalid_pace_key_is_refused_with_the_remedy(stream: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed(stream)
    assert problem in refused.value.problem
