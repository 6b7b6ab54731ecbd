"""The parts of a stream's settings: its records, their rows, its tables, and its pace.

Rules:

1. A record breaks a rule of `expect` that is false for it, or that cannot be evaluated. Null does not break a rule, as
   in SQL's CHECK.
2. A key of `PaceSettings` has the name and meaning of the service's key, which is its default
   (common/settings/pace.py).
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from common.schema import StructType, parse_ddl
from common.schema.evolution import NO_COLUMNS
from common.settings.columns_from import ColumnsFrom, columns_from
from common.settings.formats import Forms, ValueFormat, forms_of
from common.settings.route_tables import (
    ROUTE_LIMIT,
    FieldNames,
    Routes,
    RouteTable,
    RouteTemplate,
    TableOrUrl,
    require_columns,
)
from common.settings.section import Section, SectionPart, refuse
from common.settings.values import CODECS, DurationS, LoadSchedule, SizeBytes

FIRST_MESSAGE = ""
"""The `message` of a stream whose columns come from a schema's first message type."""


class UnknownFields(StrEnum):
    """The treatment of a record's undeclared fields."""

    IGNORE = "ignore"
    RESCUE = "rescue"
    EVOLVE = "evolve"


class RecordSettings(SectionPart):
    """The records, before anything is made of them."""

    columns: str = Field(
        default=ColumnsFrom.RECORDS.value,
        min_length=1,
        description="The record's fields and their types, as in Spark's `CREATE TABLE`; `unknown_fields` is "
        "about all other fields. Or where they come from: `from_table` takes the table's columns and follows them, "
        "`from_records` infers them from the stream's first records, `from_registry` takes those of the schemas in the "
        "`schema_registry`, and is the default in Avro and Protobuf with `framing`, `from_schema_file` those of the "
        "`schema_file`, and is the default with it. See [schema.md](schema.md).",
        examples=["id BIGINT, amount DOUBLE", "from_table"],
    )
    route_columns: str = Field(
        default="shared",
        pattern="^(shared|own)$",
        description="The columns of the tables that appear by `route_table`: `shared` gives them the main table's, "
        "`own` to each those of its own records, and with `merge` keys of its own. See "
        "[routing.md](routing.md#columns-of-their-own).",
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
        description="With `format: protobuf`: the records' message, where that is not the first of the schema. With "
        "`framing: confluent`, records of other messages are then dead letters, `wrong_schema`, as they "
        "always are with `columns: from_registry`.",
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
        "or id. See [formats.md](formats.md#framing).",
    )
    envelope: str = Field(
        default="plain",
        pattern="^(plain|debezium|maxwell|canal|dms)$",
        description="`debezium`, `maxwell`, `canal`, `dms` (AWS DMS): a message is a change event; the row's image is "
        "the record, and the column `_cdc` describes the change. Where it is absent, Debezium is recognized in streams "
        "that merge, with columns from records or schemas. See [envelopes.md](envelopes.md).",
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

    @field_validator("columns")
    @classmethod
    def _columns(cls, value: str) -> str:
        return value if columns_from(value) is not None else require_columns(value)

    @model_validator(mode="after")
    def _format(self) -> Self:
        problem = next(self._format_problems(), None)
        if problem is not None:
            raise ValueError(problem)
        return self

    def _format_problems(self) -> Iterator[str]:
        """Problems of the records' schema: it is missing, or unused."""
        written, framed, file = self.format, self.framing != "none", self.schema_file
        if written != "json" and not framed and file is None:
            yield (
                f"format is {written}, but the schema of the records is unknown; write framing: "
                "confluent, or set schema_file"
            )
        if self.validates and written != "json":
            yield f"validate is for JSON, and format is {written}, whose records have its schema; remove validate"
        if self.validates and not framed and file is None:
            yield "validate needs a JSON Schema; write framing: confluent, or set schema_file"
        if file is not None and written == "json" and not self.validates:
            use = "write validate: true, or remove it"
            yield f"schema_file is set, but format: json reads by the columns alone; {use}"
        if file is not None and framed and written != "avro":
            yield f"schema_file is set, but with framing: {self.framing} the registry has the schema; remove one"
        if self.message is not None and written != "protobuf":
            yield "message only applies to format: protobuf; remove message"

    @model_validator(mode="after")
    def _rescue(self) -> Self:
        if not self.rescues and self.rescue_column != "_rescued":
            refuse("rescue_column is given, but unknown_fields is ignore; write unknown_fields: rescue, or remove it")
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
        return self.unknown_fields is not UnknownFields.IGNORE

    @model_validator(mode="after")
    def _formats(self) -> Self:
        if self.columns_from is not None:
            return self
        try:
            forms_of(self.schema_of_columns, self.formats)
        except ValueError as error:
            raise ValueError(f"formats: {error}") from None
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
    def has_own_columns(self) -> bool:
        """Whether each table that appears has columns, and keys, of its own."""
        return self.route_columns == "own"

    @property
    def columns_from(self) -> ColumnsFrom | None:
        """Where the columns come from; None where they are declared."""
        source = columns_from(self.columns)
        return None if source is ColumnsFrom.RECORDS and self.has_own_columns else source

    @property
    def schema_of_columns(self) -> StructType:
        """The declared columns; none where they come from elsewhere."""
        return NO_COLUMNS if columns_from(self.columns) is not None else parse_ddl(self.columns)


_RULE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class OnFail(StrEnum):
    """The treatment of a record that breaks a rule."""

    DEAD_LETTER = "dead_letter"
    COUNT = "count"
    HOLD = "hold"


class Expectation(Section):
    """One rule. In a config it may be the SQL alone."""

    rule: str = Field(min_length=1, description="SQL condition over the record's fields and the derived columns.")
    on_fail: OnFail | None = Field(default=None, description="The rule's own `on_fail`; by default the stream's.")

    @model_validator(mode="before")
    @classmethod
    def _sql_alone(cls, value: object) -> object:
        if not isinstance(value, (str, dict, cls)):
            msg = "is not a rule; write a SQL condition, or {rule: SQL condition, on_fail: count}"
            raise ValueError(msg)  # noqa: TRY004 - pydantic takes a ValueError for a refusal
        return {"rule": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(schema)]}


