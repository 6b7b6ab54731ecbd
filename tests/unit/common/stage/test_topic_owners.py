"""The stream that has the chains with a shared topic's own name stays the same through every edit of a config."""

import json
import threading
import uuid
from collections.abc import Mapping

import pytest

from common.errors import ConfigError, MarkerError, NewerFormatError
from common.ports import ObjectStore
from common.schema import parse_ddl, schema_to_json
from common.settings import Settings
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.markers import Manifest, Marker, MarkerName, Origin, StagedTable, TableKind, marker_to_bytes
from common.stage.topic_owners import StageTopicOwners, owner_path
from common.storage.store import FsspecStore
from tests.builders import settings_of
from tests.fakes.stores import TrappedStore, acting

SCHEMA = schema_to_json(parse_ddl("id INT"))


@pytest.fixture
def store() -> TrappedStore:
    return TrappedStore(f"memory://{uuid.uuid4().hex}", {})


def config(*app_ids: str, topics: str = "t", tables: Mapping[str, str] | None = None) -> Settings:
    urls = {app_id: f"/{app_id}" for app_id in app_ids} | dict(tables or {})
    return settings_of(
        *({"app_id": app_id, "topics": [topics], "table": urls[app_id], "columns": "id INT"} for app_id in app_ids)
    )


def chains_with(store: FsspecStore, *app_ids: str, make: bool = True, topics: str = "t") -> dict[str, str]:
    """The chains of the topic ``t`` as a program with these streams sees them."""
    settings = config(*app_ids, topics=topics)
    StageTopicOwners(settings, store, make=make).read_all()
    return chains(settings)


def chains(settings: Settings) -> dict[str, str]:
    by_stream = {stream.app_id: str(stream.chain_of("t")) for stream in settings.streams}
    for app_id, chain in by_stream.items():
        assert [stream.app_id for stream in settings.streams if stream.takes(chain)] == [app_id]
    return by_stream


def staged(
    store: ObjectStore,
    app_id: str,
    chain: str = "t",
    table: str | None = "/elsewhere",
    *,
    partition: int = 0,
    start: int = 0,
) -> None:
    name = MarkerName(TopicPartition(Topic(chain), Partition(partition)), Position(start))
    urls = {} if table is None else {table: TableKind.ROWS, f"{table}_dead_letters": TableKind.DEAD_LETTERS}
    tables = tuple(StagedTable(url, kind, SCHEMA, (), ()) for url, kind in urls.items())
    span = Span(name.start, Position(start + 1))
    manifest = Manifest(span, None, app_id, Origin.FLUSH, "w", 1, records=1, tables=tables)
    store.create(name.path, marker_to_bytes(Marker(name, manifest)))


def test_first_stream_owns_an_unused_topic_and_keeps_it_when_the_order_changes(
    store: TrappedStore,
) -> None:
    assert chains_with(store, "a", "b") == {"a": "t", "b": "t@b"}
    assert chains_with(store, "b", "a") == {"a": "t", "b": "t@b"}
    assert json.loads(store.read(owner_path("t")) or b"") == {"version": 1, "owner": "a"}


def test_stream_that_has_chains_owns_the_topic(store: TrappedStore) -> None:
    staged(store, "b")
    assert chains_with(store, "a", "b", "c") == {"a": "t@a", "b": "t", "c": "t@c"}


def test_stream_that_never_shared_writes_no_owner_object(store: TrappedStore) -> None:
    staged(store, "a")
    assert chains_with(store, "a") == {"a": "t"}
    assert [stored.path for stored in store.list("shared/")] == []


def test_streams_that_leave_and_return_keep_their_chains(store: TrappedStore) -> None:
    chains_with(store, "a", "b")
    assert chains_with(store, "b") == {"b": "t@b"}
    assert chains_with(store, "c", "b") == {"c": "t@c", "b": "t@b"}
    assert chains_with(store, "b", "a") == {"a": "t", "b": "t@b"}
    assert chains_with(store, "a") == {"a": "t"}


def test_first_of_two_programs_decides_the_owner_for_both(store: TrappedStore) -> None:
    store.before = acting("create", lambda: chains_with(store, "b", "a"))
    assert chains_with(store, "a", "b") == {"a": "t@a", "b": "t"}
    assert chains_with(store, "a", "b") == {"a": "t@a", "b": "t"}


