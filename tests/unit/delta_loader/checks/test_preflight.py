"""The checks before the loader starts."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import replace

import pytest

from common.clock import SystemClock
from common.errors import BrokerError, ConfigError, ExitCode, StoreError, StoreRefusedError, UnsafeStoreError
from common.ports import Created
from common.schema.spark_json import schema_to_json
from common.schema.types import ArrayType, Field, MapType, Primitive, StructType
from common.settings import Settings, Stream
from common.settings.columns import KAFKA_FIELDS
from common.settings.stream import Included
from common.settings.values import Evolution
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.paused import Pause, StreamPart, pause
from common.storage.store import FsspecStore
from common.tables.changes import MergedBy
from common.tables.commit_metadata import CommitMetadata
from common.tables.dead_letters import DEAD_LETTER_SCHEMA
from common.tables.identity import TableIdentity
from common.tables.state import TableState
from common.tables.table_features import appended_for, checks_of
from delta_loader.check_result import Check, Level, checks_as_json, checks_as_text, exit_code, fatal
from delta_loader.checks.preflight import Preflight
from delta_loader.checks.requirements import (
    merge_checks,
    property_checks,
    shared_tables,
    shared_topic_checks,
    table_checks,
    vacuum_check,
)
from delta_loader.ports import in_turn
from delta_loader.stage.reading import Stage
from delta_loader.status.values import to_json, to_text
from tests.builders import instance, settings_of, span
from tests.fakes.changes import ChangeStream
from tests.fakes.loading import routed_settings_for, settings_for, status_of
from tests.fakes.staging import Staging
from tests.fakes.stores import TrappedStore, failing
from tests.fakes.streams import stream_of
from tests.unit.common.tables.test_delta_log import METADATA, PROTOCOL, commit, txn

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ID = Field("id", Primitive.LONG)
COLUMNS = schema_to_json(StructType((ID, *KAFKA_FIELDS)))
LOG = (
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    {
        "metaData": {
            "id": "t",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema_to_json(StructType((Field("id", Primitive.STRING),))),
            "partitionColumns": [],
            "configuration": {},
        }
    },
)
STREAM = settings_for(Staging("memory://nowhere")).streams[0]


def table(schema: str = COLUMNS, features: frozenset[str] = frozenset(), **properties: str) -> TableState:
    with_prefix = {f"delta.{name}": value for name, value in properties.items()}
    return TableState(3, "id", schema, (), with_prefix, 3, 7, features)


def levels(checks: list[Check]) -> dict[str, Level]:
    return {check.name: check.level for check in checks}


def test_constraint_is_found_however_its_key_is_written() -> None:
    for key in ("constraints.positive", "Constraints.positive"):
        assert appended_for(table(COLUMNS, frozenset(), **{key: "id > 0"})) == (
            "the check constraint positive has to be evaluated on each row"
        )


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_with_other_names_in_files_are_written_by_spark(mode: str) -> None:
    problem = appended_for(table(COLUMNS, frozenset(), **{"columnMapping.mode": mode}))
    assert problem == f"its column mapping mode is {mode}, so that files need other column names"
    assert appended_for(table(COLUMNS, frozenset(), **{"columnMapping.mode": "none"})) is None


def test_not_null_field_of_an_element_is_checked_on_each_row() -> None:
    element = StructType((Field("n", Primitive.LONG, nullable=False),))
    for data_type in (ArrayType(element), MapType(Primitive.STRING, element)):
        problem = appended_for(table(schema_to_json(StructType((Field("items", data_type),)))))
        assert problem == "its column items.n is NOT NULL, which has to be checked on each row"


@pytest.mark.parametrize(("kept", "warnings"), [("interval 7 days", 0), ("interval 167 hours", 1), ("forever", 0)])
def test_log_that_is_kept_for_a_week_is_enough(kept: str, warnings: int) -> None:
    state = table(COLUMNS, frozenset(), logRetentionDuration=kept)
    assert len(list(property_checks("orders", "s3://lake/orders", state))) == warnings


def test_what_a_table_checks_its_rows_for_is_known_by_a_digest() -> None:
    other = schema_to_json(StructType((Field("id", Primitive.INTEGER), *KAFKA_FIELDS)))
    checks = [
        checks_of(table(schema, frozenset({"checkConstraints"}), **{"constraints.a": condition}))
        for schema, condition in ((COLUMNS, "id > 0"), (COLUMNS, "id > 1"), (other, "id > 0"))
    ]
    assert len({*checks} - {None}) == 3
    assert checks_of(table()) is None


def test_columns_of_files_have_the_names_of_the_column_mapping() -> None:
    mapped = Field("id", Primitive.LONG, metadata_json='{"delta.columnMapping.physicalName": "col-1"}')
    schema = schema_to_json(StructType((mapped, Field("day", Primitive.STRING))))
    assert table(schema).names_in_log == {"id": "col-1", "day": "day"}


def test_missing_and_compatible_tables_pass() -> None:
    assert levels(list(table_checks(STREAM, None))) == {"table": Level.OK}
    assert levels(list(table_checks(STREAM, table()))) == {"table": Level.OK, "columns": Level.OK}


def test_unloadable_table_is_an_error() -> None:
    assert levels(list(table_checks(STREAM, table(features=frozenset({"catalogManaged"})))))["table"] is Level.ERROR
    text = schema_to_json(StructType((Field("id", Primitive.STRING),)))
    unfit = {check.name: check for check in table_checks(STREAM, table(text))}["columns"]
    assert unfit.level is Level.ERROR
    assert "the column id is STRING, staged as BIGINT" in unfit.message


MERGED = MergedBy(("id",), "at", history=True)


@pytest.mark.parametrize(
    ("before", "level", "text"),
    [
        (MERGED, None, ""),
        (replace(MERGED, history=False), None, ""),
        (replace(MERGED, sequence=None), Level.ERROR, "its versions were kept without a sequence"),
        (None, Level.WARNING, "were not merged"),
        (replace(MERGED, keys=("id", "name")), Level.WARNING, "were merged by id, name"),
    ],
)
def test_changed_merge_settings_are_reported_before_the_load(
    before: MergedBy | None, level: Level | None, text: str
) -> None:
    merge = {"keys": ["id"], "sequence": "at", "history": True, "operation": "op", "deletes": ["d"]}
    stream = ChangeStream("memory://nowhere", more={"merge": {**merge, "tombstones": "ignore"}}).settings.streams[0]
    checks = list(merge_checks(stream, stream.table, TableIdentity(merged_by=before)))
    assert [check.level for check in checks] == ([] if level is None else [level])
    assert all(text in check.message for check in checks)
    assert list(merge_checks(STREAM, STREAM.table, TableIdentity())) == []


def test_columns_of_a_history_are_added_with_a_value_for_the_rows_that_are_there() -> None:
    merge = {"keys": ["id"], "history": True, "tombstones": "ignore"}
    stream = stream_of(columns="id BIGINT", load="merge", merge=merge)
    there = StructType((ID, *KAFKA_FIELDS))
    check = columns_check(stream, table(schema_to_json(there)))
    assert "SET is_current = true WHERE is_current IS NULL" in check.remedy
    named = StructType((*there, Field("is_current", Primitive.BOOLEAN)))
    check = columns_check(stream, table(schema_to_json(named)))
    assert ("ADD COLUMNS (valid_from" in check.remedy, "UPDATE" in check.remedy) == (True, False)


def test_elements_without_record_keys_are_reported() -> None:
    columns = "id BIGINT, tags ARRAY<STRING>"
    merge = {"keys": ["tags"], "tombstones": "ignore"}
    alone = stream_of(columns=columns, explode="tags", load="merge", merge=merge)
    (elements,) = (check for check in table_checks(alone, None) if check.name == "merge")
    assert (elements.level, "elements that a record has lost stay" in elements.message) == (Level.OK, True)
    merge = {"keys": ["id", "tags"], "soft_delete": "gone"}
    stream = stream_of(columns=columns, explode="tags", load="merge", merge=merge)
    assert levels(list(table_checks(stream, None))) == {"table": Level.OK}
    made = StructType((ID, *KAFKA_FIELDS, Field("tags", Primitive.STRING), Field("gone", Primitive.BOOLEAN)))
    strict = StructType(
        (*made, Field("mine", Primitive.STRING, nullable=False, metadata_json='{"CURRENT_DEFAULT":"1"}'))
    )
    found_in = list(table_checks(stream, table(schema_to_json(strict))))
    assert Level.WARNING not in levels(found_in).values(), "a delete never creates a row with only the key"


@pytest.mark.parametrize(("strict", "warned"), [({"id", "at", "gone"}, 0), ({"id", "at", "name"}, 1)])
def test_soft_delete_of_an_unknown_key_leaves_the_other_columns_null(strict: set[str], warned: int) -> None:
    merge = {"keys": ["id"], "sequence": "at", "soft_delete": "gone", "tombstones": "ignore"}
    stream = stream_of(columns="id BIGINT, at BIGINT, name STRING", load="merge", merge=merge)
    kinds = {"id": Primitive.LONG, "at": Primitive.LONG, "name": Primitive.STRING, "gone": Primitive.BOOLEAN}
    fields = [Field(name, kind, nullable=name not in strict) for name, kind in kinds.items()]
    state = table(schema_to_json(StructType((*fields, *KAFKA_FIELDS))))
    warnings = [check.message for check in table_checks(stream, state) if check.level is Level.WARNING]
    assert ["has the NOT NULL columns name, and" in message for message in warnings] == [True] * warned


def test_routes_table_is_checked_against_its_own_declaration() -> None:
    declared = {"alerts": {"columns": "day DATE, share DOUBLE", "partition_by": ["day"], "load": "add"}}
    more = {"topology": "shop:build", "routes": {"alerts": "/data/alerts"}, "route_tables": declared}
    (stream,) = settings_for(Staging("memory://nowhere"), more).streams
    own = schema_to_json(StructType((Field("day", Primitive.DATE), Field("share", Primitive.DOUBLE), *KAFKA_FIELDS)))
    fits = replace(table(own), partition_by=("day",))
    assert levels(list(table_checks(stream, fits, "/data/alerts"))) == {"table": Level.OK, "columns": Level.OK}
    unfit = {check.name: check for check in table_checks(stream, table(), "/data/alerts")}["columns"]
    assert unfit.level is Level.ERROR
    assert "the column day is not in it" in unfit.message
    assert "streams[].route_tables.alerts.columns" in unfit.remedy


def columns_check(stream: Stream, state: TableState) -> Check:
    return {check.name: check for check in table_checks(stream, state)}["columns"]


def test_missing_kafka_columns_are_reported_with_the_alter_statement() -> None:
    foreign = table(schema_to_json(StructType((ID,))))
    check = columns_check(STREAM, foreign)
    assert check.level is Level.ERROR
    assert "the column _kafka_topic is not in it" in check.message
    added = "_kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, _kafka_timestamp TIMESTAMP"
    assert f"ALTER TABLE delta.`{STREAM.table}` ADD COLUMNS ({added})" in check.remedy
    assert "kafka_columns: false" in check.remedy
    including = STREAM.model_copy(update={"include": (Included.HEADERS,), "kafka_columns": False})
    check = columns_check(including, foreign)
    added = "_kafka_headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    assert f"ADD COLUMNS ({added})" in check.remedy
    assert "or remove headers from include" in check.remedy
    assert columns_check(STREAM.model_copy(update={"kafka_columns": False}), foreign).level is Level.OK
    assert columns_check(STREAM.model_copy(update={"evolution": Evolution.ADD}), foreign).level is Level.OK


def test_missing_derived_column_is_reported() -> None:
    derives = STREAM.model_copy(update={"derive": {"day": "CAST(now() AS DATE)"}})
    lacking = columns_check(derives, table())
    assert "the column day, which writers create, is not in it" in lacking.message
    assert lacking.remedy.startswith("set evolution: add, so that the loader adds what is missing; or change the table")
    has_it = table(schema_to_json(StructType((ID, *KAFKA_FIELDS, Field("day", Primitive.DATE)))))
    assert columns_check(derives, has_it).level is Level.OK
    assert columns_check(derives.model_copy(update={"evolution": Evolution.ADD}), table()).level is Level.OK


@pytest.mark.parametrize(
    ("more", "name", "level"),
    [
        ({"derive": {"day": "'x'"}}, "day", Level.OK),
        ({"unknown_fields": "rescue"}, "_rescued", Level.OK),
        ({"envelope": "debezium"}, "_cdc", Level.OK),
        ({}, "other", Level.ERROR),
    ],
)
def test_not_null_column_that_writers_add_is_staged(more: dict[str, object], name: str, level: Level) -> None:
    stream = stream_of(columns="id BIGINT", load="append", **more)
    strict = Field(name, Primitive.STRING, nullable=False)
    assert columns_check(stream, table(schema_to_json(StructType((ID, *KAFKA_FIELDS, strict))))).level is level


def test_short_log_and_txn_retention_are_warnings_with_a_remedy() -> None:
    forgets = table(setTransactionRetentionDuration="interval 1 days", logRetentionDuration="interval 1 days")
    checks = [check for check in table_checks(STREAM, forgets) if check.name == "memory"]
    assert [check.level for check in checks] == [Level.WARNING, Level.WARNING]
    assert "UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration')" in checks[0].remedy
    assert "'delta.logRetentionDuration' = 'interval 30 days'" in checks[1].remedy


@pytest.mark.parametrize(
    ("window", "waiting_ms", "retention_ms", "level", "message"),
    [
        (None, None, DAY_MS, Level.OK, "7 days"),
        (None, 6 * DAY_MS, DAY_MS, Level.OK, "7 days"),
        (None, 3 * DAY_MS, DAY_MS, Level.OK, "longer than any file waits"),
        (None, 4 * DAY_MS, DAY_MS, Level.OK, "files that wait longer than 4 days are copied"),
        (None, 8 * DAY_MS, DAY_MS, Level.WARNING, "is 1w, but files may be staged for 8d"),
        (None, 8 * DAY_MS, DAY_MS, Level.WARNING, "= 'interval 16 days')"),
        ("interval 2 hours", None, HOUR_MS, Level.WARNING, "is 2h, but files may be staged for 1d"),
        ("interval 2 hours", None, HOUR_MS, Level.WARNING, "= 'interval 7 days')"),
        ("interval 0 hours", None, HOUR_MS, Level.WARNING, "they cannot be protected"),
        ("interval soon", None, HOUR_MS, Level.WARNING, "cannot be read"),
        ("interval 2 days", None, 3 * DAY_MS, Level.WARNING, "loader.marker_retention"),
        (None, None, 9 * DAY_MS, Level.WARNING, "= 'interval 18 days')"),
    ],
)
def test_vacuum_check_compares_retention_with_waiting_files(
    window: str | None, waiting_ms: int | None, retention_ms: int, level: Level, message: str
) -> None:
    state = table() if window is None else table(deletedFileRetentionDuration=window)
    check = vacuum_check("orders", "/t", state, waiting_ms, retention_ms)
    assert check.level is level
    assert message in check.message + check.remedy


def test_only_problems_of_all_streams_refuse_the_start() -> None:
    first, second = (Check("table", Level.ERROR, "no", "", app_id) for app_id in ("one", "two"))
    fine = Check("table", Level.OK, "", "", "two")
    assert fatal([first, second, fine]) == ()
    stage = Check("stage", Level.ERROR, "no")
    assert fatal([first, stage]) == (stage,)
    assert (exit_code([fine]), exit_code([first, fine])) == (0, 3)
    warned = replace(first, level=Level.WARNING)
    fit = [instance(dict, checks_as_json(checks))["fit"] for checks in ([warned, fine], [warned, second])]
    assert fit == [True, False]


def test_unreachable_service_does_not_refuse_the_start() -> None:
    stage = Check("stage", Level.ERROR, "does not answer", away=True)
    first, second = (
        Check("table", Level.ERROR, "no", "", "one"),
        Check("table", Level.ERROR, "away", "", "two", away=True),
    )
    assert fatal([stage, first, second]) == ()
    assert (exit_code([stage]), exit_code([stage, first])) == (1, 1)
    assert exit_code([first, replace(first, code=ExitCode.USAGE)]) == 2
    assert checks_as_text([stage]).endswith("not ready to load while a service is unavailable")
    assert checks_as_text([stage, first]).endswith("not ready to load")


def test_status_reports_an_incompatible_table_with_nothing_staged(staging: Staging) -> None:
    staging.store(staging.table).write(f"_delta_log/{0:020d}.json", "\n".join(map(json.dumps, LOG)).encode())
    status = status_of(staging)
    text, document = to_text([status]), to_json([status])
    assert "not ready to load: orders:" in text
    assert "the column id is STRING, staged as BIGINT" in text
    assert "→ ALTER TABLE delta." in text
    assert "'unfit': [{'problem': 'orders: " in str(document)


@pytest.mark.parametrize("mixed", [False, True])
def test_status_holds_a_partition_whose_next_marker_lacks_a_file(mixed: bool) -> None:  # noqa: FBT001 - a parameter
    staging = Staging(f"memory://{uuid.uuid4().hex}")

    def held() -> list[str | None]:
        return [partition.held.reason if partition.held else None for partition in status_of(staging).partitions]

    first, later = staging.flush(0, 0, 3, mixed=mixed), staging.flush(0, 3, 5, mixed=mixed)
    staging.flush(1, 0, 3, mixed=mixed)
    place = staging.store(staging.stage_url if mixed else staging.table)
    place.delete([later.tables[0].files[0].path])  # holds nothing yet: what is before it can be loaded
    assert held() == [None, None]
    path = first.tables[0].files[0].path
    place.write(path, b"PAR1")
    assert held() == ["missing_file", None]
    place.delete([path])
    assert held() == ["missing_file", None]
    text = to_text([status_of(staging)])
    assert f"held (missing_file): the data file {path} of the marker at 0 of orders/0 is gone" in text
    assert "bootstrap rewind ⟨config⟩ --topic orders --partition 0 --to 0 --yes" in text


def test_status_reports_an_incompatible_route_table(staging: Staging) -> None:
    url = staging.route("alerts")
    staging.store(url).write(f"_delta_log/{0:020d}.json", "\n".join(map(json.dumps, LOG)).encode())
    more = {
        "topology": "shop:build",
        "routes": {"alerts": url},
        "route_tables": {"alerts": {"columns": "share DOUBLE"}},
    }
    status = status_of(staging, stream=settings_for(staging, more).streams[0])
    assert f"orders: {url} is not compatible with what the stream declares: the column share is not in it" in to_text(
        [status]
    )


def test_unreadable_log_is_an_error_of_its_stream_only(staging: Staging) -> None:
    staging.store(staging.table).write(f"_delta_log/{0:020d}.json", b'{"protocol":{"minReaderVersion":99}}')
    checks = preflight(staging, {})
    assert [(check.name, check.away) for check in checks if check.level is Level.ERROR] == [("table", False)]
    assert fatal(checks) == ()
    assert exit_code(checks) == 3


def stream(app_id: str, topic: str) -> dict[str, object]:
    return {"app_id": app_id, "topics": [topic], "table": "s3://lake/t", "columns": "id BIGINT"}


def test_streams_that_share_a_table_are_a_warning() -> None:
    spelled = {**stream("returns", "b"), "table": "s3a://lake/t/"}
    settings = settings_of(stream("orders", "a"), spelled, stage={"url": "memory://s"})
    (check,) = shared_tables(settings.streams)
    assert check.level is Level.WARNING
    assert "orders, returns" in check.message


def test_topic_that_no_writer_reads_is_a_warning_of_each_of_its_streams() -> None:
    elsewhere = {**stream("other", "^b"), "table": "s3://lake/other"}
    settings = settings_of(stream("orders", "^a"), stream("returns", "^a1"), elsewhere, stage={"url": "memory://s"})
    checks = list(shared_topic_checks(settings.streams, {"a1", "a2", "b"}))
    assert [(check.app_id, check.level) for check in checks] == [("orders", Level.WARNING), ("returns", Level.WARNING)]
    assert all("a1" in check.message and "no writer reads it" in check.message for check in checks)


class RefusingStore:
    """A stage that refuses writes or is unreachable."""

    def __init__(self, inner: object, kind: type[StoreError]) -> None:
        self._inner = inner
        self._kind = kind

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def create(self, path: str, data: bytes) -> object:
        raise self._kind(f"may not create {path}: {len(data)} bytes", "check the credentials")


def preflight(
    staging: Staging,
    ends: Mapping[TopicPartition, Position] | BrokerError | None = None,
    refusing: type[StoreError] | None = None,
    settings: Settings | None = None,
) -> list[Check]:
    settings = settings or settings_for(staging)
    store = staging.store(staging.stage_url)

    def kafka_ends(stream: Stream) -> Mapping[TopicPartition, Position] | None:
        if isinstance(ends, BrokerError):
            raise ends
        return ends if stream.app_id else {}

    return list(
        Preflight(
            settings,
            RefusingStore(store, refusing) if refusing else store,  # type: ignore[arg-type]
            Stage(store, in_turn),
            staging.store,
            kafka_ends,
            SystemClock(),
        ).checks()
    )


def test_healthy_setup_passes_and_leaves_no_files(staging: Staging) -> None:
    staging.flush(0, 0, 10)
    before = sorted(stored.path for stored in staging.store(staging.root).list(""))
    checks = preflight(staging, {TopicPartition(Topic("orders"), Partition(0)): Position(5)})
    assert [check for check in checks if check.level is not Level.OK] == []
    assert {"config", "stage", "table", "vacuum", "kafka"} <= {check.name for check in checks}
    assert sorted(stored.path for stored in staging.store(staging.root).list("")) == before


@pytest.mark.parametrize(
    ("ends", "problem"),
    [
        (None, "did not list its topics in time"),
        ({}, "has no topic orders that this user may see"),
        (BrokerError("it refuses this user", "check the password"), "it refuses this user"),
    ],
)
def test_silent_kafka_is_distinguished_from_a_missing_topic(
    ends: Mapping[TopicPartition, Position] | BrokerError | None, problem: str
) -> None:
    checks = preflight(Staging(f"memory://{uuid.uuid4().hex}"), ends)
    (kafka,) = (check for check in checks if check.name == "kafka")
    assert kafka.level is Level.WARNING
    assert problem in kafka.message


@pytest.mark.parametrize(("kind", "away"), [(StoreRefusedError, False), (UnsafeStoreError, False), (StoreError, True)])
def test_failing_stage_is_an_error_and_a_missing_topic_a_warning(kind: type[StoreError], *, away: bool) -> None:
    checks = preflight(Staging(f"memory://{uuid.uuid4().hex}"), {}, kind)
    by_name = {check.name: check for check in checks}
    assert (by_name["stage"].level, by_name["stage"].app_id, by_name["stage"].away) == (Level.ERROR, None, away)
    if away:  # no further check runs
        assert set(by_name) == {"config", "stage"}
        return
    assert "check the credentials" in by_name["stage"].remedy
    assert by_name["kafka"].level is Level.WARNING


@pytest.mark.parametrize("which", ["orders", "orders_dead_letters"])
def test_table_that_may_not_be_written_to_is_an_error_of_its_stream(staging: Staging, which: str) -> None:
    def store_of(url: str) -> FsspecStore:
        store = staging.store(url)
        refuses = url.rpartition("/")[2] == which
        return RefusingStore(store, StoreRefusedError) if refuses else store  # type: ignore[return-value]

    stage = staging.store(staging.stage_url)
    checker = Preflight(settings_for(staging), stage, Stage(stage, in_turn), store_of, lambda _: {}, SystemClock())
    (rights,) = (check for check in checker.checks() if check.name == "rights")
    assert (rights.level, rights.app_id) == (Level.ERROR, "orders")


def test_topic_that_streams_cannot_share_is_reported_by_what_kafka_has(staging: Staging) -> None:
    table = {"table": staging.table, "columns": "id BIGINT"}
    settings = settings_of(
        *(
            {"app_id": app_id, "topics": [topics], **table}
            for app_id, topics in (("orders", "^or"), ("returns", "^ord"))
        ),
        stage={"url": staging.stage_url},
    )
    checks = preflight(staging, {staging.source(0): Position(5)}, settings=settings)
    assert [check.app_id for check in checks if "no writer reads it" in check.message] == ["orders", "returns"]


@pytest.mark.parametrize("request_", ["list", "read"])
def test_stage_that_may_not_be_read_is_an_error(staging: Staging, request_: str) -> None:
    refused = failing(request_, StoreRefusedError("may not", "allow it"), below="probe")
    store = TrappedStore(staging.stage_url, before=refused)
    stage = Stage(staging.store(staging.stage_url), in_turn)
    checker = Preflight(settings_for(staging), store, stage, staging.store, lambda _: {}, SystemClock())
    (check,) = (check for check in checker.checks() if check.name == "stage")
    assert (check.level, check.away) == (Level.ERROR, False)
    assert list(staging.store(staging.stage_url).list("")) == []


def test_unreadable_control_topic_is_only_a_warning(staging: Staging) -> None:
    settings = settings_for(staging, schedule="on-marker", control_topic="control")
    store = staging.store(staging.stage_url)

    def refuse() -> None:
        raise ConfigError("Kafka does not have it", "create the topic")

    for require, level in ((refuse, Level.WARNING), (lambda: None, Level.OK)):
        stage = Stage(store, in_turn)
        checker = Preflight(settings, store, stage, staging.store, lambda _: {}, SystemClock(), require)
        control = {check.name: check for check in checker.checks()}["control"]
        assert control.level is level
        assert (control.remedy == "create the topic") is (level is Level.WARNING)
        assert list(fatal([control])) == []


def test_stage_without_exclusive_create_is_refused(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a store creates what is there already."""
    monkeypatch.setattr(FsspecStore, "create", lambda self, path, data: self.write(path, data) or Created())
    (stage,) = (check for check in preflight(staging) if check.name == "stage")
    assert (stage.level, stage.away) == (Level.ERROR, False)
    assert list(staging.store(staging.stage_url).list("")) == []


