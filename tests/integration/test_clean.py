"""The clean-up on S3, as a user runs it, with tables made by Spark; and unfinished uploads."""

import json
import time
from pathlib import Path

import pytest
import s3fs
from pyspark.sql import SparkSession

from common.settings import pace
from common.storage.store import FsspecStore
from delta_loader.maintenance.cleaning.clean import CleanUp
from delta_loader.maintenance.cleaning.rules import Tally
from delta_loader.ports import in_turn
from devservices.s3 import S3Server
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging
from tests.integration.conftest import Programs


def clean_now(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tally]:
    """As if an hour was a moment: S3 has no way to set an object's time."""
    monkeypatch.setattr(pace, "RETRIES_S", 0.0)
    settings = settings_for(staging, marker_retention=0)
    writer = settings.writer.model_copy(update={"flush_after_s": 0.1, "revoke_timeout_s": 0.0})
    settings = settings.model_copy(update={"writer": writer})
    time.sleep(2.5)  # S3 tells whole seconds
    work = CleanUp(settings, lambda url: FsspecStore(url, staging.storage_options), in_turn)
    return {f"{tally.what} {tally.url.rpartition('/')[2]}": tally for tally in work.run(1.0, remove=True)}


@pytest.mark.s3
@pytest.mark.parametrize("kind", ["moto", "versitygw"])
def test_uploads_and_files_left_behind_on_s3(
    request: pytest.FixtureRequest, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: S3Server = request.getfixturevalue(kind)
    staging = Staging(f"{server.create_bucket('clean-up')}/lake", storage_options=server.storage_options)
    fs = s3fs.S3FileSystem(skip_instance_cache=True, **server.storage_options)
    kept = staging.flush(0, 0, 10)
    gone = staging.flush(0, 10, 20)
    staging.store(staging.stage_url).delete([gone.name.path])
    fs.call_s3("create_multipart_upload", Bucket="clean-up", Key="lake/tables/orders/day=1/left-behind.parquet")
    fs.call_s3("create_multipart_upload", Bucket="clean-up", Key="lake/stage/done/orders/0/1.done")
    fs.call_s3("create_multipart_upload", Bucket="clean-up", Key="other/program")

    tallies = clean_now(staging, monkeypatch)

    assert (tallies["data files orders"].count, tallies["uploads orders"].count, tallies["uploads stage"].count) == (
        1,
        1,
        1,
    )
    left = [item.path for item in staging.store(staging.table).list("")]
    assert left == [file.path for table in kept.tables for file in table.files]
    uploads = fs.call_s3("list_multipart_uploads", Bucket="clean-up").get("Uploads") or []
    assert [upload["Key"] for upload in uploads] == ["other/program"]


@pytest.mark.s3
def test_listing_of_many_pages_is_complete(moto: S3Server) -> None:
    store = FsspecStore(f"{moto.create_bucket('pages')}/below", moto.storage_options)
    for number in range(12):
        store.write(f"folder/{number}", b"")
    call, pages = store._fs.call_s3, []

    def in_small_pages(method: str, **options: object) -> object:
        pages.append(method)
        return call(method, **{**options, "MaxKeys": 5})

    store._fs.call_s3 = in_small_pages
    scanned = [item.path for item in store.scan("")]
    assert sorted(scanned) == sorted(f"folder/{number}" for number in range(12))
    assert pages == ["list_objects_v2"] * 3
    assert {item.path for item in store.scan("folder")} == {*scanned}


@pytest.mark.spark
def test_clean_keeps_files_of_every_readable_version(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from common.clock import SystemClock
    from delta_loader.spark.delta import SparkDeltaTables

    staging = Staging.below(tmp_path)
    tables = SparkDeltaTables(spark, SystemClock())
    for start in range(0, 30, 10):
        staging.flush(0, start, start + 10, days=["2026-01-01", "a/b=c %ü"])
    loader_for(staging, tables).run_pass()
    spark.sql(f"ALTER TABLE delta.`{staging.table}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    spark.sql(f"OPTIMIZE delta.`{staging.table}`")
    spark.sql(f"DELETE FROM delta.`{staging.table}` WHERE id = 0")  # noqa: S608 - a folder of this test's
    gone = staging.flush(0, 30, 40)
    store = staging.store(staging.stage_url)
    store.delete([*staging.markers(), gone.name.path])

    tallies = clean_now(staging, monkeypatch)

    assert tallies["data files orders"].count == 1
    before = spark.read.format("delta").option("versionAsOf", 1).load(staging.table)
    assert before.count() == 30, "as it was before OPTIMIZE and DELETE"
    assert spark.read.format("delta").load(staging.table).count() == 29


def test_clean_lists_first_and_removes_with_the_option(tmp_path: Path, programs: Programs) -> None:
    staging = Staging.below(tmp_path)
    staging.flush(0, 0, 10)
    settings = settings_for(staging).model_dump(mode="json", by_alias=True)
    config = programs.config({key: settings[key] for key in ("kafka", "stage", "streams")})
    assert "no unreferenced objects older than" in programs.succeed("delta-loader", "clean", config)
    assert json.loads(programs.succeed("delta-loader", "clean", config, "--yes", "--json"))["removed"] is True
    refused = programs.run("delta-loader", "clean", config, "--older-than", "1h")
    assert (refused.returncode, "use at least" in refused.stderr, "Traceback" in refused.stderr) == (2, True, False)
    unreadable = programs.run("delta-loader", "clean", config, "--older-than", "soon")
    assert unreadable.returncode == 2
