"""Which fields some records have, and which of them are declared. Pure.

Rules:

1. Fields are named by path as `drop` names them: `meta.producer`, `items.element.note`, `props.value.note`. An
   undeclared field is counted at its own path, without the fields inside it.
2. The names come from records, so their number is bounded: at most `MOST_NAMES`, and the rest is counted together.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from common.schema import ArrayType, DataType, MapType, StructType
from common.stage.undeclared import UndeclaredFields

MOST_NAMES = 50
_LONGEST_NAME = 100


@dataclass(slots=True)
class FieldCensus:
    columns: StructType
    taken: frozenset[str] = frozenset()
    """Names of undeclared fields that are not dropped either: their values still go into columns."""
    records: int = 0
    undeclared: Counter[str] = field(default_factory=Counter)
    """Records by the path of an undeclared field, within rule 2; each object in an array counts by itself."""
    others: int = 0
    """The same for all paths beyond `MOST_NAMES`."""
    seen: set[str] = field(default_factory=set)
    """The declared paths that occurred, null or not, and those with another source."""

    def add(self, record: object) -> None:
        """Count a record, as returned by `json.loads`; a value that is not an object has no fields."""
        self.records += 1
        self._add(record, self.columns, "")

    def add_text(self, message: bytes) -> None:
        """Count a message that is one JSON object. An unreadable message is a dead letter, and not counted here."""
        try:
            record = json.loads(message)
        except (ValueError, RecursionError):
            return
        if isinstance(record, dict):
            self.add(record)

    def add_all(self, other: FieldCensus) -> None:
        self.records += other.records
        self.others += other.others
        self.seen |= other.seen
        for path, count in other.undeclared.items():
            self._count(path, count)

    def undeclared_fields(self) -> UndeclaredFields | None:
        """The fields that no column holds, most frequent first, or None."""
        counts = self.undeclared.copy().most_common()
        return UndeclaredFields(self.records, dict(counts), self.others) if counts else None

    def _add(self, value: object, declared: DataType, path: str) -> None:
        match declared, value:
            case StructType(), dict():
                for name, inner in value.items():
                    here = f"{path}.{name}" if path else str(name)
                    known = declared.field(str(name))
                    if known is None:
                        if name not in self.taken:
                            self._count(here)
                    else:
                        self.seen.add(here)
                        self._add(inner, known.type, here)
            case ArrayType(element), list():
                for inner in value:
                    self._add(inner, element, f"{path}.element")
            case MapType(_, of_map), dict():
                for inner in value.values():
                    self._add(inner, of_map, f"{path}.value")
            case _:
                return

    def _count(self, path: str, count: int = 1) -> None:
        short = path if len(path) <= _LONGEST_NAME else f"{path[:_LONGEST_NAME]}…"
        if short in self.undeclared or len(self.undeclared) < MOST_NAMES:
            self.undeclared[short] += count
        else:
            self.others += count

    def missing(self) -> Iterator[tuple[str, str | None]]:
        """Declared fields that no record has, each with the undeclared one that was probably meant.

        The fields inside an object that no record has are left out.
        """
        for path in paths_of(self.columns):
            parent, _, name = path.rpartition(".")
            holder = parent
            while holder.endswith((".element", ".value")) and holder not in self.seen:
                holder = holder.rpartition(".")[0]
            if path in self.seen or (holder and holder not in self.seen):
                continue
            siblings = {
                other.rpartition(".")[2]: other for other in self.undeclared if other.rpartition(".")[0] == parent
            }
            same = next((other for other in siblings if other.casefold() == name.casefold()), None)
            close_matches = difflib.get_close_matches(name, siblings, n=1)
            meant = same or (close_matches[0] if close_matches else None)
            yield path, None if meant is None else siblings[meant]


def paths_of(declared: DataType, path: str = "") -> Iterator[str]:
    """The paths of all declared fields, each before those within it."""
    match declared:
        case StructType(fields):
            for field in fields:
                here = f"{path}.{field.name}" if path else field.name
                yield here
                yield from paths_of(field.type, here)
        case ArrayType(element):
            yield from paths_of(element, f"{path}.element")
        case MapType(_, value):
            yield from paths_of(value, f"{path}.value")
        case _:
            return
