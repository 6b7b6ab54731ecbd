"""`delta-loader verify` over real tables: what is whole is proved, and each fault is named with version and file."""

import json
import shutil
from pathlib import Path

import deltalake
import pytest
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.errors import TableError
from common.storage.store import FsspecStore
from delta_loader.inspect.verify.findings import Verdict, VerifiedStream
from delta_loader.inspect.verify.table_offsets import SparkContents
from delta_loader.inspect.verify.verify import Verifier
from delta_loader.inspect.verify.view import to_json, to_text
from delta_loader.ports import in_turn
from delta_loader.spark.delta import SparkDeltaTables
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging

pytestmark = pytest.mark.spark


def test_keys_that_several_rows_have_are_named(tmp_path: Path, spark: SparkSession) -> None:
    """What `verify` asks of a table that events are merged into."""
    url = str(tmp_path / "merged")
    spark.sql("SELECT col1 AS id, col2 AS name FROM VALUES (1, 'a'), (2, 'a'), (2, 'b')").write.format("delta").save(
        url
    )
    spark.sql("SELECT 1 AS id, 'a' AS name").write.format("delta").mode("append").save(url)
    contents = SparkContents(spark)
    assert contents.repeated_keys(url, 1, ["id"], None) == ['{"id":1}', '{"id":2}']
    assert contents.repeated_keys(url, 1, ["id", "name"], None) == ['{"id":1,"name":"a"}']
    assert contents.repeated_keys(url, 0, ["id", "name"], None) == []


