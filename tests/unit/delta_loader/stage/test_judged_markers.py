"""Which markers are the stream's, by what they say, what its tables say, and what is unknown; forged ones are held."""

import uuid
from collections.abc import Mapping
from dataclasses import replace

import pytest

from common.settings import Settings
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin
from common.stage.data_files import DataFileName, waiting_path
from common.stage.markers import Marker, StagedFile, manifest_to_bytes
from common.tables.identity import TableChain, TableIdentity
from common.tables.transactions import TxnIds
from delta_loader.plan.plan import AnyMarker, ForeignMarker, UnreadableMarker
from delta_loader.stage.identity import StreamIdentity
from tests.builders import instance, required
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.markers import ORDERS, by_hand, flush
from tests.fakes.staging import Staging
from tests.fakes.streams import stream_of

STREAM = stream_of()


def judged(
    *markers: AnyMarker,
    table: TableIdentity | None = None,
    transactions: Mapping[str, int] | None = None,
    url: str = STREAM.table,
    origin: ChainOrigin | None = None,
    partition: TopicPartition = ORDERS,
) -> list[AnyMarker]:
    tables = {} if table is None else {url: table}
    origins = {} if origin is None else {partition: origin}
    generations = {} if origin is None else {partition: origin.generation}
    ids = TxnIds("orders", several_topics=False, generations=generations)
    return StreamIdentity(STREAM, ids, origins, tables, transactions or {}).judged(partition, markers)


def of(marker: Marker, **fields: object) -> Marker:
    return replace(marker, manifest=replace(required(marker.manifest), **fields))  # type: ignore[arg-type]


def test_marker_of_a_generation_newer_than_the_origins_waits() -> None:
    """Markers of the new chain may have the names that were listed."""
    own, later = flush(0, 10), of(flush(10, 20, 0), generation=1)
    first, second = judged(own, later)
    assert first == own
    assert "it is of generation 1 of its topic, but the new chain is of 0" in instance(UnreadableMarker, second).problem
    torn = UnreadableMarker(flush(0, 10).name, "torn")
    assert judged(torn, by_hand(20)) == [torn, by_hand(20)]


def test_marker_without_a_topic_id_takes_the_one_below_it() -> None:
    markers = of(flush(0, 10), topic_id="a"), flush(10, 20, 0), of(flush(20, 30, 10), topic_id="b")
    first, second, third = judged(*markers)
    assert (first, second, instance(ForeignMarker, third).reason) == (*markers[:2], "other_topic")


LOADED = TableIdentity(loaded_under={(ORDERS, 0): "before"})
"""A table that has the chain under another app_id."""


@pytest.mark.parametrize(
    ("first", "transactions", "is_foreign"),
    [
        (flush(10, 20, 0), {}, True),
        (flush(10, 20), {}, False),  # it starts a chain, of which nothing is loaded
        (flush(10, 20, 0), {"orders-0": 9}, False),
        (by_hand(9), {}, False),
        (UnreadableMarker(flush(10, 20, 0).name, "torn"), {}, False),
    ],
)
def test_chain_started_under_another_app_id_is_foreign(
    first: AnyMarker, transactions: dict[str, int], *, is_foreign: bool
) -> None:
    (marker,) = judged(first, table=LOADED, transactions=transactions)
    assert isinstance(marker, ForeignMarker) is is_foreign
    if isinstance(marker, ForeignMarker):
        assert marker.reason == "other_stream"
        assert "continues a chain that was loaded under the app_id before, but this stream's" in marker.problem
        assert marker.problem.endswith("app_id is orders")
        (placed,) = judged(first, table=LOADED, transactions={"before-0": 9})
        assert "has orders/0 up to 10 under that app_id" in instance(ForeignMarker, placed).problem


@pytest.mark.parametrize(
    ("late", "after", "is_foreign"),
    [
        (flush(0, 1), flush(7, 14, 0), True),  # the next marker continues one that ended at 7
        (flush(0, 7), of(flush(7, 14, 0), app_id="before"), True),  # or one that was staged for its own stream
        (flush(0, 7), flush(7, 14, 0), False),
        (of(flush(0, 7), app_id=None), flush(7, 14, 0), False),
    ],
)
def test_late_claim_of_a_settled_name_does_not_start_a_chain(late: Marker, after: Marker, *, is_foreign: bool) -> None:
    markers = judged(late, after, table=LOADED)
    assert isinstance(markers[0], ForeignMarker) is is_foreign
    assert judged(late, after) == [late, *judged(after)], "another app_id has loaded nothing"


