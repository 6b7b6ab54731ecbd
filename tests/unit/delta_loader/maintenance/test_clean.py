"""The clean-up over real files: unreferenced files are removed, and referenced ones are kept."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import structlog

from common.errors import StoreError, TableError, UsageError
from common.metrics import Metrics
from common.settings import Settings
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.appeared_routes import agree_on
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.data_files import DataFileName
from common.stage.markers import Marker, marker_to_bytes, stray_path
from common.stage.task_files import OutboxName
from common.storage.listing import Upload
from common.storage.store import FsspecStore
from common.tables.commit_metadata import CommitMetadata
from delta_loader.maintenance.cleaning.clean import CleanUp, ScheduledCleanUp
from delta_loader.maintenance.cleaning.rules import Area, Tally, as_json, as_text, file_names_in, require_safe
from delta_loader.ports import in_turn
from tests.builders import required, settings_of
from tests.fakes.loading import settings_for
from tests.fakes.markers import flush
from tests.fakes.metrics import numbers
from tests.fakes.staging import Staging
from tests.fakes.stores import TrappedStore, acting, failing

DAY_S = 86_400
WEEK_S = 7 * DAY_S


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging.below(tmp_path)


def paths_of(marker: Marker) -> list[str]:
    return [file.path for table in marker.tables for file in table.files]


def commit(staging: Staging, version: int, *actions: dict[str, object]) -> None:
    lines = "\n".join(json.dumps(action) for action in actions)
    staging.store(staging.table).write(f"_delta_log/{version:020d}.json", lines.encode())


def add(path: str) -> dict[str, object]:
    return {"add": {"path": path, "size": 1, "partitionValues": {}, "dataChange": True, "modificationTime": 1}}


def remove(path: str) -> dict[str, object]:
    return {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 1}}


def orphan(staging: Staging, start: int, end: int) -> list[str]:
    """Data files of a claim that was lost: they have no marker."""
    marker = staging.flush(0, start, end)
    staging.store(staging.stage_url).delete([marker.name.path])
    return paths_of(marker)


def grow_old(staging: Staging, days: float = 8) -> None:
    for path in Path(staging.root).rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - days * DAY_S,) * 2)


def clean(
    staging: Staging, settings: Settings | None = None, *, remove: bool = True, older_than_s: float = WEEK_S
) -> dict[str, Tally]:
    work = CleanUp(settings or settings_for(staging), lambda url: FsspecStore(url, staging.storage_options), in_turn)
    tallies = work.run(older_than_s, remove=remove)
    return {f"{tally.what} {tally.url.removeprefix(staging.root)}": tally for tally in tallies}


def files(staging: Staging) -> set[str]:
    return {stored.path for stored in staging.store(staging.table).list("") if stored.path.endswith(".parquet")}


def test_unreferenced_files_are_removed_and_a_dry_run_only_reports_them(staging: Staging) -> None:
    kept = [path for start in (0, 10) for path in paths_of(staging.flush(0, start, start + 10))]
    gone = orphan(staging, 20, 30)
    grow_old(staging)
    for removing in (False, True):
        tally = clean(staging, remove=removing)["data files /tables/orders"]
        assert (tally.count, tally.examples) == (1, tuple(gone))
        assert tally.size_bytes > 0
        assert files(staging) == {*kept, *([] if removing else gone)}
    assert clean(staging)["data files /tables/orders"].count == 0


def test_young_files_are_ignored(staging: Staging) -> None:
    orphan(staging, 10, 20)
    grow_old(staging, days=6)
    assert clean(staging)["data files /tables/orders"].count == 0


@pytest.mark.parametrize(("days", "count"), [(6, 0), (8, 1)])
def test_ages_are_by_the_clock_of_the_store(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, days: int, count: int
) -> None:
    orphan(staging, 10, 20)
    now_ms = int((time.time() + days * DAY_S) * 1000)
    monkeypatch.setattr("delta_loader.maintenance.cleaning.clean.store_time_ms", lambda _store: now_ms)
    assert clean(staging)["data files /tables/orders"].count == count


def test_unsafe_age_is_refused(staging: Staging) -> None:
    with pytest.raises(UsageError, match="waiting for their marker") as caught:
        require_safe(settings_for(staging), 90_079)
    assert "use at least 90080s" in caught.value.remedy
    require_safe(settings_for(staging), 90_080)
    with pytest.raises(UsageError, match="waiting for their marker"):
        clean(staging, older_than_s=DAY_S)


def test_files_of_every_readable_version_are_kept(staging: Staging) -> None:
    first, second, third = (orphan(staging, start, start + 10)[0] for start in (0, 10, 20))
    # A path in the log is a URI, and may be an absolute one.
    commit(staging, 0, add(first.replace("=", "%3D")), add(f"{staging.table}/{second}"))
    commit(staging, 1, remove(first), remove(second))
    grow_old(staging)
    clean(staging)
    assert files(staging) == {first, second}
    assert third not in files(staging)


@pytest.mark.parametrize("streams", [1, 2])
def test_table_fed_by_another_stage_with_the_same_topic_is_left_alone(staging: Staging, streams: int) -> None:
    """With ``payments`` in the config or not."""
    stream = {"topics": ["orders"], "table": staging.table}
    stage = {"url": staging.stage_url, "storage_options": staging.storage_options}
    settings = settings_of(*[stream, stream | {"app_id": "payments", "topics": ["payments"]}][:streams], stage=stage)

    def loaded(version: int, app_id: str, topic: str) -> None:
        span = Span(Position(0), Position(9))
        metadata = CommitMetadata("c", app_id, {TopicPartition(Topic(topic), Partition(0)): span}, None)
        commit(staging, version, {"commitInfo": {"operation": "W", "userMetadata": metadata.to_json()}})

    (path,) = orphan(staging, 0, 10)
    loaded(0, "orders", "orders")
    loaded(1, "payments", "payments")
    grow_old(staging)
    loaded(2, "orders_us", "orders")  # from another cluster, through another stage
    loaded(3, "orders", "orders")
    tally = clean(staging, settings)["data files /tables/orders"]
    assert (tally.count, files(staging)) == (0, {path})
    assert tally.failure is not None
    assert "version 2" in tally.failure
    assert "'orders_us', not a stream of this config" in tally.failure
    staging.store(staging.table).delete([f"_delta_log/{version:020d}.json" for version in (2, 3)])
    assert clean(staging, settings)["data files /tables/orders"].failure is None
    assert files(staging) == set()


def test_log_with_a_missing_version_keeps_all_files(staging: Staging) -> None:
    orphan(staging, 0, 10)
    commit(staging, 0, add("a"))
    commit(staging, 2, add("b"))
    grow_old(staging)
    tally = clean(staging)["data files /tables/orders"]
    assert (tally.count, len(files(staging))) == (0, 1)
    assert "lacks version 1" in required(tally.failure)


@pytest.mark.parametrize(
    ("names_it", "content"),
    [
        ("done/orders/0/00000000000000000050.done", "{torn"),
        ("done/orders/0/00000000000000000000.done", '{"version": 9, "tables": [{"new": [{"path": "PATH"}]}]}'),
        ("replace/orders/0/00000000000000000000-x.replace", '{"tables": [{"files": [{"path": "PATH"}]}]}'),
        ("replace/orders/0/00000000000000000000-x.replace", "{torn"),
    ],
    ids=[
        "its partition's marker cannot be read",
        "a marker of a later format",
        "a staged replacement",
        "its partition's staged replacement cannot be read",
    ],
)
def test_possibly_referenced_files_are_kept(staging: Staging, names_it: str, content: str) -> None:
    (path,) = orphan(staging, 0, 10)
    staging.store(staging.stage_url).write(names_it, content.replace("PATH", path).encode())
    grow_old(staging)
    clean(staging)
    assert files(staging) == {path}


@pytest.mark.parametrize("torn", ["done/TOPIC/0/50.done", "replace/TOPIC/0/x.replace"])
def test_unreadable_object_keeps_files_named_by_a_topic_digest(tmp_path: Path, torn: str) -> None:
    staging = Staging.below(tmp_path, "o" * 120)
    (path,) = orphan(staging, 0, 10)
    assert "sha256-" in path, "it is named by a digest"
    stage, torn = staging.store(staging.stage_url), torn.replace("TOPIC", staging.topic)
    stage.write(torn, b"{torn")
    grow_old(staging)
    clean(staging)
    assert files(staging) == {path}
    stage.delete([torn])
    clean(staging)
    assert files(staging) == set()


@pytest.mark.parametrize("topics", [["payments", "o" * 120], ["^o+$"], ["o"]])
def test_files_belong_to_a_stream_by_any_of_its_topics(topics: list[str]) -> None:
    area = Area("u", "", settings_of({"topics": topics}).streams, has_log=True)
    names = [
        DataFileName(TopicPartition(Topic(topic), Partition(0)), Position(0), "1") for topic in ("o" * 120, "o", "p")
    ]
    ours = [area.file(name.path) is not None for name in names]
    assert ours == [len(topics) == 2, len(topics) == 1, False], "a digest does not say whether a pattern matches"


def test_tables_that_appear_later_are_cleaned(staging: Staging) -> None:
    (path,) = orphan(staging, 0, 10)
    stream = {"app_id": "orders", "topics": ["orders"], "table": f"{staging.root}/tables/main", "columns": "id BIGINT"}
    stream |= {"route": "id::VARCHAR", "route_table": f"{staging.root}/tables/{{route}}"}
    settings = Settings.model_validate(
        {"kafka": {"bootstrap.servers": "nowhere:1"}, "stage": {"url": staging.stage_url}, "streams": [stream]}
    )
    grow_old(staging)
    work = CleanUp(settings, FsspecStore, in_turn)
    work.run(WEEK_S, remove=True)
    assert files(staging) == {path}, "no table of the stream yet"
    agree_on(FsspecStore(staging.stage_url), "orders", ["orders"], 10)
    work.run(WEEK_S, remove=True)
    assert files(staging) == set()


def test_files_of_other_programs_are_left(staging: Staging) -> None:
    store = staging.store(staging.table)
    others = [
        "part-00000-3e0fca18-0001-c000.snappy.parquet",
        "day=1/others-0-00000000000000000000-0b4a5dbe-8d61-4bb7-9e0e-2f8f0b0e3c11.snappy.parquet",
        "notes.txt",
        "_change_data/cdc-00000-3e0fca18.snappy.parquet",
    ]
    for path in others:
        store.write(path, b"x")
    grow_old(staging)
    clean(staging)
    assert {stored.path for stored in store.list("")} == set(others)


@pytest.mark.parametrize("is_listed", [True, False])
def test_file_loaded_and_settled_during_the_clean_up_is_kept(
    staging: Staging,
    is_listed: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Its marker is read just before it goes, or is gone when the markers are listed; then the log has the file."""
    marker = staging.flush(0, 0, 10)
    grow_old(staging)

    def load() -> None:
        commit(staging, 0, *map(add, paths_of(marker)))
        staging.store(staging.stage_url).delete([marker.name.path])

    open_store = partial(TrappedStore, before=acting("list", load, below="done/"))
    if is_listed:
        open_store = partial(TrappedStore, after=acting("read", load, below=marker.name.path))
    CleanUp(settings_for(staging), open_store, in_turn).run(WEEK_S, remove=True)
    assert files(staging) == set(paths_of(marker))


