"""Values with a unit or a small grammar: durations, sizes, schedules and start positions.

Rules:

1. A parser raises ValueError with a sentence that ends in an example; formatted text is parsed back to the same value.
2. Inside the program durations are seconds and sizes are bytes.
3. A cron line has the five fields minute, hour, day of the month, month, day of the week (0 is Monday; all in UTC). A
   field is a list, with commas, of ``*``, a number or a range, each with a ``/step`` or without; or of names: months
   and days of the week, and ``last`` for the last day of the month. What is accepted here, apscheduler's
   `CronTrigger.from_crontab` accepts (tests/property/test_cron.py), which the loader uses and the other programs do
   not have.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from common.settings.section import refuse
from common.spans import MAX_POSITION, Partition, Position, Topic
from common.stage import data_files

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?i?B|)\s*")
_LONGEST_DAYS = 36_500
"""A century: a moment that far ahead is still a valid date."""
_LAST_PORT = 65535
_MOST_WORKERS = 256
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MILLISECONDS = re.compile("[0-9]{13}")
"""Since 1970, a plain number in the years 2001 to 2286: neither seconds nor a date without hyphens are as long."""


def parse_duration_s(value: object) -> float:
    """Seconds of ``60s``, ``500ms``, ``15m``, ``24h``, ``7d`` or of a bare number of seconds."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        seconds = float(value)
    elif match is not None:
        seconds = float(match[1]) * _SECONDS[match[2]]
    else:
        refuse("is not a duration; write a number and a unit (ms, s, m, h, d, w), for example 60s")
    if seconds > _LONGEST_DAYS * _SECONDS["d"]:
        refuse(f"is too long; the most is {_LONGEST_DAYS}d")
    return seconds


def duration_text(seconds: float) -> str:
    """The shortest text that `parse_duration_s` reads as ``seconds``."""
    for unit in ("w", "d", "h", "m", "s"):
        count = seconds / _SECONDS[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)}{unit}"
    milliseconds = f"{seconds * 1000:.6f}".rstrip("0").rstrip(".")
    return f"{milliseconds}ms"


def parse_bytes(value: object) -> int:
    """Bytes of ``128MiB``, ``1GB`` or of a bare number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in _BYTES:
        refuse("is not a size; write a number and a unit (kB, MB, GB, KiB, MiB, GiB), for example 128MiB")
    return int(Decimal(match[1]) * _BYTES[match[2]])


def bytes_text(size_bytes: int) -> str:
    """The shortest text that `parse_bytes` reads as ``size_bytes``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _BYTES[unit] == 0:
            return f"{size_bytes // _BYTES[unit]}{unit}"
    return str(size_bytes)


