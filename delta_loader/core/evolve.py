"""What a table gains of what writers offer: pure.

Rules:

1. What is there stays as it is: the table's types win over published ones, these over offered ones, and of several
   offers the types are joined (common/schema/evolution.py). So it does not matter in which order, how often, or by
   which of several loaders offers are taken: from one table, one set of columns comes out.
2. What files have and the table lacks is added in any case: they were staged with columns that were published once, and
   the table has gone back since, or is another one of the stream's tables.
3. What is published is what the table has of it, with the table's types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.schema.evolution import NO_COLUMNS, additions, joined_columns, restricted, with_additions, within

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from common.schema import StructType
    from common.schema.evolution import Addition


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a table is to gain."""

    added: tuple[Addition, ...]
    """What it lacks."""
    columns: StructType
    """What is published once it has that."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a stream's columns are so far."""

    declared: StructType
    published: StructType
    limit: int
    """How many fields may be gained beside the declared ones."""

    @property
    def room(self) -> int:
        """How many more may be."""
        return self.limit - sum(one.size for one in additions(self.declared, self.published))


def joined_offers(offers: Iterable[StructType]) -> StructType:
    """Several offers as one."""
    found = NO_COLUMNS
    for offer in offers:
        found = joined_columns(found, offer)
    return found


def agree(
    table: StructType, known: Known, offered: StructType, staged: StructType, refused: Collection[Addition] = ()
) -> Agreement:
    """What the table is to gain; ``refused`` is what it turned out not to take."""
    due = additions(table, staged)
    later = with_additions(table, due)
    due = (*due, *additions(later, known.published))
    later = with_additions(table, due)
    fresh = (one for one in additions(later, offered) if one not in refused)
    added = (*due, *within(fresh, known.room))
    later = with_additions(table, added)
    # The table may have a column that was offered, by somebody else's hand: it is used as it is.
    gained = within(additions(known.published, restricted(later, offered)), known.room)
    return Agreement(added, restricted(later, with_additions(known.published, gained)))