def _with_good_names(rules: dict[str, Expectation]) -> dict[str, Expectation]:
    """Raises ValueError for a name that metrics and markers cannot carry, and for two that differ in case only."""
    seen: dict[str, str] = {}
    for name in rules:
        if not _RULE_NAME.fullmatch(name):
            refuse(f"names a rule {name[:120]!r}; up to 100 letters, digits, '.', '_' and '-' are allowed")
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            refuse(f"names the rules {other!r} and {name!r}, which differ only in case; rename one of them")
    return rules


Rules = Annotated[dict[str, Expectation], AfterValidator(_with_good_names)]


class ShapingSettings(SectionPart):
    """How records become rows, and which records are dropped."""

    where: str | None = Field(
        default=None,
        min_length=1,
        description="SQL condition over the same inputs as `derive`. A record for which it is false or null "
        "becomes no row, and is counted; a record for which it fails is a dead letter.",
        examples=["status >= 400"],
    )
    derive: dict[str, str] = Field(
        default_factory=dict,
        description="Columns made from others: name to SQL expression over the record's fields and `kafka.topic`, "
        "`kafka.partition`, `kafka.offset`, `kafka.timestamp`, `kafka.key`, `kafka.headers`.",
    )
    expect: Rules = Field(
        default_factory=dict,
        description="Rules that rows should follow: name to SQL condition over the same inputs as `route`, or "
        "`{rule: SQL, on_fail: …}`. A record breaks a rule that is false for it or that fails; null breaks no rule. "
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
        "Expressions, `explode` and `drop` use the record's names, `partition_by` the table's. With "
        "`unknown_fields: evolve` also fields that records do not have yet.",
        examples=[{"userID": "user"}],
    )
    field_names: FieldNames = Field(
        default=FieldNames.AS_IS,
        description="Names of the fields that `rename` does not name: `snake_case` makes `user_id` of `userID`.",
    )

    @model_validator(mode="after")
    def _on_fail(self) -> Self:
        if self.on_fail is not OnFail.DEAD_LETTER and not self.expect:
            refuse(f"on_fail is {self.on_fail}, but expect has no rules; add one, or remove on_fail")
        return self


class RoutingSettings(SectionPart):
    """The tables for rows in addition to the main one, and what goes there."""

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
    route_table: RouteTemplate | None = Field(
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
        description="Sections as in `routes`, without the URLs: the form of earlier releases for a `topology`.",
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

    @property
    def routes(self) -> dict[str, str]:
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


class LayoutSettings(SectionPart):
    """A new table, except for its columns."""

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


class PaceSettings(SectionPart):
    """A stream's own pace."""

    compression: str | None = Field(
        default=None, pattern=CODECS, description="The stream's own `writer.compression`.", examples=["zstd"]
    )
    flush_after_s: DurationS | None = Field(
        default=None, alias="flush_after", gt=0, description="The stream's own `writer.flush_after`.", examples=["1s"]
    )
    flush_bytes: SizeBytes | None = Field(default=None, gt=0, description="The stream's own `writer.flush_bytes`.")
    flush_records: int | None = Field(default=None, gt=0, description="The stream's own `writer.flush_records`.")
    schedule: LoadSchedule | None = Field(
        default=None,
        description="The stream's own `loader.schedule`. With `on-marker`, the default of `loader.marker_retention` is "
        "`10m` for this stream. See [schedules.md](schedules.md).",
        examples=["1h"],
    )
    max_commits_per_minute: int | None = Field(
        default=None, gt=0, le=600, description="The stream's own `loader.max_commits_per_minute`."
    )
    max_files: int | None = Field(default=None, gt=0, description="The stream's own `loader.max_files`.")
    max_bytes: SizeBytes | None = Field(default=None, gt=0, description="The stream's own `loader.max_bytes`.")
