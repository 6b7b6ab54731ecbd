"""JSON Schemas as the columns of a Delta table, drafts 4 to 2020-12. Pure.

Rules:

1. Every column is nullable: whether a field must be sent is not a matter of its type.
2. An integer is BIGINT, or DECIMAL(38,0) where the schema's bounds say that it may be larger; a number is DOUBLE. A
   string is STRING, with the format date-time TIMESTAMP, with date DATE. A decimal, a time of day and a duration stay
   as they were sent.
3. An object is a STRUCT of its properties; one without properties, but with a schema for further ones, is a MAP.
   Fields outside of the schema are unknown fields.
4. Choices (`oneOf`, `anyOf`, several types) of one type and null are that type; of integer and number DOUBLE; of
   objects the STRUCT of all their properties. Any other choice, and a value of any kind, is a STRING with its JSON
   text, as the format ``json`` takes it.
5. A type that contains itself is refused by name. A field that is always null, and a name that Delta does not take,
   have no column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from common.errors import SchemaError
from common.schema.ddl import quote_path
from common.schema.inference import why_no_column
from common.schema.types import ArrayType, DataType, DecimalType, Field, MapType, Primitive, StructType

Json = dict[str, object]
Path = tuple[str, ...]

_LARGEST = 2**63 - 1
_BIG = DecimalType(38, 0)
_NUMBERS = frozenset({Primitive.LONG, Primitive.DOUBLE, _BIG})
_TEXTS = frozenset({Primitive.STRING, Primitive.DATE, Primitive.TIMESTAMP})
_TIMES = {"date-time": Primitive.TIMESTAMP, "date": Primitive.DATE}
_CHOICES = ("oneOf", "anyOf")
_OF_OBJECTS = ("properties", "patternProperties", "additionalProperties")
_FIX = "fix the schema, or use a valid one"


@dataclass(frozen=True, slots=True)
class _Node:
    schema: object
    document: str = ""
    inside: tuple[tuple[str, str], ...] = (("", ""),)
    """The places in the documents that led here: what refers to one of them contains itself."""

    def at(self, schema: object) -> _Node:
        return replace(self, schema=schema)


@dataclass(frozen=True, slots=True)
class _Possible:
    """The kinds of value that a schema allows, null aside."""

    is_any: bool = False
    scalars: frozenset[DataType] = frozenset()
    objects: tuple[_Node, ...] = ()
    arrays: tuple[_Node, ...] = ()

    def __or__(self, other: _Possible) -> _Possible:
        return _Possible(
            self.is_any or other.is_any,
            self.scalars | other.scalars,
            (*self.objects, *other.objects),
            (*self.arrays, *other.arrays),
        )


_NOTHING, _ANYTHING = _Possible(), _Possible(is_any=True)


def json_schema_columns(text: str, references: Sequence[tuple[str, str]] = ()) -> tuple[StructType, dict[str, str]]:
    """The columns of a table for records of a schema, and the forms of values that the types leave open, by path.

    ``references`` are the names and texts of schemas that it refers to. Raises SchemaError, naming the field (rule 5).
    """
    try:
        mapping = _Mapping({"": json.loads(text), **{name: json.loads(each) for name, each in references}})
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the JSON Schema is invalid: {error}", _FIX) from None
    possible = mapping.possible(_Node(mapping.documents[""]), ())
    columns = mapping.struct(possible.objects, ())
    if not columns.fields:
        msg = "the JSON Schema names no fields of an object, and a table's rows are objects"
        raise SchemaError(msg, "send objects with properties, or declare the columns yourself")
    return columns, mapping.formats


@dataclass(slots=True)
class _Mapping:
    documents: Mapping[str, object]
    formats: dict[str, str] = field(default_factory=dict)

    def possible(self, node: _Node, path: Path) -> _Possible:
        schema = node.schema
        if schema is False:
            return _NOTHING
        if not isinstance(schema, dict):
            return _ANYTHING
        if isinstance(schema.get("$ref"), str):
            return self.possible(self._referred(node, schema["$ref"], path), path)
        possible = _own(node, schema)
        for part in _parts(schema, "allOf"):
            possible = _both(possible, self.possible(node.at(part), path))
        for choice in _CHOICES:
            branches = _NOTHING
            for part in _parts(schema, choice):
                branches |= self.possible(node.at(part), path)
            if _parts(schema, choice):
                possible = _both(possible, branches)
        return possible

    def type_of(self, possible: _Possible, path: Path) -> DataType | None:
        """The type of a place (rules 2 to 4); None for one that is always null."""
        kinds = [
            possible.scalars & _NUMBERS,
            possible.scalars & _TEXTS,
            possible.scalars & {Primitive.BOOLEAN},
            possible.objects,
            possible.arrays,
        ]
        given = sum(bool(kind) for kind in kinds)
        if possible.is_any or given > 1:
            return self._any(path)
        if possible.objects:
            return self._object(possible.objects, path)
        if possible.arrays:
            return ArrayType(self._joined(possible.arrays, _elements, (*path, "element")))
        return _scalar(possible.scalars) if given else None

    def struct(self, objects: Iterable[_Node], path: Path) -> StructType:
        """The properties that can be columns, of all these objects."""
        properties: dict[str, list[_Node]] = {}
        for node in objects:
            for name, schema in _mapping(node, "properties").items():
                properties.setdefault(name, []).append(node.at(schema))
        taken: dict[str, str] = {}
        fields: list[Field] = []
        for name, nodes in properties.items():
            if why_no_column(name, taken) is not None:
                continue
            taken[name.casefold()] = name
            data_type = self.type_of(self._any_of(nodes, (*path, name)), (*path, name))
            if data_type is not None:
                fields.append(Field(name, data_type))
        return StructType(tuple(fields))

    def _object(self, objects: Sequence[_Node], path: Path) -> DataType:
        if any(_mapping(node, "properties") for node in objects):
            columns = self.struct(objects, path)
            return columns if columns.fields else self._any(path)
        if not any(_values(node) for node in objects):
            return self._any(path)
        return MapType(Primitive.STRING, self._joined(objects, _values, (*path, "value")))

    def _joined(self, nodes: Sequence[_Node], parts: Callable[[_Node], list[object]], path: Path) -> DataType:
        """The type of the elements or values of all these, which is never null's."""
        inner = [node.at(part) for node in nodes for part in parts(node)]
        possible = self._any_of(inner, path) if inner else _ANYTHING
        return self.type_of(possible, path) or self._any(path)

    def _any_of(self, nodes: Sequence[_Node], path: Path) -> _Possible:
        possible = _NOTHING
        for node in nodes:
            possible |= self.possible(node, path)
        return possible

    def _any(self, path: Path) -> DataType:
        self.formats[quote_path(path)] = "json"
        return Primitive.STRING

    def _referred(self, node: _Node, reference: str, path: Path) -> _Node:
        """The schema that a `$ref` names."""
        base, _, fragment = reference.partition("#")
        document = node.document if not base else self._document(base, path)
        location = (document, unquote(fragment))
        if location in node.inside:
            msg = f"`{quote_path(path)}` is of the JSON Schema's type {reference}, which contains itself"
            raise SchemaError(msg, "declare the columns yourself, without it or as a STRING with formats: {…: json}")
        schema = self.documents[document]
        for escaped in location[1].split("/")[1:]:
            step = escaped.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and step in schema:
                schema = schema[step]
            elif isinstance(schema, list) and step.isdigit() and int(step) < len(schema):
                schema = schema[int(step)]
            else:
                raise _unknown(path, reference)
        if fragment and not fragment.startswith("/"):
            raise _unknown(path, reference)
        return _Node(schema, document, (*node.inside, location))

    def _document(self, name: str, path: Path) -> str:
        for known, document in self.documents.items():
            if name == known or (isinstance(document, dict) and document.get("$id") == name):
                return known
        raise _unknown(path, name)


