"""Which URLs both programs accept, and the error messages for others."""

import re
from pathlib import Path

import fsspec
import pytest

from common.errors import ConfigError
from common.settings.stores import stage_store
from common.storage.store import normalized
from common.tables.urls import comparable, require_url
from tests.unit.common.settings.test_settings import parse, with_section, with_stream

GOOD = [
    "/data/orders",
    "/data/orders/",
    "/data/with space/orders.v2",
    "file:///data/orders",
    "file:/data/orders",
    "s3://lake/orders",
    "s3://lake",
    "s3a://lake/tables/a=b/100%",
    "gs://lake/orders",
    "abfss://lake@account.dfs.core.windows.net/orders",
    "hdfs:///data/orders",
    "hdfs://name:8020/data/orders",
    "memory://stage",
]
WRONG = {
    "s3:/lake/orders": "did you mean s3://lake/orders?",
    "s3//lake/orders": "did you mean s3://lake/orders?",
    "s3:lake/orders": "did you mean s3://lake/orders?",
    "s3:///lake/orders": "did you mean s3://lake/orders?",
    "ss3://lake/orders": "did you mean s3://lake/orders?",
    "S3://lake/orders": "did you mean s3://lake/orders?",
    "gs:/lake/orders": "did you mean gs://lake/orders?",
    "file://data/orders": "did you mean file:///data/orders?",
    "s3://lake//orders": "did you mean s3://lake/orders?",
    "//data/./orders": "did you mean /data/orders?",
    "s3://lake/tables/../orders": "write the whole path",
    "/": "write the whole path",
    "orders": "an absolute path such as /data/orders",
    "./lake/orders": "an absolute path such as /data/lake/orders",
    "~/orders": "an absolute path such as /data/orders",
    "dbfs:/orders": "unknown scheme 'dbfs'",
    "https://lake/orders": "unknown scheme 'https'",
    "C:\\lake": "unknown scheme 'C'",
    "s3://": "names no bucket",
    "s3://lake/{day}/orders": "holds { or }",
    "s3://lake/day}/orders": "holds { or }",
    " /data/orders": "white space",
    "/data/or\nders": "cannot be printed",
    "simplecache::s3://lake/orders": "chains file systems",
}


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("s3a://lake/t/", "s3://lake/t"), ("s3n://lake/t", "s3://lake/t"), ("s3://lake/t", "s3://lake/t"),
        ("gcs://lake/t", "gs://lake/t"), ("abfs://a@b.net/t", "abfss://a@b.net/t"), ("wasb://a@b/t/", "wasbs://a@b/t"),
        ("file:/lake/t", "/lake/t"), ("file:///lake/t/", "/lake/t"), ("/lake/t", "/lake/t"),
    ],
)  # fmt: skip
def test_spellings_of_one_location_are_comparable(url: str, same: str) -> None:
    assert comparable(url) == same


@pytest.mark.parametrize("url", GOOD)
def test_path_or_store_url_is_accepted_unchanged(url: str) -> None:
    assert require_url(url) == url


@pytest.mark.parametrize(("url", "message"), WRONG.items())
def test_other_urls_are_refused_with_a_suggestion(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        require_url(url)


@pytest.mark.parametrize("url", [url for url in GOOD if url.startswith(("/", "file:", "memory:"))])
def test_accepted_url_does_not_depend_on_the_working_directory(url: str) -> None:
    # The other schemes need extra fsspec packages or a server.
    _, root = fsspec.url_to_fs(normalized(url))
    assert root.rstrip("/").endswith(url.rstrip("/").partition(":")[2].lstrip("/") or url.strip("/"))
    assert root.startswith("/")


KEYS = {
    "stage.url": with_section(stage={"url": "s3:/lake/x"}),
    "table": with_stream(table="s3:/lake/x"),
    "dead_letters": with_stream(dead_letters="s3:/lake/x"),
    "routes.a": with_stream(route="city", routes={"a": "s3:/lake/x"}),
    "template": with_stream(template="s3:/lake/x"),
}


@pytest.mark.parametrize("key", KEYS)
def test_every_location_setting_follows_the_rule(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(key)}.*did you mean s3://lake/x\?") as caught:
        parse(KEYS[key])
    assert caught.value.exit_code == 2


def test_suggestion_hides_the_password() -> None:
    with pytest.raises(ConfigError, match=r"did you mean sftp://me:\*{8}@host/stage\?"):
        parse(with_section(stage={"url": "sftp:/me:pass-of-mine@host/stage"}))


def test_stage_that_a_link_puts_below_a_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "orders" / "inner").mkdir(parents=True)
    stage, table = tmp_path / "stage", f"file://{tmp_path}/orders"
    settings = parse(with_stream(table=table))
    settings = settings.model_copy(update={"stage": settings.stage.model_copy(update={"url": str(stage)})})
    stage_store(settings)
    stage.symlink_to(tmp_path / "orders" / "inner")
    with pytest.raises(ConfigError, match=r"by a symbolic link, stage\.url, .*inner, lies below streams\[\]\.table"):
        stage_store(settings)
