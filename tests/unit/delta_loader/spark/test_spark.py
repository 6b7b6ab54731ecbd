"""The options, jars, libraries and authorities that Spark and its Java get, and what others can read of them."""

import ctypes
import json
import os
import platform
import stat
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pyspark
import pytest
from packaging.requirements import Requirement

from common.downloads import read_lock
from common.errors import BuildError
from common.settings import Settings
from delta_loader.scheduling.schedule import Schedule
from delta_loader.spark import trust
from delta_loader.spark.bridge import spark_url, with_cause
from delta_loader.spark.bridge_jar import built_jar
from delta_loader.spark.launch import launch_options
from delta_loader.spark.log_store import CLASS, LOCAL_CLASS, is_ours
from delta_loader.spark.native_codecs import codec_options
from delta_loader.spark.pairs import LOCK, installed, is_release, locked_jars
from delta_loader.spark.session import jar_groups, s3_options, session_options
from delta_loader.spark.trust import authorities_of
from devservices.bill_of_jars import main
from devservices.spark_pairs import OLDER_PAIRS
from tests.builders import settings_of


class JavaError:
    """A Java exception, as py4j shows it."""

    def __init__(self, text: str, cause: "JavaError | None" = None) -> None:
        self.text, self.cause = text, cause

    def toString(self) -> str:  # noqa: N802 - Java's name
        return self.text

    def getCause(self) -> "JavaError | None":  # noqa: N802 - Java's name
        return self.cause


@pytest.mark.parametrize("attribute", ["java_exception", "_origin"])
@pytest.mark.parametrize(
    ("causes", "end"),
    [
        ([], "Encountered error while reading file x"),
        (["a.TaskFailed: x", "b.AccessDenied: x: 403\n\tat"], "reading file x; caused by b.AccessDenied: x: 403"),
        (["a.TaskFailed", "reading file x"], "Encountered error while reading file x"),
    ],
)
def test_error_of_a_write_ends_with_what_the_store_said(attribute: str, causes: list[str], end: str) -> None:
    java = None
    for text in reversed(["Encountered error while reading file x\n\tat", *causes]):
        java = JavaError(text, java)
    error = RuntimeError("Encountered error while reading file x")
    setattr(error, attribute, java)
    assert with_cause(error).endswith(end)


NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
S3A = "spark.hadoop.fs.s3a."
LOG_STORE = "spark.delta.logStore."


def settings(spark: dict[str, object] | None = None, table: str = "/lake/t") -> Settings:
    return settings_of(
        {"app_id": "a", "topics": ["t"], "table": table, "columns": "a INT"},
        folder="/lake",
        loader={"spark": spark or {}},
    )


CLUSTER: dict[str, object] = {"spark.master": "spark://m:7077"}
HEARTBEAT = "spark.executor.heartbeatInterval"


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        ({"spark.sql.session.timeZone": "CET"}, "spark.sql.session.timeZone", "CET"),
        ({"spark.ui.enabled": True}, "spark.ui.enabled", "true"),
        ({}, "spark.sql.variable.substitute", "false"),  # no text of a table or a record is taken for a template
        ({}, "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"),  # as the writers' files
        ({}, "spark.driver.bindAddress", "127.0.0.1"),
        (CLUSTER, "spark.driver.bindAddress", None),
        ({}, HEARTBEAT, "100s"),  # within one process they wait for a slow start
        ({"spark.network.timeout": "60s"}, HEARTBEAT, None),  # Spark refuses a longer one
        (CLUSTER, HEARTBEAT, None),
    ],
)
def test_session_options_of_the_user_override_defaults(options: dict[str, object], key: str, value: str | None) -> None:
    assert session_options(settings(options), [], {}).get(key) == value


def test_jars_of_the_user_are_added() -> None:
    options = session_options(settings({"spark.jars": "/opt/mine.jar"}), [Path("/cache/delta.jar")], {})
    assert options["spark.jars"] == "file:///cache/delta.jar,/opt/mine.jar"


def test_s3_jars_are_fetched_for_s3_only() -> None:
    assert jar_groups(settings()) == ["delta"]
    assert jar_groups(settings(table="s3://lake/t")) == ["delta", "s3"]
    assert spark_url("s3://lake/t") == "s3a://lake/t"
    assert spark_url("file:///lake/t") == "file:///lake/t"


