"""A stream's settings: what to load, from where to where. The rules are those of `common.settings.model`.

Settings that contradict each other are refused by `common.settings.checks`, when a file is read.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, field_validator, model_validator

from common.schema import StructType, parse_ddl
from common.schema.evolution import NO_COLUMNS
from common.settings.catalog import require_location, with_locations, with_main_table
from common.settings.columns_from import ColumnsFrom, columns_from, with_implied
from common.settings.dead_letter_topic import TOPIC_DESCRIPTION, with_dead_letters_topic
from common.settings.expectations import OnFail, Rules
from common.settings.formats import Forms, ValueFormat, forms_of
from common.settings.loading import Evolution, LoadSetting
from common.settings.merge import MergeSettings
from common.settings.route_tables import FieldNames, Routes, RouteTable, TableOrUrl, require_columns
from common.settings.route_template import ROUTE_LIMIT, RouteTemplateOrNone
from common.settings.services import DurationOrNone, StreamServices
from common.settings.topic_names import Topics
from common.settings.topic_reader import TopicReader
from common.settings.values import CODECS, DurationS, LoadScheduleOrNone, SizeOrNone, StartAt, StartValue
from common.stage.identity_columns import STAGED_IDENTITY, IdentityColumns
from common.tables.urls import comparable

KAFKA_COLUMNS = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp")


class UnknownFields(StrEnum):
    """What becomes of a record's fields that are not declared."""

    IGNORE = "ignore"
    RESCUE = "rescue"
    EVOLVE = "evolve"


class Included(StrEnum):
    """The parts of a Kafka message that rows may have."""

    KEY = "key"
    HEADERS = "headers"


INCLUDED_COLUMNS = {Included.KEY: "_kafka_key", Included.HEADERS: "_kafka_headers"}


