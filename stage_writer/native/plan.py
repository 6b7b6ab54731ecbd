"""A schema in the form of the reader in C: one node for each value that a record may have, and its Arrow type.

Rules:

1. The nodes of a struct's fields are consecutive, and come after the struct.
2. A schema with a type that the reader does not support has no plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.schema import ArrayType, DataType, DecimalType, MapType, Primitive, StructType, to_arrow_type
from common.settings.formats import ValueFormat
from stage_writer.decode.decode_options import DecodeOptions

_MOST_DIGITS = 38
_DEEPEST = 100
_NULLABLE, _LENIENT = 1, 2


class NodeKind(IntEnum):
    """The kind of a node, as in `columns.h` in this folder, in the same order."""

    BOOLEAN = 0
    BYTE = 1
    SHORT = 2
    INTEGER = 3
    LONG = 4
    FLOAT = 5
    DOUBLE = 6
    STRING = 7
    JSON = 8
    BASE64 = 9
    HEX = 10
    DATE = 11
    TIMESTAMP = 12
    TIMESTAMP_NTZ = 13
    DECIMAL = 14
    EPOCH = 15
    STRUCT = 16
    LIST = 17
    MAP = 18


_PRIMITIVES = {
    Primitive.BOOLEAN: NodeKind.BOOLEAN,
    Primitive.BYTE: NodeKind.BYTE,
    Primitive.SHORT: NodeKind.SHORT,
    Primitive.INTEGER: NodeKind.INTEGER,
    Primitive.LONG: NodeKind.LONG,
    Primitive.FLOAT: NodeKind.FLOAT,
    Primitive.DOUBLE: NodeKind.DOUBLE,
    Primitive.STRING: NodeKind.STRING,
    Primitive.BINARY: NodeKind.BASE64,
    Primitive.DATE: NodeKind.DATE,
    Primitive.TIMESTAMP: NodeKind.TIMESTAMP,
    Primitive.TIMESTAMP_NTZ: NodeKind.TIMESTAMP_NTZ,
}
_WITH_DATA = (NodeKind.STRING, NodeKind.JSON, NodeKind.BASE64, NodeKind.HEX)
_WITHOUT_VALUES = (NodeKind.STRUCT,)


class UnknownTypeError(Exception):
    """The reader does not support a type."""


@dataclass(slots=True)
class Node:
    kind: NodeKind
    arrow: pa.DataType
    nullable: bool
    name: str = ""
    precision: int = 0
    scale: int = 0
    lenient: bool = False
    children: list[Node] = field(default_factory=list)
    place: int = 0

    @property
    def has_data(self) -> bool:
        return self.kind in _WITH_DATA

    @property
    def has_values(self) -> bool:
        """Whether it has values or offsets, in addition to its validity."""
        return self.kind not in _WITHOUT_VALUES


@dataclass(frozen=True, slots=True)
class Plan:
    nodes: tuple[Node, ...]
    """The first one is the record."""
    parts: NDArray[np.int32]
    names: bytes


def plan_of(columns: StructType, reading: DecodeOptions) -> Plan | None:
    """The plan of a record with these columns; None by rule 2."""
    try:
        record = _node(columns, reading, nullable=False)
    except UnknownTypeError:
        return None
    nodes = _laid_out(record)
    names = [node.name.encode() for node in nodes]
    starts = np.cumsum([0, *map(len, names)])
    parts = [
        (
            *(node.kind, node.nullable * _NULLABLE + node.lenient * _LENIENT, node.precision, node.scale),
            *(len(node.children), node.children[0].place if node.children else 0, starts[node.place], len(name)),
        )
        for node, name in zip(nodes, names, strict=True)
    ]
    return Plan(nodes, np.array(parts, np.int32), b"".join(names))


def _laid_out(record: Node) -> tuple[Node, ...]:
    nodes = [record]
    for place, node in enumerate(nodes):  # which grows
        node.place = place
        nodes.extend(node.children)
    return tuple(nodes)


def _node(data_type: DataType, reading: DecodeOptions, *, nullable: bool, name: str = "", depth: int = 0) -> Node:
    if depth > _DEEPEST:
        raise UnknownTypeError
    node = Node(_kind(data_type, reading), to_arrow_type(data_type), nullable, name, lenient=reading.lenient)
    match data_type:
        case DecimalType(precision, scale):
            node.precision, node.scale = precision, scale
        case StructType(fields):
            node.children = [
                _node(field.type, reading.at(field.name), nullable=field.nullable, name=field.name, depth=depth + 1)
                for field in fields
            ]
        case ArrayType(element, contains_null):
            node.children = [_node(element, reading.at("element"), nullable=contains_null, depth=depth + 1)]
        case MapType(_, value, contains_null):
            key = Node(NodeKind.STRING, pa.string(), nullable=False)
            inner = _node(value, reading.at("value"), nullable=contains_null, depth=depth + 2)
            entry = pa.struct([node.arrow.key_field, node.arrow.item_field])
            node.children = [Node(NodeKind.STRUCT, entry, nullable=False, children=[key, inner])]
        case _:
            if reading.epoch_decimals is not None:
                node.precision, node.scale = _MOST_DIGITS, reading.epoch_decimals
    return node


def _kind(data_type: DataType, reading: DecodeOptions) -> NodeKind:  # noqa: PLR0911 - one for each kind of type
    match data_type:
        case DecimalType():
            return NodeKind.DECIMAL
        case StructType():
            return NodeKind.STRUCT
        case ArrayType():
            return NodeKind.LIST
        case MapType(key, _):
            if key is not Primitive.STRING:
                raise UnknownTypeError
            return NodeKind.MAP
        case Primitive() if reading.epoch_decimals is not None:
            return NodeKind.EPOCH
        case Primitive() if reading.format is ValueFormat.HEX:
            return NodeKind.HEX
        case Primitive() if reading.format is ValueFormat.JSON:
            return NodeKind.JSON
        case Primitive() if data_type in _PRIMITIVES:
            return _PRIMITIVES[data_type]
        case _:
            raise UnknownTypeError