@pytest.mark.parametrize(("main", "side"), [(True, False), (False, True), (True, True)])
def test_missing_template_of_a_table_to_be_created_is_an_error(staging: Staging, *, main: bool, side: bool) -> None:
    template = f"{staging.root}/template"
    section = {"vip": {"template": template}} if side else {}
    more = {"route_tables": section} | ({"template": template} if main else {})
    settings = routed_settings_for(staging, ["vip"], more)

    def missing() -> list[str]:
        checks = preflight(staging, settings=settings)
        return [check.message for check in checks if "does not exist" in check.message and check.level is Level.ERROR]

    expected = [staging.table] * main + [staging.route("vip")] * (main or side)
    assert missing() == [f"orders: the template {template} of {url} does not exist" for url in expected]
    for url in (template, staging.table):
        commit(staging.store(url), 0, PROTOCOL, METADATA)
    assert missing() == []


def test_table_that_was_rolled_back_is_a_warning(staging: Staging) -> None:
    mine = CommitMetadata("c", "orders", {staging.source(0): span(0, 10)}, None).to_json()
    store = staging.store(staging.table)
    commit(store, 0, PROTOCOL, METADATA)
    commit(store, 1, {"commitInfo": {"operation": "W", "userMetadata": mine}}, txn("orders-0", 9))
    assert not [check for check in preflight(staging) if check.name == "history"]
    commit(store, 2, {"commitInfo": {"operation": "RESTORE", "operationParameters": {"version": 0}}})
    (history,) = (check for check in preflight(staging) if check.name == "history")
    assert (history.level, "bootstrap accept" in history.remedy) == (Level.WARNING, True)


