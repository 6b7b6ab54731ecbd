"""Maxwell's change events: the record is `data`, of an insert, an update, a delete or a row of a bootstrap.

The records that begin and end a bootstrap, and the schema changes of `output_ddl`, are passed over.
"""

import pyarrow as pa
import pyarrow.compute as pc

from common.schema import parse_ddl, to_arrow_type
from common.schema.types import Primitive
from stage_writer.decode.decode import Decoded
from stage_writer.decode.envelopes.row_changes import (
    Opened,
    about_of,
    column_of,
    is_one_of,
    no_image,
    not_a_row_change,
    opened,
    single_images,
)
from stage_writer.decode.json_document import Object
from stage_writer.decode.rejects import Refusal

_ROWS = ("insert", "update", "delete", "bootstrap-insert")
_PASSED_OVER = (
    "bootstrap-start",
    "bootstrap-complete",
    "database-create",
    "database-alter",
    "database-drop",
    "table-create",
    "table-alter",
    "table-drop",
)


class Maxwell:
    """An `Envelope`."""

    fields = parse_ddl("type STRING, `database` STRING, `table` STRING, ts TIMESTAMP, data STRING, old STRING")
    forms = {"ts": "epoch_s", "data": "json", "old": "json"}  # noqa: RUF012 - read only

    def opened(self, parts: Decoded) -> Opened:
        kind = column_of(parts, "type")
        images = single_images(column_of(parts, "data"), kind, column_of(parts, "old"), is_one_of(kind, _ROWS))
        passed_over = is_one_of(kind, _PASSED_OVER)

        def why(index: int) -> Refusal:
            known = kind[index].as_py()
            return no_image("type", known, "data") if known in _ROWS else not_a_row_change("type", known, _ROWS)

        never = pa.nulls(len(kind), to_arrow_type(Primitive.TIMESTAMP))  # Maxwell does not say when it sent it
        source = pc.binary_join_element_wise(column_of(parts, "database"), column_of(parts, "table"), ".")
        return opened(parts, images, about_of(never, source, column_of(parts, "ts")), passed_over, why)

    def image_of(self, message: Object) -> object:
        return dict(message).get("data")
