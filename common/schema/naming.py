"""Which of a record's fields a table has, and under which names: `drop`, `rename` and `field_names` of a stream.

Rules:

1. A field is named by the steps of its path: ``meta.producer.name``; a field in an array is ``items.element.price``, in
   a map ``props.value.x``. A path that names no field is refused.
2. A renamed field stays where it is; new names are not renamed again, so two fields can swap names.
3. Of several unknown fields that would become one column, the first one gets it. Of known ones, that is refused.
4. The result is columns and a plan of what to keep. The plan is None where nothing changes, so unchanged columns cost
   nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from common.errors import SchemaError
from common.hints import did_you_mean
from common.schema.evolution import nullable
from common.schema.types import ArrayType, DataType, Field, MapType, StructType

Steps = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """The kept fields of a struct, each by its index, with the plan for its content."""

    kept: tuple[tuple[int, Plan | None], ...]


@dataclass(frozen=True, slots=True)
class Inside:
    plan: Plan


Plan = Parts | Inside


@dataclass(frozen=True, slots=True)
class Named:
    """The columns of the table, and the plan that makes them from the record's; None when they are the same."""

    columns: StructType
    plan: Parts | None


@dataclass(frozen=True, slots=True)
class Naming:
    """Which fields are left out, and how the others are named."""

    drop: frozenset[Steps] = frozenset()
    rename: Mapping[Steps, str] = field(default_factory=dict)
    snake_case: bool = False
    is_open: bool = False
    """Whether records may have more fields than those that are known, so that `rename` may name another one."""

    @property
    def renames(self) -> bool:
        """Whether a field may have a column of another name."""
        return self.snake_case or bool(self.rename)

    def of(self, columns: StructType, derived: Collection[str] = ()) -> Named:
        """The table's columns; ``derived`` ones keep the name given in the settings. Raises SchemaError."""
        walk = _Walk(self, frozenset(derived))
        named = walk.struct(columns, ())
        walk.require_all_used()
        if named is None:
            return Named(columns, None)
        made, plan = named
        return Named(made, plan)

    def name_of(self, path: Steps, derived: Collection[str] = ()) -> str | None:
        """The table's name of the field at this path; None if the table does not have it."""
        return None if path in self.drop else _Walk(self, frozenset(derived)).name(path[-1], path)

    def columns_of(self, fields: StructType, derived: Collection[str] = ()) -> StructType:
        """Fields as the table has them; of several whose columns have one name, the first one (rule 3)."""
        return _Walk(self, frozenset(derived)).columns(fields, ())

    def distinct(self, fields: StructType, derived: Collection[str] = ()) -> StructType:
        """The fields that have columns, as the record has them."""
        return _Walk(self, frozenset(derived), in_records=True).columns(fields, ())

    def fields_in(
        self, table: StructType, fields: StructType, derived: Collection[str] = (), *, keep: bool = False
    ) -> StructType:
        """The fields that a table has, with its types; to ``keep`` those that it lacks, they are as given."""
        return _Walk(self, frozenset(derived), in_records=True).fields_in(table, fields, (), keep=keep)

    def origin(self, columns: StructType, steps: Steps, derived: Collection[str] = ()) -> Steps | None:
        """The steps to the field that the table has at ``steps``, by the names in ``columns``; None for none."""
        steps_to: Steps = ()
        inside: DataType = columns
        for step in steps:
            fields = inside.fields if isinstance(inside, StructType) else ()
            part = next((part for part in fields if self.name_of((*steps_to, part.name), derived) == step), None)
            if part is None:
                return None
            steps_to, inside = (*steps_to, part.name), part.type
        return steps_to


def restricted(table: StructType, wanted: StructType) -> StructType:
    """The fields of ``wanted`` that the table has, with the table's types."""
    return Naming().fields_in(table, wanted)


def snake_case(name: str) -> str:
    """``userID`` and ``User-Id`` as ``user_id``."""
    words = re.sub(r"\W+", "_", name)
    words = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", words)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", words).lower()


