"""The columns of dead-letter tables, and the headers of dead letters in a Kafka topic. Both services write them."""

from collections.abc import Iterable, Mapping

from common.schema.types import Field, Primitive, StructType
from common.settings.columns import KAFKA_FIELDS

DEAD_LETTER_SCHEMA = StructType(
    (
        *KAFKA_FIELDS,
        Field("key", Primitive.BINARY),
        Field("value", Primitive.BINARY),
        Field("error_class", Primitive.STRING),
        Field("error", Primitive.STRING),
    )
)

HEADER_PREFIX = "dead_letter."


def are_dead_letters(staged: StructType) -> bool:
    """Whether staged columns are those of dead letters."""
    return _names(staged) == _names(DEAD_LETTER_SCHEMA)


def is_for_another(table: StructType, staged: StructType) -> bool:
    """Whether rows were staged for a table of dead letters, or dead letters for a table of rows.

    A table of dead letters that was created by hand may lack some of their columns, or have more.
    """
    wanted, there, own = map(_names, (DEAD_LETTER_SCHEMA, table, staged))
    if own == wanted:
        return not (there <= wanted or there >= wanted)
    return there >= wanted and not own >= wanted


def _names(columns: StructType) -> set[str]:
    return {name.casefold() for name in columns.names}


def dead_letter_headers(
    app_id: str, error: tuple[str, str], source: tuple[str, int | str, int | str]
) -> list[dict[str, str | bytes]]:
    """The headers of a dead letter in a topic; ``error`` is its class and its text, ``source`` its topic and so on."""
    names = ("app_id", "error_class", "error", "topic", "partition", "offset")
    given = zip(names, (app_id, *error, *source), strict=True)
    return [{"name": HEADER_PREFIX + name, "value": str(value).encode()} for name, value in given]


def is_dead_letter(headers: Iterable[Mapping[str, object]], app_id: str, partition: int, offset: int) -> bool:
    """Whether these are the headers of a dead letter: of that stream, made of the message at that position."""
    given = {header["name"]: header["value"] for header in headers}
    wanted = {"app_id": app_id, "partition": partition, "offset": offset}
    return all(given.get(HEADER_PREFIX + name) == str(value).encode() for name, value in wanted.items())
