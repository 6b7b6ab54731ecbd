"""The part of a stream's settings that says how its records are written, and what their fields are."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Self

from pydantic import Field, field_validator, model_validator

from common.schema import StructType, parse_ddl
from common.schema.evolution import NO_COLUMNS
from common.settings.columns_from import ColumnsFrom, columns_from
from common.settings.formats import Forms, ValueFormat, forms_of
from common.settings.refusing import refuse
from common.settings.route_tables import require_columns
from common.settings.section import SectionPart

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
