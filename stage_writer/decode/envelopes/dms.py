"""AWS DMS's events: the record is `data`, and `metadata` says what happened: a load, an insert, an update or a delete.

Control records, about tables and columns of the source, are passed over.
"""

import pyarrow as pa
import pyarrow.compute as pc

from common.schema import parse_ddl
from stage_writer.decode.decode import Decoded
from stage_writer.decode.envelopes.row_changes import (
    Opened,
    about_of,
    column_of,
    is_one_of,
    mask_of,
    no_image,
    not_a_row_change,
    opened,
    single_images,
)
from stage_writer.decode.json_document import Object
from stage_writer.decode.rejects import Refusal, truncated

_ROWS = ("load", "insert", "update", "delete")
_RECORD_TYPES = ("data", "control")


class Dms:
    """An `Envelope`."""

    fields = parse_ddl(
        "data STRING, `before-image` STRING, metadata STRUCT<`record-type`: STRING, operation: STRING, "
        "`schema-name`: STRING, `table-name`: STRING, `timestamp`: TIMESTAMP, `commit-timestamp`: TIMESTAMP>"
    )
    forms = {"data": "json", "before-image": "json"}  # noqa: RUF012 - read only

    def opened(self, parts: Decoded) -> Opened:
        metadata = column_of(parts, "metadata")

        def part(name: str) -> pa.Array:
            return pc.struct_field(metadata, name)

        kind, operation, table = part("record-type"), part("operation"), part("table-name")
        truncates = mask_of(pc.match_substring(operation, "truncate", ignore_case=True))
        passed_over = is_one_of(kind, ("control",)) & ~truncates
        rows = is_one_of(kind, ("data",)) & is_one_of(operation, _ROWS)
        images = single_images(column_of(parts, "data"), operation, column_of(parts, "before-image"), rows)

        def why(index: int) -> Refusal:
            known, record_type = operation[index].as_py(), kind[index].as_py()
            if truncates[index]:
                return truncated()
            if record_type not in _RECORD_TYPES:
                return not_a_row_change("metadata.record-type", record_type, _RECORD_TYPES)
            if known not in _ROWS:
                return not_a_row_change("metadata.operation", known, _ROWS)
            return no_image("operation", known, "data")

        source = pc.coalesce(pc.binary_join_element_wise(part("schema-name"), table, "."), table)
        about = about_of(part("timestamp"), source, part("commit-timestamp"))
        return opened(parts, images, about, passed_over, why)

    def image_of(self, message: Object) -> object:
        return dict(message).get("data")