def check_schedule(value: object) -> str:
    """An interval such as ``15m``, or the five fields of a cron line; returned as written."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        value = duration_text(parse_duration_s(value))
    text = value if isinstance(value, str) else ""
    if len(text.split()) == CRON_FIELDS:
        try:
            require_cron(text)
        except ValueError as error:
            refuse(f'is not a cron line: {error}; write one such as "*/15 * * * *", or an interval such as 15m')
        return text
    if _DURATION.fullmatch(text) is None or parse_duration_s(text) <= 0:
        refuse('is not a schedule; write an interval such as 15m, or a cron line of five fields such as "*/15 * * * *"')
    return text


OFF = "off"
ON_MARKER = "on-marker"
"""Load when writers signal new markers."""
RETENTION_ON_MARKER = "10m"


def check_off_or_schedule(value: object) -> str:
    """``off``, or a schedule that `check_schedule` accepts."""
    return OFF if value in (OFF, False) else check_schedule(value)  # YAML reads a bare ``off`` as false


def check_load_schedule(value: object) -> str:
    """``on-marker``, or a schedule that `check_schedule` accepts."""
    try:
        return ON_MARKER if value == ON_MARKER else check_schedule(value)
    except ValueError as error:
        raise ValueError(f"{error}, or on-marker") from None


def check_address(value: object) -> str | None:
    """``host:port`` to listen at, or None."""
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if value is not None and not (host and port.isdecimal() and int(port) <= _LAST_PORT):
        refuse("is not an address; write host:port such as 127.0.0.1:8080, or null for none")
    return value if isinstance(value, str) else None


_HOST_NAME = re.compile(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def check_host_name(value: object) -> str:
    """A name that requests may use: a host's, ``*.`` and a domain's, or ``*`` for any."""
    if not isinstance(value, str) or _HOST_NAME.fullmatch(value) is None:
        refuse("is not a host name; write one without scheme and port such as pipeline.example.com or *.example.com")
    return value


_LEAST_TOKEN = 16


def check_http_token(value: object) -> str | None:
    """A secret for calls over HTTP, or None."""
    if value is not None and not (isinstance(value, str) and len(value) >= _LEAST_TOKEN and value.isascii()):
        refuse(
            f"is not a token; write at least {_LEAST_TOKEN} ASCII characters that are hard to guess, or null for none"
        )
    return value if isinstance(value, str) else None


AUTO = 0
"""One per core."""


def parse_workers(value: object) -> int:
    """A number of processes, `AUTO` for ``auto``."""
    if value == "auto":
        return AUTO
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_WORKERS:
        return value
    raise ValueError(f"is not a number from 1 to {_MOST_WORKERS}; write one, or auto for one worker a core")


def workers_text(workers: int) -> str | int:
    """The text that `parse_workers` reads as ``workers``."""
    return "auto" if workers == AUTO else workers


_DURATION_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "string", "pattern": rf"^{_DURATION.pattern}$"}, {"type": "number", "minimum": 0}]}
)
_SIZE_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string", "pattern": rf"^\s*\d+(\.\d+)?\s*({'|'.join(_BYTES)})\s*$"},
            {"type": "integer", "minimum": 0},
        ]
    }
)
_WORKERS_SCHEMA = WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": 256}]})

DurationS = Annotated[float, BeforeValidator(parse_duration_s), PlainSerializer(duration_text), _DURATION_SCHEMA]
SizeBytes = Annotated[int, BeforeValidator(parse_bytes), PlainSerializer(bytes_text), _SIZE_SCHEMA]
OffOrSchedule = Annotated[str, BeforeValidator(check_off_or_schedule)]
LoadSchedule = Annotated[str, BeforeValidator(check_load_schedule), WithJsonSchema({"type": ["string", "number"]})]
CODECS = f"^({'|'.join(data_files.CODECS)})$"
Workers = Annotated[int, BeforeValidator(parse_workers), PlainSerializer(workers_text), _WORKERS_SCHEMA]
HttpToken = Annotated[str | None, BeforeValidator(check_http_token)]
Address = Annotated[str | None, BeforeValidator(check_address)]
HostName = Annotated[str, BeforeValidator(check_host_name)]


class StartAt(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class FromTimestamp:
    """The first record whose Kafka timestamp is at or after a moment."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class FromOffsets:
    """A position for each Kafka partition; ``topic`` None stands for every topic of the stream."""

    positions: Mapping[tuple[Topic | None, Partition], Position]

    def position(self, topic: Topic, partition: Partition) -> Position | None:
        return self.positions.get((topic, partition), self.positions.get((None, partition)))


Start = StartAt | FromTimestamp | FromOffsets

START_HELP = (
    "is not a start; write earliest, latest, a time such as 2026-03-01T00:00:00Z (or its milliseconds since 1970), "
    "or positions such as {0: 120, 1: 340} or {orders: {0: 120}}"
)


def parse_timestamp_ms(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time, in UTC without a zone; a plain number is returned unchanged.

    Raises ValueError.
    """
    if _MILLISECONDS.fullmatch(text):  # before ISO 8601, which would read the first four digits as a year
        return int(text)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MILLISECOND  # in whole numbers: a float of seconds would be off by one sometimes


def parse_start(value: object) -> Start:
    """A start from YAML's value: a word, a time (PyYAML may have made a date or a number of it), or a map."""
    if isinstance(value, (StartAt, FromTimestamp, FromOffsets)):
        return value
    if isinstance(value, int) and _MILLISECONDS.fullmatch(str(value)):
        value = str(value)
    if isinstance(value, date):  # a datetime is one, too
        return FromTimestamp(parse_timestamp_ms(value.isoformat()))
    if isinstance(value, str):
        if value in set(StartAt):
            return StartAt(value)
        try:
            return FromTimestamp(parse_timestamp_ms(value))
        except ValueError:
            raise ValueError(START_HELP) from None
    if isinstance(value, dict) and value:
        pairs = _pairs(value, None)
        positions = dict(pairs)
        if len(positions) < len(pairs):
            refuse("has two positions of one partition; name each partition once")
        return FromOffsets(positions)
    raise ValueError(START_HELP)


def _pairs(value: dict[object, object], topic: Topic | None) -> list[tuple[tuple[Topic | None, Partition], Position]]:
    pairs: list[tuple[tuple[Topic | None, Partition], Position]] = []
    for key, entry in value.items():
        if isinstance(entry, dict) and topic is None:
            pairs += _pairs(entry, Topic(str(key)))
        elif (
            str(key).isdecimal()
            and isinstance(entry, int)
            and not isinstance(entry, bool)
            and 0 <= entry <= MAX_POSITION
        ):
            pairs.append(((topic, Partition(int(str(key)))), Position(entry)))
        else:
            raise ValueError(START_HELP)
    return pairs


def start_text(start: Start) -> object:
    """The YAML form of a start; the inverse of `parse_start`."""
    if isinstance(start, StartAt):
        return start.value
    if isinstance(start, FromTimestamp):
        return (_EPOCH + start.timestamp_ms * _MILLISECOND).isoformat()
    positions: dict[object, object] = {}
    for (topic, partition), position in start.positions.items():
        if topic is None:
            positions[int(partition)] = int(position)
        else:
            inner = positions.setdefault(str(topic), {})
            if isinstance(inner, dict):
                inner[int(partition)] = int(position)
    return positions


_START_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "object", "minProperties": 1}]}
)
StartValue = Annotated[Start, BeforeValidator(parse_start), PlainSerializer(start_text), _START_SCHEMA]