AUDIT = TopicPartition(Topic("orders@audit"), Partition(0))
SHARED = TableIdentity(loaded_under={(AUDIT, 0): "audit"})
"""A table that another stream of the same topic has loaded."""


@pytest.mark.parametrize(
    ("marker", "position", "is_foreign"),
    [
        (flush(0, 10), None, True),
        (flush(0, 10), 10, True),
        (flush(10, 20, 0), 10, False),  # its records come after those
        (by_hand(5), 10, False),
        (UnreadableMarker(flush(0, 10).name, "torn"), 10, True),
    ],
)
def test_table_loaded_by_another_stream_of_the_topic_takes_only_later_markers(
    marker: AnyMarker, position: int | None, *, is_foreign: bool
) -> None:
    table = replace(SHARED, plain_topic="")
    transactions = {} if position is None else {"audit-orders@audit-0": position - 1, "audit-0": position - 1}
    (result,) = judged(marker, table=table, transactions=transactions)
    assert isinstance(result, ForeignMarker) is is_foreign
    if isinstance(result, ForeignMarker):
        assert ("or begin its chain after what 'audit' has loaded" in result.remedy) is (position is not None)


def test_marker_of_another_stream_is_reported_as_such_first() -> None:
    (marker,) = judged(of(flush(0, 10), app_id="other"), table=replace(SHARED, plain_topic=""))
    assert "was staged for the app_id other" in instance(ForeignMarker, marker).problem


@pytest.mark.parametrize(
    ("url", "position", "is_foreign"), [(STREAM.table, 9, True), (STREAM.table, 5, False), ("/other", 9, False)]
)
def test_only_the_main_table_reveals_loads_of_the_old_generation_from_another_stage(
    url: str, position: int, *, is_foreign: bool
) -> None:
    origin = ChainOrigin(Position(0), 1, "same", loaded_before=Position(5))
    table = TableIdentity(chains={ORDERS: TableChain(0, Position(position), "same")})
    (marker,) = judged(of(flush(0, 10), generation=1, topic_id="same"), table=table, url=url, origin=origin)
    assert isinstance(marker, ForeignMarker) is is_foreign
    if isinstance(marker, ForeignMarker):
        assert "the table has got records of it up to 9 by generation 0" in marker.problem.replace(f" {url}", "")


PAYMENTS = TopicPartition(Topic("payments"), Partition(0))
JOINED = TopicPartition(Topic("orders+payments"), Partition(0))
ORDERS_1 = TopicPartition(Topic("orders"), Partition(1))
UNIQUE = str(uuid.UUID(int=7))


@pytest.mark.parametrize(("url", "is_foreign"), [(STREAM.table, True), ("/other", False)])
def test_only_the_main_table_says_that_the_topic_was_renamed(url: str, *, is_foreign: bool) -> None:
    """Another table may have begun with a topic that the main one has next to others."""
    table = TableIdentity("payments", {PAYMENTS: TableChain(0, Position(50))})
    (marker,) = judged(flush(0, 10), table=table, transactions={"orders-0": 20}, url=url)
    assert isinstance(marker, ForeignMarker) is is_foreign
    if isinstance(marker, ForeignMarker):
        assert marker.reason == "other_topic"
        assert marker.remedy.endswith("starts it at Kafka's first record, --at OFFSET at another one")


@pytest.mark.parametrize(
    ("url", "begins"), [(STREAM.table, "use another"), ("/other", "set topics: [orders, payments]")]
)
def test_load_that_was_cut_off_between_tables_is_completed_with_the_former_topics(url: str, begins: str) -> None:
    """A restart looks at the main table, which lacks the chain that another table has."""
    table = TableIdentity("", {JOINED: TableChain(0, Position(50))})
    (marker,) = judged(flush(0, 10), table=table, url=url)
    assert instance(ForeignMarker, marker).remedy.startswith(begins)
    assert "`bootstrap restart" in instance(ForeignMarker, marker).remedy


def test_torn_marker_of_a_chain_that_another_came_in_place_of_is_foreign() -> None:
    """It is unknown whether the table has its records."""
    table = TableIdentity(chains={JOINED: TableChain(1, Position(50))})
    markers = flush(0, 10), UnreadableMarker(flush(10, 20, 0).name, "torn"), by_hand(20)
    first, *others = judged(*markers, table=table, transactions={"orders-0": 29})
    assert first == markers[0]
    assert {instance(ForeignMarker, marker).reason for marker in others} == {"other_topic"}


def both_streams(orders: Staging) -> Settings:
    """Two streams over one stage, which keeps no marker that every table has."""
    payments = {"app_id": "payments", "topics": ["payments"], "table": payments_table(orders)}
    return settings_for(orders, {}, payments, marker_retention=0)


