"""Two drivers on one Delta log in S3. A proxy forces the race: each has read the same version before either writes."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.downloads import cache_folder
from common.errors import BuildError, StoreError, UnsafeStoreError
from common.storage.store import FsspecStore
from common.tables.commit_metadata import CommitMetadata
from delta_loader.spark.bridge_jar import NAME, ensure_bridge_jar, sources
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.spark.log_store import Probes, prove_log_stores
from devservices.proxy import LoseAnswer, Pass, Proxy, Refuse, Request, Verdict, running_proxy
from tests.conftest import Lake
from tests.fakes.loading import loader_for
from tests.fakes.staging import DECLARED, Staging
from tests.integration import in_process
from tests.integration.conftest import Programs
from tests.session import reach

pytestmark = [pytest.mark.spark, pytest.mark.s3]

DELTAS_OWN = "io.delta.storage.S3SingleDriverLogStore"  # Delta's default for s3a
PATIENCE_S = 600
CONDITION = frozenset({"if-none-match"})
COMMIT = re.compile(r"/_delta_log/(\d{20})\.json$")


class Meeting:
    """Holds the writes of some versions back until two drivers have come to write the same one."""

    def __init__(self, versions: range) -> None:
        self.came: dict[int, set[str]] = {version: set() for version in versions}
        self.changed = threading.Condition()

    def __call__(self, request: Request) -> Verdict:
        version = written_version(request)
        if version is not None and version in self.came:
            with self.changed:
                # By content: a driver that tries again while it is held is not the other one.
                self.came[version].add(request.content_sha256)
                self.changed.notify_all()
                self.changed.wait_for(partial(self._met, version), PATIENCE_S)
        return Pass()

    def _met(self, version: int) -> bool:
        return len(self.came[version]) > 1


@dataclass
class Script:
    """Gives the writes of one version the verdicts named here, in turn, and lets everything else pass."""

    verdicts: dict[int, list[Verdict]]

    def __call__(self, request: Request) -> Verdict:
        version = written_version(request)
        left = self.verdicts.get(-1 if version is None else version)
        return left.pop(0) if left else Pass()


def written_version(request: Request) -> int | None:
    match = COMMIT.search(request.path) if request.method == "PUT" else None
    return int(match[1]) if match else None


@pytest.fixture
def proxy(lake: Lake) -> Iterator[Proxy]:
    assert lake.server is not None
    with running_proxy(lake.server.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def bucket(lake: Lake, proxy: Proxy, spark: SparkSession) -> str:
    """A bucket of its own, which this process's Spark reaches through the proxy."""
    assert lake.server is not None
    bucket = uuid.uuid4().hex
    lake.server.create_bucket(bucket)
    reach(spark, replace(lake.server, endpoint_url=proxy.endpoint_url), bucket)
    return bucket


@pytest.fixture
def orders(lake: Lake) -> Staging:
    return Staging(lake.url, "orders", storage_options=dict(lake.storage_options))


@pytest.fixture
def returns(lake: Lake) -> Staging:
    return Staging(lake.url, "returns", app_id="returns", storage_options=dict(lake.storage_options))


@pytest.fixture
def config(programs: Programs, proxy: Proxy) -> Callable[..., Path]:
    """A loader's config for staged streams, whose store is reached through the proxy."""

    def config(*stagings: Staging, **spark: str) -> Path:
        staging = stagings[0]
        streams = [
            {"app_id": staging.topic, "topics": [staging.topic], "table": staging.table, **DECLARED}
            for staging in stagings
        ]
        options = {**staging.storage_options, "endpoint_url": proxy.endpoint_url}
        spark = {"spark.master": "local[1]", **spark}
        settings = {
            "kafka": {"bootstrap.servers": "127.0.0.1:9"},
            "stage": {"url": staging.stage_url, "storage_options": options},
            # Without a lease: what is under test must hold where it fails to keep two loaders apart.
            "loader": {"http": None, "lease": "0s", "spark": spark},
            "streams": streams,
        }
        return programs.config(settings, f"{uuid.uuid4().hex}.yaml")

    return config


only_s3 = pytest.mark.parametrize("lake", ["moto", "versitygw"], indirect=True)
_MOTO_AT_NIGHT = pytest.param("moto", marks=pytest.mark.nightly)
on_versitygw = pytest.mark.parametrize("lake", [_MOTO_AT_NIGHT, "versitygw"], indirect=True)
only_moto = pytest.mark.parametrize("lake", ["moto"], indirect=True)  # it checks no signatures