def test_schemes_have_conditional_log_stores_unless_the_user_names_others() -> None:
    def chosen(spark: dict[str, object] | None = None) -> dict[str, str]:
        options = session_options(settings(spark), [], {})
        return {key.removeprefix(LOG_STORE): value for key, value in options.items() if key.startswith(LOG_STORE)}

    assert chosen() == {"file.impl": LOCAL_CLASS, "s3.impl": CLASS, "s3a.impl": CLASS, "s3n.impl": CLASS}
    assert chosen({f"{LOG_STORE}s3a.impl": "a.Dynamo"})["s3a.impl"] == "a.Dynamo"
    assert chosen({f"{LOG_STORE}file.impl": "a.Local"})["file.impl"] == "a.Local"
    # Delta refuses one for all schemes together with one for a scheme.
    assert chosen({f"{LOG_STORE}class": "a.Store"}) == {"class": "a.Store"}
    assert is_ours({})
    assert is_ours({f"{LOG_STORE}gs.impl": "a.Store"})
    assert not is_ours({f"{LOG_STORE}s3a.impl": "a.Dynamo"})
    assert not is_ours({f"{LOG_STORE}class": "a.Store"})
    assert is_ours({f"{LOG_STORE}s3a.impl": "a.Dynamo"}, "file")
    assert not is_ours({f"{LOG_STORE}file.impl": "a.Local"}, "file")
    assert not is_ours({f"{LOG_STORE}class": "a.Store"}, "file")


def test_s3_is_reached_as_fsspec_reaches_it() -> None:
    options = s3_options(
        {"key": "k", "secret": "s", "token": "t", "client_kwargs": {"endpoint_url": "http://h:1", "region_name": "r"}},
        {},
    )
    s3a = {key.removeprefix(S3A): value for key, value in options.items() if key.startswith(S3A)}
    assert s3a.pop("aws.credentials.provider").split(",")[0].endswith(".TemporaryAWSCredentialsProvider")
    assert s3a == {
        "access.key": "k",
        "secret.key": "s",
        "session.token": "t",
        "endpoint": "http://h:1",
        "endpoint.region": "r",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }


@pytest.mark.parametrize(
    ("given", "environ", "key", "value"),
    [
        ({"anon": True}, {}, "aws.credentials.provider", "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"),
        ({"profile": "p"}, {}, "auth.profile.name", "p"),
        ({}, {}, "aws.credentials.provider", "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"),
        ({}, {"AWS_ENDPOINT_URL": "http://e:1"}, "endpoint", "http://e:1"),
        ({}, {"AWS_DEFAULT_REGION": "eu-west-1"}, "endpoint.region", "eu-west-1"),
        ({"endpoint_url": "https://e"}, {}, "connection.ssl.enabled", "true"),
    ],
)
def test_credentials_and_endpoints_come_from_where_fsspec_takes_them(
    given: dict[str, object], environ: dict[str, str], key: str, value: str
) -> None:
    assert s3_options(given, environ)[f"{S3A}{key}"].split(",")[-1] == value


def test_certificate_authority_is_that_of_the_fsspec_client() -> None:
    assert authorities_of({}, {}) is None
    assert authorities_of({"client_kwargs": {"verify": True}}, {}) is None
    assert authorities_of({}, {"AWS_CA_BUNDLE": "/a.pem"}) == Path("/a.pem")
    assert authorities_of({"client_kwargs": {"verify": "/b.pem"}}, {"AWS_CA_BUNDLE": "/a.pem"}) == Path("/b.pem")


def test_interval_counts_from_the_start_of_a_run() -> None:
    schedule = Schedule("15m")
    assert schedule.next_after(NOON, NOON + timedelta(minutes=2)) == NOON + timedelta(minutes=15)
    assert schedule.next_after(NOON, NOON + timedelta(minutes=40)) == NOON + timedelta(minutes=40)


def test_cron_line_is_in_utc() -> None:
    assert Schedule("*/10 * * * *").next_after(NOON, NOON + timedelta(minutes=1)) == NOON + timedelta(minutes=10)


def test_folders_of_processes_that_are_gone_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f"delta-loader-authorities-{number}-x" for number in (ended.pid, os.getpid(), os.getppid())]
    for name in [*names, "delta-loader-authorities-of-mine"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "authorities.p12").touch()
    trust._delete_left()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names[2], "delta-loader-authorities-of-mine"])


JAVA = "spark.driver.extraJavaOptions"


def test_command_line_has_only_options_that_java_needs_at_start() -> None:
    needed = {"spark.master": "local[2]", "spark.driver.memory": "2g", "spark.jars": "/a.jar", JAVA: "-Xss4m"}
    told_later = {
        "spark.hadoop.fs.s3a.encryption.key": "hunter2",
        "spark.hadoop.fs.s3a.some.name": "hunter2",
        "spark.sql.extensions": "a.B",
        "spark.jars.repositories": "https://ada:hunter2@jars",
    }
    with launch_options({**needed, **told_later}, {}) as launched:
        assert launched == needed


def test_options_that_java_needs_at_start_may_come_from_the_environment() -> None:
    given = {"spark.driver.memory": "2g", "spark.jars.repositories": "https://hunter2@jars"}
    with launch_options(given, {"2g", "hunter2"}) as launched:
        assert launched == {"spark.driver.memory": "2g"}


