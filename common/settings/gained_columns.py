"""Which columns one of a stream's tables gains, of fields that its records offer (common/schema/agreement.py).

Rule: a stream's gained columns are published, and offered, under the records' names, so an edit of `rename`,
`field_names` or `explode` leaves it true. The table has, and gains, columns of its own names. What is published stays
published, also while a setting gives two of its fields the same column: that is then the first one's.
"""

from collections.abc import Collection

from common.schema import StructType
from common.schema.agreement import Agreement, PublishedColumns, agree
from common.schema.evolution import Addition, extended, restricted
from common.settings.columns import as_in_records, as_in_table, having_columns
from common.settings.stream import Stream


def agree_in_table(
    stream: Stream,
    table: StructType,
    known: PublishedColumns,
    offered: StructType,
    staged: StructType,
    *,
    refused: Collection[Addition] = (),
) -> Agreement:
    """The columns that ``table`` gains, as it has them, and those that are published, as in records.

    ``stream`` has the table as its main one; ``staged`` and ``refused`` are the table's as well.
    """
    offered = restricted(offered, having_columns(stream, extended(extended(known.declared, known.published), offered)))
    in_table = PublishedColumns(as_in_table(stream, known.declared), as_in_table(stream, known.published), known.limit)
    agreed = agree(table, in_table, as_in_table(stream, offered), staged, refused)
    gained = extended(known.published, as_in_records(stream, agreed.columns, offered))
    return Agreement(agreed.added, as_in_records(stream, agreed.columns, gained, keep=True))
