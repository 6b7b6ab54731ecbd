"""The services' shared rules for change events: how staged rows become rows of a table that has one row per key.

Rules:

1. A marker says how its rows are to be merged (`MergeBy`), because the settings may have changed by the time they are
   loaded.
2. Such rows wait below the stage, in offset order, with all columns of the table and those that only merging needs,
   whose names start with ``_merge_`` (`staged_columns`). The table never has these.
3. Where one message may have several rows, a column has their order in the message (`MergeBy.row`): they may be about
   one key, and share their record identity.
4. A row that says that the whole source table was truncated has no key, and deletes (`MergeBy.truncate`).
5. A table that keeps every version of a row (`MergeBy.history`) has three more columns, `HISTORY_COLUMNS`. In a staged
   row ``valid_from`` is the event's time, and the others are not used.
6. Where `explode` makes rows of an array's elements, the last keys are the element's (`MergeBy.element`), and the
   others name the record. A record's rows are replaced together: an event is a row for each of its elements, or, where
   the record has none any more, one that deletes and has no element. All of them have the event's record identity.
7. Rows with Kafka's columns identify their record, which ties a row that a table refuses to its bytes in Kafka; change
   events always do. Rows of a stream with ``kafka_columns: false`` have three additional columns where they wait for
   Spark (``load: append``), `STAGED_IDENTITY`: the marker names them, and no table ever gets them. Where files may
   become part of a table as they are, such columns are not possible, and a row's record is unknown. A marker without
   them is just as good: they are read only where a row was refused.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import MinLen

from common.schema.ddl import backticks
from common.schema.types import Field, Primitive, StructType
from common.stored_types import omit_defaults

RESERVED = "_merge_"
"""The reserved prefix for columns of a merge stream."""
DELETE_COLUMN = "_merge_delete"
"""BOOLEAN: whether the event deletes its key's row."""
ROW_COLUMN = "_merge_row"
"""INTEGER: which of its message's rows a row is, from 0 on."""
TRUNCATE_COLUMN = "_merge_truncate"
"""BOOLEAN: whether the event deletes all rows."""
TIME_COLUMN = "_merge_time"
"""TIMESTAMP: when an envelope's event happened in its source; only until a row has its ``valid_from``."""
VALID_FROM, VALID_TO, IS_CURRENT = HISTORY_COLUMNS = ("valid_from", "valid_to", "is_current")
"""From when and until when (exclusive, null for the current version) a row was valid, and whether it still is."""
IdentityColumns = tuple[str, str, str]
"""The names of a record's topic, partition and offset."""
STAGED_IDENTITY: IdentityColumns = ("_staged_topic", "_staged_partition", "_staged_offset")
IDENTITY_TYPES = (Primitive.STRING, Primitive.INTEGER, Primitive.LONG)
_OWN_PLACE = ("_merge_topic", "_merge_partition", "_merge_offset")


@dataclass(frozen=True, slots=True)
class MergedBy:
    """How the rows that a table has were merged: what later merges into it depend on."""

    keys: tuple[str, ...]
    sequence: str | None = None
    history: bool = False


@dataclass(frozen=True, slots=True)
class MergeBy:
    """How a staged table's rows are merged into the table."""

    keys: Annotated[tuple[str, ...], MinLen(1)]
    """The columns that identify a row; never null in staged rows."""
    place: IdentityColumns
    """The columns of the staged rows with an event's record identity: Kafka's topic, partition and offset."""
    sequence: str | None
    """The column that says which of a key's events is newer; null only for deletes. None for their order in Kafka."""
    soft_delete: str | None
    """The BOOLEAN column that is true for deleted rows; None where they are removed."""
    row: str | None = None
    """The column with a row's index in its message; None where each message has one row."""
    event_columns: tuple[str, ...] | None = None
    """The columns that describe the event, which each upsert sets; in any other one a null leaves what the row has.
    None: an upsert sets all columns."""
    truncate: str | None = None
    """The column that is true for events that delete all rows; None where such events are not staged."""
    history: bool = False
    """Whether the table keeps every version of a row (`HISTORY_COLUMNS`)."""
    element: tuple[tuple[str, ...], ...] = ()
    """The steps to the last ``keys``, which are an exploded element's; empty where records are not exploded."""

    _without_empty = omit_defaults("row", "event_columns", "truncate", "history", "element")

    @property
    def record(self) -> tuple[str, ...]:
        """The key columns that are not an element's."""
        return self.keys[: len(self.keys) - len(self.element)]

    @property
    def replaces_records(self) -> bool:
        return bool(self.element and self.record)

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        return (*((key,) for key in self.record), *self.element)

    @property
    def sql_keys(self) -> tuple[str, ...]:
        return tuple(".".join(map(backticks, steps)) for steps in self.paths)

    @property
    def merged(self) -> MergedBy:
        """The part that a table's commits record."""
        return MergedBy(self.keys, self.sequence, self.history)

    @property
    def order(self) -> tuple[str, ...]:
        """The columns by which staged rows are ordered as their source sent them."""
        return self.place if self.row is None else (*self.place, self.row)


def made_fields(columns: StructType, by: MergeBy) -> tuple[Field, ...]:
    """The columns that merging adds to these; without `HISTORY_COLUMNS` where the sequence is none of them."""
    made = () if by.soft_delete is None else (Field(by.soft_delete, Primitive.BOOLEAN),)
    time = Field(VALID_FROM, Primitive.TIMESTAMP) if by.sequence is None else columns.field(by.sequence)
    if not by.history or time is None:
        return made
    return (*made, Field(VALID_FROM, time.type), Field(VALID_TO, time.type), Field(IS_CURRENT, Primitive.BOOLEAN))


def identity_fields(identity: IdentityColumns) -> tuple[Field, ...]:
    return tuple(Field(name, data_type) for name, data_type in zip(identity, IDENTITY_TYPES, strict=True))


def identity_of_events(kafka_columns: tuple[str, ...]) -> IdentityColumns:
    """``kafka_columns`` are the table's own columns of the record identity, empty if it has none."""
    identity = kafka_columns[:3] if kafka_columns else _OWN_PLACE
    return identity[0], identity[1], identity[2]


def staged_columns(table: StructType, by: MergeBy) -> StructType:
    """The columns of the staged rows: the table's, then those that only merging needs."""
    identity = (field for field in identity_fields(by.place) if table.field(field.name) is None)
    row = () if by.row is None else (Field(by.row, Primitive.INTEGER),)
    truncate = () if by.truncate is None else (Field(by.truncate, Primitive.BOOLEAN),)
    return table.with_fields((*identity, *row, *truncate, Field(DELETE_COLUMN, Primitive.BOOLEAN)))


def table_columns(staged: StructType) -> StructType:
    """The inverse of `staged_columns`: the staged rows' columns that the table has."""
    return StructType(tuple(field for field in staged if not field.name.startswith(RESERVED)))
