"""How types that were inferred from values are merged, and which columns a table gains from them.

Rules:

1. Inferred types form a lattice: no type (null) below everything, LONG below DOUBLE, STRING above everything; structs
   are joined field by field, arrays element by element. `joined` is commutative, associative and idempotent, so the
   result does not depend on the order or grouping of the values.
2. Known fields win: `additions` never changes the type of an existing field, at any depth. So joining twice, late, or
   what another process has joined already, changes nothing.
3. Two names of one struct that differ in case only cannot both be columns: the existing one stays, of two new ones the
   first by code points is used.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from common.schema.ddl import quote_path, type_to_ddl
from common.schema.types import ArrayType, DataType, DecimalType, Field, MapType, Primitive, StructType

ELEMENT = "element"
VALUE = "value"
NO_COLUMNS = StructType(())
MOST_OFFERED = 10_000
"""The most fields in one offer, independent of the settings: an offer is stored in a marker."""
_NUMBERS = frozenset({Primitive.LONG, Primitive.DOUBLE})


@dataclass(frozen=True, slots=True)
class Addition:
    """A field that a schema lacks."""

    path: tuple[str, ...]
    """Names from the top; an array's element is `ELEMENT`, a map's value `VALUE`, as in Spark's SQL."""
    type: DataType

    @property
    def name(self) -> str:
        return quote_path(self.path)

    def __str__(self) -> str:
        return f"{self.name} {type_to_ddl(self.type)}"

    @property
    def size(self) -> int:
        """The number of fields, including nested ones."""
        return fields_in(self.type) + 1


def joined(left: DataType | None, right: DataType | None) -> DataType | None:  # noqa: PLR0911 - one for each case
    """The least type above both (rule 1)."""
    if left is None or right is None:
        return right if left is None else left
    match left, right:
        case StructType(), StructType():
            return joined_columns(left, right)
        case ArrayType(), ArrayType():
            return ArrayType(joined(left.element, right.element) or Primitive.STRING)
        case MapType(), MapType():
            return MapType(left.key, joined(left.value, right.value) or Primitive.STRING)
        case _ if left == right:
            return left
        case Primitive(), Primitive() if {left, right} == _NUMBERS:
            return Primitive.DOUBLE
        case _:
            return Primitive.STRING


def joined_columns(left: StructType, right: StructType) -> StructType:
    """The least struct above both, with its fields ordered by name."""
    types: dict[str, DataType] = {field.name: field.type for field in left}
    for field in right:
        types[field.name] = joined(types.get(field.name), field.type) or field.type
    fields: dict[str, Field] = {}
    for name in sorted(types):
        fields.setdefault(name.casefold(), Field(name, types[name]))
    return StructType(tuple(sorted(fields.values(), key=lambda field: field.name)))


def joined_within(left: StructType, right: StructType, room: int) -> StructType:
    """Like `joined_columns`, limited to ``room`` fields; a struct that is too large is left out as a whole."""
    both = joined_columns(left, right)
    if fields_in(both) <= room:
        return both
    run_in_order = (Addition((field.name,), field.type) for field in both)
    return with_additions(NO_COLUMNS, within(run_in_order, room))


def additions(known: StructType, wanted: StructType) -> tuple[Addition, ...]:
    """The fields of ``wanted`` that ``known`` lacks, at any depth (rules 2 and 3)."""
    return tuple(_additions(known, wanted))


def _additions(known: StructType, wanted: StructType) -> Iterator[Addition]:
    taken = {name.casefold() for name in known.names}
    for field in wanted:
        there = known.field(field.name)
        if there is not None:
            yield from _within(there.type, field.type, (field.name,))
        elif field.name.casefold() not in taken:
            yield Addition((field.name,), nullable(field.type))


def _within(known: DataType, wanted: DataType, path: tuple[str, ...]) -> Iterator[Addition]:
    match known, wanted:
        case StructType(), StructType():
            yield from (replace(addition, path=(*path, *addition.path)) for addition in _additions(known, wanted))
        case ArrayType(), ArrayType():
            yield from _within(known.element, wanted.element, (*path, ELEMENT))
        case MapType(), MapType():
            yield from _within(known.value, wanted.value, (*path, VALUE))
        case _:
            return


def extended(known: StructType, wanted: StructType) -> StructType:
    """``known`` with the fields of ``wanted`` that it lacks, at any depth; its own types stay."""
    return with_additions(known, additions(known, wanted))


def with_additions(known: StructType, added: Iterable[Addition]) -> StructType:
    """The schema with more fields, each at the end of its struct; the paths are those of `additions`.

    Raises ValueError for a path that exists, or that no struct leads to.
    """
    by_first: dict[str, list[Addition]] = {}
    for addition in added:
        by_first.setdefault(addition.path[0], []).append(addition)
    fields = [_field_with(field, by_first.pop(field.name, [])) for field in known]
    return StructType((*fields, *(Field(name, fields[0].type) for name, fields in by_first.items())))


def _field_with(field: Field, added: list[Addition]) -> Field:
    inner = [replace(addition, path=addition.path[1:]) for addition in added]
    return replace(field, type=_type_with(field.type, inner)) if inner else field


def _type_with(known: DataType, added: list[Addition]) -> DataType:
    below = [replace(addition, path=addition.path[1:]) for addition in added]
    if not all(addition.path for addition in added):
        raise ValueError("the field already exists")
    match known:
        case StructType():
            return with_additions(known, added)
        case ArrayType():
            return replace(known, element=_type_with(known.element, below))
        case MapType():
            return replace(known, value=_type_with(known.value, below))
        case _:
            raise ValueError(f"{type_to_ddl(known)} has no fields")


def nullable(data_type: DataType) -> DataType:
    """The type with all its parts nullable, and without metadata."""
    match data_type:
        case StructType(fields):
            return StructType(tuple(Field(field.name, nullable(field.type)) for field in fields))
        case ArrayType(element):
            return ArrayType(nullable(element))
        case MapType(key, value):
            return MapType(nullable(key), nullable(value))
        case Primitive() | DecimalType():
            return data_type


def fields_in(data_type: DataType) -> int:
    match data_type:
        case StructType(fields):
            return sum(1 + fields_in(field.type) for field in fields)
        case ArrayType(element):
            return fields_in(element)
        case MapType(_, value):
            return fields_in(value)
        case Primitive() | DecimalType():
            return 0


def within(added: Iterable[Addition], room: int) -> tuple[Addition, ...]:
    """The additions, in order, that fit into ``room`` fields; one that is too large is skipped."""
    kept: list[Addition] = []
    for addition in added:
        if addition.size <= room:
            kept.append(addition)
            room -= addition.size
    return tuple(kept)


def type_at(known: DataType, steps: tuple[str, ...]) -> DataType | None:
    """The type at a path of names, `ELEMENT` and `VALUE`, or None."""
    if not steps:
        return known
    match known:
        case StructType():
            field = known.field(steps[0])
            return None if field is None else type_at(field.type, steps[1:])
        case ArrayType(element):
            return type_at(element, steps[1:])
        case MapType(_, value):
            return type_at(value, steps[1:])
        case _:
            return None