def test_stream_that_an_operator_has_paused_is_a_warning(staging: Staging) -> None:
    pause(staging.store(staging.stage_url), Pause("orders", StreamPart.STAGING, 0, by="eve"))
    (paused,) = (check for check in preflight(staging) if check.name == "paused")
    assert (paused.level, paused.app_id) == (Level.WARNING, "orders")
    assert ("by eve" in paused.message, "stage-writer resume" in paused.remedy) == (True, True)


def with_history(store: FsspecStore, schema: str, **properties: str) -> None:
    """A table with a load of the stream, whose rows were added."""
    loaded = CommitMetadata("c", "orders", {TopicPartition(Topic("orders"), Partition(0)): span(0, 10)}, None)
    metadata = {**METADATA["metaData"], "schemaString": schema, "partitionColumns": []}  # type: ignore[dict-item]
    configuration = {f"delta.{name}": value for name, value in properties.items()}
    commit(store, 0, PROTOCOL, {"metaData": {**metadata, "configuration": configuration}})
    commit(store, 1, {"commitInfo": {"operation": "W", "userMetadata": loaded.to_json()}}, txn("orders-0", 9))


def test_dead_letter_table_has_columns_of_its_own(staging: Staging) -> None:
    with_history(staging.store(staging.dead_letters), schema_to_json(DEAD_LETTER_SCHEMA))
    assert [check for check in preflight(staging) if check.app_id == "orders" and check.level is Level.ERROR] == []


