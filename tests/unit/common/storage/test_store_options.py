"""What fsspec is told besides the storage options."""

import fsspec
import pytest

from common.errors import StoreError, StoreRefusedError
from common.storage.store import FsspecStore, client_options

HERE = {"AWS_REGION": "eu-central-1"}


@pytest.mark.parametrize(
    ("url", "options", "environ", "told"),
    [
        pytest.param(
            "s3a://lake/stage", {"key": "k"}, HERE, {"client_kwargs": {"region_name": "eu-central-1"}}, id="s3"
        ),
        pytest.param(
            "s3://lake",
            {"client_kwargs": {"verify": "/ca.pem"}},
            HERE,
            {"client_kwargs": {"verify": "/ca.pem", "region_name": "eu-central-1"}},
            id="beside other options",
        ),
        pytest.param("s3://lake", {"client_kwargs": {"region_name": "eu-west-1"}}, HERE, {}, id="given by the config"),
        pytest.param("s3://lake", {"config_kwargs": {"region_name": "eu-west-1"}}, HERE, {}, id="given otherwise"),
        pytest.param("s3://lake", {"key": "k"}, {"AWS_DEFAULT_REGION": "eu-west-1"}, {}, id="what the client knows"),
        pytest.param("gs://lake", {"token": "t"}, HERE, {}, id="another store"),
    ],
)
def test_the_region_of_the_environment_reaches_the_s3_client(
    url: str, options: dict[str, object], environ: dict[str, str], told: dict[str, object]
) -> None:
    assert client_options(url, options, environ) == {**options, **told}


def test_a_client_that_cannot_start_is_an_error_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: object, **__: object) -> None:
        msg = "Unable to load libjvm\ndlopen(/usr/lib/libjvm.so) failed"
        raise OSError(msg)

    monkeypatch.setattr(fsspec, "url_to_fs", unable)
    with pytest.raises(StoreError) as raised:
        FsspecStore("hdfs://name/x")
    assert raised.value.problem == "no store can be opened for hdfs://name/x: Unable to load libjvm"


@pytest.mark.parametrize(
    ("options", "problem", "remedy"),
    [
        ({"keyy": "k"}, "has 'keyy'", "did you mean 'key'?"),
        ({"client_kwargs": {"endpoint": "http://localhost:1"}}, "has 'endpoint'", "did you mean 'endpoint_url'?"),
        ({"config_kwargs": {"zzz": 1}}, "has 'zzz'", "remove it"),
        ({"endpoint_url": "localhost:1"}, "Invalid endpoint: localhost:1", "write endpoint_url as a URL"),
    ],
)
def test_options_that_the_client_does_not_take_are_named(options: dict[str, object], problem: str, remedy: str) -> None:
    """A supervisor would start the program again and again, as for a store that is away."""
    store = FsspecStore("s3://lake/stage", {"key": "k", "secret": "s", **options})
    with pytest.raises(StoreRefusedError, match=problem) as raised:
        list(store.list("done/"))
    assert raised.value.remedy.startswith(remedy)