def test_garbled_checkpoint_is_an_error_of_its_table(tmp_path: Path, spark: SparkSession) -> None:
    url = str(tmp_path / "table")
    place = spark.sql("SELECT 't' AS _kafka_topic, 0 AS _kafka_partition, 1L AS _kafka_offset, now() _kafka_timestamp")
    for _ in range(2):
        place.write.format("delta").mode("append").save(url)
    deltalake.DeltaTable(url).create_checkpoint()
    (checkpoint,) = Path(url, "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(b"garbled")
    Path(url, "_delta_log", f"{0:020d}.json").unlink()
    spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with pytest.raises(TableError, match="checkpoint"):
        SparkContents(spark).offsets((url, 1), stamped=False)


@pytest.fixture
def staging(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Staging:
    """A copy of a stream of two Kafka partitions with dead letters, loaded by three commits."""
    model = Staging.below(tmp_path_factory.getbasetemp() / "verified")
    if not Path(model.table).exists():
        load_model(model, SparkDeltaTables(spark, SystemClock()))
    shutil.copytree(f"{model.root}/tables", tmp_path / "tables")
    for commit in (tmp_path / "tables").glob("*/_delta_log/*.json"):  # which name the other tables
        commit.write_text(commit.read_text("utf-8").replace(model.root, str(tmp_path)), "utf-8")
    return Staging.below(tmp_path)


def load_model(staging: Staging, tables: SparkDeltaTables) -> None:
    staging.touch(0, 32_699)
    staging.flush(0, 32_700, 32_900, days=["a", "b"], dead=[32_703, 32_770, 32_899])
    staging.flush(1, 100, 150)
    loader_for(staging, tables).run_pass()
    staging.flush(0, 32_900, 32_910)
    staging.flush(1, 150, 160, dead=[155])
    loader_for(staging, tables).run_pass()
    staging.flush(0, 32_910, 32_920)
    loader_for(staging, tables).run_pass()


def report(staging: Staging, spark: SparkSession) -> VerifiedStream:
    verifier = Verifier(FsspecStore, in_turn, SparkContents(spark), None)
    verified = verifier.verify(settings_for(staging).streams[0])
    assert to_json([verified])["proved"] == verified.is_clean
    assert to_text([verified])
    json.dumps(to_json([verified]))
    return verified


def kinds(verified: VerifiedStream, verdict: Verdict) -> list[str]:
    return sorted({finding.kind for finding in verified.findings if finding.verdict is verdict})


def commit_by_hand(table: str, *actions: dict[str, object], operation: str = "WRITE") -> int:
    """A commit as some other program makes it."""
    version = deltalake.DeltaTable(table).version() + 1
    lines = [{"commitInfo": {"timestamp": 1, "operation": operation, "operationParameters": {}}}, *actions]
    path = Path(table) / "_delta_log" / f"{version:020d}.json"
    path.write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
    return version


def adds(table: str, version: int) -> list[dict[str, object]]:
    text = (Path(table) / "_delta_log" / f"{version:020d}.json").read_text("utf-8")
    return [action["add"] for action in map(json.loads, text.splitlines()) if "add" in action]


def test_table_without_offsets_is_told_and_not_taken_for_a_damaged_one(staging: Staging, spark: SparkSession) -> None:
    place, rows = Path(staging.root) / "foreign", spark.read.format("delta").load(staging.table)
    rows.select("_kafka_topic", "_kafka_partition").write.format("delta").save(str(place))
    with pytest.raises(TableError, match="has no column _kafka_offset") as raised:
        SparkContents(spark).offsets((str(place), 0), stamped=True)
    assert "kafka_columns: false" in raised.value.remedy


def test_whole_table_is_proved(staging: Staging, spark: SparkSession) -> None:
    verified = report(staging, spark)
    assert (verified.failure, [finding.kind for finding in verified.findings]) == (None, ["given_up"])
    assert [
        (partition.begins, partition.position, partition.rows, partition.dead_letters, partition.proved)
        for partition in verified.partitions
    ] == [(32_699, 32_920, 217, 3, True), (100, 160, 59, 1, True)]
    assert "proved: each record once, none missing" in to_text([verified])


def test_optimize_and_delete_are_told_from_loss(staging: Staging, spark: SparkSession) -> None:
    deltalake.DeltaTable(staging.table).delete("id BETWEEN 327600 AND 327690")
    deltalake.DeltaTable(staging.table).optimize.compact()
    deltalake.DeltaTable(staging.dead_letters).delete("_kafka_offset = 32770")
    verified = report(staging, spark)
    assert (verified.failure, verified.faults) == (None, ())
    deleted = {
        (finding.table, finding.version): finding.text for finding in verified.findings if finding.kind == "deleted"
    }
    assert deleted.keys() == {(staging.table, 4), (staging.dead_letters, 3)}
    assert deleted[staging.table, 4].startswith(
        "10 of 197 rows in [32699, 32900) of orders/0 were deleted by version 4 (DELETE"
    )


def test_file_that_was_added_twice_is_named(staging: Staging, spark: SparkSession) -> None:
    (add,) = [added_file for added_file in adds(staging.table, 2) if "orders-0-" in str(added_file["path"])]
    copy = str(add["path"]).replace("orders-0-", "copy-of-orders-0-")
    shutil.copy(Path(staging.table) / str(add["path"]), Path(staging.table) / copy)
    version = commit_by_hand(staging.table, {"add": {**add, "path": copy}})
    verified = report(staging, spark)
    (twice,) = [finding for finding in verified.faults if finding.kind == "rows_twice"]
    assert "10 offsets (32900 to 32909) of orders/0 occur more than once" in twice.text
    assert (set(twice.files), twice.version) == ({str(add["path"]), copy}, version)
    assert [finding.partition.partition for finding in verified.faults if finding.partition] == [0]


def test_rows_that_an_overwrite_removed_are_named(staging: Staging, spark: SparkSession) -> None:
    (add,) = [added_file for added_file in adds(staging.table, 2) if "orders-1-" in str(added_file["path"])]
    removal = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    version = commit_by_hand(staging.table, {"remove": removal})
    (fault,) = report(staging, spark).faults
    assert (fault.kind, fault.version, fault.files) == ("rows_removed", version, (add["path"],))
    assert "9 of 9 rows in [150, 160) of orders/1 are gone" in fault.text
    assert "version 2 " in fault.text


def test_txn_action_that_was_moved_ahead_is_a_gap(staging: Staging, spark: SparkSession) -> None:
    version = commit_by_hand(staging.table, {"txn": {"appId": "orders-1", "version": 199}})
    staging.flush(1, 200, 210)
    loader_for(staging, SparkDeltaTables(spark, SystemClock())).run_pass()
    (fault,) = report(staging, spark).faults
    assert (fault.kind, fault.version) == ("txn_action_moved_ahead", version)
    assert "from 160 to 200 without rows: [160, 200) was never loaded" in fault.text


def test_dead_letters_that_are_not_there_are_named(staging: Staging, spark: SparkSession) -> None:
    shutil.rmtree(staging.dead_letters)
    faults = report(staging, spark).faults
    assert [(finding.kind, finding.table, str(finding.partition)) for finding in faults] == [
        ("rows_missing", staging.dead_letters, "orders/0"),
        ("rows_missing", staging.dead_letters, "orders/1"),
    ]
    assert "3 of 3 dead letters in [32699, 32900) of orders/0 are missing" in faults[0].text


def test_what_was_cleaned_up_is_not_claimed(staging: Staging, spark: SparkSession) -> None:
    deltalake.DeltaTable(staging.table).create_checkpoint()
    for version in (0, 1):
        (Path(staging.table) / "_delta_log" / f"{version:020d}.json").unlink()
    verified = report(staging, spark)
    assert (verified.first_version, verified.faults) == (2, ())
    assert kinds(verified, Verdict.UNPROVED) == ["history_cleaned", "older_than_history"]


def test_file_that_a_vacuum_took_is_named_with_its_remedy(staging: Staging, spark: SparkSession) -> None:
    (add,) = [added_file for added_file in adds(staging.table, 2) if "orders-1-" in str(added_file["path"])]
    (Path(staging.table) / str(add["path"])).unlink()
    verified = report(staging, spark)
    (fault,) = verified.faults
    assert (fault.kind, fault.version, fault.files, verified.is_clean) == ("files_gone", 2, (add["path"],), False)
    assert "TO VERSION AS OF 1" in fault.text


def test_rows_without_a_known_writer_are_noted(staging: Staging, spark: SparkSession) -> None:
    spark.sql("SELECT 1L AS id, 'a' AS day").write.format("delta").mode("append").save(staging.table)
    verified = report(staging, spark)
    assert (verified.faults, kinds(verified, Verdict.NOTED)) == (
        (),
        ["foreign_rows", "given_up", "rows_without_offsets"],
    )
