"""Which of the columns that records offer are added to a stream's tables. Pure; writers and loaders share the rules.

Rules:

1. Existing types stay: the table's types win over published ones, published types over offered ones, and the types of
   several offers are joined (common/schema/evolution.py). The result therefore does not depend on the order, the number
   of repetitions, or the process that takes the offers: one table always gets one set of columns.
2. A column that files have and the table lacks is added in any case: the files were staged with columns that are
   published, and the table has not had such files yet, was rolled back, or is another of the stream's tables.
3. The published columns have the table's types, where it has them.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import reduce

from common.schema import StructType
from common.schema.evolution import NO_COLUMNS, Addition, additions, extended, joined_columns, with_additions, within
from common.schema.naming import restricted


@dataclass(frozen=True, slots=True)
class Agreement:
    added: tuple[Addition, ...]
    """The columns that it lacks."""
    columns: StructType
    """The columns published for the stream's writers."""


@dataclass(frozen=True, slots=True)
class PublishedColumns:
    declared: StructType
    published: StructType
    limit: int
    """How many fields may be gained in addition to the declared ones."""

    @property
    def room(self) -> int:
        return self.limit - sum(column.size for column in additions(self.declared, self.published))


def joined_offers(offers: Iterable[StructType]) -> StructType:
    return reduce(joined_columns, offers, NO_COLUMNS)


def agree(
    table: StructType,
    known: PublishedColumns,
    offered: StructType,
    staged: StructType,
    refused: Collection[Addition] = (),
) -> Agreement:
    """The columns that the table gains; ``refused`` are additions that it did not accept."""
    later = extended(extended(table, staged), known.published)
    fresh = (column for column in additions(later, offered) if column not in refused)
    later = with_additions(later, within(fresh, known.room))
    # The table may already have a column that was offered, added by someone else: it is used as it is.
    gained = within(additions(known.published, restricted(later, offered)), known.room)
    return Agreement(additions(table, later), restricted(later, with_additions(known.published, gained)))
