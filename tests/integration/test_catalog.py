"""Tables of a catalog, with Spark's own: registered, found, and refused where a name stands for something else."""

import json
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.errors import ConfigError, TableError
from common.tables.delta_log import read_table_state
from delta_loader.catalog.registering import Registering, UnknownCatalogError
from delta_loader.load.report import StreamReport
from delta_loader.spark.catalog import SparkCatalog
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.tables.load_modes.load_mode import Refused, choose_load_mode
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import DECLARED, Staging
from tests.integration.conftest import Programs

pytestmark = pytest.mark.spark


def load(staging: Staging, spark: SparkSession, names: dict[str, str]) -> StreamReport:
    registering = Registering(SparkCatalog(spark))
    tables = SparkDeltaTables(spark, SystemClock())
    loader = loader_for(staging, tables, settings_for(staging, {"catalog_tables": names}), registering=registering)
    (report,) = loader.run_pass()
    return report


def test_table_is_registered_and_another_object_of_its_name_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    staging, shop = Staging.below(tmp_path), f"shop_{uuid.uuid4().hex[:8]}"
    staging.flush(0, 0, 10, dead=[3])
    failure = load(staging, spark, {f"{shop}.orders": staging.table}).failure
    assert isinstance(failure, ConfigError)
    assert failure.remedy.startswith(f"create it, CREATE SCHEMA {shop}")
    spark.sql(f"CREATE SCHEMA {shop}")
    names = {f"spark_catalog.{shop}.orders": staging.table, f"{shop}.letters": staging.dead_letters}
    report = load(staging, spark, names)
    assert (report.failure, report.rows) == (None, 10)
    assert spark.table(f"{shop}.orders").count() == 9
    assert [row["value"] for row in spark.table(f"{shop}.letters").select("value").collect()] == [b"{"]
    entry = SparkCatalog(spark).entry(f"{shop}.orders")
    assert entry is not None
    assert (entry.kind, entry.provider) == ("EXTERNAL", "delta")

    spark.sql(f"CREATE VIEW {shop}.seen AS SELECT * FROM {shop}.orders")  # noqa: S608 - our own name
    spark.sql(f"CREATE TABLE {shop}.plain (id BIGINT) USING parquet")
    spark.sql(f"CREATE TABLE {shop}.owned (id BIGINT) USING delta")
    for name, message in (("seen", "is a view"), ("plain", "the format parquet"), ("owned", "is located at")):
        failure = load(staging, spark, {f"{shop}.{name}": staging.table}).failure
        assert isinstance(failure, ConfigError)
        assert message in failure.problem
    with pytest.raises(UnknownCatalogError, match="Spark does not know"):
        SparkCatalog(spark).entry("unknown.shop.orders")
    spark.conf.set("spark.sql.catalog.broken", "org.example.NoCatalog")
    with pytest.raises(TableError, match=r"cannot look up broken\.shop\.orders") as caught:
        SparkCatalog(spark).entry("broken.shop.orders")
    assert "spark.sql.catalog.broken and its sub-keys" in caught.value.remedy
    spark.sql(f"DROP TABLE {shop}.orders")  # it is external: the rows stay
    staging.flush(0, 10, 20)
    report = load(staging, spark, names)
    assert (report.failure, report.rows) == (None, 10)
    assert spark.table(f"{shop}.orders").count() == 19, "dropped by another program, and there again"


def test_table_with_catalog_managed_commits_is_refused_by_its_location(tmp_path: Path, spark: SparkSession) -> None:
    """As Unity Catalog makes managed tables; Delta reads them by their name only."""
    staging = Staging.below(tmp_path)
    staging.flush(0, 0, 10)
    both = ["catalogManaged", "vacuumProtocolCheck"]
    features = {"readerFeatures": both, "writerFeatures": [*both, "inCommitTimestamp"]}
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": staging.schema(),
        "partitionColumns": ["day"],
        "configuration": {"delta.enableInCommitTimestamps": "true"},
    }
    actions = [
        {"commitInfo": {"timestamp": 1, "inCommitTimestamp": 1, "operation": "CREATE TABLE"}},
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"metaData": metadata},
    ]
    commit = staging.store(f"{staging.table}/_delta_log")
    commit.create(f"{0:020d}.json", "".join(json.dumps(action) + "\n" for action in actions).encode())
    failure = load(staging, spark, {}).failure
    assert isinstance(failure, TableError)
    assert "its catalog makes its commits" in failure.problem
    assert failure.remedy == "load into an external table of the catalog"
    state = read_table_state(staging.store(staging.table))
    assert state is not None
    way = choose_load_mode(state)
    assert isinstance(way, Refused), "and a check, which has no Spark, says the same"
    assert failure.problem.endswith(way.reason)
    assert [item.path for item in commit.list("")] == [f"{0:020d}.json"]


def test_both_programs_work_with_a_metastore(tmp_path: Path, programs: Programs) -> None:
    """Two programs, which are two processes, know one Hive metastore; the writer's side needs none."""
    staging = Staging.below(tmp_path)
    staging.flush(0, 0, 10)
    spark = {
        "spark.master": "local[2]",
        "spark.sql.warehouse.dir": f"{tmp_path}/warehouse",
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.hadoop.hive.metastore.schema.verification": "false",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={tmp_path}",
    }
    stream: dict[str, object] = {"app_id": "orders", "topics": ["orders"], "table": "default.orders", **DECLARED}
    stream["catalog_tables"] = {"default.orders": staging.table}
    content = {
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "stage": {"url": staging.stage_url},
        "loader": {"http": None, "spark": spark},
        "streams": [stream],
    }
    config = programs.config(content)
    assert "orders: done, 1 commit, 1 file, 10 rows" in programs.succeed("delta-loader", "run", config, "--once")
    [document] = json.loads(programs.succeed("delta-loader", "status", config, "--json"))["streams"]
    assert (document["table"], document["catalog_table"]) == (staging.table, "default.orders")
    assert "version 1 " in programs.succeed(
        "delta-loader", "explain", config, "--version", "1", "--table", "default.orders"
    )

    stream["catalog_tables"] = {"default.orders": f"{tmp_path}/tables/others"}
    done = programs.run("delta-loader", "check", programs.config(content, "others.yaml"), "--json")
    assert done.returncode == 2
    [check_found] = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "catalog"]
    assert "default.orders is located at file:" in check_found["message"]
    assert "streams[].catalog_tables says" in check_found["message"]