@pytest.mark.parametrize("hidden", [{"hunter 2"}, set()])
def test_java_options_with_a_secret_are_in_a_file_of_this_user_until_java_runs(hidden: set[str]) -> None:
    options = {JAVA: "-Xss4m '-Dx.password=hunter 2' -Dpath=C:\\\\x"}
    with launch_options(options, hidden) as launched:
        assert launched[JAVA].startswith("@")
        file = Path(launched[JAVA][1:])
        assert stat.S_IMODE(file.stat().st_mode) == stat.S_IRUSR | stat.S_IWUSR
        assert file.read_text("utf-8") == '"-Xss4m"\n"-Dx.password=hunter 2"\n"-Dpath=C:\\\\x"\n'
    assert not file.exists()


pytestmark = pytest.mark.skipif(
    (platform.system(), platform.machine()) not in {("Linux", "x86_64"), ("Linux", "aarch64")},
    reason="Java unpacks them by itself here",
)


def given(environ: dict[str, str]) -> dict[str, str]:
    return dict(option.removeprefix("-D").split("=", 1) for option in codec_options(environ))


def test_native_libraries_can_be_loaded_and_read_by_any_user(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    options = given(environ)
    libraries = [
        Path(options["org.xerial.snappy.lib.path"]) / options["org.xerial.snappy.lib.name"],
        Path(options["ZstdNativePath"]),
    ]
    for library in libraries:
        assert library.is_relative_to(tmp_path)
        assert library.stat().st_mode & 0o777 == 0o644
        ctypes.CDLL(str(library))
    written_ns = [library.stat().st_mtime_ns for library in libraries]
    assert given(environ) == options
    assert [library.stat().st_mtime_ns for library in libraries] == written_ns
    assert len(list(tmp_path.rglob("*.*"))) == len(libraries)


def test_java_does_as_ever_where_there_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert codec_options({"XDG_CACHE_HOME": str(tmp_path / "file")}) == ()


PROJECT = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text("utf-8"))["project"]
OLDER = [(pair.delta.version, pair.spark.version) for pair in OLDER_PAIRS]


@pytest.mark.parametrize(("delta", "spark"), [(version("delta-spark"), version("pyspark")), *OLDER])
def test_supported_pair_has_its_jars_and_may_be_installed(delta: str, spark: str) -> None:
    jars = locked_jars(delta, spark)
    assert [jar.version for jar in jars["delta"] if jar.artifact.startswith("delta-spark_")] == [delta]
    assert any(jar.artifact == "hadoop-aws" for jar in jars["s3"])
    extra = {
        requirement.name: requirement.specifier
        for requirement in map(Requirement, PROJECT["optional-dependencies"]["delta-loader"])
    }
    assert extra["delta-spark"].contains(delta)
    assert extra["pyspark"].contains(spark)
    assert is_release(delta) is ((delta, spark) not in OLDER)


def test_unsupported_pair_is_refused_with_the_supported_ones() -> None:
    pairs = r"4\.3\.1 with pyspark 4\.1, delta-spark 4\.2\.0 with pyspark 4\.1"
    for delta, spark in (("4.3.0", "4.1.1"), ("4.4.0", "4.1.1"), ("4.3.1", "4.2.0"), ("4.2.0", "4.10.0")):
        with pytest.raises(BuildError, match=pairs) as refused:
            locked_jars(delta, spark)
        assert f"delta-spark {delta} with pyspark {spark} is installed" in refused.value.problem
        assert refused.value.remedy == f"run pip install delta-spark=={version('delta-spark')} 'pyspark==4.2.*'"


def test_missing_package_means_the_locked_delta_version(monkeypatch: pytest.MonkeyPatch) -> None:
    release = version("delta-spark")
    assert installed() == (release, version("pyspark"))

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert installed() == (release, pyspark.__version__)
    monkeypatch.setitem(sys.modules, "pyspark.version", None)
    with pytest.raises(BuildError, match="needs pyspark, which is not installed"):
        installed()


def test_each_delta_version_has_its_own_cached_jar() -> None:
    jars = {built_jar({}), *(built_jar({}, delta) for delta, _ in OLDER)}
    assert len(jars) == 1 + len(OLDER)


def test_bill_of_materials_has_each_jar_of_the_image_once(tmp_path: Path) -> None:
    bill = tmp_path / "bill.json"
    package = {"name": "pyspark", "purl": "pkg:pypi/pyspark@4.2.0"}
    bill.write_text(json.dumps({"bomFormat": "CycloneDX", "components": [package, {"name": "no purl"}]}), "utf-8")
    main(bill)
    main(bill)
    written = json.loads(bill.read_text("utf-8"))
    assert written["bomFormat"] == "CycloneDX"
    assert written["components"][:2] == [package, {"name": "no purl"}]
    jars = {component["purl"]: component["hashes"][0]["content"] for component in written["components"][2:]}
    locked = [jar for group in read_lock(LOCK).values() for jar in group]
    assert len(written["components"]) == 2 + len(locked)
    assert jars == {f"pkg:maven/{jar.group}/{jar.artifact}@{jar.version}": jar.sha256 for jar in locked}
    assert "pkg:maven/io.delta/delta-spark_4.2_2.13@4.4.0" in jars