@pytest.mark.parametrize("which", ["dead letters", "route"])
def test_vacuum_of_a_secondary_table_is_checked_too(staging: Staging, which: str) -> None:
    url = staging.dead_letters if which == "dead letters" else staging.route("vip")
    schema = schema_to_json(DEAD_LETTER_SCHEMA) if which == "dead letters" else COLUMNS
    with_history(staging.store(url), schema, deletedFileRetentionDuration="interval 1 hours")
    checks = preflight(staging, settings=routed_settings_for(staging, ["vip"]))
    assert [check.level for check in checks if check.name == "vacuum" and url in check.message] == [Level.WARNING]


def test_incompatible_route_table_is_an_error_of_its_stream(staging: Staging) -> None:
    text = schema_to_json(StructType((Field("id", Primitive.STRING), *KAFKA_FIELDS)))
    with_history(staging.store(staging.route("vip")), text)
    (error,) = (
        check
        for check in preflight(staging, settings=routed_settings_for(staging, ["vip"]))
        if check.level is Level.ERROR
    )
    assert (error.name, error.app_id, staging.route("vip") in error.message) == ("columns", "orders", True)


def test_topic_that_a_stream_no_longer_reads_is_reported(staging: Staging) -> None:
    Staging(staging.root, "orders_old").flush(0, 0, 10)
    stage = staging.store(staging.stage_url)
    checker = Preflight(settings_for(staging), stage, Stage(stage, in_turn), staging.store, lambda _: {}, SystemClock())
    for checks in (checker.checks(), checker.stream_checks("orders")):
        (topics,) = (check for check in checks if "orders_old" in check.message)
        assert (topics.name, topics.app_id) == ("topics", "orders")


def test_route_table_that_was_not_merged_is_a_warning(staging: Staging) -> None:
    merged = {"load": "merge", "merge": {"keys": ["id"], "tombstones": "ignore"}}
    settings = routed_settings_for(staging, ["vip"], merged)
    with_history(staging.store(staging.route("vip")), COLUMNS)
    (check,) = (check for check in preflight(staging, settings=settings) if check.name == "merge")
    assert (check.level, staging.route("vip") in check.message) == (Level.WARNING, True)