@on_versitygw
def test_two_loaders_of_one_table_lose_and_double_nothing(  # noqa: PLR0917 - fixtures
    lake: Lake,
    bucket: str,
    programs: Programs,
    proxy: Proxy,
    config: Callable[..., Path],
    spark: SparkSession,
) -> None:
    """One is a process, and the other is here: each has a Spark of its own."""
    orders, returns = (
        Staging(f"s3://{bucket}", app_id, app_id=app_id, storage_options=dict(lake.storage_options))
        for app_id in ("orders", "returns")
    )
    orders.flush(0, 0, 20)
    returns.flush(0, 100, 130)
    # Both make the table. Then each has another stream's load for the same version, and who was first goes on to the
    # other's stream: both have the same load for the next one.
    proxy.policy = Meeting(range(3))

    with ThreadPoolExecutor(1) as pool:
        child = programs.start("delta-loader", "run", config(orders, returns), "--once")
        here = pool.submit(in_process.load_all, config(returns, orders), spark)
        assert child.process.wait(2 * PATIENCE_S) == 0, child.log.read_text()
        reports = {report.app_id: report for report in here.result(2 * PATIENCE_S)}

    for app_id, count in (("orders", 20), ("returns", 30)):
        report = reports[app_id]
        assert (report.failure, report.held) == (None, {})
        loaded_here = (report.commits, report.files, report.rows) == (1, 1, count)
        loaded_there = f"{app_id}: done, 1 commit, 1 file, {count} rows" in child.log.read_text()
        assert loaded_here != loaded_there, (report, child.log.read_text())
    assert [set(statuses(proxy, version)) for version in range(3)] == [{200, 412}] * 3
    assert len(log(orders)) == 3
    assert transactions(orders) == [("orders-0", 19), ("returns-0", 129)]
    assert rows(orders) == [*(("orders", n) for n in range(20)), *(("returns", n) for n in range(100, 130))]


@only_moto
@pytest.mark.nightly  # of Delta, and not of anything of ours
def test_deltas_own_log_store_loses_an_acknowledged_commit(
    orders: Staging, returns: Staging, programs: Programs, proxy: Proxy, config: Callable[..., Path]
) -> None:
    """Why there is another one. It fails when Delta has learned to write under a condition; then ours may go."""
    orders.flush(0, 0, 20)
    returns.flush(0, 100, 130)
    make_table(orders)
    proxy.policy = Meeting(range(1, 2))
    unsafe = {"spark.delta.logStore.s3a.impl": DELTAS_OWN}

    outputs = run_at_once(programs, config(orders, **unsafe), config(returns, **unsafe))

    assert ["done, 1 commit," in output for output in outputs] == [True, True]
    assert set(statuses(proxy, 1)) == {200}
    assert len(transactions(orders)) == 1
    assert len(rows(orders)) in (20, 30)


@pytest.mark.in_turn("the answer to a commit is lost")
@only_s3
def test_commit_whose_answer_was_lost_is_told_and_made_once(
    lake: Lake, bucket: str, proxy: Proxy, spark: SparkSession
) -> None:
    orders = Staging(f"s3://{bucket}", "orders", storage_options=dict(lake.storage_options))
    orders.flush(0, 0, 20)
    conflict = Refuse(409, "ConditionalRequestConflict")
    proxy.policy = Script({0: [LoseAnswer()], 1: [conflict, conflict, LoseAnswer()]})

    [report] = loader_for(orders, SparkDeltaTables(spark, SystemClock())).run_pass()

    assert (report.failure, report.commits, report.files, report.rows) == (None, 1, 1, 20)
    # The S3 client tried again and was refused because of its own commit.
    assert statuses(proxy, 0) == [200, 412]
    assert statuses(proxy, 1) == [None, None, 200, 412]
    assert len(log(orders)) == 2
    assert len(commit_ids(orders)) == 1
    assert rows(orders) == [("orders", n) for n in range(20)]