class Stream(TopicReader):
    """One `app_id`, its topics and its table."""

    app_id: str = Field(
        min_length=1,
        description="Name of the stream; the table's txn actions carry it, so it must never change.",
    )
    topics: Topics = Field(min_length=1, description="Topic names, or one regular expression that begins with `^`.")
    table: str = Field(min_length=1, description="URL of the Delta table, or its name where `catalog_tables` has it.")
    catalog_tables: dict[str, str] = Field(
        default_factory=dict,
        description="Names of tables in Spark's catalogs, `schema.table` or `catalog.schema.table`, with the URL "
        "of each. `table`, `dead_letters`, `routes` and `template` may then be names; the loader "
        "registers tables that the catalog lacks, and refuses a name that stands for another object. "
        "See [loading.md](loading.md).",
        examples=[{"lake.shop.orders": "s3://lake/tables/orders"}],
    )
    columns: str = Field(
        default=ColumnsFrom.RECORDS.value,
        min_length=1,
        description="The record's fields and their types, as in Spark's `CREATE TABLE`; `unknown_fields` is "
        "about all other fields. Or where they come from: `from_table` takes the table's columns and follows them, "
        "`from_records` infers them from the stream's first records, `from_registry` takes those of the schemas in the "
        "`schema_registry`. See [schema.md](schema.md).",
        examples=["id BIGINT, amount DOUBLE", "from_table"],
    )
    topology: str | None = Field(
        default=None,
        description="A function that makes the rows: `package.module:build`, which returns a `Topology` or a "
        "`StreamsBuilder`. The writer imports it; `columns` are then the table's.",
        examples=["shop.sessions:build"],
    )
    topology_packages: tuple[str, ...] = Field(
        default=(),
        description="Packages of yours that the `topology` imports and that are named like a part of this "
        "program (`common`, `bootstrap`, `delta_loader`): your modules then import yours. Applies to "
        "all topologies of the writer.",
        examples=[["common"]],
    )
    state_changelog: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,249}$",
        description="A Kafka topic for the changes that flushes make to the state of the topology's tasks; "
        "without one they are files in the stage, as snapshots always are. Markers name its messages "
        "by offset, so it must not be compacted, and must retain them for at least twice "
        "`writer.state_keep`. Several streams may share one. See [state.md](state.md).",
        examples=["sessions-changelog"],
    )
    max_task_idle_s: DurationS = Field(
        default=0.0,
        alias="max_task_idle",
        description="How long a task that joins topics waits for a topic that was read to its end while others "
        "have records: `0s` takes only the records that Kafka has already, more also waits for late "
        "producers. Available records are joined in the order of their times.",
        examples=["5s"],
    )
    format: str = Field(
        default="json",
        pattern="^(json|avro|protobuf)$",
        description="How records are written. `avro` and `protobuf` need the schema that a record was written with "
        "(`framing: confluent`, or a `schema_file`), and the extra of that name. See [formats.md](formats.md).",
    )
    schema_file: str | None = Field(
        default=None,
        min_length=1,
        description="Path of the schema of messages without a frame: an Avro schema, a .proto file, a descriptor set; "
        "or with `validate` a JSON Schema. With `format: avro` and `framing: confluent` it is the reader's schema, to "
        "which records are resolved: its defaults and aliases apply.",
        examples=["/etc/kafka-delta-express/order.avsc"],
    )
    message: str | None = Field(
        default=None,
        min_length=1,
        description="With `format: protobuf` and a `schema_file`: the records' message, where that is not the first.",
        examples=["shop.Order"],
    )
    validates: bool = Field(
        default=False,
        alias="validate",
        description="With `format: json`: a record that its JSON Schema (`framing: confluent`, or `schema_file`) does "
        "not allow is a dead letter, `against_schema`. Each record is parsed once more for it. Needs the extra "
        "`[json-schema]`.",
    )
    framing: str = Field(
        default="none",
        pattern="^(none|confluent|confluent_header)$",
        description="`confluent`: each message begins with a zero byte and the id of its schema in `schema_registry`, "
        "as Confluent's serializers write it. `confluent_header`: the header `__value_schema_id` has the schema's GUID "
        "or id. See [envelopes.md](envelopes.md).",
    )
    envelope: str = Field(
        default="plain",
        pattern="^(plain|debezium|maxwell|canal|dms)$",
        description="`debezium`, `maxwell`, `canal`, `dms` (AWS DMS): a message is a change event; the row's image is "
        "the record, and the column `_cdc` describes the change. Where it is absent, Debezium is recognized in columns "
        "from records that are merged. See [envelopes.md](envelopes.md).",
    )
    unknown_fields: UnknownFields = Field(
        default=UnknownFields.IGNORE,
        description="Handling of undeclared fields, at any depth: `ignore` leaves them out (the writer counts them in "
        "a sample of records, and warns unless this key is given); `rescue` keeps them, as they were sent, in the "
        "rescue column; `evolve` also adds columns for them, which is the default with `columns: from_records`.",
    )
    rescue_column: str = Field(
        default="_rescued",
        min_length=1,
        description="Name of the STRING column that holds a record's undeclared fields as a JSON object; null if "
        "there are none. Only with `unknown_fields: rescue` or `evolve`.",
    )
    evolve_limit: int = Field(
        default=1000,
        ge=0,
        description="Maximum number of fields that `unknown_fields: evolve` adds to the table, including fields "
        "inside structs; further fields stay in the rescue column.",
    )
    jmespath: dict[str, str] = Field(
        default_factory=dict,
        description="Declared columns (or fields of STRUCTs, as `meta.kafka.offset`) that are filled by JMESPath over "
        "the record as it was sent, as in kafka-delta-ingest: with its functions, `kafka.topic`, `kafka.partition`, "
        "`kafka.offset` and `kafka.timestamp`. Paths, `substr` of a path and `kafka.*` are fast, anything else runs "
        "record by record. A record for which it fails is a dead letter. For new streams, `derive` is the better way.",
        examples=[{"date": "substr(meta.producer.timestamp, `0`, `10`)"}],
    )
    where: str | None = Field(
        default=None,
        min_length=1,
        description="SQL condition over the same inputs as `derive`. A record for which it is false or null "
        "becomes no row, and is counted; a record for which it fails is a dead letter.",
        examples=["status >= 400"],
    )
    formats: dict[str, ValueFormat] = Field(
        default_factory=dict,
        description="How values are written where their type has more than one form, by path (`sent`, `meta.sent`, "
        "`times.element`, `attributes.value`): `epoch_s`, `epoch_ms` or `epoch_us` for a TIMESTAMP or TIMESTAMP_NTZ, "
        "`base64` (the default) or `hex` for BINARY, `json` for a STRING that takes any value's JSON text as it was "
        "sent. See [types.md](types.md).",
        examples=[{"sent": "epoch_ms", "payload": "json"}],
    )
    coerce: str = Field(
        default="strict",
        pattern="^(strict|lenient)$",
        description="`strict` takes values of the columns' types only. `lenient` also takes equivalent values: "
        '`"7"` and `7.0` for an INT, `"1.5"` for a DOUBLE, `"true"` for a BOOLEAN, any value as JSON '
        "text for a STRING; never with a loss. See [types.md](types.md).",
    )
    derive: dict[str, str] = Field(
        default_factory=dict,
        description="Columns made from others: name to SQL expression over the record's fields and `kafka.topic`, "
        "`kafka.partition`, `kafka.offset`, `kafka.timestamp`, `kafka.key`, `kafka.headers`.",
    )
    expect: Rules = Field(
        default_factory=dict,
        description="Rules that rows should follow: name to SQL condition over the same inputs as `route`, or "
        "`{rule: SQL, on_fail: …}`. A record breaks a rule that is false for it or that fails; null is no break. "
        "Counted by rule. See [transforms.md](transforms.md#rules).",
        examples=[{"positive_amount": "amount > 0", "known_country": {"rule": "len(country) = 2", "on_fail": "count"}}],
    )
    on_fail: OnFail = Field(
        default=OnFail.DEAD_LETTER,
        description="What becomes of a record that breaks a rule of `expect`: `dead_letter`, with the error class "
        "`expectation`; `count` stages and counts it; `hold` stops its Kafka partition in front of it until the "
        "rule or its `on_fail` is changed, or the record is given up.",
    )
    explode: str | None = Field(
        default=None,
        min_length=1,
        description="A column of type ARRAY, declared or derived: each element becomes a row, with the record's "
        "other columns. A record whose array is null or empty has one row, with null there.",
        examples=["items"],
    )
    drop: tuple[str, ...] = Field(
        default=(),
        description="Fields that expressions see but the table does not have, by path: `secret`, "
        "`meta.producer.name`, `items.element.note` in an array, `props.value.note` in a map. Also "
        "derived columns.",
        examples=[["meta.producer.name"]],
    )
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="Fields, by path as in `drop`, and their names in the table; a field keeps its place. "
        "Expressions, `explode` and `drop` use the record's names, `partition_by` the table's.",
        examples=[{"userID": "user"}],
    )
    field_names: FieldNames = Field(
        default=FieldNames.AS_IS,
        description="Names of the fields that `rename` does not name: `snake_case` makes `user_id` of `userID`.",
    )
    partition_by: tuple[str, ...] = Field(default=(), description="Partition columns of the table, in order.")
    cluster_by: tuple[str, ...] = Field(
        default=(),
        description="Columns that Delta clusters a new table's files by (liquid clustering), when OPTIMIZE runs.",
        examples=[["customer", "created"]],
    )
    table_properties: dict[str, str] = Field(
        default_factory=dict,
        description="Properties of tables that the loader creates, as in `TBLPROPERTIES`. Existing tables keep theirs.",
        examples=[{"delta.enableChangeDataFeed": "true"}],
    )
    template: str | None = Field(
        default=None,
        min_length=1,
        description="URL of a Delta table that new tables are created like: its columns in their order (with "
        "constraints, generated columns and the like), partitioning, clustering and properties. It "
        "must have all staged columns.",
    )
    uniform: tuple[str, ...] = Field(
        default=(),
        description="Other formats whose readers can read a new table (UniForm). Refused for now: no jar for it "
        "matches this Delta version.",
    )
    start: StartValue = Field(
        default=StartAt.EARLIEST,
        description="Where a Kafka partition without any marker begins: `earliest`, `latest`, a moment, or positions "
        "by partition.",
    )
    dead_letters: str = Field(
        default="",
        description="URL of the table for dead letters; by default the table's URL followed by `_dead_letters`. "
        "`kafka://topic` is the default with that `dead_letters_topic`.",
    )
    dead_letters_topic: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]{1,249}$",
        description=TOPIC_DESCRIPTION,
    )
    route: str | None = Field(
        default=None,
        description="Which of `routes` a record takes: one SQL expression over the record's fields and `kafka.*`, or a "
        "field's name. Text is one route; an array of texts gives the record to each of them. See "
        "[routing.md](routing.md).",
        examples=["kind", "regexp_extract(kafka.topic, '^shop-([a-z]+)', 1)"],
    )
    route_settings: Routes = Field(
        default_factory=dict,
        alias="routes",
        description="Values of `route`, and the table for such records: its URL, for a table like the stream's, or a "
        "section with its own columns and layout. Two values may share a table. See [routing.md](routing.md).",
        examples=[{"click": "s3://lake/tables/clicks"}],
    )
    route_table: RouteTemplateOrNone = Field(
        default=None,
        description="A URL with `{route}` in it, for values of `route` that are not in `routes`: a table like the main "
        "one appears with the first record of each. See [routing.md](routing.md#tables-that-appear).",
        examples=["s3://lake/tables/{route}"],
    )
    route_limit: int = Field(
        default=ROUTE_LIMIT,
        gt=0,
        le=10_000,
        description="How many tables may appear by `route_table`; records with other values are then `unrouted`.",
    )
    route_tables: dict[str, RouteTable] = Field(
        default_factory=dict,
        description="The same sections as in `routes`, apart from the URLs, as earlier releases have them for a "
        "`topology`.",
        examples=[{"alerts": {"columns": "device STRING, day DATE, share DOUBLE", "partition_by": ["day"]}}],
    )
    other_tables: tuple[TableOrUrl, ...] = Field(
        default=(),
        alias="tables",
        description="Without `route`: several tables, each of which gets a row of every record. Each is a URL, for a "
        "table like the stream's, or a section. The first is the main table, unless `table` is given. See "
        "[routing.md](routing.md).",
        examples=[["s3://lake/tables/orders", "s3://archive/tables/orders"]],
    )
    unrouted: str = Field(
        default="table",
        pattern="^(table|dead_letters)$",
        description="Where records go if their route is null or not in `routes`: `table`, the main table, or "
        "`dead_letters`, with the error class `unrouted`.",
    )
    kafka_columns: bool = Field(
        default=True,
        description="Add `_kafka_topic`, `_kafka_partition`, `_kafka_offset` and `_kafka_timestamp` to every row.",
    )
    include: tuple[Included, ...] = Field(
        default=(),
        description="Parts of the Kafka message to add to every row: `key` makes the column `_kafka_key` (BINARY), "
        "`headers` makes `_kafka_headers` (ARRAY<STRUCT<key: STRING, value: BINARY>>, in Kafka's order; null for a "
        "message without headers). See [schema.md](schema.md).",
        examples=[["key", "headers"]],
    )
    load: LoadSetting = Field(
        default=LoadSetting.AUTO,
        description="How rows reach the tables: `add` adds the staged files as they are, without reading them; "
        "`append` has Spark write the rows into a few large files, as Delta's own writer does; "
        "`auto` adds where the table allows it, and appends elsewhere. `delta-loader status` shows "
        "the choice and the reason. `merge` treats rows as changes and requires the section `merge`. "
        "See [loading.md](loading.md).",
    )
    merge: MergeSettings | None = Field(
        default=None,
        description="With `load: merge` the table has one row per key, and records change it: upserts and "
        "deletes. See [change_events.md](change_events.md).",
    )
    evolution: Evolution = Field(
        default=Evolution.STRICT,
        description="Handling of differences between staged data and a table: `strict` holds the stream until an "
        "operator fixes them; `add` adds missing columns to the table, and is the default with `columns: "
        "from_registry`; `widen` also widens types, as Delta's type widening does. With both, staged numbers of "
        "another type are cast where no value is lost, and become dead letters elsewhere.",
    )

    compression: str | None = Field(
        default=None,
        pattern=CODECS,
        description="The stream's own `writer.compression`.",
        examples=["zstd"],
    )
    flush_after_s: DurationOrNone = Field(
        default=None, alias="flush_after", gt=0, description="The stream's own `writer.flush_after`.", examples=["1s"]
    )
    flush_bytes: SizeOrNone = Field(default=None, gt=0, description="The stream's own `writer.flush_bytes`.")
    flush_records: int | None = Field(default=None, gt=0, description="The stream's own `writer.flush_records`.")
    schedule: LoadScheduleOrNone = Field(
        default=None,
        description="The stream's own `loader.schedule`. With `on-marker`, the default of `loader.marker_retention` is "
        "`10m` for this stream. See [schedules.md](schedules.md).",
        examples=["1h"],
    )
    max_commits_per_minute: int | None = Field(
        default=None, gt=0, le=600, description="The stream's own `loader.max_commits_per_minute`."
    )
    max_files: int | None = Field(default=None, gt=0, description="The stream's own `loader.max_files`.")
    max_bytes: SizeOrNone = Field(default=None, gt=0, description="The stream's own `loader.max_bytes`.")
    valid_through_property_s: DurationOrNone = Field(
        default=None,
        alias="valid_through_property",
        description="At most this often, such as `15m`, the loader also writes the time through which the table "
        "is complete into the table property `kafka_delta_express.valid_through`. null for never, "
        "because each write commits a metadata change, for which Delta refuses concurrent commits of "
        "others (an OPTIMIZE, a MERGE). Each load's commit has it anyway.",
    )
    table_services: StreamServices = Field(
        default_factory=StreamServices, description="Settings of this stream that override `table_services`."
    )

    @model_validator(mode="before")
    @classmethod
    def _located(cls, values: object) -> object:
        return with_implied(with_locations(with_main_table(with_dead_letters_topic(values))))

    @field_validator("table", "dead_letters")
    @classmethod
    def _table(cls, value: str | None) -> str | None:
        return value if value is None else require_location(value)

    @field_validator("app_id")
    @classmethod
    def _app_id(cls, value: str) -> str:
        if value in {".", ".."} or not value.isprintable():
            msg = "names folders of the stage: it leads elsewhere, or cannot be printed; letters, digits, - and _ do"
            raise ValueError(msg)
        return value

    @field_validator("include")
    @classmethod
    def _include(cls, value: tuple[Included, ...]) -> tuple[Included, ...]:
        if len(set(value)) < len(value):
            msg = "names a part of the message twice; name each once"
            raise ValueError(msg)
        return value

    @field_validator("columns")
    @classmethod
    def _columns(cls, value: str) -> str:
        return value if columns_from(value) is not None else require_columns(value)

    @model_validator(mode="after")
    def _on_fail(self) -> Self:
        if self.on_fail is not OnFail.DEAD_LETTER and not self.expect:
            msg = f"on_fail is {self.on_fail}, but expect has no rules; add one, or leave on_fail out"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _rescue(self) -> Self:
        if not self.rescues and self.rescue_column != "_rescued":
            msg = "rescue_column is given, but unknown_fields is ignore; write unknown_fields: rescue, or leave it out"
            raise ValueError(msg)
        return self

    @property
    def evolves(self) -> bool:
        """Whether the table gains new columns."""
        return self.unknown_fields is UnknownFields.EVOLVE

    @property
    def drops_on_purpose(self) -> bool:
        """Whether the config itself states what to do with undeclared fields, so that no warning is due."""
        return "unknown_fields" in self.model_fields_set

    @property
    def rescues(self) -> bool:
        """Whether rows have a rescue column."""
        return self.unknown_fields is not UnknownFields.IGNORE

    @model_validator(mode="after")
    def _formats(self) -> Self:
        if self.columns_from is not None:
            return self
        try:
            forms_of(self.schema_of_columns, self.formats)
        except ValueError as error:
            msg = f"formats: {error}"
            raise ValueError(msg) from None
        return self

    @property
    def has_events(self) -> bool:
        """Whether messages are change events, so that rows have the column `_cdc`."""
        return self.envelope != "plain"

    @property
    def forms(self) -> Forms:
        """The ``formats``, by the columns' structure."""
        return forms_of(self.schema_of_columns, self.formats)

    @property
    def columns_from(self) -> ColumnsFrom | None:
        """Where the columns come from; None where they are declared."""
        return columns_from(self.columns)

    @property
    def schema_of_columns(self) -> StructType:
        """The declared columns; none where they come from elsewhere (common/settings/with_columns.py)."""
        return NO_COLUMNS if self.columns_from is not None else parse_ddl(self.columns)

    @model_validator(mode="after")
    def _defaults(self) -> Self:
        if not self.dead_letters:
            object.__setattr__(self, "dead_letters", self.table.rstrip("/") + "_dead_letters")
        if comparable(self.dead_letters) == comparable(self.table):
            msg = "dead_letters is the table itself; give it a URL of its own"
            raise ValueError(msg)
        return self

    @property
    def kafka_column_names(self) -> tuple[str, ...]:
        """The table's columns for a record's position and time in Kafka; empty where it has none."""
        return KAFKA_COLUMNS if self.kafka_columns else ()

    @property
    def included_column_names(self) -> tuple[str, ...]:
        """The table's columns for the parts of a message that ``include`` names, in their fixed order."""
        return tuple(column for part, column in INCLUDED_COLUMNS.items() if part in self.include)

    @property
    def staged_identity(self) -> IdentityColumns | None:
        """The columns that its staged rows have in addition to the table's, to identify their records."""
        return STAGED_IDENTITY if self.load is LoadSetting.APPEND and not self.kafka_columns else None

    @property
    def row_tables(self) -> tuple[str, ...]:
        """The URLs of the tables for its rows, each once: the main table first."""
        by_place: dict[str, str] = {}
        for url in (self.table, *self.routes.values(), *(table.table for table in self.other_tables)):
            by_place.setdefault(comparable(url), url)
        return tuple(by_place.values())

    @property
    def routes(self) -> dict[str, str]:
        """The URL of each route's table."""
        return {route: table.table for route, table in self.route_settings.items()}

    @property
    def sections(self) -> dict[str, tuple[str, RouteTable]]:
        """The tables with settings that differ from the stream's: their URL and settings, by the key of these."""
        sections: dict[str, tuple[str, RouteTable]] = {
            f"routes.{route}": (table.table, table) for route, table in self.route_settings.items() if table.given
        }
        routes = self.routes
        more = ((route, table) for route, table in self.route_tables.items() if route in routes)  # see checks
        sections |= {f"route_tables.{route}": (routes[route], table) for route, table in more}
        tables = enumerate(self.other_tables)
        return sections | {f"tables[{number}]": (table.table, table) for number, table in tables if table.given}

    @property
    def has_several_columns(self) -> bool:
        """Whether rows of some of its tables are staged with other columns than those of its main table."""
        identity = self.staged_identity
        return any(
            section.columns is not None or self.at(url).staged_identity != identity
            for url, section in self.sections.values()
        )

    def at(self, url: str) -> Stream:
        """The stream as if that one of its tables were the main one: with its columns and layout."""
        _, section = self._section_of(url)
        if section is None:
            return self.model_copy(update={"table": url})
        own = section.overrides
        if "z_order" in section.given:
            own["table_services"] = self.table_services.model_copy(update={"z_order": section.z_order})
        return self.model_copy(update={"table": url, **own})

    def key_of(self, url: str, name: str) -> str:
        """The key of a setting for one of its tables for rows."""
        key, section = self._section_of(url)
        return f"streams[].{name}" if section is None or name not in section.given else f"streams[].{key}.{name}"

    def _section_of(self, url: str) -> tuple[str, RouteTable | None]:
        """The key and the settings of one of its tables; None for one like the stream's."""
        sections = self.sections
        wanted = comparable(url) if sections else ""
        matching = ((key, section) for key, (table_url, section) in sections.items() if comparable(table_url) == wanted)
        return next(matching, ("", None))

    def load_of(self, url: str) -> LoadSetting:
        """How one of its tables is loaded; the one for dead letters is always appended to."""
        return self.at(url).load if url in self.row_tables else LoadSetting.AUTO

    @property
    def side_tables(self) -> tuple[str, ...]:
        """The URLs of its secondary tables: those of its routes, and the one for dead letters."""
        return (*self.row_tables[1:], self.dead_letters)

    @property
    def tables(self) -> tuple[str, ...]:
        """The URLs of all its tables, the main one first and the one for dead letters last."""
        return (self.table, *self.side_tables)

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """The locations of its tables, with the keys that set them."""
        own = (("streams[].table", self.table), ("streams[].dead_letters", self.dead_letters))
        tables = ((f"streams[].tables[{number}]", table.table) for number, table in enumerate(self.other_tables))
        return (*own, *((f"streams[].routes.{value}", url) for value, url in self.routes.items()), *tables)

    @property
    def may_merge(self) -> bool:
        """Whether chains of several topics together (common/stage/merged.py) may belong to this stream."""
        return self.topology is not None and self.several_topics