def test_copies_of_late_claims_are_removed_and_rewound_markers_kept(staging: Staging) -> None:
    store = staging.store(staging.stage_url)
    rewound = "stray/done/orders/0/00000000000000000010.done"
    store.write(rewound, b"x")
    store.write(f"{rewound}.late-0123456789abcdef", b"x")
    assert clean(staging)["stray markers /stage/stray"].count == 0, "too young"
    grow_old(staging)
    assert clean(staging)["stray markers /stage/stray"].count == 1
    assert [stored.path for stored in store.list("stray/")] == [rewound]


def test_dead_letters_and_files_staged_for_spark_are_cleaned(staging: Staging) -> None:
    marker = staging.flush(0, 0, 10, dead=[3])
    staging.store(staging.stage_url).delete([marker.name.path])
    waiting = f"data/orders/{paths_of(marker)[0]}"
    staging.store(staging.stage_url).write(waiting, b"x")
    grow_old(staging)
    tallies = clean(staging)
    assert [tally.count for tally in tallies.values() if tally.what == "data files"] == [1, 1, 1]
    assert staging.store(staging.stage_url).stat(waiting) is None


def test_report_lists_files_in_text_and_json(staging: Staging) -> None:
    orphan(staging, 0, 10)
    grow_old(staging)
    tallies = list(clean(staging, remove=False).values())
    text = as_text(tallies, WEEK_S, done=False)
    assert "/tables/orders: 1 data files to remove, " in text
    assert text.endswith("nothing was changed; --yes removes it")
    assert json.loads(as_json(tallies, WEEK_S, done=False))["found"][0]["count"] == 1


