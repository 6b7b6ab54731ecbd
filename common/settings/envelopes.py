"""How records of each `envelope` are written: which operations delete, and the forms of values."""

from common.settings.columns_from import ColumnsFrom
from common.settings.stream import Stream

DELETES = {"debezium": ("d",), "maxwell": ("delete",), "canal": ("DELETE",), "dms": ("delete",)}
"""The values of `_cdc.op` that delete, by envelope."""
UPDATE = {"maxwell": "update", "canal": "UPDATE", "dms": "update"}
"""The value of `_cdc.op` of updates, by envelope, where one event may change a row's key."""

KEY_NAMES = {"maxwell": "primary_key_columns", "canal": "pkNames"}
"""The field of an event with the names of the source table's key columns, by envelope; others have message keys."""
WITHOUT_KEY_NAMES = ("dms",)
"""The envelopes in which nothing names the key columns."""

TRUNCATES = ("debezium", "canal", "dms")
"""The envelopes with events that say that the source table was truncated."""

DEBEZIUM = "debezium"
DEBEZIUM_PARTS = frozenset({"before", "after", "op"})
"""The fields that distinguish Debezium's change events from its other messages and from plain records."""


def is_envelope_open(stream: Stream) -> bool:
    """Whether the first records decide the `envelope`: they are merged, and the settings say nothing of their form."""
    is_found = stream.record.columns_from not in {None, ColumnsFrom.TABLE}
    is_open = is_found and "envelope" not in stream.record.model_fields_set
    return is_open and stream.merge is not None and stream.merge.operation is None and not stream.record.jmespath


def is_lenient(stream: Stream) -> bool:
    """Whether values may be written as texts: with `coerce: lenient`, and of canal, which sends all values as texts."""
    return stream.record.coerce == "lenient" or stream.record.envelope == "canal"


def may_have_several_rows(stream: Stream) -> bool:
    """Whether one message may have several rows before any `explode`: canal's arrays, and updates that change a key."""
    return stream.record.envelope == "canal" or (stream.merge is not None and stream.record.envelope in UPDATE)