def _unknown(path: Path, reference: str) -> SchemaError:
    msg = f"the JSON Schema refers to {reference} in `{quote_path(path)}`, but neither it nor its references define it"
    return SchemaError(msg, "register the schema with its references, or declare the columns yourself")


def _own(node: _Node, schema: Json) -> _Possible:
    """The types that the schema itself allows, without the schemas that it is combined with."""
    types = schema.get("type")
    if types is None:
        types = _implied(schema)
        if types is None:
            return _ANYTHING
    possible = _NOTHING
    for name in types if isinstance(types, list) else [types]:
        match name:
            case "object":
                possible |= _Possible(objects=(node,))
            case "array":
                possible |= _Possible(arrays=(node,))
            case "null":
                pass
            case _:
                possible |= _Possible(scalars=frozenset({_scalar_type(str(name), schema)}))
    return possible


def _implied(schema: Json) -> list[str] | None:
    """The types that other keywords imply, or None."""
    if any(key in schema for key in _OF_OBJECTS):
        return ["object"]
    if "items" in schema or "prefixItems" in schema:
        return ["array"]
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return sorted({_type_name(value) for value in values}) if isinstance(values, list) else None


def _type_name(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}
    return names.get(type(value), "null")


def _scalar_type(name: str, schema: Json) -> DataType:
    match name:
        case "boolean":
            return Primitive.BOOLEAN
        case "integer":
            edges = [schema.get(key) for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")]
            beyond = any(isinstance(edge, int | float) and not -_LARGEST - 1 <= edge <= _LARGEST for edge in edges)
            return _BIG if beyond else Primitive.LONG
        case "number":
            return Primitive.DOUBLE
        case "string":
            return _TIMES.get(str(schema.get("format")), Primitive.STRING)
        case _:
            raise SchemaError(f"the JSON Schema has the type {name!r}, which JSON does not have", _FIX)


def _scalar(types: frozenset[DataType]) -> DataType:
    if len(types) == 1:
        return next(iter(types))
    if types <= _NUMBERS:
        return Primitive.DOUBLE if Primitive.DOUBLE in types else _BIG
    return Primitive.STRING


def _both(first: _Possible, other: _Possible) -> _Possible:
    """The values that satisfy both: objects have all properties; otherwise the first schema counts."""
    if first.is_any or other.is_any:
        return other if first.is_any else first
    if first.objects and other.objects:
        return replace(first, objects=(*first.objects, *other.objects))
    return first


def _parts(schema: Json, key: str) -> list[object]:
    parts = schema.get(key)
    return parts if isinstance(parts, list) else []


def _mapping(node: _Node, key: str) -> Mapping[str, object]:
    value = node.schema.get(key) if isinstance(node.schema, dict) else None
    return value if isinstance(value, dict) else {}


def _values(node: _Node) -> list[object]:
    further = node.schema.get("additionalProperties") if isinstance(node.schema, dict) else None
    return [*_mapping(node, "patternProperties").values(), *([further] if isinstance(further, dict) else [])]


def _elements(node: _Node) -> list[object]:
    schema = node.schema if isinstance(node.schema, dict) else {}
    elements: list[object] = []
    for key in ("prefixItems", "items", "additionalItems"):
        part = schema.get(key)
        elements += part if isinstance(part, list) else [part] if isinstance(part, dict) else []
    return elements
