"""Through what time a table is complete: by its history, and as a property of it."""

from dataclasses import dataclass, field

import structlog

from common.errors import TableError
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.tables.commit_metadata import CommitMetadata
from common.tables.history import LoggedCommit
from delta_loader.load.report import StreamReport
from delta_loader.load.valid_through import ValidThrough
from delta_loader.tables.valid_through import PROPERTY, moment_text, valid_through_of
from tests.fakes.clock import IdleClock
from tests.fakes.loading import settings_for
from tests.fakes.staging import Staging

SOURCE = TopicPartition(Topic("orders"), Partition(0))


def load(version: int, through_ms: int | None, app_id: str = "orders") -> LoggedCommit:
    spans = {SOURCE: Span(Position(version), Position(version + 1))}
    return LoggedCommit(version, "STREAMING UPDATE", metadata=CommitMetadata("x", app_id, spans, through_ms))


def through(*commits: LoggedCommit) -> int | None:
    return valid_through_of(sorted(commits, key=lambda commit: -commit.version), "orders")


def test_valid_through_is_of_the_newest_own_commit_on_the_lineage() -> None:
    history = (load(1, 100), load(2, 200), load(3, 900, "another"), LoggedCommit(4, "OPTIMIZE"))
    assert through(*history) == 200
    assert through(*history, LoggedCommit(5, "RESTORE", restored_version=1)) == 100
    assert through(*history, load(5, None)) is None
    assert through(*history, LoggedCommit(5, "CREATE OR REPLACE TABLE")) is None
    assert through(LoggedCommit(0, "CREATE TABLE")) is None


@dataclass
class Setter:
    fails: bool = False
    written: list[tuple[str, str, str]] = field(default_factory=list)

    def set_property(self, url: str, key: str, value: str) -> None:
        if self.fails:
            raise TableError("a MERGE was faster", "")
        self.written.append((url, key, value))


def test_property_is_set_at_its_interval_and_never_fails_a_load() -> None:
    staging, clock, setter = Staging("memory://lake"), IdleClock(), Setter()
    (stream,) = settings_for(staging).streams
    (wanted,) = settings_for(staging, {"valid_through_property": "15m"}).streams
    valid_through = ValidThrough([stream, wanted], setter, clock, structlog.get_logger())

    def pass_of(through_ms: int | None) -> list[tuple[str, str, str]]:
        valid_through.update(StreamReport("orders", valid_through_ms=through_ms))
        written, setter.written = setter.written, []
        return written

    assert pass_of(None) == []
    assert pass_of(1_772_359_265_000) == [(staging.table, PROPERTY, "2026-03-01T10:01:05.000Z")]
    assert pass_of(1_772_359_266_000) == []
    clock.sleep_s(900)
    setter.fails = True
    assert pass_of(None) == []
    setter.fails = False
    assert pass_of(None) == [(staging.table, PROPERTY, "2026-03-01T10:01:06.000Z")]
    assert pass_of(None) == []
    assert pass_of(1_772_359_267_000) == [], "the interval begins with the last value"
    assert moment_text(0) == "1970-01-01T00:00:00.000Z"