class Deadly:
    """Loses the answer to one write, and ends the process when it asks again."""

    def __init__(self, ending: str, kill: Callable[[], None]) -> None:
        self._ending, self._kill, self._lost = ending, kill, False

    def __call__(self, request: Request) -> Verdict:
        if request.method != "PUT" or not request.path.endswith(self._ending):
            return Pass()
        if not self._lost:
            self._lost = True
            return LoseAnswer()
        self._kill()
        return Refuse(503, "SlowDown")


@pytest.mark.in_turn("a loader is killed before it hears of its commit")
@pytest.mark.parametrize(("table", "version"), [("orders", 0), ("orders_dead_letters", 1)])
@pytest.mark.parametrize("lake", ["versitygw"], indirect=True)
def test_loader_killed_before_it_hears_of_a_commit_loads_once(  # noqa: PLR0917 - fixtures
    orders: Staging,
    programs: Programs,
    proxy: Proxy,
    config: Callable[..., Path],
    spark: SparkSession,
    table: str,
    version: int,
) -> None:
    """Its answer is lost, and then the process is: after it made the table, or after the dead letters' commit."""
    orders.flush(0, 0, 20, dead=[7])
    file = config(orders)
    child = programs.start("delta-loader", "run", file, "--once")
    proxy.policy = Deadly(f"/{table}/_delta_log/{version:020}.json", child.process.kill)
    assert child.process.wait(3 * PATIENCE_S) == -signal.SIGKILL, child.log.read_text()
    proxy.policy = lambda _request: Pass()

    assert in_process.load(file, spark).failure is None

    assert [len(log(orders, table)) for table in (orders.table, orders.dead_letters)] == [2, 2]
    assert rows(orders) == [("orders", offset) for offset in range(20) if offset != 7]
    assert rows(orders, orders.dead_letters) == [("orders", 7)]


@only_moto
def test_store_that_ignores_conditions_is_refused_at_start_up(
    orders: Staging, programs: Programs, proxy: Proxy, config: Callable[..., Path]
) -> None:
    orders.flush(0, 0, 20)
    # Only below the tables, so that Spark's client finds it: the stage's own is asked first and would refuse as well.
    proxy.policy = lambda request: Pass(without=CONDITION if "/tables/" in request.path else frozenset())

    done = programs.run("delta-loader", "run", config(orders), "--once")

    assert done.returncode == 2, done.stderr
    assert f"two loaders could write the same commit of {orders.table}" in done.stderr
    assert "(one after the other, 4 of 4 at the same time, as multipart uploads)" in done.stderr
    assert "If-None-Match" in done.stderr
    assert "Traceback" not in done.stderr
    assert log(orders) == []
    assert list(orders.store(orders.table).list("_probe")) == []


@pytest.fixture
def probes(bucket: str, spark: SparkSession) -> Probes:
    return Probes(spark.sparkContext, f"s3a://{bucket}")


@only_s3
def test_create_ends_in_what_is_true(probes: Probes, proxy: Proxy) -> None:
    conflict = Refuse(409, "ConditionalRequestConflict")

    def first(*verdicts: Verdict) -> None:
        left = list(verdicts)
        proxy.policy = lambda request: left.pop(0) if left and "if-none-match" in request.headers else Pass()

    first(LoseAnswer())
    assert probes.create("lost", "ours")
    assert proxy.statuses("PUT", "/lost") == [200, 412]
    assert not probes.create("lost", "theirs")

    first(conflict, conflict)
    assert probes.create("conflict", "ours")
    assert proxy.statuses("PUT", "/conflict") == [None, None, 200]
    first(conflict)
    assert not probes.create("conflict", "theirs")

    # The client asks to complete an upload that is complete: another error, and the same truth.
    first(LoseAnswer())
    assert probes.create_in_parts("parts", "ours")
    assert proxy.statuses("POST", "/parts")[:2] == [200, 200]
    assert not probes.create_in_parts("parts", "theirs")


@only_s3
def test_what_never_arrives_is_an_error_and_no_refusal(probes: Probes, proxy: Proxy) -> None:
    proxy.policy = lambda request: Refuse(403, "AccessDenied") if request.method == "PUT" else Pass()
    with pytest.raises(StoreError, match="AccessDenied"):
        probes.create("denied", "ours")