class Native(StrEnum):
    """Whether the C reader is used, required or off."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


def parse_native(value: object) -> object:
    """YAML has booleans for ``on`` and ``off``."""
    return (Native.ON if value else Native.OFF) if isinstance(value, bool) else value


NativeChoice = Annotated[
    Native, BeforeValidator(parse_native), WithJsonSchema({"enum": ["auto", "on", "off", True, False]})
]


class LoadSetting(StrEnum):
    """How rows are loaded into a stream's tables."""

    AUTO = "auto"
    ADD = "add"
    APPEND = "append"
    MERGE = "merge"

    @property
    def waits_for_spark(self) -> bool:
        """Whether rows are staged below the stage, because no file is ever added as it is."""
        return self in (LoadSetting.APPEND, LoadSetting.MERGE)


class Evolution(StrEnum):
    """How the loader treats a difference between staged columns and the table's."""

    STRICT = "strict"
    ADD = "add"
    WIDEN = "widen"


CRON_FIELDS = 5
_CRON_NUMBERS = re.compile(r"(?:\*|(\d{1,4})(?:-(\d{1,4}))?)(?:/(\d{1,4}))?")
_CRON_NAMES = re.compile(r"([a-z]+)(?:-([a-z]+))?", re.IGNORECASE)
_DAYS_OF_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LAST_DAY = "last"


@dataclass(frozen=True, slots=True)
class _CronField:
    title: str
    lowest: int
    highest: int
    names: Mapping[str, int] = field(default_factory=dict)

    def values(self, text: str) -> Iterator[int]:
        """The values of the field's text; raises ValueError."""
        for part in text.split(","):
            numbers, names = _CRON_NUMBERS.fullmatch(part), _CRON_NAMES.fullmatch(part)
            if numbers is not None:
                first, last, step = (None if number is None else int(number) for number in numbers.groups())
                until = self.highest if first is None or step is not None else first
                yield from self._range(
                    part, self.lowest if first is None else first, until if last is None else last, step
                )
            elif names is not None and all(name is None or name.lower() in self.names for name in names.groups()):
                first_name, last_name = (name and name.lower() for name in names.groups())
                yield from self._range(part, self.names[first_name], self.names[last_name or first_name], None)
            else:
                raise self._invalid(part)

    def _range(self, part: str, first: int, last: int, step: int | None) -> range:
        if not self.lowest <= first <= last <= self.highest or (step is not None and not 0 < step <= last - first):
            raise self._invalid(part)
        return range(first, last + 1, step or 1)

    def _invalid(self, part: str) -> ValueError:
        return ValueError(f"the {self.title} cannot be {part!r}")


def _numbered(text: str, first: int) -> dict[str, int]:
    return {name: number for number, name in enumerate(text.split(), first)}


_MINUTE, _HOUR = _CronField("minute", 0, 59), _CronField("hour", 0, 23)
_DAY = _CronField("day of the month", 1, 31, {_LAST_DAY: 28})
_MONTH = _CronField("month", 1, 12, _numbered("jan feb mar apr may jun jul aug sep oct nov dec", 1))
_WEEKDAY = _CronField("day of the week", 0, 6, _numbered("mon tue wed thu fri sat sun", 0))


def require_cron(text: str) -> None:
    """Raise ValueError for a text of five fields that is not a valid cron line, or never fires."""
    minute, hour, day, month, weekday = text.split()
    for each, given in ((_MINUTE, minute), (_HOUR, hour), (_WEEKDAY, weekday)):
        list(each.values(given))
    days, months = list(_DAY.values(day)), list(_MONTH.values(month))
    if all(day_number > _DAYS_OF_MONTH[month_number - 1] for month_number in months for day_number in days):
        raise ValueError("no such day exists")
