"""Which fields of records no column takes, counted in a sample of them.

Rules:

1. The names come from records: a writer keeps a bounded number of them, of bounded length, and counts the others
   together. Code that prints them escapes them (common/printable.py).
2. Counts are of sampled records, never of all: parsing each record twice would cost more than the rest of its
   conversion.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from common.stage.stored import Count

_MOST_NAMED = 10
REMEDY = (
    "declare them in streams[].columns, keep them by unknown_fields: rescue, or say that they are left out by "
    "unknown_fields: ignore"
)


@dataclass(frozen=True, slots=True)
class UndeclaredFields:
    """Undeclared fields in the sampled records of one or several flushes."""

    sampled: Count
    fields: Mapping[str, Count]
    """Records by the path of a field, such as ``meta.producer``."""
    others: Count = 0
    """The same for all other paths together."""

    @property
    def sentence(self) -> str:
        counts = Counter(self.fields).most_common()
        named = ", ".join(f"{path} ({count:,})" for path, count in counts[:_MOST_NAMED])
        more = f" and {len(counts) - _MOST_NAMED} more" if len(counts) > _MOST_NAMED else ""
        others = f", and others ({self.others:,})" if self.others else ""
        return f"of {self.sampled:,} sampled records, fields that no column takes: {named}{more}{others}"


def together(samples: Iterable[UndeclaredFields]) -> UndeclaredFields | None:
    """The sum of several counts, or None."""
    all_of_them = list(samples)
    if not all_of_them:
        return None
    fields: Counter[str] = Counter()
    for each in all_of_them:
        fields.update(each.fields)
    return UndeclaredFields(
        sum(each.sampled for each in all_of_them), dict(fields), sum(each.others for each in all_of_them)
    )