def payments_table(orders: Staging) -> str:
    return f"{orders.table}_payments"


def forge(orders: Staging, marker: Marker, file: StagedFile) -> None:
    assert marker.manifest is not None
    (table,) = marker.manifest.tables
    manifest = replace(marker.manifest, tables=(replace(table, files=(file,)),))
    stage = orders.store(orders.stage_url)
    stage.write(marker.name.path, manifest_to_bytes(marker.name.topic_partition, manifest))


@pytest.mark.parametrize("owner", [PAYMENTS, ORDERS_1], ids=str)
def test_staged_file_of_another_flush_is_neither_loaded_nor_deleted(owner: TopicPartition) -> None:
    orders = Staging(f"memory://{uuid.uuid4().hex}", "orders")
    stage = orders.store(orders.stage_url)
    table = payments_table(orders) if owner == PAYMENTS else orders.table
    theirs = waiting_path(table, DataFileName(owner, Position(0), UNIQUE))
    stage.write(theirs, b"rows of another flush")
    forge(orders, orders.flush(0, 0, 10), StagedFile(theirs, None, 3, 1, "{}"))
    orders.flush(0, 10, 20)

    tables = MemoryDeltaTables()
    first, _ = loader_for(orders, tables, both_streams(orders)).run_pass()

    held = first.held[orders.source(0)]
    assert held.reason == "unreadable_marker"
    assert theirs.rpartition("/")[2] in held.problem
    assert "bootstrap" in held.remedy
    assert stage.read(theirs) == b"rows of another flush"
    assert not any(table.commits for table in tables.tables.values())
    assert len(orders.markers()) == 2


def test_marker_that_names_a_file_of_an_earlier_load_is_held() -> None:
    orders = Staging(f"memory://{uuid.uuid4().hex}", "orders")
    loaded = orders.flush(0, 0, 10)
    tables = MemoryDeltaTables()
    loader_for(orders, tables).run_pass()
    before = len(tables.tables[orders.table].commits)
    forge(orders, orders.flush(0, 10, 20), loaded.tables[0].files[0])

    (result,) = loader_for(orders, tables).run_pass()

    assert result.held[orders.source(0)].reason == "unreadable_marker"
    assert len(tables.tables[orders.table].commits) == before


@pytest.mark.parametrize(("url", "is_foreign"), [(STREAM.table, True), ("/other", False)])
def test_only_the_main_table_says_that_a_former_chain_went_on(url: str, *, is_foreign: bool) -> None:
    """The restart began after what the main table had."""
    origin = ChainOrigin(Position(5), 1, loaded_before=Position(5))
    table = TableIdentity("", {JOINED: TableChain(0, Position(50))})
    (marker,) = judged(of(flush(5, 10), generation=1), table=table, url=url, origin=origin)
    assert isinstance(marker, ForeignMarker) is is_foreign


@pytest.mark.parametrize(("topic_id", "is_foreign"), [("A", False), ("Z", True)])
def test_loaded_chain_is_of_the_topics_of_the_one_in_its_place(topic_id: str, *, is_foreign: bool) -> None:
    table = TableIdentity("", {ORDERS: TableChain(1, Position(50), topic_id)})
    loaded = of(flush(0, 10, partition=JOINED), topic_id="A,B")
    transactions = {"orders-orders+payments-0": 9, "orders-0": 9}
    (marker,) = judged(loaded, table=table, transactions=transactions, partition=JOINED)
    assert isinstance(marker, ForeignMarker) is is_foreign


def test_marker_that_was_emptied_in_a_foreign_chain_stays_foreign() -> None:
    table = TableIdentity("", {JOINED: TableChain(1, Position(50))})
    identity = StreamIdentity(STREAM, TxnIds("orders", several_topics=False), {}, {STREAM.table: table})
    markers = identity.younger(ORDERS, [by_hand(5), flush(9, 20, 5)])
    assert {instance(ForeignMarker, marker).reason for marker in markers} == {"other_topic"}


@pytest.mark.parametrize(("generation", "is_foreign"), [(1, False), (0, True)])
def test_loaded_chain_is_of_the_generation_of_its_position(generation: int, *, is_foreign: bool) -> None:
    table = TableIdentity("", {JOINED: TableChain(2, Position(50))})
    marker, origin = of(flush(0, 10), generation=generation), ChainOrigin(Position(0), 1)
    (result,) = judged(marker, table=table, transactions={"orders-0@1": 9}, origin=origin)
    assert isinstance(result, ForeignMarker) is is_foreign
