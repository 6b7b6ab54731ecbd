"""Claims of positions whose answers from a real S3 server are lost: the outcome is still reported correctly."""

import uuid
from collections.abc import Iterator

import pytest

from common.errors import StoreError
from common.ports import AlreadyExists, Created
from common.storage.store import FsspecStore
from devservices.proxy import LoseAnswer, Pass, Proxy, Refuse, Request, Verdict, running_proxy
from tests.conftest import Lake

pytestmark = [pytest.mark.s3, pytest.mark.parametrize("lake", ["moto", "versitygw"], indirect=True)]

MARKER = "done/orders/0/00000000000000000041.done"
OURS, THEIRS = b'{"writer":"ours"}', b'{"writer":"theirs"}'


@pytest.fixture
def proxy(lake: Lake) -> Iterator[Proxy]:
    assert lake.server is not None
    with running_proxy(lake.server.endpoint_url) as proxy:
        yield proxy


def through(proxy: Proxy, lake: Lake, **options: object) -> FsspecStore:
    return FsspecStore(f"{lake.url}/stage", {**lake.storage_options, "endpoint_url": proxy.endpoint_url, **options})


def first_writes(proxy: Proxy, *verdicts: Verdict) -> None:
    """Give the first writes these verdicts, and let the others pass."""
    left = list(verdicts)

    def policy(request: Request) -> Verdict:
        return left.pop(0) if left and request.method == "PUT" else Pass()

    proxy.policy = policy


def test_claim_retried_after_a_lost_answer_is_won(proxy: Proxy, lake: Lake) -> None:
    store = through(proxy, lake)
    first_writes(proxy, LoseAnswer())
    assert store.create(MARKER, OURS) == Created()
    assert proxy.statuses("PUT", MARKER) == [200, 412]
    assert store.create(MARKER, THEIRS) == AlreadyExists()
    assert store.read(MARKER) == OURS


def test_lost_claim_stays_lost_when_its_answer_is_lost(proxy: Proxy, lake: Lake) -> None:
    store = through(proxy, lake)
    assert store.create(MARKER, THEIRS) == Created()
    first_writes(proxy, LoseAnswer())
    assert store.create(MARKER, OURS) == AlreadyExists()
    assert proxy.statuses("PUT", MARKER) == [200, 412, 412]
    assert store.read(MARKER) == THEIRS


def test_claim_without_an_answer_is_an_error_and_is_recognized_on_retry(proxy: Proxy, lake: Lake) -> None:
    store = through(proxy, lake, config_kwargs={"retries": {"max_attempts": 1}})
    proxy.policy = lambda request: LoseAnswer() if request.method == "PUT" else Pass()
    with pytest.raises(StoreError, match="0041"):
        store.create(MARKER, OURS)
    proxy.policy = lambda _request: Pass()
    # A flush is run again after an error, with the same bytes.
    assert store.create(MARKER, OURS) == Created()
    assert set(proxy.statuses("PUT", MARKER)) == {200, 412}


def test_claim_with_a_store_conflict_can_be_retried(proxy: Proxy, lake: Lake) -> None:
    """S3 answers 409 to one of two writes at the same moment; nothing was written by it."""
    store = through(proxy, lake)
    conflict = Refuse(409, "ConditionalRequestConflict")
    first_writes(proxy, *[conflict] * 20)
    with pytest.raises(StoreError, match="0041"):
        store.create(MARKER, OURS)
    first_writes(proxy)
    assert store.create(MARKER, OURS) == Created()


def test_data_file_written_twice_exists_once(proxy: Proxy, lake: Lake) -> None:
    store = through(proxy, lake)
    path = f"data/{uuid.uuid4().hex}.parquet"
    first_writes(proxy, LoseAnswer())
    store.write(path, b"rows")
    assert proxy.statuses("PUT", path) == [200, 200]
    assert [(item.path, item.size_bytes) for item in store.list("data")] == [(path, 4)]