def test_concurrent_programs_agree_on_the_owner(store: TrappedStore) -> None:
    results: list[dict[str, str]] = []
    orders = [("a", "b", "c"), ("b", "c", "a"), ("c", "b", "a")] * 3
    threads = [
        threading.Thread(target=lambda names=names: results.append(chains_with(store, *names))) for names in orders
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(orders)
    assert all(result == results[0] for result in results)


def test_read_only_command_decides_no_owner(store: TrappedStore) -> None:
    assert chains_with(store, "a", "b", make=False) == {"a": "t", "b": "t@b"}
    assert list(store.list("")) == []
    settings = config("a", "b")
    StageTopicOwners(settings, store, make=False).read_all()
    assert settings.owners.by_topic == {}, "the owner is not cached before it is decided"
    chains_with(store, "b", "a")
    StageTopicOwners(settings, store, make=True).read_all()
    assert chains(settings) == {"a": "t@a", "b": "t"}


def test_renamed_stream_of_a_shared_topic_is_refused_until_an_owner_is_set(store: TrappedStore) -> None:
    staged(store, "old")
    with pytest.raises(ConfigError, match="'new' or 'b' are to share now, and they belong to 'old'") as caught:
        chains_with(store, "new", "b")
    assert f'{{"version":1,"owner":"old"}} as {owner_path("t")}' in caught.value.remedy
    store.write(owner_path("t"), b'{"version":1,"owner":"old"}')
    assert chains_with(store, "new", "b") == {"new": "t@new", "b": "t@b"}


def test_renamed_sharing_stream_with_its_old_table_is_refused(store: TrappedStore) -> None:
    chains_with(store, "a", "b")
    for app_id, chain in (("a", "t"), ("b", "t@b")):
        staged(store, app_id, chain, f"/{app_id}")
    chains_with(store, "b", "a")
    for streams, gone in ((("a", "new"), "b"), (("new", "b"), "a")):
        settings = config(*streams, tables={"new": f"/{gone}"})
        with pytest.raises(ConfigError, match=f"'{gone}', which is no longer a stream of the config") as caught:
            StageTopicOwners(settings, store, make=True).read_all()
        assert f"write app_id: {gone} again" in caught.value.remedy
        assert chains_with(store, *streams)["new"] == "t@new", "with a separate table it is another stream"


def test_stream_cannot_take_the_table_of_another_that_shares_its_topic(store: TrappedStore) -> None:
    """Both streams have staged: their tables have the same records."""
    chains_with(store, "a", "b")
    for app_id, chain in (("a", "t"), ("b", "t@b")):
        staged(store, app_id, chain, f"/{app_id}")
    for tables in ({"a": "/b", "b": "/a"}, {"a": "/b", "b": "/new"}, {"a": "/new", "b": "/a"}):
        settings = config("a", "b", tables=tables)
        with pytest.raises(ConfigError, match="has staged the topic 't' for a table of the stream") as caught:
            StageTopicOwners(settings, store, make=True).read_all()
        assert "back, or give" in caught.value.remedy
    settings = config("a", tables={"a": "/b"})
    with pytest.raises(ConfigError, match="'b', which is no longer a stream of the config, has staged") as caught:
        StageTopicOwners(settings, store, make=True).read_all()
    assert caught.value.remedy == "put the table of 'a' back, or give 'a' tables of its own"
    StageTopicOwners(config("a", "b", tables={"a": "/new"}), store, make=True).read_all()


def test_stream_cannot_take_a_table_that_another_one_had_before(store: TrappedStore) -> None:
    """Files staged for it may still wait, and the records loaded into it are the same."""
    chains_with(store, "a", "b")
    staged(store, "a", "t", "/a", start=100)
    for start in range(40):
        staged(store, "b", "t@b", "/b" if start == 5 else "/b2", start=start)
    settings = config("a", "b", tables={"a": "/b", "b": "/b2"})
    with pytest.raises(ConfigError, match="'b' has staged the topic 't' for a table of the stream 'a'") as caught:
        StageTopicOwners(settings, store, make=True).read_all()
    assert caught.value.remedy == "put the table of 'a' back, or give 'a' tables of its own"
    store.counts.clear()
    StageTopicOwners(config("a", "b", tables={"b": "/b2"}), store, make=True).read_all()
    assert store.counts["read"] < 10, "tables that the stream itself has staged for are not searched"


def test_renamed_stream_is_found_by_any_marker_of_its_chains(store: TrappedStore) -> None:
    """Other partitions may end with a marker without tables: one made by hand, or by `bootstrap write`."""
    chains_with(store, "a", "b")
    staged(store, "a", "t", "/a")
    settings = config("a", "new", tables={"new": "/b"})
    staged(store, "b", "t@b", None, partition=1)
    store.create("done/t@b/2/00000000000000000041.done", b"")
    with pytest.raises(ConfigError, match="'b', which is no longer a stream of the config, has chains") as caught:
        StageTopicOwners(settings, store, make=True).read_all()
    assert "write app_id: b again; to begin 'new' at its start" in caught.value.remedy
    assert chains_with(store, "a", "b", "more")["more"] == "t@more", "b is still in the config"
    staged(store, "b", "t@b", "/b")
    with pytest.raises(ConfigError, match="'b', which is no longer a stream of the config, has staged the topic 't'"):
        StageTopicOwners(settings, store, make=True).read_all()
    assert chains_with(store, "a", "new")["new"] == "t@new", "the tables differ"


@pytest.mark.parametrize(("app_id", "more"), [("etl/x", {}), ("e" * 248, {}), ("e", {"topology": "a.b:c"})])
def test_stream_that_cannot_name_a_chain_is_refused_on_another_s_topic(
    store: TrappedStore, app_id: str, more: dict[str, str]
) -> None:
    chains_with(store, "a", "b")
    settings = settings_of({"app_id": app_id, "topics": ["t"], "table": "/e", "columns": "id INT", **more})
    with pytest.raises(ConfigError, match="are of the stream 'a'") as caught:
        StageTopicOwners(settings, store, make=True).read_all()
    assert "into a config with a stage.url and a writer.group_id of its own" in caught.value.remedy
    store.write(owner_path("t"), json.dumps({"version": 1, "owner": app_id}).encode())
    StageTopicOwners(settings, store, make=True).read_all()


def test_matched_topic_owned_by_another_stream_is_refused_when_it_appears(store: TrappedStore) -> None:
    chains_with(store, "a", "b")
    owners = StageTopicOwners(config("etl/x", topics="^."), store, make=True)
    owners.read_all()
    assert list(owners.agree(["t", "u"])) == ["t"]


def test_owner_has_no_chain_with_its_app_id(store: TrappedStore) -> None:
    settings = config("a", "b")
    StageTopicOwners(settings, store, make=True).read_all()
    assert [settings.stream_of(chain) for chain in ("t", "t@b", "t@a")] == [*settings.streams, None]


def test_chains_that_name_no_stream_are_refused(store: TrappedStore) -> None:
    place = TopicPartition(Topic("t"), Partition(0))
    store.create(origin_path(place), origin_to_bytes(ChainOrigin(Position(7))))
    with pytest.raises(ConfigError, match="they do not name their stream"):
        chains_with(store, "a", "b")
    store.create("done/t/0/41.done", b"")
    with pytest.raises(ConfigError, match="they do not name their stream"):
        chains_with(store, "a", "b")
    assert list(store.list("shared/")) == []


def test_topic_of_two_expressions_gets_its_owner_when_it_appears(store: TrappedStore) -> None:
    settings = config("a", "b", topics="^t.*")
    owners = StageTopicOwners(settings, store, make=True)
    owners.read_all()
    assert list(store.list("shared/")) == []
    assert owners.agree(["t", "unrelated"]) == {}
    assert chains(settings) == {"a": "t", "b": "t@b"}
    assert [stored.path for stored in store.list("shared/")] == [owner_path("t")]


def test_topic_that_cannot_be_shared_gets_no_owner(store: TrappedStore) -> None:
    settings = config("a", "b", topics="^t.*", tables={"a": "/both", "b": "/both"})
    refused = StageTopicOwners(settings, store, make=True).agree(["t"])
    assert "both load into /both" in refused["t"].problem
    assert refused["t"].remedy.endswith("or give one of them another table"), "apart, each record would be there twice"
    assert list(store.list("")) == []


def test_unreadable_owner_object_is_an_error_that_names_it(store: TrappedStore) -> None:
    store.write(owner_path("t"), b"{}")
    with pytest.raises(MarkerError, match=r"shared/t\.json"):
        chains_with(store, "a", "b")
    store.write(owner_path("t"), b'{"version": 2, "owner": "a"}')
    with pytest.raises(NewerFormatError):
        chains_with(store, "a", "b")


def test_known_owner_is_not_searched_in_the_chains(store: TrappedStore) -> None:
    staged(store, "stranger")
    store.write(owner_path("t"), b'{"version":1,"owner":"a"}')
    settings = config("a", "b")
    assert StageTopicOwners(settings, store, make=True).agree({"t"}) == {}
    assert chains(settings)["a"] == "t"