def test_report_shows_counts_ages_and_examples() -> None:
    files = Tally("data files", "/tables/orders")
    for number in range(7):
        files = files.with_file(f"{number}.parquet", 1_000, 60_000 * abs(3 - number))
    uploads = Tally("stray markers", "/stage").with_file("stray/a", 0, 60_000)
    some = replace(uploads, examples=tuple("abcde"), count=5)
    left = Tally("data files", "/tables/other", failure="its log has a hole")
    lines = as_text([files, uploads, some, left, Tally("outboxes", "/stage")], WEEK_S, done=True).splitlines()
    assert lines == [
        "/tables/orders: 7 data files removed, 7,000 bytes, the oldest of 1970-01-01T00:00:00+00:00",
        *(f"  {number}.parquet" for number in range(5)),
        "  and 2 more",
        "/stage: 1 stray markers removed, the oldest of 1970-01-01T00:01:00+00:00",
        "  stray/a",
        "/stage: 5 stray markers removed, the oldest of 1970-01-01T00:01:00+00:00",
        *(f"  {path}" for path in "abcde"),
        "/tables/other: left alone, its log has a hole",
    ]
    assert as_text([left], WEEK_S, done=False).splitlines() == [
        "/tables/other: left alone, its log has a hole",
        "nothing was changed; --yes removes it",
    ]
    assert as_text([Tally("outboxes", "/stage")], WEEK_S, done=False) == "no unreferenced objects older than 1w"
    assert json.loads(as_json([uploads, left], WEEK_S, done=True)) == {
        "removed": True,
        "older_than_s": WEEK_S,
        "found": [
            {
                "what": "stray_markers",
                "url": "/stage",
                "count": 1,
                "bytes": 0,
                "oldest_ms": 60_000,
                "examples": ["stray/a"],
                "failure": None,
            },
            {
                "what": "data_files",
                "url": "/tables/other",
                "count": 0,
                "bytes": 0,
                "oldest_ms": None,
                "examples": [],
                "failure": "its log has a hole",
            },
        ],
    }


