"""The lowest and highest value of each key column among a load's events, which bound the rows that they may change.

Rules:

1. The bounds are those of the staged files' statistics, which are never tighter than the data. Where a file has no
   statistics, or the type has no exact literal, there is no bound. The merge then reads more, with the same result.
2. The bounds are literals in the merge's condition, so Delta skips partitions, and files by their statistics, that
   contain no such key. Partition columns that are not keys are never narrowed: the row that an event changes may be in
   another partition than the event's.
"""

import json
from collections.abc import Callable, Iterable, Sequence

from common.schema.types import Primitive, StructType
from common.stage.markers import StagedFile
from common.tables.changes import MergeBy

_WHOLE = (Primitive.BYTE, Primitive.SHORT, Primitive.INTEGER, Primitive.LONG)
_PLAIN_TEXT_END = 0x7F


def key_bounds(
    files: Iterable[StagedFile], columns: StructType, keys: Sequence[str], quote: Callable[[str], str]
) -> tuple[str, ...]:
    """Conditions on the table ``t`` that are true for every row with a key of these files."""
    statistics = [_statistics(file) for file in files]
    conditions: list[str] = []
    for key in keys:
        field = columns.field(key)
        lows = [lowest.get(key) for lowest, _ in statistics]
        highs = [highest.get(key) for _, highest in statistics]
        if field is None or not statistics or None in lows or None in highs:
            continue
        literals = _literals(field.type, lows), _literals(field.type, highs)
        if literals[0] and literals[1]:
            name = f"t.{quote(key)}"
            conditions += [f"{name} >= {min(literals[0])[1]}", f"{name} <= {max(literals[1])[1]}"]
    return tuple(conditions)


def bounded_keys(by: MergeBy) -> tuple[str, ...]:
    """The keys whose values are those of all rows that an event changes: not the elements that a record has lost."""
    return by.record if by.replaces_records else by.keys


def _statistics(file: StagedFile) -> tuple[dict[str, object], dict[str, object]]:
    try:
        statistics = json.loads(file.statistics, parse_float=str)
        return statistics["minValues"], statistics["maxValues"]
    except (ValueError, KeyError, TypeError):
        return {}, {}


def _literals(data_type: object, values: Iterable[object]) -> list[tuple[object, str]]:
    """Each value with its literal, mutually comparable; empty for a type without literals."""
    known = list(values)
    if data_type in _WHOLE and all(isinstance(value, int) for value in known):
        suffix = "L" if data_type is Primitive.LONG else ""
        return [(value, f"{value}{suffix}") for value in known]
    texts = [value for value in known if isinstance(value, str)]
    if data_type is Primitive.DATE and len(texts) == len(known):
        return [(text, f"DATE '{text}'") for text in texts]
    if data_type is Primitive.STRING and len(texts) == len(known) and all(map(_is_plain, texts)):
        return [(text, f"'{text}'") for text in texts]
    return []


def _is_plain(text: str) -> bool:
    """Whether a text is a literal as it is, in any dialect; a truncated maximum ends with the highest character.

    Spark substitutes variables in a statement's text, from its settings, Java's and the environment, even within
    literals.
    """
    return "${" not in text and all(
        ord(char) >= ord(" ") and ord(char) != _PLAIN_TEXT_END and char not in "'\\" for char in text
    )
