"""Checks columns that go into a table without passing a processor.

Rules:

1. All of them are in the table, so that nothing is left out; and each NOT NULL column of the table is present.
2. A column's type is the table's, or a narrower number. A cast that could refuse single rows must be written
   explicitly.
"""

import difflib
from collections.abc import Mapping

from common.errors import SchemaError
from common.schema import INTEGER_BITS, DataType, Primitive, StructType, quote_name, type_to_ddl
from stage_writer.topologies.built import BuiltTopology
from stage_writer.topologies.nodes import TableSink


def check_tables(topology: BuiltTopology, tables: Mapping[str, StructType]) -> None:
    """Raises SchemaError for columns that are incompatible with their table. ``tables`` by their sinks' names."""
    for group in topology.groups:
        for node in group.nodes:
            if isinstance(node, TableSink) and node.table in tables:
                for parent in node.parents:
                    given = topology.columns.get(parent)
                    if given is not None:
                        _check(node, parent, given, tables[node.table])


def _check(sink: TableSink, parent: str, given: StructType, table: StructType) -> None:
    what = f"the table {sink.table!r}" if sink.table else "the stream's table"
    unknown = [name for name in given.names if name not in table.names]
    if unknown:
        msg = f"{parent!r} gives the column {unknown[0]!r} to the sink {sink.name!r}, but {what} does not have it"
        close_matches = difflib.get_close_matches(
            unknown[0], [name for name in table.names if name not in given.names], 1
        )
        hint = f"did you mean {close_matches[0]!r}? " if close_matches else ""
        raise SchemaError(msg, f"{hint}add it to the table's columns, or remove it with a Select step")
    for field in table:
        parent_field = given.field(field.name)
        if parent_field is None:
            if not field.nullable:
                msg = f"{what} has the column {field.name!r} NOT NULL, but {parent!r} does not provide it"
                raise SchemaError(
                    msg, f"provide it, for example in the step {parent!r}, or declare it without NOT NULL"
                )
        elif not _takes(field.type, parent_field.type):
            shown = type_to_ddl(field.type)
            msg = f"{parent!r} gives {field.name!r} as {type_to_ddl(parent_field.type)}, but {what} has it as {shown}"
            raise SchemaError(msg, f"cast it there: CAST({quote_name(field.name)} AS {shown})")


def _takes(table: DataType, given: DataType) -> bool:
    bits = [
        INTEGER_BITS[data_type]
        for data_type in (given, table)
        if isinstance(data_type, Primitive) and data_type in INTEGER_BITS
    ]
    is_narrower = len(bits) == len((given, table)) and bits[0] <= bits[1]
    return table == given or is_narrower or (table is Primitive.DOUBLE and given is Primitive.FLOAT)