def test_file_names_are_found_at_any_depth() -> None:
    content = {"tables": [{"files": [{"path": "day=1/a.parquet"}, {"path": 5}]}], "x": {"path": "b"}, "path": "c/d"}
    assert [*file_names_in(json.dumps(content).encode())] == ["d", "a.parquet", "b"]
    assert [*file_names_in(b"")] == []
    with pytest.raises(ValueError, match="Expecting"):
        [*file_names_in(b"torn")]


def test_schedule_is_off_by_default_and_an_unsafe_age_is_refused_at_start(staging: Staging) -> None:
    from datetime import UTC, datetime, timedelta

    orphan(staging, 0, 10)
    grow_old(staging)
    start, metrics = datetime.now(UTC), Metrics()
    open_store = partial(TrappedStore, before=failing("list", StoreError("away", "wait"), below="done/", times=1))

    def scheduled(**loader: object) -> ScheduledCleanUp:
        settings = settings_for(staging, **loader)
        return ScheduledCleanUp(settings, CleanUp(settings, open_store, in_turn), structlog.get_logger(), metrics)

    off, daily = scheduled(), scheduled(clean_up="1d")
    for moment in (start, start + timedelta(hours=23)):
        off.run_due(moment)
        daily.run_due(moment)
    off.run_due(start + timedelta(days=9))
    assert (len(files(staging)), numbers(metrics)) == (1, {})
    for hours, left in ((25, 1), (26, 1), (49, 0)):  # the first fails
        daily.run_due(start + timedelta(hours=hours))
        assert len(files(staging)) == left
    assert numbers(metrics) == {"cleaned_total{what=data_files}": 1}
    with pytest.raises(UsageError):
        scheduled(clean_up="1d", clean_up_older_than="2h")


