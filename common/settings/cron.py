"""Cron lines: the five fields minute, hour, day of the month, month, day of the week (0 is Monday; all in UTC).

Rule: what is accepted here, apscheduler's `CronTrigger.from_crontab` accepts (tests/property/test_cron.py), which the
loader uses and the other programs do not have. A field is a list, with commas, of ``*``, a number or a range, each with
a ``/step`` or without; or of names: months and days of the week, and ``last`` for the last day of the month.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

CRON_FIELDS = 5
_NUMBERS = re.compile(r"(?:\*|(\d{1,4})(?:-(\d{1,4}))?)(?:/(\d{1,4}))?")
_NAMES = re.compile(r"([a-z]+)(?:-([a-z]+))?", re.IGNORECASE)
_DAYS_OF_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LAST = "last"


@dataclass(frozen=True, slots=True)
class _Field:
    title: str
    lowest: int
    highest: int
    names: Mapping[str, int] = field(default_factory=dict)

    def values(self, text: str) -> Iterator[int]:
        """The values of the field's text; raises ValueError."""
        for part in text.split(","):
            numbers, names = _NUMBERS.fullmatch(part), _NAMES.fullmatch(part)
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


def _names(text: str, first: int) -> dict[str, int]:
    return {name: number for number, name in enumerate(text.split(), first)}


_MINUTE, _HOUR = _Field("minute", 0, 59), _Field("hour", 0, 23)
_DAY = _Field("day of the month", 1, 31, {_LAST: 28})
_MONTH = _Field("month", 1, 12, _names("jan feb mar apr may jun jul aug sep oct nov dec", 1))
_WEEKDAY = _Field("day of the week", 0, 6, _names("mon tue wed thu fri sat sun", 0))


def require_cron(text: str) -> None:
    """Raise ValueError for a text of five fields that is not a valid cron line, or never fires."""
    minute, hour, day, month, weekday = text.split()
    for each, given in ((_MINUTE, minute), (_HOUR, hour), (_WEEKDAY, weekday)):
        list(each.values(given))
    days, months = list(_DAY.values(day)), list(_MONTH.values(month))
    if all(day_number > _DAYS_OF_MONTH[month_number - 1] for month_number in months for day_number in days):
        raise ValueError("no such day exists")
