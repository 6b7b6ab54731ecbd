"""Staged types that differ from the table's: which may be cast, and to which type a column is widened. Pure.

Rules:

1. Only numbers are cast to numbers, and a DATE to a TIMESTAMP_NTZ; at any depth. Text is never parsed as a number, nor
   the reverse: its meaning is the stream's decision.
2. A cast is made value by value and only where casting back gives the same value. A value that would be truncated,
   rounded or too large makes a record that the table refuses (refused.py). Maps cannot be compared, so a column with
   one inside is cast only where its types are the same.
3. A column is widened only as Delta's type widening allows, to the narrowest type that takes both. Where there is none
   the type stays, and rule 2 decides. A type is only ever widened, so two writers that disagree never make it
   alternate.
4. A VARIANT column of the table itself, not a field inside of one, is staged as JSON text: writers have no such type,
   and keep a value's text exactly (``formats: {column: json}``). Spark converts it when rows are loaded.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from common.errors import SchemaError
from common.schema.ddl import quote_name, quote_path, type_to_ddl
from common.schema.evolution import additions, with_additions
from common.schema.spark_json import schema_from_json, schema_to_json
from common.schema.types import INTEGER_BITS, ArrayType, DataType, DecimalType, Field, MapType, Primitive, StructType
from common.schema.widening import FRACTIONS, widened
from common.tables.table_features import GENERATED, IDENTITY

ELEMENT, KEY, VALUE = "element", "key", "value"


@dataclass(frozen=True, slots=True)
class Cast:
    """A staged column whose values Spark casts."""

    column: str
    staged: str
    """The type that it was staged with, as DDL."""
    type: str
    """The type that it gets, as DDL: the staged structure, with the table's types."""
    unused_if: str = ""
    """A BOOLEAN column that is true where nothing uses the value: the row deletes."""

    @property
    def value(self) -> str:
        """The value in the table's type, in SQL; null where it cannot be represented."""
        return f"try_cast({quote_name(self.column)} AS {self.type})"

    @property
    def loses(self) -> str:
        """Whether the value would change, in SQL (rule 2)."""
        loses = f"NOT (try_cast({self.value} AS {self.staged}) <=> {quote_name(self.column)})"
        return f"(NOT {quote_name(self.unused_if)} AND {loses})" if self.unused_if else loses

    @property
    def problem(self) -> str:
        """The error message for such a value."""
        return f"a value of {self.column}, staged as {self.staged}, is out of range for the column's type {self.type}"


@dataclass(frozen=True, slots=True)
class Widening:
    """A column, or a part of one, that gets a wider type."""

    path: tuple[str, ...]
    type: DataType

    def __str__(self) -> str:
        return f"{quote_path(self.path)} TYPE {type_to_ddl(self.type)}"


@lru_cache(maxsize=256)
def casts_of(table_schema: str, staged_schema: str) -> tuple[Cast, ...]:
    """The columns of staged files that Spark casts for a table; none where types are the same, or cannot be cast."""
    if table_schema == staged_schema:
        return ()
    try:
        table, staged = schema_from_json(table_schema), schema_from_json(staged_schema)
    except SchemaError:
        return ()
    casts: list[Cast] = []
    for field in staged:
        there = table.field(field.name)
        wanted = None if there is None else cast_type(there.type, field.type)
        if wanted is not None and type_to_ddl(wanted) != type_to_ddl(field.type):
            casts.append(Cast(field.name, type_to_ddl(field.type), type_to_ddl(wanted)))
    return tuple(casts)


@lru_cache(maxsize=256)
def merged_schema(table_schema: str, staged_schema: str, complete_columns: frozenset[str]) -> str:
    """The staged columns with those that the table also fills from the stream's rows, null in these files.

    These are the table's columns among ``complete_columns`` and, within a staged column, all fields of the table's: an
    event says what the whole row is, so what it lacks must not keep an older event's value.
    """
    try:
        table, staged = staged_form(schema_from_json(table_schema)), schema_from_json(staged_schema)
    except SchemaError:
        return staged_schema
    wanted = StructType(
        tuple(field for field in table if field.name in staged.names or _is_filled(field, complete_columns))
    )
    added = additions(staged, wanted)
    return schema_to_json(with_additions(staged, added)) if added else staged_schema


