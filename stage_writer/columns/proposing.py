"""The columns that a writer proposes for a stream, from a sample of its records and from its table. Pure.

Rules:

1. The table's columns come first, with their types; a sample adds what the table lacks. So an existing table is taken
   as it is, and a new one has the types that `kafka-delta-express config init` would write. A STRING of the table stays
   plain text: JSON text would put new strings in quotes next to its old values.
2. A field whose name the table has for something else (a derived column, Kafka's columns) is no column, and neither is
   one that has a meaning of its own in expressions or in Delta.
3. At most `evolve_limit` fields are inferred; further ones are handled as `unknown_fields` says.
"""

from collections.abc import Mapping

from common.schema import Primitive, StructType
from common.schema.evolution import additions, type_at, with_additions, within
from common.schema.inference import JsonShape, inferred
from common.settings import Stream
from common.settings.columns import made_columns
from common.settings.envelopes import DEBEZIUM_PARTS
from common.settings.formats import path_steps
from common.settings.merging import columns_of_merge
from stage_writer.decode.unknown.column_names import RESERVED


def proposed(stream: Stream, table: StructType, records: JsonShape) -> tuple[StructType, dict[str, str]]:
    """The columns, and the forms of values that their types leave open; no columns where nothing is known."""
    inferred_columns = inferred(records)
    made = (*made_columns(stream), *stream.kafka_column_names, *stream.included_column_names, *columns_of_merge(stream))
    taken = {name.casefold() for name in (*made, *RESERVED)}
    free = StructType(tuple(field for field in inferred_columns.columns if field.name.casefold() not in taken))
    added = additions(table, free)
    # the smallest first, so that an object of a thousand keys does not displace all others
    kept = set(within(sorted(added, key=lambda addition: addition.size), stream.record.evolve_limit))
    columns = with_additions(table, (addition for addition in added if addition in kept))
    return columns, _usable(table, columns, inferred_columns.formats)


def are_events(records: JsonShape) -> bool:
    """Whether each record looks like a change event of Debezium that no `envelope` opens."""
    event = records.fields.get("payload", records).fields
    return event.keys() >= DEBEZIUM_PARTS and event["op"].seen == records.seen


def _usable(table: StructType, columns: StructType, formats: Mapping[str, str]) -> dict[str, str]:
    """The forms of new columns that are text: another type may be the table's (rule 1)."""
    steps = {path: path_steps(path) for path in formats}
    return {
        path: form
        for path, form in formats.items()
        if type_at(table, steps[path]) is None and type_at(columns, steps[path]) is Primitive.STRING
    }
