"""What Spark is told, and when the loader runs."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from common.settings import Settings
from delta_loader.scheduling.schedule import Schedule
from delta_loader.spark.bridge import spark_url, with_cause
from delta_loader.spark.log_store import CLASS, LOCAL_CLASS, is_ours
from delta_loader.spark.session import jar_groups, s3_options, session_options
from delta_loader.spark.trust import authorities_of
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
