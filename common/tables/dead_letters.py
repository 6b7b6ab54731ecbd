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


def are_dead_letters(columns: StructType) -> bool:
    """Whether these are the columns of a dead-letter table, and no others."""
    return {*columns.names} == {*DEAD_LETTER_SCHEMA.names}


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
