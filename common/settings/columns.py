"""From a stream's settings to the columns of its table, as far as they are known without SQL.

Rules:

1. The declared columns are the record's; `explode`, then `drop`, `rename` and `field_names` turn them into the table's.
   `partition_by` and the columns that are added after these use the table's names only.
2. The type of a derived column is its expression's. It is not known here, and nothing here depends on it.
3. The columns that a stream gains are published, and offered, under the records' names, so an edit of `rename`,
   `field_names` or `explode` leaves them true. The table has, and gains, columns of its own names. What is published
   stays published, also while a setting gives two of its fields the same column: that is then the first one's.
"""

from collections.abc import Collection
from dataclasses import replace

from common.errors import SchemaError
from common.hints import did_you_mean
from common.schema import ArrayType, Field, Primitive, StructType
from common.schema.agreement import Agreement, PublishedColumns, agree
from common.schema.evolution import Addition, extended
from common.schema.naming import Naming, restricted
from common.settings.formats import path_steps
from common.settings.stream import INCLUDED_COLUMNS, KAFKA_COLUMNS, Included, Stream

CDC_COLUMN = "_cdc"
"""The description of a row's change in an event (`envelope`)."""


def naming_of(stream: Stream) -> Naming:
    """Which fields the table leaves out, and the names of the others."""
    drop = frozenset(map(path_steps, stream.shaping.drop))
    rename = {path_steps(path): name for path, name in stream.shaping.rename.items()}
    return Naming(drop, rename, stream.shaping.field_names == "snake_case", is_open=stream.record.evolves)


def made_columns(stream: Stream) -> tuple[str, ...]:
    """Columns that are not fields of the record: they have the name given in the settings."""
    return (*columns_of_message(stream), *stream.shaping.derive)


def columns_of_message(stream: Stream) -> tuple[str, ...]:
    """The columns made from the whole message: rescued fields, and the change event."""
    rescue = (stream.record.rescue_column,) if stream.record.rescues else ()
    return (*rescue, *((CDC_COLUMN,) if stream.record.has_events else ()))


def rescue_column_of_table(stream: Stream) -> str | None:
    """The table's name of the rescue column."""
    return naming_of(stream).name_of((stream.record.rescue_column,), made_columns(stream))


def declared_columns_of_table(stream: Stream) -> StructType:
    columns = table_columns_of(stream)
    dropped = naming_of(stream).drop
    made = sum((name,) not in dropped for name in made_columns(stream))  # they come last
    return StructType(columns.fields[: len(columns) - made])


def exploded(columns: StructType, name: str) -> StructType:
    """The columns with an array's element in its place. Raises SchemaError for a column that is not an array."""
    exploded_field = columns.field(name)
    if exploded_field is None:
        msg = f"explode names {name!r}, which is neither a field of the record nor a derived column"
        raise SchemaError(msg, did_you_mean(name, columns.names, f"available: {', '.join(columns.names)}"))
    if not isinstance(exploded_field.type, ArrayType):
        msg = f"explode names {name!r}, which is not an ARRAY"
        raise SchemaError(msg, "name a column of type ARRAY, or derive one")
    element = replace(exploded_field, type=exploded_field.type.element, nullable=True)
    return StructType(tuple(element if field is exploded_field else field for field in columns))


def as_in_table(stream: Stream, fields: StructType) -> StructType:
    """Fields of records as the table has them: of an exploded one it has the element.

    Of several fields that become one column, the first one has it; the others have none.
    """
    return naming_of(stream).columns_of(_elements_of(stream, fields), made_columns(stream))


def as_in_records(stream: Stream, columns: StructType, fields: StructType, *, keep: bool = False) -> StructType:
    """The fields of records that a table has, with its types; to ``keep`` those that it lacks, they are as given."""
    known = naming_of(stream).fields_in(columns, _elements_of(stream, fields), made_columns(stream), keep=keep)
    return _arrays_of(stream, known)


def having_columns(stream: Stream, fields: StructType) -> StructType:
    """The fields that have a column of their own in the table."""
    own = naming_of(stream).distinct(_elements_of(stream, fields), made_columns(stream))
    return _arrays_of(stream, own)


def _elements_of(stream: Stream, fields: StructType) -> StructType:
    name = _exploded_field(stream)
    return StructType(
        tuple(
            replace(field, type=field.type.element)
            if field.name == name and isinstance(field.type, ArrayType)
            else field
            for field in fields
        )
    )


def _arrays_of(stream: Stream, fields: StructType) -> StructType:
    """The inverse of `_elements_of`."""
    name = _exploded_field(stream)
    return StructType(
        tuple(replace(field, type=ArrayType(field.type)) if field.name == name else field for field in fields)
    )


def _exploded_field(stream: Stream) -> str | None:
    """The field of the record that is exploded; None for a derived column."""
    return None if stream.shaping.explode in stream.shaping.derive else stream.shaping.explode


def table_columns_of(stream: Stream) -> StructType:
    """The table's columns except Kafka's; computed ones have any type. Raises SchemaError."""
    made = made_columns(stream)
    columns = stream.record.schema_of_columns.with_fields(Field(name, Primitive.STRING) for name in made)
    if (field := _exploded_field(stream)) is not None and stream.record.columns_from is None:
        columns = exploded(columns, field)
    # The content of computed ones is not known here (rule 2).
    naming = naming_of(stream)
    drop = frozenset(path for path in naming.drop if len(path) == 1 or path[0] not in made)
    rename = {path: name for path, name in naming.rename.items() if len(path) == 1 or path[0] not in made}
    return replace(naming, drop=drop, rename=rename).of(columns, made).columns


KAFKA_FIELDS = tuple(
    Field(name, data_type)
    for name, data_type in zip(
        KAFKA_COLUMNS, (Primitive.STRING, Primitive.INTEGER, Primitive.LONG, Primitive.TIMESTAMP), strict=True
    )
)
INCLUDED_FIELDS = (
    Field(INCLUDED_COLUMNS[Included.KEY], Primitive.BINARY),
    Field(
        INCLUDED_COLUMNS[Included.HEADERS],
        ArrayType(StructType((Field("key", Primitive.STRING), Field("value", Primitive.BINARY)))),
    ),
)


def kafka_fields_of(stream: Stream) -> tuple[Field, ...]:
    """The table's columns for what Kafka knows of a row's record, as the stream's settings ask for them."""
    return (
        *(KAFKA_FIELDS if stream.kafka_columns else ()),
        *(field for field in INCLUDED_FIELDS if field.name in stream.included_column_names),
    )


def agree_in_table(
    stream: Stream,
    table: StructType,
    known: PublishedColumns,
    offered: StructType,
    staged: StructType,
    *,
    refused: Collection[Addition] = (),
) -> Agreement:
    """The columns that ``table`` gains, as it has them, and those that are published, as in records.

    ``stream`` has the table as its main one; ``staged`` and ``refused`` are the table's as well.
    """
    offered = restricted(offered, having_columns(stream, extended(extended(known.declared, known.published), offered)))
    in_table = PublishedColumns(as_in_table(stream, known.declared), as_in_table(stream, known.published), known.limit)
    agreed = agree(table, in_table, as_in_table(stream, offered), staged, refused)
    gained = extended(known.published, as_in_records(stream, agreed.columns, offered))
    return Agreement(agreed.added, as_in_records(stream, agreed.columns, gained, keep=True))