class _Walk:
    def __init__(self, naming: Naming, derived: frozenset[str], *, in_records: bool = False) -> None:
        """``in_records``: fields keep their names."""
        self._naming = naming
        self._derived = derived
        self._in_records = in_records
        self._paths: set[Steps] = set()

    def struct(self, struct: StructType, prefix: Steps) -> tuple[StructType, Parts] | None:
        """The struct and its plan; None when it does not change."""
        fields: list[Field] = []
        kept: list[tuple[int, Plan | None]] = []
        changed = False
        for index, part in enumerate(struct):
            path = (*prefix, part.name)
            self._paths.add(path)
            if path in self._naming.drop:
                changed = True
                continue
            name, inner = self.name(part.name, path), self._inner(part.type, path)
            changed |= name != part.name or inner is not None
            fields.append(replace(part, name=name) if inner is None else replace(part, name=name, type=inner[0]))
            kept.append((index, None if inner is None else inner[1]))
        if struct.fields and not fields:
            whole = f"the column `{'.'.join(prefix)}`" if prefix else "the record"
            msg = f"drop leaves nothing of {whole}"
            raise SchemaError(msg, "drop it as a whole" if prefix else "keep at least one column")
        return (StructType(tuple(fields)), Parts(tuple(kept))) if changed else None

    def name(self, name: str, path: Steps) -> str:
        given = self._naming.rename.get(path)
        if given is not None:
            return given
        return name if path[0] in self._derived or not self._naming.snake_case else snake_case(name)

    def _inner(self, data_type: DataType, path: Steps) -> tuple[DataType, Plan] | None:
        match data_type:
            case StructType():
                return self.struct(data_type, path)
            case ArrayType():
                element = self._inner(data_type.element, (*path, "element"))
                return element and (replace(data_type, element=element[0]), Inside(element[1]))
            case MapType():
                value = self._inner(data_type.value, (*path, "value"))
                return value and (replace(data_type, value=value[0]), Inside(value[1]))
            case _:
                return None

    def _named(self, fields: StructType, prefix: Steps) -> Iterator[tuple[Field, str, Steps]]:
        """The fields with a column of their own, its name, and the fields' paths."""
        taken: set[str] = set()
        for part in fields:
            path = (*prefix, part.name)
            name = self.name(part.name, path)
            if path not in self._naming.drop and name.casefold() not in taken:
                taken.add(name.casefold())
                yield part, name, path

    def columns(self, fields: StructType, prefix: Steps) -> StructType:
        return StructType(
            tuple(
                replace(part, name=part.name if self._in_records else name, type=self._columns(part.type, path))
                for part, name, path in self._named(fields, prefix)
            )
        )

    def _columns(self, data_type: DataType, path: Steps) -> DataType:
        match data_type:
            case StructType():
                return self.columns(data_type, path)
            case ArrayType():
                return replace(data_type, element=self._columns(data_type.element, (*path, "element")))
            case MapType():
                return replace(data_type, value=self._columns(data_type.value, (*path, "value")))
            case _:
                return data_type

    def fields_in(self, table: StructType, fields: StructType, prefix: Steps, *, keep: bool) -> StructType:
        types: dict[str, DataType] = {part.name: part.type for part in fields} if keep else {}
        for part, name, path in self._named(fields, prefix):
            there = table.field(name)
            data_type = None if there is None else self._field_in(there.type, part.type, path, keep=keep)
            if data_type is not None:
                types[part.name] = data_type
        return StructType(tuple(Field(part.name, types[part.name]) for part in fields if part.name in types))

    def _field_in(self, table: DataType, wanted: DataType, path: Steps, *, keep: bool) -> DataType | None:
        match table, wanted:
            case StructType(), StructType():
                inner = self.fields_in(table, wanted, path, keep=keep)
                return inner if inner.fields else None
            case ArrayType(), ArrayType():
                element = self._field_in(table.element, wanted.element, (*path, "element"), keep=keep)
                return None if element is None else ArrayType(element)
            case MapType(), MapType():
                value = self._field_in(table.value, wanted.value, (*path, "value"), keep=keep)
                return None if value is None else MapType(table.key, value)
            case _:
                return nullable(table)

    def require_all_used(self) -> None:
        """Refuse paths that match nothing (rule 1)."""
        for setting, paths in (("drop", sorted(self._naming.drop)), ("rename", list(self._naming.rename))):
            for path in paths:
                if path in self._paths or (setting == "rename" and self._may_have_field(path)):
                    continue
                name, known = ".".join(path), sorted(".".join(path) for path in self._paths)
                msg = f"{setting} names {name!r}, which is neither a field of the record nor a derived column"
                raise SchemaError(msg, did_you_mean(name, known, f"available: {', '.join(known)}"))

    def _may_have_field(self, path: Steps) -> bool:
        """Whether records may have this field; one whose name differs from a known one's in case only is none."""
        folded = [*map(str.casefold, path)]
        return self._naming.is_open and all([*map(str.casefold, known)] != folded for known in self._paths)