@only_moto
def test_proof_looks_at_each_way_of_writing(probes: Probes, proxy: Proxy, spark: SparkSession, lake: Lake) -> None:
    url = probes.folder.replace("s3a://", "s3://")

    def prove() -> None:
        prove_log_stores(spark, [url], lambda url: FsspecStore(url, lake.storage_options))

    prove()
    for method, ways in (("PUT", "one after the other, 4 of 4 at the same time"), ("POST", "as multipart uploads")):
        proxy.policy = partial(_careless, method)
        with pytest.raises(UnsafeStoreError, match=rf"\({ways}\)"):
            prove()


def _careless(method: str, request: Request) -> Verdict:
    return Pass(without=CONDITION if request.method == method else frozenset())


def test_jar_is_built_once_and_the_same_everywhere(tmp_path: Path) -> None:
    cache = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "a")}
    cache_folder(cache).mkdir(parents=True)
    (cache_folder(cache) / "jars").symlink_to(cache_folder() / "jars")
    with ThreadPoolExecutor(2) as pool:
        first, again = pool.map(ensure_bridge_jar, [cache, cache])
    other = ensure_bridge_jar()
    assert first == again != other
    assert first.relative_to(cache_folder(cache)) == other.relative_to(cache_folder())
    assert first.read_bytes() == other.read_bytes()
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    # What is built needs no compiler any more; and what is not says so.
    assert ensure_bridge_jar({"XDG_CACHE_HOME": str(tmp_path / "a"), "PATH": ""}) == first
    with pytest.raises(BuildError, match=r"(?s)no javac in .*install a JDK 17"):
        ensure_bridge_jar({"XDG_CACHE_HOME": str(tmp_path / "c"), "JAVA_HOME": "/nowhere"})


def test_wheel_brings_the_jar_and_its_sources(tmp_path: Path) -> None:
    root, jar = Path(__file__).parents[2], ensure_bridge_jar()
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=root, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(f"delta_loader/java/{NAME}") == jar.read_bytes()
        assert {source.relative_to(root).as_posix() for source in sources()} <= set(archive.namelist())


def run_at_once(programs: Programs, *configs: Path) -> list[str]:
    """What the loaders print; each must end in 0."""
    children = [programs.start("delta-loader", "run", config, "--once") for config in configs]
    ends = [child.process.wait(2 * PATIENCE_S) for child in children]
    outputs = [child.log.read_text() for child in children]
    assert ends == [0] * len(ends), "\n".join(outputs)
    return outputs


def statuses(proxy: Proxy, version: int) -> list[int | None]:
    """What the server answered to the writes of one version of the table; None where it was not asked."""
    return proxy.statuses("PUT", f"/tables/orders/_delta_log/{version:020}.json")


def log(staging: Staging, table: str | None = None) -> list[list[dict[str, dict[str, object]]]]:
    store = staging.store(table or staging.table)
    paths = sorted(item.path for item in store.list("_delta_log") if COMMIT.search(f"/{item.path}"))
    return [[json.loads(line) for line in (store.read(path) or b"").splitlines()] for path in paths]


def transactions(staging: Staging) -> list[tuple[object, object]]:
    transactions_of_log = [action["txn"] for commit in log(staging) for action in commit if "txn" in action]
    return sorted((txn["appId"], txn["version"]) for txn in transactions_of_log)


def commit_ids(staging: Staging) -> list[str]:
    texts = [action["commitInfo"].get("userMetadata") for commit in log(staging) for action in commit[:1]]
    metadata_of_commits = [CommitMetadata.from_json(str(text)) for text in texts if text]
    return [metadata.commit_id for metadata in metadata_of_commits if metadata is not None]


def rows(staging: Staging, table: str | None = None) -> list[tuple[object, object]]:
    """Topic and offset of each row of each file that the log adds."""
    store = staging.store(table or staging.table)
    files = [str(action["add"]["path"]) for commit in log(staging, table) for action in commit if "add" in action]
    tables = [pq.read_table(pa.BufferReader(store.read(unquote(path)))) for path in files]
    rows_of_tables = [row for table in tables for row in table.select(["_kafka_topic", "_kafka_offset"]).to_pylist()]
    return sorted((row["_kafka_topic"], row["_kafka_offset"]) for row in rows_of_tables)


def make_table(staging: Staging) -> None:
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": staging.schema(),
        "partitionColumns": list(staging.partition_by),
        "configuration": {},
        "createdTime": staging.created_ms,
    }
    actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    text = "".join(json.dumps(action) + "\n" for action in actions)
    staging.store(staging.table).write(f"_delta_log/{0:020}.json", text.encode())