def _is_filled(field: Field, complete_columns: frozenset[str]) -> bool:
    return field.name in complete_columns and not any(made in field.metadata_json for made in (GENERATED, IDENTITY))


def cast_type(table: DataType, staged: DataType) -> DataType | None:
    """The staged structure with the table's types; None where some may not be cast (rules 1 and 2)."""
    match table, staged:
        case StructType(), StructType():
            return _cast_struct(table, staged)
        case ArrayType(), ArrayType():
            element = cast_type(table.element, staged.element)
            return None if element is None else replace(staged, element=element)
        case MapType(), MapType():
            key, value = cast_type(table.key, staged.key), cast_type(table.value, staged.value)
            same = key is not None and value is not None and type_to_ddl(replace(staged, key=key, value=value))
            return staged if same == type_to_ddl(staged) else None
        case _ if table == staged:
            return staged
        case _:
            return table if _is_castable(table, staged) else None


def _cast_struct(table: StructType, staged: StructType) -> StructType | None:
    fields = []
    for field in staged:
        there = table.field(field.name)
        if there is None:
            fields.append(field)  # reported by the check for columns that the table lacks
            continue
        data_type = cast_type(there.type, field.type)
        if data_type is None:
            return None
        fields.append(replace(field, type=data_type))
    cast = StructType(tuple(fields))
    # A map's values cannot be compared, so nothing next to one is cast (rule 2).
    return None if _has_map(staged) and type_to_ddl(cast) != type_to_ddl(staged) else cast


def _has_map(data_type: DataType) -> bool:
    match data_type:
        case StructType(fields):
            return any(_has_map(field.type) for field in fields)
        case ArrayType(element):
            return _has_map(element)
        case MapType():
            return True
        case Primitive() | DecimalType():
            return False


def _is_castable(table: DataType, staged: DataType) -> bool:
    if (table, staged) == (Primitive.TIMESTAMP_NTZ, Primitive.DATE):
        return True
    return _is_number(table) and _is_number(staged)


def _is_number(data_type: DataType) -> bool:
    return isinstance(data_type, DecimalType) or data_type in INTEGER_BITS or data_type in FRACTIONS


def widenings(table: StructType, staged: StructType) -> tuple[Widening, ...]:
    """The changes that a table's columns need to accept staged ones, as far as Delta widens them (rule 3)."""
    needed: list[Widening] = []
    for field in staged:
        there = table.field(field.name)
        if there is not None:
            needed += _widenings((field.name,), there.type, field.type)
    return tuple(needed)


def _widenings(path: tuple[str, ...], table: DataType, staged: DataType) -> Iterator[Widening]:
    match table, staged:
        case StructType(), StructType():
            for field in staged:
                there = table.field(field.name)
                if there is not None:
                    yield from _widenings((*path, field.name), there.type, field.type)
        case ArrayType(), ArrayType():
            yield from _widenings((*path, ELEMENT), table.element, staged.element)
        case MapType(), MapType():
            yield from _widenings((*path, KEY), table.key, staged.key)
            yield from _widenings((*path, VALUE), table.value, staged.value)
        case _:
            wider = widened(table, staged)
            if wider is not None and wider != table:
                yield Widening(path, wider)


def variants_of(schema: str) -> tuple[str, ...]:
    return tuple(field.name for field in schema_from_json(schema) if field.type is Primitive.VARIANT)


def staged_form(columns: StructType) -> StructType:
    """The table's columns with the types that are staged for them."""
    return StructType(
        tuple(replace(field, type=Primitive.STRING) if field.type is Primitive.VARIANT else field for field in columns)
    )