def test_failing_store_is_reported_and_keeps_all_files(staging: Staging) -> None:
    orphan(staging, 0, 10)
    grow_old(staging)

    away = failing("list", TableError("away"), below="_delta_log")
    tallies = CleanUp(settings_for(staging), partial(TrappedStore, before=away), in_turn).run(WEEK_S, remove=True)
    assert [tally.failure for tally in tallies if tally.failure] == ["away", "away"]
    assert len(files(staging)) == 1


def test_outboxes_not_named_by_a_marker_or_origin_are_removed(staging: Staging) -> None:
    store, partition = staging.store(staging.stage_url), staging.source(0)
    marker = staging.flush(0, 0, 10)
    assert marker.manifest is not None
    waiting, begun, lost = (
        OutboxName(partition, Position(0), 0, flush_id).path for flush_id in ("waiting", "begun", "lost")
    )
    again, beyond = (OutboxName(partition, Position(start), 0, "put-aside").path for start in (0, 10))
    elsewhere = OutboxName(TopicPartition(Topic("gone"), Partition(3)), Position(7), 0, "left").path
    strange = "outbox/orders/0/notes.txt"
    named = replace(marker, manifest=replace(marker.manifest, outboxes=(waiting,)))
    store.write(marker.name.path, marker_to_bytes(named))
    store.write(origin_path(partition), origin_to_bytes(ChainOrigin(Position(9), outboxes=(lost,))))
    store.write(origin_path(partition, 3), origin_to_bytes(ChainOrigin(Position(5), outboxes=(begun,))))
    for aside, outbox in ((flush(10, 20, partition=partition), beyond), (flush(0, 10, partition=partition), again)):
        copy = replace(aside, manifest=replace(required(aside.manifest), outboxes=(outbox,)))
        store.write(stray_path(copy.name.path), marker_to_bytes(copy))
    for path in (waiting, begun, lost, again, beyond, elsewhere, strange):
        store.write(path, b"records")
    assert clean(staging)["outboxes /stage"].count == 0  # too young
    grow_old(staging)
    for removing in (False, True):
        tally = clean(staging, remove=removing)["outboxes /stage"]
        assert (tally.count, set(tally.examples)) == (3, {lost, again, elsewhere})
    assert {stored.path for stored in store.list("outbox")} == {waiting, begun, beyond, strange}


def test_unreadable_marker_or_origin_keeps_the_outboxes_of_its_chain(staging: Staging) -> None:
    store = staging.store(staging.stage_url)
    paths = [OutboxName(staging.source(number), Position(0), 0, "one").path for number in range(4)]
    for path in paths:
        store.write(path, b"records")
    store.write(staging.flush(0, 0, 10).name.path, b"{")
    store.write(origin_path(staging.source(2)), b"{")
    store.write("done/orders/3/not a marker", b"")
    grow_old(staging)
    assert clean(staging)["outboxes /stage"].examples == (paths[1],)


def test_old_uploads_are_aborted(staging: Staging) -> None:
    aborted: list[str] = []

    class Uploading(FsspecStore):
        def uploads(self, prefix: str) -> Iterator[Upload]:
            now_ms = int(time.time() * 1000)
            yield Upload("young", prefix, now_ms)
            yield Upload("old", prefix, now_ms - 8 * DAY_S * 1000)

        def abort(self, upload: Upload) -> None:
            aborted.append(upload.path)

    for removing in (False, True):
        tallies = CleanUp(settings_for(staging), Uploading, in_turn).run(WEEK_S, remove=removing)
        uploads = {tally.url: tally.examples for tally in tallies if tally.what == "uploads"}
        assert uploads == dict.fromkeys((staging.table, staging.dead_letters, staging.stage_url), ("old",))
        assert set(aborted) == ({"old"} if removing else set())
